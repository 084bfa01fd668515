#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>

#include "tigon/version.h"

static _Thread_local char error_text[512];

tigon_status tigon_fail(tigon_status status, const char *op, const char *argument, const char *format, ...) {
  int used = snprintf(error_text, sizeof error_text, "%s: %s: ", op, argument);
  if (used < 0 || used >= (int)sizeof error_text) return status;
  va_list args;
  va_start(args, format);
  (void)vsnprintf(error_text + used, sizeof error_text - (size_t)used, format, args);
  va_end(args);
  return status;
}

const char *tigon_last_error(void) { return error_text; }

const char *tigon_status_string(tigon_status status) {
  switch (status) {
  case TIGON_OK:
    return "OK";
  case TIGON_INVALID_ARGUMENT:
    return "INVALID_ARGUMENT";
  case TIGON_UNSUPPORTED:
    return "UNSUPPORTED";
  case TIGON_UNAVAILABLE:
    return "UNAVAILABLE";
  case TIGON_WORKSPACE:
    return "WORKSPACE";
  case TIGON_DRIVER:
    return "DRIVER";
  case TIGON_COMM:
    return "COMM";
  case TIGON_TIMEOUT:
    return "TIMEOUT";
  case TIGON_OUT_OF_MEMORY:
    return "OUT_OF_MEMORY";
  case TIGON_INTERNAL:
    return "INTERNAL";
  }
  return "UNKNOWN";
}

#define TIGON_TEXT_(x) #x
#define TIGON_TEXT(x)  TIGON_TEXT_(x)

const char *tigon_version(void) {
  return TIGON_TEXT(TIGON_VERSION_MAJOR) "." TIGON_TEXT(TIGON_VERSION_MINOR) "." TIGON_TEXT(TIGON_VERSION_PATCH);
}
