#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint.h"
#include "checkpoint_format.h"
#include "paths.h"

static bool describe_run(cJSON *header, const run_state *state) {
  cJSON *metadata = cJSON_AddObjectToObject(header, "__metadata__");
  bool ok = metadata && cJSON_AddStringToObject(metadata, "format", CHECKPOINT_FORMAT);
  state_field fields[STATE_FIELDS];
  run_state copy = *state;
  state_fields(fields, &copy);
  for (int i = 0; ok && i < STATE_FIELDS; i++) {
    char text[40];
    if (fields[i].integer)
      snprintf(text, sizeof text, "%" PRId64, *fields[i].integer);
    else if (fields[i].real)
      snprintf(text, sizeof text, "%.17g", *fields[i].real);
    else if (fields[i].kind)
      snprintf(text, sizeof text, "%s", data_kind_names[*fields[i].kind]);
    else
      snprintf(text, sizeof text, "%016" PRIx64, *fields[i].bits);
    ok = cJSON_AddStringToObject(metadata, fields[i].name, text);
  }
  return ok;
}

static bool describe_tensor(cJSON *header, const char *name, const parameter *p, int64_t offset) {
  cJSON *entry = cJSON_AddObjectToObject(header, name);
  cJSON *shape = cJSON_CreateArray(), *range = cJSON_CreateArray();
  bool ok = entry && shape && range && cJSON_AddStringToObject(entry, "dtype", "F32");
  for (int i = 0; ok && i < p->ndim; i++) ok = cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)p->shape[i]));
  ok = ok && cJSON_AddItemToArray(range, cJSON_CreateNumber((double)offset));
  ok = ok && cJSON_AddItemToArray(range, cJSON_CreateNumber((double)(offset + 4 * p->count)));
  if (entry && shape && range) {
    ok = cJSON_AddItemToObject(entry, "shape", shape) && ok;
    return cJSON_AddItemToObject(entry, "data_offsets", range) && ok;
  }
  cJSON_Delete(shape);
  cJSON_Delete(range);
  return false;
}

/* The header's text, padded with spaces to a multiple of 8. NULL without memory. */
static char *describe(const run_state *state, const model_shape *shape) {
  cJSON *header = cJSON_CreateObject();
  bool ok = header && describe_run(header, state);
  int64_t offset = 0;
  for (int block = 0; block < BLOCKS; block++)
    for (int i = 0; ok && i < shape->count; i++) {
      char name[64];
      snprintf(name, sizeof name, "%s%s", block_prefix[block], shape->parameters[i].name);
      ok = describe_tensor(header, name, &shape->parameters[i], offset);
      offset += 4 * shape->parameters[i].count;
    }
  char *text = ok ? cJSON_PrintUnformatted(header) : NULL;
  cJSON_Delete(header);
  const size_t length = text ? strlen(text) : 0, padded = (length + 7) / 8 * 8;
  char *result = text ? malloc(padded + 1) : NULL;
  if (result) {
    memcpy(result, text, length);
    memset(result + length, ' ', padded - length);
    result[padded] = 0;
  }
  cJSON_free(text);
  return result;
}

static bool put_tensors(FILE *file, const model *m) {
  const float *blocks[BLOCKS] = {m->weights, m->moment, m->variance};
  for (int block = 0; block < BLOCKS; block++)
    for (int i = 0; i < m->shape->count; i++) {
      const parameter *p = &m->shape->parameters[i];
      if (fwrite(blocks[block] + p->offset, 4, (size_t)p->count, file) != (size_t)p->count) return false;
    }
  return true;
}

static bool put(FILE *file, const run_state *state, const model *m) {
  char *header = describe(state, m->shape);
  if (!header) {
    errno = ENOMEM;
    return false;
  }
  const uint64_t length = strlen(header);
  uint8_t prefix[8];
  for (int i = 0; i < 8; i++) prefix[i] = (uint8_t)(length >> 8 * i);
  bool ok = fwrite(prefix, 1, sizeof prefix, file) == sizeof prefix && fwrite(header, 1, length, file) == length;
  ok = ok && put_tensors(file, m) && !fflush(file) && !fsync(fileno(file));
  free(header);
  return ok;
}

/* A rename is on the disk when its directory is. */
static bool sync_directory(const char *directory) {
  const int descriptor = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return false;
  const bool ok = !fsync(descriptor) || errno == EINVAL;
  close(descriptor);
  return ok;
}

bool checkpoint_write(const char *directory, const run_state *state, const model *m, failure *failed) {
  char path[4096], fresh[4096];
  if (!join_path(path, sizeof path, directory, CHECKPOINT_NAME) ||
      !join_path(fresh, sizeof fresh, directory, CHECKPOINT_NAME ".new"))
    return fail_with(failed, "%s: the name is too long", directory);
  FILE *file = fopen(fresh, "wbe");
  if (!file) return fail_with(failed, "%s: cannot create: %s", fresh, strerror(errno));
  bool ok = put(file, state, m);
  int reason = errno;
  if (fclose(file) && ok) {
    ok = false;
    reason = errno;
  }
  if (!ok) {
    unlink(fresh);
    return fail_with(failed, "%s: cannot write: %s (the checkpoint before it is kept)", fresh, strerror(reason));
  }
  if (rename(fresh, path)) {
    reason = errno;
    unlink(fresh);
    return fail_with(failed, "%s: cannot replace: %s", path, strerror(reason));
  }
  if (!sync_directory(directory))
    return fail_with(failed, "%s: cannot bring to the disk: %s", directory, strerror(errno));
  return true;
}
