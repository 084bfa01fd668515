/*
 * Checkpoints: one safetensors file with the weights, AdamW's moments, and in __metadata__ the configuration and where
 * the run stands.
 *
 * Writing is atomic: a new file beside the old one is written, brought to the disk and renamed over it. Random numbers
 * are functions of the seed and the position (random.h), so seed, step and position are all that resuming needs.
 *
 * Reading takes any file as hostile: header, JSON, offsets, dtypes and shapes are checked in full before a byte of the
 * tensors is read.
 */
#ifndef APPS_CHECKPOINT_H
#define APPS_CHECKPOINT_H

#include "model.h"
#include "sampler.h"

#define CHECKPOINT_NAME "checkpoint.safetensors"

/* Where a training run stands and what it was started with. */
typedef struct run_state {
  model_config config;
  data_kind kind;
  int64_t step; /* finished steps */
  cursor at;
  int64_t batch, length, steps, seed;
  double rate;        /* peak learning rate */
  double seconds;     /* spent training */
  int64_t data_bytes; /* of the tokens, without headers */
  uint64_t data_hash;
} run_state;

/* Writes directory/checkpoint.safetensors. On failure the old file is as it was. */
bool checkpoint_write(const char *directory, const run_state *state, const model *m, failure *failed);

typedef struct checkpoint {
  char path[4096];
  int descriptor;
  run_state state;
  model_shape shape;
  int64_t data_begin;                 /* in the file */
  int64_t offsets[3][MAX_PARAMETERS]; /* of weights, moments, variances, from data_begin */
} checkpoint;

/* Opens a file, or the checkpoint of a directory, and checks its header. */
bool checkpoint_open(checkpoint *file, const char *path, failure *failed);
/* Reads the weights, and for a model in training the moments, of a model of the file's shape. */
bool checkpoint_read(const checkpoint *file, model *m, failure *failed);
void checkpoint_close(checkpoint *file);

#endif
