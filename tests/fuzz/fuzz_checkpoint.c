/* needs: all of apps/tigon but main.c, libtigon, cJSON */
/*
 * The reader of checkpoints. An input is a file as it is (first byte even), or edits of a whole checkpoint (odd): each
 * takes three bytes, a place in the header (two bytes) and how many bytes follow to stand there. A file that is taken
 * must hold what its header says: its tensors are read into a model.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "checkpoint.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);

enum { ROOM = 1 << 16 };

static struct {
  model_shape shape;
  model m;
  int descriptor;
  char path[64];
  uint8_t whole[ROOM];
  size_t size, header;
} base;

static void require(bool condition) {
  if (!condition) abort();
}

static void write_base(void) {
  char directory[] = "/tmp/tigon_fuzz_XXXXXX", path[64];
  failure failed;
  const run_state state = {.config = base.shape.config, .kind = DATA_TOKENS, .batch = 1, .length = 1, .steps = 2};
  require(mkdtemp(directory) && checkpoint_write(directory, &state, &base.m, &failed));
  snprintf(path, sizeof path, "%s/%s", directory, CHECKPOINT_NAME);
  FILE *file = fopen(path, "rb");
  require(file);
  base.size = fread(base.whole, 1, ROOM, file);
  require(base.size > 8 && base.size < ROOM);
  for (int i = 0; i < 8; i++) base.header |= (size_t)base.whole[i] << 8 * i;
  fclose(file);
  unlink(path);
  rmdir(directory);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc;
  (void)argv;
  const model_config config = {
      .layers = 1, .width = 2, .heads = 1, .experts = 1, .top_k = 1, .hidden = 1, .vocabulary = 3};
  const model_settings settings = {1, 1, 1, true};
  failure failed;
  model_shape_init(&base.shape, &config);
  require(model_create(&base.m, &base.shape, &settings, &failed));
  model_init(&base.m, 1);
  write_base();
  base.descriptor = memfd_create("checkpoint", MFD_CLOEXEC);
  require(base.descriptor >= 0);
  snprintf(base.path, sizeof base.path, "/proc/self/fd/%d", base.descriptor);
  return 0;
}

static void put(const uint8_t *bytes, size_t size) {
  require(!ftruncate(base.descriptor, 0) && pwrite(base.descriptor, bytes, size, 0) == (ssize_t)size);
}

static void put_edited(const uint8_t *edits, size_t size) {
  static uint8_t bytes[ROOM];
  memcpy(bytes, base.whole, base.size);
  while (size > 3) {
    const size_t at = (edits[0] | (size_t)edits[1] << 8) % (8 + base.header);
    size_t count = edits[2] % 32 + 1u;
    edits += 3;
    size -= 3;
    if (count > size) count = size;
    if (count > base.size - at) count = base.size - at;
    memcpy(bytes + at, edits, count);
    edits += count;
    size -= count;
  }
  put(bytes, base.size);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size) {
  static checkpoint file;
  failure failed = {{0}};
  if (size == 0) return 0;
  if (input[0] & 1)
    put_edited(input + 1, size - 1);
  else
    put(input + 1, size - 1);
  if (!checkpoint_open(&file, base.path, &failed)) {
    require(!strncmp(failed.text, base.path, strlen(base.path)) && !strchr(failed.text, '\n'));
    return 0;
  }
  const run_state *s = &file.state;
  require(s->config.layers > 0 && s->batch > 0 && s->length > 0 && s->step >= 0 && s->rate >= 0 &&
          s->kind < DATA_KINDS);
  if (!memcmp(&s->config, &base.shape.config, sizeof s->config)) require(checkpoint_read(&file, &base.m, &failed));
  checkpoint_close(&file);
  return 0;
}
