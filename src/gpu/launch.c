#include "gpu/launch.h"

#include <pthread.h>

#include "base/status.h"

/* Streams that belong to whatever context is current: NULL, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD. */
static bool is_default_stream(CUstream stream) { return (uintptr_t)stream <= 2; }

/* The context to launch in; `current` is the thread's, or NULL. */
static CUresult choose_context(const tigon_gpu_call *call, CUcontext current, CUcontext *chosen) {
  const tigon_driver *driver = call->driver;
  if (!is_default_stream(call->stream)) return driver->cuStreamGetCtx(call->stream, chosen);
  CUdevice device;
  const bool here = current && driver->cuCtxGetDevice(&device) == CUDA_SUCCESS && device == call->device->handle;
  *chosen = here ? current : call->device->primary;
  return CUDA_SUCCESS;
}

static tigon_status check_device_of(const tigon_gpu_call *call) {
  CUdevice device;
  if (call->in_primary) return TIGON_OK;
  const CUresult result = call->driver->cuCtxGetDevice(&device);
  if (result != CUDA_SUCCESS) return tigon_driver_fail(call->driver, call->op, "cuCtxGetDevice", result);
  if (device == call->device->handle) return TIGON_OK;
  return tigon_fail(TIGON_INVALID_ARGUMENT, call->op, "exec.stream",
                    "expected a stream of CUDA device %d (exec.device), got one of device %d", call->device->id,
                    (int)device);
}

tigon_status tigon_gpu_begin(const char *op, const tigon_exec *exec, tigon_gpu_call *call) {
  *call = (tigon_gpu_call){.op = op, .stream = exec->stream};
  tigon_status status = tigon_driver_open(op, "exec.device", &call->driver);
  if (status == TIGON_OK) status = tigon_device_get(op, "exec.device", exec->device, &call->device);
  if (status != TIGON_OK) return status;
  CUcontext current = NULL, chosen = NULL;
  CUresult result = call->driver->cuCtxGetCurrent(&current);
  if (result == CUDA_SUCCESS) result = choose_context(call, current, &chosen);
  if (result == CUDA_SUCCESS && chosen != current) {
    result = call->driver->cuCtxPushCurrent(chosen);
    call->pushed = result == CUDA_SUCCESS;
  }
  if (result != CUDA_SUCCESS) return tigon_driver_fail(call->driver, op, "exec.stream", result);
  call->in_primary = chosen == call->device->primary;
  if (is_default_stream(call->stream)) return TIGON_OK;
  status = check_device_of(call);
  return status == TIGON_OK ? status : tigon_gpu_end(call, status);
}

tigon_status tigon_gpu_end(const tigon_gpu_call *call, tigon_status status) {
  CUcontext popped;
  if (call->pushed) call->driver->cuCtxPopCurrent(&popped);
  return status;
}

/* Loads what is missing and sets the kernel's attributes on this device. Under the loader's lock. */
static CUresult prepare(const tigon_gpu_call *call, tigon_kernel *kernel, const char **step) {
  const tigon_driver *driver = call->driver;
  const CUdevice device = call->device->handle;
  CUresult result = CUDA_SUCCESS;
  if (!kernel->image->library) {
    *step = "cuLibraryLoadData";
    result = driver->cuLibraryLoadData(&kernel->image->library, kernel->image->data, NULL, NULL, 0, NULL, NULL, 0);
    if (result != CUDA_SUCCESS) return result;
  }
  if (!kernel->handle) {
    *step = kernel->name;
    result = driver->cuLibraryGetKernel(&kernel->handle, kernel->image->library, kernel->name);
    if (result != CUDA_SUCCESS) return result;
  }
  int used = 0;
  *step = "cuKernelGetAttribute";
  result = driver->cuKernelGetAttribute(&used, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel->handle, device);
  if (result != CUDA_SUCCESS) return result;
  *step = "cuKernelSetAttribute";
  result = driver->cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                        call->device->shared_bytes - used, kernel->handle, device);
  if (result == CUDA_SUCCESS && call->device->hopper_code)
    result =
        driver->cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, kernel->handle, device);
  return result;
}

static tigon_status make_ready(const tigon_gpu_call *call, tigon_kernel *kernel) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  const char *step = "";
  pthread_mutex_lock(&lock);
  /* While some stream of this thread is captured, loading is allowed in the relaxed mode only. */
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  call->driver->cuThreadExchangeStreamCaptureMode(&mode);
  CUresult result = prepare(call, kernel, &step);
  CUfunction function;
  if (result == CUDA_SUCCESS) {
    step = "cuKernelGetFunction"; /* its code is loaded here, and not at a launch within a capture */
    result = call->driver->cuKernelGetFunction(&function, kernel->handle);
  }
  call->driver->cuThreadExchangeStreamCaptureMode(&mode);
  if (result == CUDA_SUCCESS)
    atomic_fetch_or_explicit(&kernel->ready, (uint_fast64_t)1 << call->device->id, memory_order_release);
  pthread_mutex_unlock(&lock);
  return result == CUDA_SUCCESS ? TIGON_OK : tigon_driver_fail(call->driver, call->op, step, result);
}

tigon_status tigon_gpu_launch(const tigon_gpu_call *call, tigon_kernel *kernel, tigon_grid grid, void *params) {
  if (!(atomic_load_explicit(&kernel->ready, memory_order_acquire) >> call->device->id & 1)) {
    const tigon_status status = make_ready(call, kernel);
    if (status != TIGON_OK) return status;
  }
  CUlaunchAttribute attributes[2];
  CUlaunchConfig config = {.gridDimX = (unsigned)grid.blocks,
                           .gridDimY = 1,
                           .gridDimZ = 1,
                           .blockDimX = (unsigned)grid.threads,
                           .blockDimY = 1,
                           .blockDimZ = 1,
                           .sharedMemBytes = (unsigned)grid.shared_bytes,
                           .hStream = call->stream,
                           .attrs = attributes};
  if (grid.cluster > 1) {
    CUlaunchAttribute *cluster = &attributes[config.numAttrs++];
    cluster->id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    cluster->value.clusterDim.x = (unsigned)grid.cluster;
    cluster->value.clusterDim.y = cluster->value.clusterDim.z = 1;
  }
  if (grid.overlaps && call->device->hopper_code) {
    CUlaunchAttribute *overlaps = &attributes[config.numAttrs++];
    overlaps->id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    overlaps->value.programmaticStreamSerializationAllowed = 1;
  }
  void *list[] = {params};
  /* make_ready loaded the code for one context of the device; another one may load it here, within a capture */
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  if (!call->in_primary) call->driver->cuThreadExchangeStreamCaptureMode(&mode);
  const CUresult result = call->driver->cuLaunchKernelEx(&config, (CUfunction)kernel->handle, list, NULL);
  if (!call->in_primary) call->driver->cuThreadExchangeStreamCaptureMode(&mode);
  return result == CUDA_SUCCESS ? TIGON_OK : tigon_driver_fail(call->driver, call->op, kernel->name, result);
}
