#include "tests/gpu/device.h"

#include <dlfcn.h>

/* The name of the version that cuda.h declares: cuMemAlloc_v2 of cuMemAlloc. */
#define VERSIONED_(name) #name
#define VERSIONED(name)  VERSIONED_(name)

static bool look_up(void *library, const char *name, void *function) {
  void *found = dlsym(library, name);
  memcpy(function, &found, sizeof found);
  return found != NULL;
}

const gpu_driver *gpu_open(void) {
  static gpu_driver driver;
  static bool tried, good;
  if (tried) return good ? &driver : NULL;
  tried = true;
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return NULL;
#define LOOK_UP(name) \
  if (!look_up(library, VERSIONED(name), &driver.name)) return NULL;
  GPU_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
  good = driver.cuInit(0) == CUDA_SUCCESS && driver.cuDeviceGetCount(&driver.devices) == CUDA_SUCCESS &&
         driver.devices > 0;
  if (good) gpu_use(0);
  return good ? &driver : NULL;
}

void gpu_use(int device) {
  CUcontext context;
  GPU(cuDevicePrimaryCtxRetain(&context, device));
  GPU(cuCtxSetCurrent(context));
}

void gpu_check(CUresult result, const char *what) {
  if (result != CUDA_SUCCESS) fail_msg("%s: CUDA error %d", what, (int)result);
}

CUdeviceptr gpu_alloc(size_t bytes) {
  CUdeviceptr memory;
  GPU(cuMemAlloc(&memory, bytes ? bytes : 1));
  GPU(cuMemsetD8(memory, 0xff, bytes ? bytes : 1));
  GPU(cuCtxSynchronize()); /* streams that do not wait for the default one find it done */
  return memory;
}

void gpu_free(CUdeviceptr memory) { GPU(cuMemFree(memory)); }

void gpu_skip_without_device(void) {
  enum { FAILED = 1, SKIPPED = 77 };
  if (gpu_open()) return;
  puts("no CUDA device");
  exit(getenv("TIGON_REQUIRE_GPU") ? FAILED : SKIPPED);
}

int gpu_cases(int otherwise) {
  const char *few = getenv("TIGON_TEST_CASES");
  return few && atoi(few) < otherwise ? atoi(few) : otherwise;
}
