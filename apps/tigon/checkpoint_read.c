#include <cjson/cJSON.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint.h"
#include "checkpoint_format.h"
#include "paths.h"

enum { MAX_HEADER = 1 << 20 };

static bool read_at(const checkpoint *file, void *to, int64_t bytes, int64_t offset, failure *failed) {
  while (bytes) {
    const ssize_t got = pread(file->descriptor, to, (size_t)bytes, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_with(failed, "%s: cannot read: %s", file->path, strerror(errno));
    if (got == 0) return fail_with(failed, "%s: is truncated", file->path);
    to = (uint8_t *)to + got;
    bytes -= got;
    offset += got;
  }
  return true;
}

/* A number of the header that is a whole number in [0, 2^53]. */
static bool whole(const cJSON *item, int64_t *value) {
  if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= 0x1p53)) return false;
  *value = (int64_t)item->valuedouble;
  return (double)*value == item->valuedouble;
}

static bool read_integer(const char *text, int64_t min, int64_t max, int64_t *value) {
  char *end;
  errno = 0;
  *value = strtoll(text, &end, 10);
  return end != text && !*end && !errno && *value >= min && *value <= max;
}

static bool read_field(const state_field *field, const char *text) {
  char *end;
  if (field->integer) return read_integer(text, field->min, field->max, field->integer);
  if (field->real) {
    *field->real = strtod(text, &end);
    return end != text && !*end && isfinite(*field->real) && *field->real >= 0;
  }
  if (field->kind) {
    for (int i = 0; i < DATA_KINDS; i++)
      if (!strcmp(text, data_kind_names[i])) {
        *field->kind = (data_kind)i;
        return true;
      }
    return false;
  }
  errno = 0;
  *field->bits = strtoull(text, &end, 16);
  return end != text && !*end && !errno;
}

static bool read_metadata(checkpoint *file, const cJSON *header, failure *failed) {
  const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(header, "__metadata__");
  const char *format = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(metadata, "format"));
  if (!format || strcmp(format, CHECKPOINT_FORMAT))
    return fail_with(failed, "%s: is no checkpoint of this program (expected format \"%s\", got \"%.40s\")", file->path,
                     CHECKPOINT_FORMAT, format ? format : "");
  state_field fields[STATE_FIELDS];
  state_fields(fields, &file->state);
  for (int i = 0; i < STATE_FIELDS; i++) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(metadata, fields[i].name);
    if (!item && fields[i].kind) continue;
    const char *text = cJSON_GetStringValue(item);
    if (!text || !read_field(&fields[i], text))
      return fail_with(failed, "%s: metadata \"%s\" is %s", file->path, fields[i].name, text ? "bad" : "missing");
  }
  if (file->state.kind == DATA_TEXT && file->state.config.vocabulary != TEXT_VOCABULARY)
    return fail_with(failed, "%s: metadata \"vocabulary\": expected %d for text, got %lld", file->path, TEXT_VOCABULARY,
                     (long long)file->state.config.vocabulary);
  failure reason;
  if (!model_config_check(&file->state.config, &reason)) return fail_with(failed, "%s: %s", file->path, reason.text);
  model_shape_init(&file->shape, &file->state.config);
  return true;
}

/* Checks one tensor's entry and returns where its data begin. */
static bool read_entry(const checkpoint *file, const cJSON *header, const char *name, const parameter *p,
                       int64_t *begin, failure *failed) {
  const cJSON *entry = cJSON_GetObjectItemCaseSensitive(header, name);
  if (!entry) return fail_with(failed, "%s: tensor \"%s\" is missing", file->path, name);
  const char *dtype = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "dtype"));
  if (!dtype || strcmp(dtype, "F32"))
    return fail_with(failed, "%s: tensor \"%s\": expected dtype F32, got %.20s", file->path, name,
                     dtype ? dtype : "none");
  const cJSON *shape = cJSON_GetObjectItemCaseSensitive(entry, "shape");
  bool same = cJSON_IsArray(shape) && cJSON_GetArraySize(shape) == p->ndim;
  for (int i = 0; same && i < p->ndim; i++) {
    int64_t extent;
    same = whole(cJSON_GetArrayItem(shape, i), &extent) && extent == p->shape[i];
  }
  if (!same)
    return fail_with(failed, "%s: tensor \"%s\" has another shape than the configuration says", file->path, name);
  const cJSON *range = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
  int64_t end;
  if (!cJSON_IsArray(range) || cJSON_GetArraySize(range) != 2 || !whole(cJSON_GetArrayItem(range, 0), begin) ||
      !whole(cJSON_GetArrayItem(range, 1), &end) || end - *begin != 4 * p->count)
    return fail_with(failed, "%s: tensor \"%s\" has bad data_offsets", file->path, name);
  return true;
}

typedef struct extent {
  int64_t begin, bytes;
} extent;

static int compare_extents(const void *a, const void *b) {
  const int64_t x = ((const extent *)a)->begin, y = ((const extent *)b)->begin;
  return (x > y) - (x < y);
}

/* The tensors must fill the data without gaps and overlaps. */
static bool check_coverage(const checkpoint *file, int64_t data_bytes, failure *failed) {
  extent all[BLOCKS * MAX_PARAMETERS];
  int count = 0;
  for (int block = 0; block < BLOCKS; block++)
    for (int i = 0; i < file->shape.count; i++)
      all[count++] = (extent){file->offsets[block][i], 4 * file->shape.parameters[i].count};
  qsort(all, (size_t)count, sizeof *all, compare_extents);
  int64_t end = 0;
  for (int i = 0; i < count; i++) {
    if (all[i].begin != end) return fail_with(failed, "%s: tensors overlap or leave gaps", file->path);
    end += all[i].bytes;
  }
  if (end != data_bytes)
    return fail_with(failed, "%s: is %s: its tensors take %lld bytes, the file holds %lld", file->path,
                     end > data_bytes ? "truncated" : "too long", (long long)end, (long long)data_bytes);
  return true;
}

static bool read_header(checkpoint *file, const cJSON *header, int64_t data_bytes, failure *failed) {
  if (!cJSON_IsObject(header)) return fail_with(failed, "%s: the header is no JSON object", file->path);
  if (!read_metadata(file, header, failed)) return false;
  for (int block = 0; block < BLOCKS; block++)
    for (int i = 0; i < file->shape.count; i++) {
      char name[64];
      snprintf(name, sizeof name, "%s%s", block_prefix[block], file->shape.parameters[i].name);
      if (!read_entry(file, header, name, &file->shape.parameters[i], &file->offsets[block][i], failed)) return false;
    }
  /* All expected names are there, so a wrong number means that others, or the same ones again, are too. */
  if (cJSON_GetArraySize(header) != BLOCKS * file->shape.count + 1)
    return fail_with(failed, "%s: holds unknown or duplicate tensors", file->path);
  return check_coverage(file, data_bytes, failed);
}

static bool parse(checkpoint *file, failure *failed) {
  struct stat status;
  if (fstat(file->descriptor, &status)) return fail_with(failed, "%s: %s", file->path, strerror(errno));
  if (!S_ISREG(status.st_mode)) return fail_with(failed, "%s: is no regular file", file->path);
  uint8_t prefix[8];
  if (status.st_size < 10) return fail_with(failed, "%s: is no safetensors file: too short", file->path);
  if (!read_at(file, prefix, sizeof prefix, 0, failed)) return false;
  uint64_t length = 0;
  for (int i = 0; i < 8; i++) length |= (uint64_t)prefix[i] << 8 * i;
  if (length > MAX_HEADER || length > (uint64_t)status.st_size - 8)
    return fail_with(failed, "%s: is no safetensors file: its header has %llu bytes", file->path,
                     (unsigned long long)length);
  char *text = malloc(length + 1);
  if (!text) return fail_with(failed, "%s: no memory for its header", file->path);
  bool ok = read_at(file, text, (int64_t)length, 8, failed);
  text[length] = 0;
  const char *end = text;
  errno = 0;
  cJSON *header = ok ? cJSON_ParseWithLengthOpts(text, length, &end, false) : NULL;
  if (ok && !header && errno == ENOMEM) ok = fail_with(failed, "%s: no memory for its header", file->path);
  while (header && end < text + length && isspace((unsigned char)*end)) end++;
  file->data_begin = 8 + (int64_t)length;
  if (ok && (!header || end != text + length)) ok = fail_with(failed, "%s: the header is no valid JSON", file->path);
  ok = ok && read_header(file, header, status.st_size - file->data_begin, failed);
  cJSON_Delete(header);
  free(text);
  return ok;
}

bool checkpoint_open(checkpoint *file, const char *path, failure *failed) {
  memset(file, 0, sizeof *file);
  struct stat status;
  const bool directory = !stat(path, &status) && S_ISDIR(status.st_mode);
  if (directory ? !join_path(file->path, sizeof file->path, path, CHECKPOINT_NAME)
                : snprintf(file->path, sizeof file->path, "%s", path) >= (int)sizeof file->path)
    return fail_with(failed, "%s: the name is too long", path);
  file->descriptor = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file->descriptor < 0) return fail_with(failed, "%s: %s", file->path, strerror(errno));
  if (parse(file, failed)) return true;
  checkpoint_close(file);
  return false;
}

bool checkpoint_read(const checkpoint *file, model *m, failure *failed) {
  float *blocks[BLOCKS] = {m->weights, m->moment, m->variance};
  for (int block = 0; block < (m->training ? BLOCKS : 1); block++)
    for (int i = 0; i < file->shape.count; i++) {
      const parameter *p = &file->shape.parameters[i];
      if (!read_at(file, blocks[block] + p->offset, 4 * p->count, file->data_begin + file->offsets[block][i], failed))
        return false;
    }
  return true;
}

void checkpoint_close(checkpoint *file) {
  if (file->descriptor >= 0) close(file->descriptor);
  file->descriptor = -1;
}
