#include "summary.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "evaluate.h"
#include "machine.h"
#include "ngram.h"
#include "paths.h"

static const char *const ngram_names[NGRAM_ORDERS] = {"unigram", "bigram", "trigram", "fourgram"};

typedef struct results {
  int64_t end; /* tokens [train_size, end) were scored */
  double nats, ngrams[NGRAM_ORDERS], evaluation_seconds, tokens_per_second, seconds;
} results;

static void print_text_table(const results *r, int64_t scored) {
  printf("\nvalidation, %lld bytes               nats a byte   bits a byte\n", (long long)scored);
  for (int n = 0; n < NGRAM_ORDERS; n++)
    printf("  %-8s (%d byte%s of context)      %8.4f      %8.4f\n", ngram_names[n], n, n == 1 ? " " : "s", r->ngrams[n],
           r->ngrams[n] / 0.6931471805599453);
  printf("  this model                         %8.4f      %8.4f\n", r->nats, r->nats / 0.6931471805599453);
}

static void print_table(const results *r, const dataset *data) {
  const int64_t scored = r->end - data->train_size;
  if (dataset_kind(data) == DATA_TEXT)
    print_text_table(r, scored);
  else
    printf("\nvalidation, %lld tokens: %.4f nats a token, perplexity %.6g\n", (long long)scored, r->nats, exp(r->nats));
  printf("trained %.0f s at %.0f tokens/s, evaluated in %.0f s\n", r->seconds - r->evaluation_seconds,
         r->tokens_per_second, r->evaluation_seconds);
}

static bool add_ngrams(cJSON *json, const results *r) {
  bool ok = cJSON_AddStringToObject(json, "ngram_smoothing", "interpolated Witten-Bell, fitted on the training split");
  for (int n = 0; ok && n < NGRAM_ORDERS; n++) {
    char name[32];
    snprintf(name, sizeof name, "%s_nats", ngram_names[n]);
    ok = cJSON_AddNumberToObject(json, name, r->ngrams[n]);
  }
  return ok;
}

/* {"validation_nats": ...} */
static char *as_json(const results *r, const run_state *s, const dataset *data, int64_t parameters) {
  const bool text = dataset_kind(data) == DATA_TEXT;
  cJSON *json = cJSON_CreateObject();
  bool ok = json && cJSON_AddNumberToObject(json, "validation_nats", r->nats) && (!text || add_ngrams(json, r));
  const struct {
    const char *name;
    double value;
  } numbers[] = {
      {text ? "validation_bytes" : "validation_tokens", (double)(r->end - data->train_size)},
      {"validation_context", (double)(s->length / 4)},
      {"tokens_per_second", r->tokens_per_second},
      {"seconds", r->seconds},
      {"evaluation_seconds", r->evaluation_seconds},
      {"steps", (double)s->step},
      {"tokens", (double)(s->step * s->batch * s->length)},
      {"parameters", (double)parameters},
      {text ? "data_bytes" : "data_tokens", (double)data->size},
      {"vocabulary", (double)data->vocabulary},
  };
  for (size_t i = 0; ok && i < sizeof numbers / sizeof *numbers; i++)
    ok = cJSON_AddNumberToObject(json, numbers[i].name, numbers[i].value);
  ok = ok && cJSON_AddStringToObject(json, "data", data_kind_names[dataset_kind(data)]);
  ok = ok && cJSON_AddStringToObject(json, "validation",
                                     "each token of the split up to the limit once, in windows of one sequence length "
                                     "whose first validation_context tokens are context alone");
  ok = ok && cJSON_AddStringToObject(json, "cpu_isa", tigon_cpu_isa());
  char *text_of = ok ? cJSON_Print(json) : NULL;
  cJSON_Delete(json);
  return text_of;
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

static bool load_bytes(dataset *data, int64_t begin, int64_t end, uint8_t *bytes, failure *failed) {
  int32_t tokens[4096];
  for (int64_t at = begin; at < end; at += 4096) {
    const int64_t count = end - at < 4096 ? end - at : 4096;
    if (!dataset_read(data, at, count, tokens, failed)) return false;
    for (int64_t i = 0; i < count; i++) bytes[at - begin + i] = (uint8_t)tokens[i];
  }
  return true;
}

/* The n-gram models of the training split's last NGRAM_MOST bytes, which bounds their memory. */
static bool score_ngrams(results *r, dataset *data, failure *failed) {
  const int64_t begin = data->train_size > NGRAM_MOST ? data->train_size - NGRAM_MOST : 0;
  uint8_t *bytes = malloc((size_t)(r->end - begin));
  if (!bytes) return fail_with(failed, "no memory for the n-gram models of %lld bytes", (long long)(r->end - begin));
  const bool ok = load_bytes(data, begin, r->end, bytes, failed) &&
                  ngram_nats(bytes, data->train_size - begin, r->end - begin, r->ngrams, failed);
  free(bytes);
  return ok;
}

bool summarise(model *m, const run_state *state, dataset *data, int64_t limit, const char *directory, failure *failed) {
  results r = {.end = data->size - data->train_size > limit ? data->train_size + limit : data->size};
  const double begin = machine_seconds();
  if (!evaluate(m, data, r.end, &r.nats, failed)) return false;
  if (dataset_kind(data) == DATA_TEXT && !score_ngrams(&r, data, failed)) return false;
  r.evaluation_seconds = machine_seconds() - begin;
  r.seconds = state->seconds + r.evaluation_seconds;
  r.tokens_per_second = per_second(state->step * state->batch * state->length, state->seconds);
  int64_t parameters = 0;
  for (int i = 0; i < m->shape->count; i++) parameters += m->shape->parameters[i].count;
  char *json = as_json(&r, state, data, parameters);
  if (!json) return fail_with(failed, "no memory for the summary");
  const bool ok = write_json(directory, json, failed);
  cJSON_free(json);
  if (ok) print_table(&r, data);
  return ok;
}
