/*
 * Text as a sequence of bytes: reading it, splitting it, and the order in which training visits it.
 *
 * The last 5 % of the text, at least 100 000 bytes where that is at most a fifth, is the validation split. Training cuts
 * the rest into windows of one sequence length, beginning at an offset that changes with each pass (epoch), and visits
 * the windows of a pass in random order, each once.
 */
#ifndef APPS_DATA_H
#define APPS_DATA_H

#include <stdint.h>

#include "failure.h"
#include "options.h"

typedef struct text_data {
  uint8_t *bytes;
  int64_t size;
  int64_t train_size; /* bytes [train_size, size) are the validation split */
  uint64_t hash;      /* of all bytes, to recognise the data of a checkpoint */
  int64_t files;
  int64_t skipped;    /* files of directories that were left out: hidden, binary, unreadable, or no regular file */
  bool out_of_memory; /* why reading failed: no file is left out for that */
} text_data;

/* Files are taken as they are. Directories are searched in order of name for text: regular files without NUL bytes whose
 * name does not begin with a dot. */
bool text_read(text_data *data, const text_list *paths, failure *failed);
void text_free(text_data *data);

/* Where training stands in the text. */
typedef struct cursor {
  int64_t epoch;
  int64_t index; /* of the next window in this epoch's order */
} cursor;

typedef struct sampler {
  const text_data *data;
  int64_t length; /* of a window, in tokens */
  uint64_t seed;
  cursor at;
  int64_t drawn_epoch; /* whose order lies in `order`; -1: none */
  int64_t offset;      /* where the first window begins */
  int64_t windows;
  int64_t *order; /* room for train_size / length */
} sampler;

/* Fails unless the training split holds three windows. */
bool sampler_open(sampler *source, const text_data *data, int64_t length, uint64_t seed, cursor at, failure *failed);
void sampler_close(sampler *source);
/* The next window: `length` inputs, each followed by its target; bytes [0, length] are all in the training split. */
const uint8_t *sampler_next(sampler *source);

#endif
