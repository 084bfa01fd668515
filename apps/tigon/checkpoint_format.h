/* What writing and reading of checkpoints share: names in the file. */
#ifndef APPS_CHECKPOINT_FORMAT_H
#define APPS_CHECKPOINT_FORMAT_H

#include "checkpoint.h"

#define CHECKPOINT_FORMAT "tigon checkpoint 1"

enum { BLOCKS = 3 };
static const char *const block_prefix[BLOCKS] = {"", "moment.", "variance."};

/* A member of run_state and its name in __metadata__; one of the pointers is set. */
typedef struct state_field {
  const char *name;
  int64_t *integer;
  int64_t min, max;
  double *real;
  uint64_t *bits;
  data_kind *kind; /* its name; missing in files of version 0.1.0, which knew text alone */
} state_field;

enum { STATE_FIELDS = 19 };

static inline void state_fields(state_field fields[STATE_FIELDS], run_state *s) {
  const int64_t most = INT64_C(1) << 53, steps = 1000000000;
  const state_field all[STATE_FIELDS] = {
      {.name = "layers", .integer = &s->config.layers, .min = 1, .max = INT64_MAX},
      {.name = "width", .integer = &s->config.width, .min = 1, .max = INT64_MAX},
      {.name = "heads", .integer = &s->config.heads, .min = 1, .max = INT64_MAX},
      {.name = "experts", .integer = &s->config.experts, .min = 1, .max = INT64_MAX},
      {.name = "top_k", .integer = &s->config.top_k, .min = 1, .max = INT64_MAX},
      {.name = "hidden", .integer = &s->config.hidden, .min = 1, .max = INT64_MAX},
      {.name = "step", .integer = &s->step, .max = steps},
      {.name = "epoch", .integer = &s->at.epoch, .max = most},
      {.name = "position", .integer = &s->at.index, .max = most},
      {.name = "batch", .integer = &s->batch, .min = 1, .max = most},
      {.name = "seq", .integer = &s->length, .min = 1, .max = most},
      {.name = "steps", .integer = &s->steps, .min = 1, .max = steps},
      {.name = "seed", .integer = &s->seed, .max = most},
      {.name = "lr", .real = &s->rate},
      {.name = "seconds", .real = &s->seconds},
      {.name = "data_bytes", .integer = &s->data_bytes, .max = most},
      {.name = "data_hash", .bits = &s->data_hash},
      {.name = "vocabulary", .integer = &s->config.vocabulary, .min = 1, .max = INT64_MAX},
      {.name = "data", .kind = &s->kind},
  };
  for (int i = 0; i < STATE_FIELDS; i++) fields[i] = all[i];
}

#endif
