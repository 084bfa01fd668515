#include "data.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "random.h"

enum { MAX_DEPTH = 32 };

static bool grow(text_data *data, int64_t more, failure *failed, const char *path) {
  uint8_t *bytes = realloc(data->bytes, (size_t)(data->size + more));
  if (!bytes) {
    data->out_of_memory = true;
    return fail_with(failed, "%s: no memory for %lld bytes of text", path, (long long)(data->size + more));
  }
  data->bytes = bytes;
  return true;
}

/* Appends a whole open file, whatever its size was said to be. */
static bool append(text_data *data, int descriptor, const char *path, failure *failed) {
  for (;;) {
    const int64_t piece = 1 << 20;
    if (!grow(data, piece, failed, path)) return false;
    const ssize_t got = read(descriptor, data->bytes + data->size, (size_t)piece);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_with(failed, "%s: cannot read: %s", path, strerror(errno));
    if (got == 0) return true;
    data->size += got;
  }
}

static bool read_file(text_data *data, const char *path, failure *failed) {
  const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return fail_with(failed, "%s: cannot open: %s", path, strerror(errno));
  const int64_t before = data->size;
  const bool ok = append(data, descriptor, path, failed);
  close(descriptor);
  if (!ok) return false;
  if (data->size == before) return fail_with(failed, "%s: is empty", path);
  data->files++;
  return true;
}

/* A file of a directory: what is no readable text is left out. Fails where memory ends. */
static bool try_file(text_data *data, const char *path, failure *failed) {
  const int64_t before = data->size;
  if (!read_file(data, path, failed)) {
    if (data->out_of_memory) return false;
    data->size = before;
    data->skipped++;
  } else if (memchr(data->bytes + before, 0, (size_t)(data->size - before))) {
    data->size = before;
    data->files--;
    data->skipped++;
  }
  return true;
}

static bool read_directory(text_data *data, const char *path, int depth, failure *failed) {
  struct dirent **entries;
  const int count = scandir(path, &entries, NULL, alphasort);
  if (count < 0) return fail_with(failed, "%s: cannot list: %s", path, strerror(errno));
  bool ok = true;
  for (int i = 0; i < count; i++) {
    const char *name = entries[i]->d_name;
    const size_t length = strlen(path) + strlen(name) + 2;
    const bool wanted = ok && strcmp(name, ".") && strcmp(name, "..");
    char *child = wanted ? malloc(length) : NULL;
    if (wanted && !child) ok = fail_with(failed, "%s: no memory for the names in it", path);
    if (child) {
      struct stat status;
      memcpy(child, path, strlen(path));
      child[strlen(path)] = '/';
      memcpy(child + strlen(path) + 1, name, strlen(name) + 1);
      const bool known = name[0] != '.' && !lstat(child, &status);
      if (known && S_ISDIR(status.st_mode) && depth < MAX_DEPTH)
        ok = read_directory(data, child, depth + 1, failed);
      else if (known && S_ISREG(status.st_mode))
        ok = try_file(data, child, failed);
      else
        data->skipped++;
      free(child);
    }
    free(entries[i]);
  }
  free(entries);
  return ok;
}

static uint64_t hash_bytes(const uint8_t *bytes, int64_t size) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
  for (int64_t i = 0; i < size; i++) hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
  return hash;
}

bool text_read(text_data *data, const text_list *paths, failure *failed) {
  *data = (text_data){0};
  for (int i = 0; i < paths->count; i++) {
    const char *path = paths->items[i];
    struct stat status;
    if (stat(path, &status)) {
      text_free(data);
      return fail_with(failed, "%s: %s", path, strerror(errno));
    }
    if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode) && !S_ISFIFO(status.st_mode)) {
      text_free(data);
      return fail_with(failed, "%s: is neither a file nor a directory", path); /* a device may never end */
    }
    const int64_t before = data->files;
    const bool directory = S_ISDIR(status.st_mode);
    bool ok = directory ? read_directory(data, path, 0, failed) : read_file(data, path, failed);
    if (ok && directory && data->files == before)
      ok = fail_with(failed, "%s: the directory holds no text (%lld files are hidden, binary, empty or unreadable)",
                     path, (long long)data->skipped);
    if (!ok) {
      text_free(data);
      return false;
    }
  }
  int64_t validation = data->size / 20;
  if (validation < 100000) validation = data->size / 5 < 100000 ? data->size / 5 : 100000;
  if (validation == 0) {
    fail_with(failed, "the data are too short: %lld bytes leave none for validation", (long long)data->size);
    text_free(data);
    return false;
  }
  data->train_size = data->size - validation;
  data->hash = hash_bytes(data->bytes, data->size);
  return true;
}

void text_free(text_data *data) {
  free(data->bytes);
  *data = (text_data){0};
}

bool sampler_open(sampler *source, const text_data *data, int64_t length, uint64_t seed, cursor at, failure *failed) {
  *source = (sampler){.data = data, .length = length, .seed = seed, .at = at, .drawn_epoch = -1};
  if (data->train_size / length < 3)
    return fail_with(failed,
                     "the data are too short: %lld bytes for training, but sequences of %lld tokens need at least %lld "
                     "(give more text or a smaller --seq)",
                     (long long)data->train_size, (long long)length, (long long)(3 * length));
  source->order = malloc((size_t)(data->train_size / length) * sizeof *source->order);
  if (!source->order)
    return fail_with(failed, "no memory for the order of %lld windows", (long long)(data->train_size / length));
  return true;
}

void sampler_close(sampler *source) {
  free(source->order);
  source->order = NULL;
}

static void draw_order(sampler *source) {
  random_stream random = random_open(source->seed, UINT64_C(0x100000000) + (uint64_t)source->at.epoch);
  source->offset = (int64_t)random_below(&random, (uint64_t)source->length);
  source->windows = (source->data->train_size - source->offset - 1) / source->length;
  for (int64_t i = 0; i < source->windows; i++) {
    const int64_t j = (int64_t)random_below(&random, (uint64_t)i + 1);
    source->order[i] = source->order[j];
    source->order[j] = i;
  }
  source->drawn_epoch = source->at.epoch;
}

const uint8_t *sampler_next(sampler *source) {
  if (source->drawn_epoch != source->at.epoch) draw_order(source);
  if (source->at.index >= source->windows) {
    source->at = (cursor){source->at.epoch + 1, 0};
    draw_order(source);
  }
  const int64_t window = source->order[source->at.index++];
  return source->data->bytes + source->offset + window * source->length;
}
