/* One line about what went wrong, handed up to the command, which prints it. */
#ifndef APPS_FAILURE_H
#define APPS_FAILURE_H

#include <stdarg.h>
#include <stdbool.h>

typedef struct failure {
  char text[1024];
} failure;

/* Writes the text and returns false, so that a function can end with `return fail_with(...)`. Control characters of
 * names are replaced, so that the message stays one line; the middle of a text that is too long is left out. */
__attribute__((format(printf, 2, 3))) bool fail_with(failure *failed, const char *format, ...);
void fail_with_list(failure *failed, const char *format, va_list arguments);

/* Prints "tigon COMMAND: TEXT" to standard error and returns EXIT_FAILED. */
int report(const char *command, const failure *failed);

#endif
