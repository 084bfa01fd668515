/* Errors in TVM FFI's convention: raised for the calling thread, and -1 returned. */
#ifndef TIGON_FFI_ERRORS_H
#define TIGON_FFI_ERRORS_H

#include <tigon/base.h>

/* "<op>: <name>: <text>" as a Python exception of the class `kind`. The name has `length` characters. */
__attribute__((format(printf, 5, 6))) int ffi_fail(const char *kind, const char *op, const char *name, int length,
                                                   const char *format, ...);

/* The library's last error, in the class that its status stands for. TIGON_OK: 0, nothing is raised. */
int ffi_status(tigon_status status);

#endif
