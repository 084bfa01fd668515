/* A CUDA device for tests: memory, streams, graphs. Every call fails the test where the driver reports an error. */
#ifndef TIGON_TESTS_GPU_DEVICE_H
#define TIGON_TESTS_GPU_DEVICE_H

#include <cuda.h>

#include "tests/support/support.h"

#define GPU_FUNCTIONS(F)      \
  F(cuInit)                   \
  F(cuDeviceGetCount)         \
  F(cuDevicePrimaryCtxRetain) \
  F(cuCtxCreate)              \
  F(cuCtxDestroy)             \
  F(cuCtxGetCurrent)          \
  F(cuCtxSetCurrent)          \
  F(cuCtxSynchronize)         \
  F(cuMemAlloc)               \
  F(cuMemFree)                \
  F(cuMemcpyHtoD)             \
  F(cuMemcpyDtoH)             \
  F(cuMemsetD8)               \
  F(cuMemsetD8Async)          \
  F(cuMemcpyDtoDAsync)        \
  F(cuStreamCreate)           \
  F(cuStreamDestroy)          \
  F(cuStreamSynchronize)      \
  F(cuStreamBeginCapture)     \
  F(cuStreamEndCapture)       \
  F(cuGraphInstantiate)       \
  F(cuGraphLaunch)            \
  F(cuGraphExecDestroy)       \
  F(cuGraphDestroy)           \
  F(cuModuleLoadData)         \
  F(cuModuleGetFunction)      \
  F(cuLaunchKernelEx)

typedef struct gpu_driver {
#define GPU_MEMBER(name) __typeof__(name) *name;
  GPU_FUNCTIONS(GPU_MEMBER)
#undef GPU_MEMBER
  int devices;
} gpu_driver;

/* NULL where there is no driver or no device. The first call makes the first device's primary context current. */
const gpu_driver *gpu_open(void);

/* Makes the primary context of that device current. */
void gpu_use(int device);

void gpu_check(CUresult result, const char *what);
#define GPU(call) gpu_check(gpu_open()->call, #call)

/* Device memory, poisoned with 0xff. */
CUdeviceptr gpu_alloc(size_t bytes);
void gpu_free(CUdeviceptr memory);

/* Ends the program without a device: as skipped, or as failed where TIGON_REQUIRE_GPU is set. */
void gpu_skip_without_device(void);

/* TIGON_TEST_CASES, where that is fewer: for sanitizers. */
int gpu_cases(int otherwise);

/* main of a program of GPU tests. */
#define GPU_MAIN(tests)                               \
  int main(void) {                                    \
    gpu_skip_without_device();                        \
    return cmocka_run_group_tests(tests, NULL, NULL); \
  }

#endif
