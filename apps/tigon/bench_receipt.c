#include "bench_receipt.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench_machine.h"

enum { MOST_CEILINGS = 256 };

struct bench_receipt {
  char path[4000], temporary[4096];
  cJSON *measurements;
  double fma[MOST_CEILINGS], copy[MOST_CEILINGS];
  int fma_count, copy_count;
  bool complete; /* no measurement was lost for want of memory */
};

bench_receipt *bench_receipt_open(const char *path, failure *failed) {
  struct stat found;
  bench_receipt *r = calloc(1, sizeof *r);
  if (r) r->measurements = cJSON_CreateArray();
  if (!r || !r->measurements) {
    fail_with(failed, "no memory for the receipt");
  } else if (snprintf(r->path, sizeof r->path, "%s", path) >= (int)sizeof r->path) {
    fail_with(failed, "%.200s: the name is too long", path);
  } else if (!stat(path, &found) && !S_ISREG(found.st_mode)) {
    fail_with(failed, "%s: is no regular file", path);
  } else {
    snprintf(r->temporary, sizeof r->temporary, "%s.%ld.tmp", path, (long)getpid());
    FILE *probe = fopen(r->temporary, "wxe");
    r->complete = true;
    if (probe && !fclose(probe) && !remove(r->temporary)) return r;
    fail_with(failed, "%s: cannot write: %s", path, strerror(errno));
  }
  bench_receipt_drop(r);
  return NULL;
}

void bench_receipt_drop(bench_receipt *receipt) {
  if (receipt) cJSON_Delete(receipt->measurements);
  free(receipt);
}

static void note_ceiling(bench_receipt *r, const bench_pass *pass) {
  if (pass->flop > 0 && r->fma_count < MOST_CEILINGS)
    r->fma[r->fma_count++] = pass->ceiling;
  else if (pass->flop == 0 && r->copy_count < MOST_CEILINGS)
    r->copy[r->copy_count++] = pass->ceiling;
}

void bench_receipt_add(bench_receipt *r, const bench_case *c, const bench_pass *pass, const char *provider,
                       const char *version, const bench_figures *figures) {
  if (!r) return;
  cJSON *m = cJSON_CreateObject();
  const bool compute = pass->flop > 0;
  const double work = compute ? pass->flop : (double)pass->bytes;
  bool ok = cJSON_AddStringToObject(m, "family", c->family) && cJSON_AddStringToObject(m, "pass", pass->name) &&
            cJSON_AddStringToObject(m, "row", c->name) && cJSON_AddStringToObject(m, "dtype", c->dtype) &&
            cJSON_AddStringToObject(m, "provider", provider) && cJSON_AddStringToObject(m, "provider_version", version);
  ok = ok && cJSON_AddNumberToObject(m, "device_ms", figures->seconds * 1e3) &&
       cJSON_AddNumberToObject(m, "op_ms", figures->seconds * 1e3) && cJSON_AddNullToObject(m, "host_us") &&
       cJSON_AddNumberToObject(m, "floor_ms", work / pass->ceiling * 1e-6) &&
       cJSON_AddNumberToObject(m, "fastest_ms", figures->fastest * 1e3) &&
       cJSON_AddNumberToObject(m, "repetitions", pass->repetitions) &&
       cJSON_AddNumberToObject(m, compute ? "flop" : "bytes", work) &&
       cJSON_AddNumberToObject(m, compute ? "ceiling_gflops" : "ceiling_gbs", pass->ceiling);
  ok = ok && (figures->peak >= 0 ? cJSON_AddNumberToObject(m, "peak_bytes", (double)figures->peak)
                                 : cJSON_AddNullToObject(m, "peak_bytes"));
  ok = ok && cJSON_AddBoolToObject(m, "correct", figures->correct);
  ok = ok && cJSON_AddItemToArray(r->measurements, m);
  if (!ok) cJSON_Delete(m);
  r->complete = r->complete && ok;
  if (!strcmp(provider, "tigon")) note_ceiling(r, pass);
}

static bool write_line(FILE *file, const cJSON *object) {
  char *text = cJSON_PrintUnformatted(object);
  const bool ok = text && fprintf(file, "%s\n", text) > 0;
  cJSON_free(text);
  return ok;
}

static bool write_lines(const bench_receipt *r, const cJSON *environment, failure *failed) {
  FILE *file = fopen(r->temporary, "wxe");
  if (!file) return fail_with(failed, "%s: cannot create: %s", r->temporary, strerror(errno));
  errno = 0;
  bool ok = write_line(file, environment);
  const cJSON *m;
  cJSON_ArrayForEach(m, r->measurements) ok = ok && write_line(file, m);
  ok = ok && !fflush(file) && !fsync(fileno(file));
  ok = !fclose(file) && ok;
  ok = ok && !rename(r->temporary, r->path);
  if (ok) return true;
  fail_with(failed, "%s: cannot write: %s", r->path, strerror(errno ? errno : ENOMEM));
  remove(r->temporary);
  return false;
}

bool bench_receipt_close(bench_receipt *r, const bench *b, failure *failed) {
  cJSON *environment = bench_environment(b);
  cJSON *ceilings = cJSON_AddObjectToObject(environment, "ceilings");
  bool ok = ceilings && r->complete;
  if (r->fma_count) ok = ok && cJSON_AddNumberToObject(ceilings, "fma_gflops", bench_median(r->fma, r->fma_count));
  if (r->copy_count) ok = ok && cJSON_AddNumberToObject(ceilings, "copy_gbs", bench_median(r->copy, r->copy_count));
  if (ok)
    ok = write_lines(r, environment, failed);
  else
    fail_with(failed, "no memory for the receipt");
  cJSON_Delete(environment);
  bench_receipt_drop(r);
  return ok;
}
