#include "summary.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "evaluate.h"
#include "ngram.h"

static const char *const ngram_names[NGRAM_ORDERS] = {"unigram", "bigram", "trigram", "fourgram"};

typedef struct results {
  double nats, ngrams[NGRAM_ORDERS], evaluation_seconds, tokens_per_second, seconds;
} results;

static void print_table(const results *r, int64_t bytes) {
  printf("\nvalidation, %lld bytes               nats a byte   bits a byte\n", (long long)bytes);
  for (int n = 0; n < NGRAM_ORDERS; n++)
    printf("  %-8s (%d byte%s of context)      %8.4f      %8.4f\n", ngram_names[n], n, n == 1 ? " " : "s", r->ngrams[n],
           r->ngrams[n] / 0.6931471805599453);
  printf("  this model                         %8.4f      %8.4f\n", r->nats, r->nats / 0.6931471805599453);
  printf("trained %.0f s at %.0f tokens/s, evaluated in %.0f s\n", r->seconds - r->evaluation_seconds,
         r->tokens_per_second, r->evaluation_seconds);
}

/* {"validation_nats": ...} */
static char *as_json(const results *r, const run_state *s, const text_data *data, int64_t parameters) {
  cJSON *json = cJSON_CreateObject();
  bool ok = json && cJSON_AddNumberToObject(json, "validation_nats", r->nats);
  for (int n = 0; ok && n < NGRAM_ORDERS; n++) {
    char name[32];
    snprintf(name, sizeof name, "%s_nats", ngram_names[n]);
    ok = cJSON_AddNumberToObject(json, name, r->ngrams[n]);
  }
  const struct {
    const char *name;
    double value;
  } numbers[] = {
      {"validation_bytes", (double)(data->size - data->train_size)},
      {"validation_context", (double)(s->length / 4)},
      {"tokens_per_second", r->tokens_per_second},
      {"seconds", r->seconds},
      {"evaluation_seconds", r->evaluation_seconds},
      {"steps", (double)s->step},
      {"tokens", (double)(s->step * s->batch * s->length)},
      {"parameters", (double)parameters},
      {"data_bytes", (double)data->size},
  };
  for (size_t i = 0; ok && i < sizeof numbers / sizeof *numbers; i++)
    ok = cJSON_AddNumberToObject(json, numbers[i].name, numbers[i].value);
  ok = ok && cJSON_AddStringToObject(json, "validation",
                                     "every byte of the split once, in windows of one sequence length whose first "
                                     "validation_context tokens are context alone");
  ok = ok && cJSON_AddStringToObject(json, "ngram_smoothing", "interpolated Witten-Bell, fitted on the training split");
  ok = ok && cJSON_AddStringToObject(json, "cpu_isa", tigon_cpu_isa());
  char *text = ok ? cJSON_Print(json) : NULL;
  cJSON_Delete(json);
  return text;
}

static bool write_json(const char *directory, const char *json, failure *failed) {
  char path[4096];
  if (!join_path(path, sizeof path, directory, SUMMARY_NAME))
    return fail_with(failed, "%s: the name is too long", directory);
  FILE *file = fopen(path, "we");
  if (!file) return fail_with(failed, "%s: cannot create: %s", path, strerror(errno));
  bool ok = fprintf(file, "%s\n", json) > 0;
  ok = !fclose(file) && ok;
  return ok || fail_with(failed, "%s: cannot write: %s", path, strerror(errno));
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

bool summarise(model *m, const run_state *state, const text_data *data, const char *directory, failure *failed) {
  results r = {0};
  const double begin = now();
  if (!evaluate(m, data, &r.nats, failed)) return false;
  if (!ngram_nats(data, data->train_size, data->size, r.ngrams, failed)) return false;
  r.evaluation_seconds = now() - begin;
  r.seconds = state->seconds + r.evaluation_seconds;
  r.tokens_per_second = (double)(state->step * state->batch * state->length) / state->seconds;
  int64_t parameters = 0;
  for (int i = 0; i < m->shape->count; i++) parameters += m->shape->parameters[i].count;
  char *json = as_json(&r, state, data, parameters);
  if (!json) return fail_with(failed, "no memory for the summary");
  const bool ok = write_json(directory, json, failed);
  cJSON_free(json);
  if (ok) print_table(&r, data->size - data->train_size);
  return ok;
}
