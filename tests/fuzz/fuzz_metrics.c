/* needs: apps/tigon/progress.c apps/tigon/paths.c apps/tigon/failure.c */
/*
 * What a run that goes on keeps of its metrics. The first byte is the step; the rest is the file. What is kept must be
 * a beginning of it in whole lines, each of a step up to that one, and what follows must belong to none.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "progress.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);

enum { MOST = 1 << 16 };

static char directory[32], name[64];
static int descriptor;

static void require(bool condition) {
  if (!condition) abort();
}

static void remove_directory(void) {
  unlink(name);
  rmdir(directory);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc;
  (void)argv;
  char target[64];
  strcpy(directory, "/tmp/tigon_fuzz_XXXXXX");
  require(mkdtemp(directory));
  descriptor = memfd_create("metrics", MFD_CLOEXEC);
  snprintf(target, sizeof target, "/proc/self/fd/%d", descriptor);
  snprintf(name, sizeof name, "%s/%s", directory, METRICS_NAME);
  require(!symlink(target, name));
  atexit(remove_directory);
  return 0;
}

/* Whether the line from `at` is whole and of a step up to `step`; then *next is where the one after it begins. */
static bool is_kept(const char *at, const char *end, int64_t step, const char **next) {
  const char *line_end = memchr(at, '\n', (size_t)(end - at));
  if (!line_end) return false;
  *next = line_end + 1;
  char line[MOST];
  memcpy(line, at, (size_t)(line_end - at));
  line[line_end - at] = 0;
  const char *number = strstr(line, "\"step\":");
  return number && strtoll(number + 7, NULL, 10) <= step;
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size) {
  static char kept[MOST];
  progress shown;
  failure failed;
  if (size < 1 || size > MOST) return 0;
  const int64_t step = input[0];
  const char *file = (const char *)input + 1, *end = file + size - 1, *next = file;
  require(!ftruncate(descriptor, 0) && pwrite(descriptor, file, size - 1, 0) == (ssize_t)size - 1);
  require(progress_open(&shown, directory, step, &failed) && progress_close(&shown, &failed));
  const ssize_t length = pread(descriptor, kept, sizeof kept, 0);
  require(length >= 0 && !memcmp(kept, file, (size_t)length));
  while (next < end && next < file + length) require(is_kept(next, end, step, &next));
  require(next == file + length && (next == end || !is_kept(next, end, step, &next)));
  return 0;
}
