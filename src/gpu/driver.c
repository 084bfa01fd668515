#include "gpu/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static tigon_driver opened;
static char failure[256]; /* why it could not be opened; empty: it is open */
static volatile bool forked;

static void note_fork(void) { forked = true; }

/* The name of the version that cuda.h declares: cuCtxPushCurrent_v2 of cuCtxPushCurrent. */
#define VERSIONED_(name) #name
#define VERSIONED(name)  VERSIONED_(name)

static bool look_up(void *library, const char *name, void *function) {
  void *found = dlsym(library, name);
  memcpy(function, &found, sizeof found);
  if (!found)
    snprintf(failure, sizeof failure, "expected a driver for CUDA %d.0 or later, got one without %s",
             TIGON_OLDEST_DRIVER / 1000, name);
  return found != NULL;
}

static void open_driver(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char *why = dlerror();
    snprintf(failure, sizeof failure, "no CUDA driver: %.200s", why ? why : "libcuda.so.1 cannot be opened");
    return;
  }
#define LOOK_UP(name) \
  if (!look_up(library, VERSIONED(name), &opened.name)) return;
  TIGON_DRIVER_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
  const CUresult result = opened.cuInit(0);
  if (result != CUDA_SUCCESS) {
    const char *text = NULL;
    opened.cuGetErrorString(result, &text);
    snprintf(failure, sizeof failure, "cuInit: %.200s", text ? text : "failed");
    return;
  }
  opened.cuDriverGetVersion(&opened.version);
  if (opened.version < TIGON_OLDEST_DRIVER)
    snprintf(failure, sizeof failure, "expected a driver for CUDA %d.0 or later, got one for %d.%d",
             TIGON_OLDEST_DRIVER / 1000, opened.version / 1000, opened.version % 1000 / 10);
  pthread_atfork(NULL, NULL, note_fork);
}

tigon_status tigon_driver_open(const char *op, const char *name, const tigon_driver **driver) {
  pthread_once(&once, open_driver);
  if (failure[0]) return tigon_fail(TIGON_UNAVAILABLE, op, name, "%s", failure);
  if (forked)
    return tigon_fail(TIGON_UNAVAILABLE, op, name,
                      "CUDA cannot be used in a process that was forked after its first use of CUDA; start the "
                      "process anew (spawn)");
  *driver = &opened;
  return TIGON_OK;
}

tigon_status tigon_driver_fail(const tigon_driver *driver, const char *op, const char *call, CUresult result) {
  const char *name = NULL, *text = NULL;
  driver->cuGetErrorName(result, &name);
  driver->cuGetErrorString(result, &text);
  return tigon_fail(TIGON_DRIVER, op, call, "%s (%s)", name ? name : "unknown error", text ? text : "no description");
}
