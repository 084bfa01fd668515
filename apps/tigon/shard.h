/*
 * Shards of tokens, as they are written for llm.c and nanoGPT. All numbers are little-endian.
 *
 *     llm.c     256 int32: magic 20240520, version 1, number of tokens, zeros; then the tokens as uint16
 *               256 int32: magic 20240801, version 7, number of tokens, zeros; then the tokens as uint32
 *     nanoGPT   the tokens as uint16, nothing else
 *
 * Magic numbers of that family of files are dates from 2024, 20240000 to 20249999. A file without a header would begin
 * like one only with a first token of 54912 to 64911 (and 308 after it), which the vocabularies of such files do not
 * have.
 */
#ifndef APPS_SHARD_H
#define APPS_SHARD_H

#include <stdint.h>

#include "failure.h"

typedef struct shard_layout {
  int64_t begin; /* of the tokens in the file, in bytes */
  int64_t count; /* tokens */
  int token_bytes;
} shard_layout;

/* Reads the header, if there is one, and checks it and the size of the file. */
bool shard_layout_read(shard_layout *layout, int descriptor, const char *path, failure *failed);

/* Reads up to `bytes` from `offset`, fewer only where the file ends; -1 on failure, with errno. */
int64_t read_range(int descriptor, void *to, int64_t bytes, int64_t offset);

#endif
