/* needs: all of apps/tigon but main.c, libtigon */
/*
 * The readers of data: up to three files of text and shards. The first byte says how many files there are, which are
 * shards, whether the last is for validation and whether headers are short, the second the vocabulary, the third the
 * length of a sequence, the fourth and fifth where the rest is cut into files. What is taken must be readable in any
 * windows, with the same tokens, all below the vocabulary; the windows of training must lie in its split.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sampler.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);

enum { FILES = 3, MOST = 1 << 16 };

static struct {
  char directory[32];
  int descriptors[FILES];
  char names[2][FILES][64]; /* text, shards */
} place;

static void require(bool condition) {
  if (!condition) abort();
}

static void remove_place(void) {
  for (int i = 0; i < FILES; i++) {
    unlink(place.names[0][i]);
    unlink(place.names[1][i]);
  }
  rmdir(place.directory);
}

/* The files lie in memory; links give them names. */
int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc;
  (void)argv;
  strcpy(place.directory, "/tmp/tigon_fuzz_XXXXXX");
  require(mkdtemp(place.directory));
  for (int i = 0; i < FILES; i++) {
    char target[64];
    place.descriptors[i] = memfd_create("data", MFD_CLOEXEC);
    snprintf(target, sizeof target, "/proc/self/fd/%d", place.descriptors[i]);
    snprintf(place.names[0][i], sizeof place.names[0][i], "%s/%d.txt", place.directory, i);
    snprintf(place.names[1][i], sizeof place.names[1][i], "%s/%d.bin", place.directory, i);
    require(!symlink(target, place.names[0][i]) && !symlink(target, place.names[1][i]));
  }
  atexit(remove_place);
  return 0;
}

static void check_windows(dataset *data, int64_t length) {
  static int32_t whole[MOST], window[MOST];
  failure failed;
  require(data->size <= MOST && data->train_size > 0 && data->train_size < data->size);
  require(dataset_read(data, 0, data->size, whole, &failed));
  for (int64_t i = 0; i < data->size; i++) require(whole[i] >= 0 && whole[i] < data->vocabulary);
  const int64_t step = length > data->size / 8 ? length : data->size / 8;
  for (int64_t at = 0; at < data->size; at += step) {
    const int64_t count = data->size - at < step ? data->size - at : step;
    require(dataset_read(data, at, count, window, &failed) &&
            !memcmp(window, whole + at, (size_t)count * sizeof *window));
  }
  sampler source;
  if (sampler_open(&source, data, length, 3, (cursor){0, 0}, &failed)) {
    for (int i = 0; i < 8; i++) {
      const int32_t *next = sampler_next(&source, &failed);
      const int64_t begin = source.offset + source.order[source.at.index - 1] * length;
      require(next && begin >= 0 && begin + length < data->train_size);
      require(!memcmp(next, whole + begin, (size_t)(length + 1) * sizeof *next));
    }
  }
  sampler_close(&source);
}

/* With `spread` the bytes after the first twelve, where numbers of a header stand, follow after a whole header. */
static void put(int descriptor, const uint8_t *bytes, size_t size, bool spread) {
  const size_t start = spread && size > 12 ? 12 : size;
  require(!ftruncate(descriptor, 0) && pwrite(descriptor, bytes, start, 0) == (ssize_t)start);
  require(pwrite(descriptor, bytes + start, size - start, 1024) == (ssize_t)(size - start));
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size) {
  if (size < 5 || size > MOST) return 0;
  const int files = 1 + input[0] % FILES, shards = input[0] >> 2 & 7, apart = files > 1 && input[0] >> 5 & 1;
  const int64_t vocabularies[4] = {0, 1, 256, 65536}, length = 1 + input[2];
  size_t at = 5;
  char *names[FILES];
  for (int i = 0; i < files; i++) {
    const size_t left = size - at, part = i + 1 == files ? left : left * input[3 + i] / 255;
    put(place.descriptors[i], input + at, part, input[0] >> 6 & 1);
    names[i] = place.names[shards >> i & 1][i];
    at += part;
  }
  const text_list paths = {names, files - apart}, validation = {names + files - 1, apart};
  dataset data;
  failure failed = {{0}};
  if (dataset_open(&data, &paths, &validation, vocabularies[input[1] % 4], &failed)) {
    check_windows(&data, length);
    dataset_close(&data);
  } else {
    require(!strncmp(failed.text, place.directory, strlen(place.directory)) && !strchr(failed.text, '\n'));
  }
  return 0;
}
