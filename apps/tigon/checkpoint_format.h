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
  int64_t min;
  double *real;
  uint64_t *bits;
} state_field;

enum { STATE_FIELDS = 18 };

static inline void state_fields(state_field fields[STATE_FIELDS], run_state *s) {
  const state_field all[STATE_FIELDS] = {
      {.name = "layers", .integer = &s->config.layers, .min = 1},
      {.name = "width", .integer = &s->config.width, .min = 1},
      {.name = "heads", .integer = &s->config.heads, .min = 1},
      {.name = "experts", .integer = &s->config.experts, .min = 1},
      {.name = "top_k", .integer = &s->config.top_k, .min = 1},
      {.name = "hidden", .integer = &s->config.hidden, .min = 1},
      {.name = "step", .integer = &s->step},
      {.name = "epoch", .integer = &s->at.epoch},
      {.name = "position", .integer = &s->at.index},
      {.name = "batch", .integer = &s->batch, .min = 1},
      {.name = "seq", .integer = &s->length, .min = 1},
      {.name = "steps", .integer = &s->steps, .min = 1},
      {.name = "seed", .integer = &s->seed},
      {.name = "lr", .real = &s->rate},
      {.name = "seconds", .real = &s->seconds},
      {.name = "data_bytes", .integer = &s->data_bytes},
      {.name = "data_hash", .bits = &s->data_hash},
      {.name = "vocabulary", .integer = &s->vocabulary, .min = 1},
  };
  for (int i = 0; i < STATE_FIELDS; i++) fields[i] = all[i];
}

#endif
