/* A context's inside, and the way an operation on the CPU records a bad value. src/gpu/context.c makes contexts. */
#ifndef TIGON_BASE_CONTEXT_H
#define TIGON_BASE_CONTEXT_H

#include <pthread.h>

#include "tigon/base.h"

struct tigon_context {
  pthread_mutex_t lock; /* guards record against the CPU's threads */
  tigon_record *record; /* own, or pinned memory that kernels write to as well */
  tigon_record own;
  DLDevice device;
};

/* Keeps the event unless the context (NULL is allowed) has one already. Thread-safe. Where several threads of one call
 * may meet bad values, the caller finds the lowest index first, so that the record does not depend on timing. */
void tigon_context_note(tigon_context *context, tigon_status code, const char *op, const char *argument, int64_t index,
                        int64_t value);

/* What would be recorded, but for index and value: kernels write the record themselves. */
tigon_record tigon_record_of(tigon_status code, const char *op, const char *argument);

#endif
