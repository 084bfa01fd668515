/*
 * The data of a run: one sequence of tokens in files, and how it is split.
 *
 * Text is a sequence of bytes, and bytes are its tokens. Shards hold token ids (shard.h). All files follow each other
 * in the order of data_files.h, those for validation last. Where there are none, the last 5 % of the tokens, at least
 * 100 000 where that is at most a fifth, are the validation split.
 *
 * Opening reads everything once: the hash is taken and each id is checked against the vocabulary. Afterwards windows
 * are read from the files when they are needed, so data may be larger than memory. Pipes are copied to an unnamed file.
 */
#ifndef APPS_DATA_H
#define APPS_DATA_H

#include <stdint.h>

#include "failure.h"
#include "options.h"

typedef enum data_kind { DATA_TEXT, DATA_TOKENS, DATA_KINDS } data_kind;
extern const char *const data_kind_names[DATA_KINDS]; /* "text", "tokens" */

enum { TEXT_VOCABULARY = 256, MAX_VOCABULARY = 1 << 24 };

typedef struct data_part {
  char *path;
  int copy;      /* descriptor of the copy of a pipe; -1: the file is read */
  int64_t begin; /* of the tokens in the file, in bytes */
  int64_t first; /* place of its first token in the sequence */
  int64_t count; /* tokens */
} data_part;

typedef struct dataset {
  data_part *parts;
  int64_t count;
  int64_t size;       /* tokens */
  int64_t train_size; /* tokens [train_size, size) are for validation */
  int token_bytes;    /* 1: text; 2 or 4: shards */
  int64_t vocabulary;
  uint64_t hash;   /* of all tokens and, with files for validation, of the split: recognises the data of a checkpoint */
  int64_t skipped; /* files that were left out */
  const data_part *open_part; /* whose file `descriptor` reads; NULL: none */
  int descriptor;
} dataset;

static inline data_kind dataset_kind(const dataset *d) { return d->token_bytes == 1 ? DATA_TEXT : DATA_TOKENS; }

/* `vocabulary` is that of shards, 0: 50257 (GPT-2) for uint16 tokens, 128256 (Llama 3) for uint32 tokens. */
bool dataset_open(dataset *d, const text_list *paths, const text_list *validation, int64_t vocabulary, failure *failed);
void dataset_close(dataset *d);

/* Reads tokens [begin, begin + count), all of [0, size) and below the vocabulary. */
bool dataset_read(dataset *d, int64_t begin, int64_t count, int32_t *tokens, failure *failed);

#endif
