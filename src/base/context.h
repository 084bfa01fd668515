/* The context's error record, as operations see it. */
#ifndef TIGON_BASE_CONTEXT_H
#define TIGON_BASE_CONTEXT_H

#include "tigon/base.h"

/* Keeps the event unless the context (NULL is allowed) has one already. Thread-safe. Where several threads of one call
 * may meet bad values, the caller finds the lowest index first, so that the record does not depend on timing. */
void tigon_context_note(tigon_context *context, tigon_status code, const char *op, const char *argument, int64_t index,
                        int64_t value);

#endif
