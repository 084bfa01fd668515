#include "bench_child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

static int spawn(pid_t *pid, const char *const *argv, char *const *environment, int in, int out, int shared) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  sigset_t defaults;
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGPIPE);
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  if (shared >= 0) posix_spawn_file_actions_adddup2(&actions, shared, STDERR_FILENO + 1);
  const int error = posix_spawnp(pid, argv[0], &actions, &attributes, (char *const *)argv, environment);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

int bench_child_start(bench_child *child, const char *const *argv, char *const *environment, int shared) {
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC)) return errno;
  if (pipe2(out, O_CLOEXEC)) {
    const int error = errno;
    close(in[0]);
    close(in[1]);
    return error;
  }
  const int error = spawn(&child->pid, argv, environment, in[0], out[1], shared);
  close(in[0]);
  close(out[1]);
  child->to = in[1];
  child->from = out[0];
  child->used = child->taken = 0;
  if (error) {
    close(in[1]);
    close(out[0]);
  }
  return error;
}

static bool write_all(int to, const char *text, size_t size) {
  while (size > 0) {
    const ssize_t written = write(to, text, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text += written;
    size -= (size_t)written;
  }
  return true;
}

bool bench_child_say(bench_child *child, const char *line) {
  return write_all(child->to, line, strlen(line)) && write_all(child->to, "\n", 1);
}

bench_heard bench_child_listen(bench_child *child, double seconds, const char **line) {
  const double until = bench_now() + seconds;
  memmove(child->line, child->line + child->taken, child->used -= child->taken);
  child->taken = 0;
  for (;;) {
    char *end = memchr(child->line, '\n', child->used);
    if (end) {
      *end = 0;
      child->taken = (size_t)(end - child->line) + 1;
      *line = child->line;
      return HEARD_LINE;
    }
    if (child->used == sizeof child->line) return HEARD_TOO_MUCH;
    const double left = until - bench_now();
    struct pollfd ready = {.fd = child->from, .events = POLLIN};
    const int polled = left > 0 ? poll(&ready, 1, (int)(left * 1000) + 1) : 0;
    if (polled < 0 && errno == EINTR) continue;
    if (polled <= 0) return HEARD_NOTHING;
    const ssize_t got = read(child->from, child->line + child->used, sizeof child->line - child->used);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return HEARD_END;
    child->used += (size_t)got;
  }
}

int bench_child_end(bench_child *child, bool at_once) {
  enum { PATIENCE_MS = 3000, STEP_MS = 5 };
  int status = 0;
  close(child->to);
  for (int waited = 0; !at_once && waited < PATIENCE_MS; waited += STEP_MS) {
    if (waitpid(child->pid, &status, WNOHANG) == child->pid) {
      close(child->from);
      return status;
    }
    poll(NULL, 0, STEP_MS);
  }
  kill(child->pid, SIGKILL);
  while (waitpid(child->pid, &status, 0) < 0 && errno == EINTR) continue;
  close(child->from);
  return status;
}
