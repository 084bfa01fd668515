/* Contexts and descriptions of devices: the public calls that know of CPUs and GPUs. */
#include "base/context.h"

#include <stdlib.h>
#include <string.h>

#include "base/args.h"
#include "base/status.h"

#if defined(TIGON_HAVE_CUDA)
#include "gpu/device.h"

/* The record in pinned memory, at one address for the host and all devices. */
static tigon_status pin_record(const char *op, tigon_context *context) {
  const tigon_driver *driver;
  const tigon_device_facts *facts;
  tigon_status status = tigon_driver_open(op, "device", &driver);
  if (status == TIGON_OK) status = tigon_device_get(op, "device", context->device, &facts);
  if (status != TIGON_OK) return status;
  CUcontext popped;
  void *memory = NULL;
  CUresult result = driver->cuCtxPushCurrent(facts->primary);
  if (result != CUDA_SUCCESS) return tigon_driver_fail(driver, op, "cuCtxPushCurrent", result);
  result =
      driver->cuMemHostAlloc(&memory, sizeof *context->record, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  driver->cuCtxPopCurrent(&popped);
  if (result == CUDA_ERROR_OUT_OF_MEMORY)
    return tigon_fail(TIGON_OUT_OF_MEMORY, op, "context", "no pinned memory for %zu bytes", sizeof *context->record);
  if (result != CUDA_SUCCESS) return tigon_driver_fail(driver, op, "cuMemHostAlloc", result);
  context->record = memset(memory, 0, sizeof *context->record);
  return TIGON_OK;
}

/* On a thread that may have no context. */
static void unpin_record(tigon_context *context) {
  static const char *const op = "tigon_context_destroy";
  const tigon_driver *driver;
  const tigon_device_facts *facts;
  CUcontext popped;
  if (tigon_driver_open(op, "context", &driver) != TIGON_OK) return;
  if (tigon_device_get(op, "context", context->device, &facts) != TIGON_OK) return;
  if (driver->cuCtxPushCurrent(facts->primary) != CUDA_SUCCESS) return;
  driver->cuMemFreeHost(context->record);
  driver->cuCtxPopCurrent(&popped);
}

static tigon_status describe(const char *op, DLDevice device, tigon_device_info *info) {
  const tigon_driver *driver;
  const tigon_device_facts *facts;
  tigon_status status = tigon_driver_open(op, "device", &driver);
  if (status == TIGON_OK) status = tigon_device_get(op, "device", device, &facts);
  if (status != TIGON_OK) return status;
  const CUresult result = driver->cuDeviceGetName(info->name, sizeof info->name, facts->handle);
  if (result != CUDA_SUCCESS) return tigon_driver_fail(driver, op, "cuDeviceGetName", result);
  info->driver_version = driver->version;
  info->oldest_driver_version = TIGON_OLDEST_DRIVER;
  info->compute_major = facts->major;
  info->compute_minor = facts->minor;
  info->multiprocessors = facts->multiprocessors;
  info->memory_bytes = (int64_t)facts->memory_bytes;
  strncpy(info->image, facts->image, sizeof info->image - 1);
  return TIGON_OK;
}
#endif

tigon_status tigon_context_create(DLDevice device, tigon_context **context) {
  static const char *const op = "tigon_context_create";
  if (!context) return tigon_fail(TIGON_INVALID_ARGUMENT, op, "context", "expected a pointer, got NULL");
  *context = NULL;
  if (device.device_type == 0) device.device_type = kDLCPU;
  tigon_status status = tigon_device_check(op, "device", device, TIGON_ON_CPU | TIGON_ON_CUDA);
  if (status != TIGON_OK) return status;
  tigon_context *made = calloc(1, sizeof *made);
  if (!made) return tigon_fail(TIGON_OUT_OF_MEMORY, op, "context", "no memory for %zu bytes", sizeof *made);
  made->device = device;
  made->record = &made->own;
#if defined(TIGON_HAVE_CUDA)
  if (device.device_type == kDLCUDA) status = pin_record(op, made);
#endif
  if (status != TIGON_OK) {
    free(made);
    return status;
  }
  pthread_mutex_init(&made->lock, NULL);
  *context = made;
  return TIGON_OK;
}

void tigon_context_destroy(tigon_context *context) {
  if (!context) return;
#if defined(TIGON_HAVE_CUDA)
  if (context->record != &context->own) unpin_record(context);
#endif
  pthread_mutex_destroy(&context->lock);
  free(context);
}

tigon_status tigon_device_query(DLDevice device, tigon_device_info *info) {
  static const char *const op = "tigon_device_query";
  tigon_device_info known;
  tigon_status status = tigon_args_load(op, "info", info, &known, sizeof known);
  if (device.device_type == 0) device.device_type = kDLCPU;
  if (status == TIGON_OK) status = tigon_device_check(op, "device", device, TIGON_ON_CPU | TIGON_ON_CUDA);
  if (status != TIGON_OK) return status;
  memset(&known, 0, sizeof known);
  known.size = info->size;
  if (device.device_type == kDLCPU) strncpy(known.image, tigon_cpu_isa(), sizeof known.image - 1);
#if defined(TIGON_HAVE_CUDA)
  if (device.device_type == kDLCUDA) status = describe(op, device, &known);
#endif
  if (status == TIGON_OK) memcpy(info, &known, known.size < sizeof known ? known.size : sizeof known);
  return status;
}
