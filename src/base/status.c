#include "base/status.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "tigon/version.h"

/* The text lies in thread-specific data and not in a _Thread_local, which would make the library need the dynamic
 * linker by name, or a part of its small reserve of static storage. */
enum { TEXT_SIZE = 512 };
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool have_key;

static void make_key(void) { have_key = pthread_key_create(&key, free) == 0; }

/* After dlclose a thread's end must not call into this library. */
__attribute__((destructor)) static void delete_key(void) {
  if (!have_key) return;
  free(pthread_getspecific(key));
  pthread_key_delete(key);
  have_key = false;
}

/* The calling thread's text, made at its first failure; NULL without memory. */
static char *text_to_write(void) {
  pthread_once(&once, make_key);
  if (!have_key) return NULL;
  char *text = pthread_getspecific(key);
  if (text) return text;
  text = calloc(1, TEXT_SIZE);
  if (text && pthread_setspecific(key, text) != 0) {
    free(text);
    text = NULL;
  }
  return text;
}

tigon_status tigon_fail(tigon_status status, const char *op, const char *argument, const char *format, ...) {
  char *text = text_to_write();
  if (!text) return status;
  int used = snprintf(text, TEXT_SIZE, "%s: %s: ", op, argument);
  if (used < 0 || used >= TEXT_SIZE) return status;
  va_list args;
  va_start(args, format);
  (void)vsnprintf(text + used, (size_t)(TEXT_SIZE - used), format, args);
  va_end(args);
  return status;
}

const char *tigon_last_error(void) {
  pthread_once(&once, make_key);
  const char *text = have_key ? pthread_getspecific(key) : NULL;
  return text ? text : "";
}

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
