/* The calling thread's error text, and the way to set it. */
#ifndef TIGON_BASE_STATUS_H
#define TIGON_BASE_STATUS_H

#include "tigon/base.h"

/* Sets the thread's error to "op: argument: message" and returns the status. */
tigon_status tigon_fail(tigon_status status, const char *op, const char *argument, const char *format, ...)
    __attribute__((format(printf, 4, 5), cold));

#endif
