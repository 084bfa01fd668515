#include "failure.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"

/* What does not fit loses its middle, a part of some long name: the reason stands at the end. */
static void shorten(char *text, size_t room, const char *whole, size_t length) {
  static const char gap[] = " ... ";
  const size_t front = room / 3, back = room - 1 - front - (sizeof gap - 1);
  memcpy(text, whole, front);
  memcpy(text + front, gap, sizeof gap - 1);
  memcpy(text + room - 1 - back, whole + length - back, back + 1);
}

void fail_with_list(failure *failed, const char *format, va_list arguments) {
  va_list again;
  va_copy(again, arguments);
  const int length = vsnprintf(failed->text, sizeof failed->text, format, arguments);
  char *whole = length >= (int)sizeof failed->text ? malloc((size_t)length + 1) : NULL;
  if (whole && vsnprintf(whole, (size_t)length + 1, format, again) == length)
    shorten(failed->text, sizeof failed->text, whole, (size_t)length);
  free(whole);
  va_end(again);
  for (char *c = failed->text; *c; c++)
    if ((unsigned char)*c < ' ' || *c == 127) *c = '?';
}

bool fail_with(failure *failed, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fail_with_list(failed, format, arguments);
  va_end(arguments);
  return false;
}

int report(const char *command, const failure *failed) {
  fprintf(stderr, "tigon %s: %s\n", command, failed->text);
  return EXIT_FAILED;
}
