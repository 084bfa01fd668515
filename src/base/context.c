#include "base/context.h"

#include <string.h>

#include "base/status.h"

static void copy_text(char *to, size_t size, const char *from) {
  size_t length = strlen(from);
  if (length >= size) length = size - 1;
  memcpy(to, from, length);
  to[length] = '\0';
}

void tigon_context_note(tigon_context *context, tigon_status code, const char *op, const char *argument, int64_t index,
                        int64_t value) {
  if (!context) return;
  pthread_mutex_lock(&context->lock);
  tigon_record *record = context->record;
  if (record->code == TIGON_OK) {
    record->code = code;
    record->pe = 0;
    record->index = index;
    record->value = value;
    copy_text(record->op, sizeof record->op, op);
    copy_text(record->argument, sizeof record->argument, argument);
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
