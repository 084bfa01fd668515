#include "base/context.h"

#include <string.h>

#include "base/status.h"

static void copy_text(char *to, size_t size, const char *from) {
  size_t length = strlen(from);
  if (length >= size) length = size - 1;
  memcpy(to, from, length);
  to[length] = '\0';
}

tigon_record tigon_record_of(tigon_status code, const char *op, const char *argument) {
  tigon_record record = {.code = code};
  copy_text(record.op, sizeof record.op, op);
  copy_text(record.argument, sizeof record.argument, argument);
  return record;
}

void tigon_context_note(tigon_context *context, tigon_status code, const char *op, const char *argument, int64_t index,
                        int64_t value) {
  if (!context) return;
  pthread_mutex_lock(&context->lock);
  if (context->record->code == TIGON_OK) {
    tigon_record made = tigon_record_of(code, op, argument);
    made.index = index;
    made.value = value;
    *context->record = made;
  }
  pthread_mutex_unlock(&context->lock);
}

tigon_status tigon_check(tigon_context *context, tigon_record *record) {
  if (!context || !record)
    return tigon_fail(TIGON_INVALID_ARGUMENT, "tigon_check", context ? "record" : "context",
                      "expected a pointer, got NULL");
  pthread_mutex_lock(&context->lock);
  *record = *context->record;
  pthread_mutex_unlock(&context->lock);
  return record->code;
}

void tigon_clear(tigon_context *context) {
  if (!context) return;
  pthread_mutex_lock(&context->lock);
  memset(context->record, 0, sizeof *context->record);
  pthread_mutex_unlock(&context->lock);
}
