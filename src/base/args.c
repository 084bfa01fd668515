#include "base/args.h"

#include <inttypes.h>
#include <string.h>

#include "base/context.h"
#include "base/pool.h"
#include "base/status.h"

tigon_status tigon_args_load(const char *op, const char *name, const void *from, void *to, size_t known) {
  if (!from) return tigon_fail(TIGON_INVALID_ARGUMENT, op, name, "expected a pointer, got NULL");
  uint32_t size;
  memcpy(&size, from, sizeof size);
  if (size < 8 || size % 8) /* every struct holds a 64-bit member, so no version has another size */
    return tigon_fail(TIGON_INVALID_ARGUMENT, op, name,
                      "expected its member size to be sizeof the struct, got %" PRIu32, size);
  const unsigned char *bytes = from;
  for (size_t i = known; i < size; i++)
    if (bytes[i])
      return tigon_fail(TIGON_UNSUPPORTED, op, name,
                        "expected zeros past byte %zu (the struct is newer than this library), got a value at byte %zu",
                        known, i);
  memset(to, 0, known);
  memcpy(to, from, size < known ? size : known);
  return TIGON_OK;
}

tigon_status tigon_device_check(const char *op, const char *name, DLDevice device, unsigned devices) {
  if (device.device_type == kDLCPU) return TIGON_OK;
  const char *why = "";
  if (device.device_type == kDLCUDA) {
#if defined(TIGON_HAVE_CUDA)
    if (devices & TIGON_ON_CUDA) return TIGON_OK;
    why = ": this operation has no GPU kernel";
#else
    (void)devices;
    why = ": this library was built without a CUDA compiler";
#endif
  }
  return tigon_fail(TIGON_UNSUPPORTED, op, name, "expected the CPU (%d), got device type %d%s", (int)kDLCPU,
                    (int)device.device_type, why);
}

tigon_status tigon_exec_load(const char *op, const tigon_exec *from, unsigned devices, tigon_exec *to) {
  if (from) {
    const tigon_status status = tigon_args_load(op, "exec", from, to, sizeof *to);
    if (status != TIGON_OK) return status;
  } else {
    memset(to, 0, sizeof *to);
  }
  if (to->device.device_type == 0) to->device.device_type = kDLCPU;
  const tigon_status status = tigon_device_check(op, "exec.device", to->device, devices);
  if (status != TIGON_OK) return status;
  if (to->context && to->context->device.device_type != to->device.device_type)
    return tigon_fail(TIGON_INVALID_ARGUMENT, op, "exec.context",
                      "expected a context of exec.device (type %d), got one of device type %d",
                      (int)to->device.device_type, (int)to->context->device.device_type);
  if (to->num_threads < 0 || to->num_threads > TIGON_MAX_THREADS)
    return tigon_fail(TIGON_INVALID_ARGUMENT, op, "exec.num_threads", "expected 0 to %d, got %" PRId32,
                      TIGON_MAX_THREADS, to->num_threads);
  if (to->num_threads == 0 && to->device.device_type == kDLCPU) to->num_threads = tigon_cpu_threads();
  return TIGON_OK;
}

void *tigon_arena_take(tigon_arena *arena, uint64_t bytes) {
  const uint64_t at = arena->used;
  arena->used += (bytes + 255) / 256 * 256;
  return arena->base && bytes ? arena->base + at : NULL;
}

tigon_status tigon_workspace_check(const char *op, const tigon_exec *exec, uint64_t bytes) {
  if (bytes == 0) return TIGON_OK;
  if (!exec->workspace)
    return tigon_fail(TIGON_WORKSPACE, op, "exec.workspace", "expected %" PRIu64 " bytes, got NULL", bytes);
  if (exec->workspace_bytes < bytes)
    return tigon_fail(TIGON_WORKSPACE, op, "exec.workspace_bytes", "expected at least %" PRIu64 ", got %" PRIu64, bytes,
                      exec->workspace_bytes);
  if ((uintptr_t)exec->workspace % 64)
    return tigon_fail(TIGON_WORKSPACE, op, "exec.workspace", "expected 64-byte alignment, got address %p",
                      exec->workspace);
  return TIGON_OK;
}

tigon_status tigon_workspace_answer(const char *op, uint64_t used, uint64_t *bytes) {
  if (!bytes) return tigon_fail(TIGON_INVALID_ARGUMENT, op, "bytes", "expected a pointer, got NULL");
  *bytes = used;
  return TIGON_OK;
}
