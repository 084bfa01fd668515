/*
 * The order in which training visits the data: windows of one sequence length, beginning at an offset that changes with
 * each pass (epoch), all windows of a pass in random order, each once. A function of the seed and the cursor.
 */
#ifndef APPS_SAMPLER_H
#define APPS_SAMPLER_H

#include "data.h"

/* Where training stands in the data. */
typedef struct cursor {
  int64_t epoch;
  int64_t index; /* of the next window in this epoch's order */
} cursor;

typedef struct sampler {
  dataset *data;
  int64_t length; /* of a window, in tokens */
  uint64_t seed;
  cursor at;
  int64_t drawn_epoch; /* whose order lies in `order`; -1: none */
  int64_t offset;      /* where the first window begins */
  int64_t windows;
  int64_t *order;  /* room for train_size / length */
  int32_t *window; /* (length + 1) */
} sampler;

/* Fails unless the training split holds three windows. */
bool sampler_open(sampler *source, dataset *data, int64_t length, uint64_t seed, cursor at, failure *failed);
void sampler_close(sampler *source);

/* The next window: `length` inputs, each followed by its target, so length + 1 tokens of the training split, valid
 * until the next call. NULL on failure. */
const int32_t *sampler_next(sampler *source, failure *failed);

#endif
