/* The CUDA driver, opened at run time: no part of the library is linked to it. */
#ifndef TIGON_GPU_DRIVER_H
#define TIGON_GPU_DRIVER_H

#include <cuda.h>

#include "tigon/base.h"

#define TIGON_DRIVER_FUNCTIONS(F)      \
  F(cuInit)                            \
  F(cuDriverGetVersion)                \
  F(cuGetErrorName)                    \
  F(cuGetErrorString)                  \
  F(cuDeviceGet)                       \
  F(cuDeviceGetCount)                  \
  F(cuDeviceGetName)                   \
  F(cuDeviceGetAttribute)              \
  F(cuDeviceTotalMem)                  \
  F(cuDevicePrimaryCtxRetain)          \
  F(cuCtxGetCurrent)                   \
  F(cuCtxGetDevice)                    \
  F(cuCtxPushCurrent)                  \
  F(cuCtxPopCurrent)                   \
  F(cuStreamGetCtx)                    \
  F(cuThreadExchangeStreamCaptureMode) \
  F(cuLibraryLoadData)                 \
  F(cuLibraryGetKernel)                \
  F(cuKernelGetAttribute)              \
  F(cuKernelSetAttribute)              \
  F(cuKernelGetFunction)               \
  F(cuLaunchKernelEx)                  \
  F(cuTensorMapEncodeTiled)            \
  F(cuMemsetD2D8Async)                 \
  F(cuMemHostAlloc)                    \
  F(cuMemFreeHost)

typedef struct tigon_driver {
#define TIGON_DRIVER_MEMBER(name) __typeof__(name) *name;
  TIGON_DRIVER_FUNCTIONS(TIGON_DRIVER_MEMBER)
#undef TIGON_DRIVER_MEMBER
  int version; /* 1000 major + 10 minor */
} tigon_driver;

/* The oldest driver that runs the images of this build: the first of the CUDA version that compiled them. */
enum { TIGON_OLDEST_DRIVER = CUDA_VERSION / 1000 * 1000 };

/* Opens the driver at the first call, from any thread. Fails with TIGON_UNAVAILABLE where there is none, where it is
 * too old or has no device, and in a child that was forked after the parent had opened it.
 * name: of the argument that asked for a device. */
tigon_status tigon_driver_open(const char *op, const char *name, const tigon_driver **driver);

/* Fails with the driver's own words about what `call` returned. */
tigon_status tigon_driver_fail(const tigon_driver *driver, const char *op, const char *call, CUresult result);

#endif
