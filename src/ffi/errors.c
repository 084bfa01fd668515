#include "ffi/errors.h"

#include <stdarg.h>
#include <stdio.h>
#include <tvm/ffi/c_api.h>

int ffi_fail(const char *kind, const char *op, const char *name, int length, const char *format, ...) {
  char text[512];
  int used = snprintf(text, sizeof text, "%s: %.*s: ", op, length, name);
  if (used < 0 || used >= (int)sizeof text) used = 0;
  va_list list;
  va_start(list, format);
  (void)vsnprintf(text + used, sizeof text - (size_t)used, format, list);
  va_end(list);
  TVMFFIErrorSetRaisedFromCStr(kind, text);
  return -1;
}

static const char *class_of(tigon_status status) {
  switch (status) {
  case TIGON_INVALID_ARGUMENT:
    return "ValueError";
  case TIGON_UNSUPPORTED:
    return "NotImplementedError";
  case TIGON_OUT_OF_MEMORY:
    return "MemoryError";
  default:
    return "RuntimeError";
  }
}

int ffi_status(tigon_status status) {
  if (status == TIGON_OK) return 0;
  TVMFFIErrorSetRaisedFromCStr(class_of(status), tigon_last_error());
  return -1;
}
