/* One line about what went wrong, handed up to the command, which prints it. */
#ifndef APPS_FAILURE_H
#define APPS_FAILURE_H

#include <stdbool.h>

typedef struct failure {
  char text[512];
} failure;

/* Writes the text and returns false, so that a function can end with `return fail_with(...)`. Control characters of names
 * are replaced, so that the message stays one line. */
__attribute__((format(printf, 2, 3))) bool fail_with(failure *failed, const char *format, ...);

/* Prints "tigon COMMAND: TEXT" to standard error and returns EXIT_FAILED. */
int report(const char *command, const failure *failed);

#endif
