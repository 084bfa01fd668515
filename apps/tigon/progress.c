#include "progress.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "machine.h"
#include "paths.h"

/* Cuts the file after its last whole line of a step up to `step`. */
static bool forget_after(progress *p, int64_t step) {
  char *line = NULL;
  size_t room = 0;
  off_t keep = 0;
  ssize_t length;
  rewind(p->metrics);
  while ((length = getline(&line, &room, p->metrics)) > 0) {
    const char *number = strstr(line, "\"step\":");
    if (line[length - 1] != '\n' || !number || strtoll(number + 7, NULL, 10) > step) break;
    keep += length;
  }
  const bool read = length > 0 || feof(p->metrics); /* not so where memory for a line was missing */
  free(line);
  return read && !ferror(p->metrics) && !ftruncate(fileno(p->metrics), keep) && !fseeko(p->metrics, 0, SEEK_END);
}

bool progress_open(progress *p, const char *directory, int64_t step, failure *failed) {
  *p = (progress){0};
  if (!join_path(p->path, sizeof p->path, directory, METRICS_NAME))
    return fail_with(failed, "%s: the name is too long", directory);
  p->metrics = fopen(p->path, "a+e");
  if (!p->metrics) return fail_with(failed, "%s: cannot write: %s", p->path, strerror(errno));
  struct stat status;
  if (fstat(fileno(p->metrics), &status) || !S_ISREG(status.st_mode))
    return fail_with(failed, "%s: is no regular file", p->path);
  /* Two runs would mix their lines and replace each other's checkpoints. The lock ends with the process. */
  if (flock(fileno(p->metrics), LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
    return fail_with(failed, "%s: another run is writing to it", p->path);
  if (!forget_after(p, step)) return fail_with(failed, "%s: cannot write: %s", p->path, strerror(errno));
  struct winsize size;
  if (isatty(STDERR_FILENO)) p->terminal = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) || !size.ws_col ? 80 : size.ws_col;
  return true;
}

static bool record(progress *p, const step_report *r) {
  const int written =
      fprintf(p->metrics,
              "{\"step\":%lld,\"loss\":%.6f,\"lr\":%.6g,\"grad_norm\":%.6g,\"tokens_per_second\":%.1f,\"balance\":%.5f,"
              "\"busiest_expert\":%.4f,\"tokens\":%lld,\"seconds\":%.3f}\n",
              (long long)r->step, r->loss, r->rate, r->gradient_norm, per_second(r->tokens, r->step_seconds),
              r->balance, r->busiest, (long long)(r->step * r->tokens), r->seconds);
  return written > 0 && !fflush(p->metrics);
}

static void show(progress *p, const step_report *r) {
  char line[160];
  const long long left = (long long)fmin(ceil(r->seconds_left), 1e15);
  int length = snprintf(
      line, sizeof line, "step %lld/%lld  loss %.4f  %.0f tokens/s  busiest expert %.2fx  %lld:%02lld left",
      (long long)r->step, (long long)r->steps, p->loss, p->tokens_per_second, r->busiest, left / 60, left % 60);
  if (!p->terminal) {
    fprintf(stderr, "%s\n", line);
  } else {
    if (length >= p->terminal) line[p->terminal - 1] = 0;
    fprintf(stderr, "\r%s\033[K", line);
  }
  p->shown = r->seconds;
}

bool progress_step(progress *p, const step_report *r, failure *failed) {
  const double speed = per_second(r->tokens, r->step_seconds);
  const bool first = !p->begun, last = r->step == r->steps;
  p->begun = true;
  p->loss = first ? r->loss : 0.9 * p->loss + 0.1 * r->loss;
  p->tokens_per_second = first ? speed : 0.9 * p->tokens_per_second + 0.1 * speed;
  if (first || last || r->seconds - p->shown >= (p->terminal ? 0.2 : 10)) show(p, r);
  if (!record(p, r)) return fail_with(failed, "%s: cannot write: %s", p->path, strerror(errno));
  return true;
}

void progress_pause(progress *p) {
  if (p->terminal && p->shown > 0) fputc('\n', stderr);
  p->shown = 0;
}

bool progress_close(progress *p, failure *failed) {
  progress_pause(p);
  FILE *metrics = p->metrics;
  p->metrics = NULL;
  if (metrics && fclose(metrics)) return fail_with(failed, "%s: cannot write: %s", p->path, strerror(errno));
  return true;
}
