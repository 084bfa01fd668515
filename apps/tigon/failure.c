#include "failure.h"

#include <stdarg.h>
#include <stdio.h>

#include "commands.h"

bool fail_with(failure *failed, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(failed->text, sizeof failed->text, format, arguments);
  va_end(arguments);
  for (char *c = failed->text; *c; c++)
    if ((unsigned char)*c < ' ' || *c == 127) *c = '?';
  return false;
}

int report(const char *command, const failure *failed) {
  fprintf(stderr, "tigon %s: %s\n", command, failed->text);
  return EXIT_FAILED;
}
