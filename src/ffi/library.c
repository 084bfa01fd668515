/* Contexts, slopes and facts about the library as TVM FFI functions. A context is passed as an integer. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ffi/errors.h"
#include "ffi/marshal.h"

#define FUNCTION(name)                                                                                          \
  __attribute__((visibility("default"))) int __tvm_ffi_##name(void *self, const TVMFFIAny *args, int32_t count, \
                                                              TVMFFIAny *result);                               \
  int __tvm_ffi_##name(void *self, const TVMFFIAny *args, int32_t count, TVMFFIAny *result)

static int take_integers(const char *op, const TVMFFIAny *args, int32_t count, int32_t expected) {
  if (count < expected)
    return ffi_fail("TypeError", op, "arguments", 9, "expected %d, got %d", (int)expected, (int)count);
  for (int32_t i = 0; i < expected; i++)
    if (args[i].type_index != kTVMFFIInt)
      return ffi_fail("TypeError", op, "arguments", 9, "expected an integer at place %d", (int)i);
  return 0;
}

static int give_text(const char *text, TVMFFIAny *result) {
  const TVMFFIByteArray bytes = {text, strlen(text)};
  return TVMFFIStringFromByteArray(&bytes, result);
}

static int give_integer(int64_t value, TVMFFIAny *result) {
  result->type_index = kTVMFFIInt;
  result->v_int64 = value;
  return 0;
}

FUNCTION(tigon_context_create) {
  (void)self;
  if (take_integers("tigon_context_create", args, count, 2)) return -1;
  const DLDevice device = {.device_type = (DLDeviceType)args[0].v_int64, .device_id = (int32_t)args[1].v_int64};
  tigon_context *context;
  if (ffi_status(tigon_context_create(device, &context))) return -1;
  return give_integer((int64_t)(intptr_t)context, result);
}

FUNCTION(tigon_context_destroy) {
  (void)self, (void)result;
  if (take_integers("tigon_context_destroy", args, count, 1)) return -1;
  tigon_context_destroy(args[0].v_ptr);
  return 0;
}

/* "code pe index value op argument", or None where nothing was recorded. */
FUNCTION(tigon_check) {
  (void)self;
  if (take_integers("tigon_check", args, count, 1)) return -1;
  if (!args[0].v_ptr) return ffi_status(tigon_check(NULL, NULL));
  tigon_record record;
  if (tigon_check(args[0].v_ptr, &record) == TIGON_OK) return 0;
  char text[256];
  (void)snprintf(text, sizeof text, "%s %" PRId32 " %" PRId64 " %" PRId64 " %s %s", tigon_status_string(record.code),
                 record.pe, record.index, record.value, record.op, record.argument);
  return give_text(text, result);
}

FUNCTION(tigon_clear) {
  (void)self, (void)result;
  if (take_integers("tigon_clear", args, count, 1)) return -1;
  tigon_clear(args[0].v_ptr);
  return 0;
}

/* kind, layer, layers, heads_total, head_begin, and the float32 vector to fill. */
FUNCTION(tigon_lightning_attention_slopes) {
  (void)self, (void)result;
  const char *op = "tigon_lightning_attention_slopes";
  if (take_integers(op, args, count, 5)) return -1;
  const bool is_tensor = count == 6 && args[5].type_index == kTVMFFITensor;
  const DLTensor *slopes = is_tensor ? (const DLTensor *)(args[5].v_obj + 1) : NULL;
  if (!slopes || slopes->ndim != 1 || slopes->dtype.code != kDLFloat || slopes->dtype.bits != 32 ||
      slopes->device.device_type != kDLCPU || (slopes->strides && slopes->shape[0] > 1 && slopes->strides[0] != 1))
    return ffi_fail("ValueError", op, "slopes", 6, "expected a contiguous float32 vector on the CPU");
  float *to = (float *)((char *)slopes->data + slopes->byte_offset);
  return ffi_status(tigon_lightning_attention_slopes((int32_t)args[0].v_int64, args[1].v_int64, args[2].v_int64,
                                                     args[3].v_int64, args[4].v_int64, slopes->shape[0], to));
}

FUNCTION(tigon_set_threads) {
  (void)self, (void)result;
  if (take_integers("tigon_set_threads", args, count, 1)) return -1;
  if (args[0].v_int64 < 0 || args[0].v_int64 > INT32_MAX)
    return ffi_fail("ValueError", "tigon_set_threads", "threads", 7, "expected 0 (all) or more, got %lld",
                    (long long)args[0].v_int64);
  ffi_set_threads((int32_t)args[0].v_int64);
  return 0;
}

FUNCTION(tigon_cpu_threads) {
  (void)self, (void)args, (void)count;
  return give_integer(tigon_cpu_threads(), result);
}

FUNCTION(tigon_cpu_isa) {
  (void)self, (void)args, (void)count;
  return give_text(tigon_cpu_isa(), result);
}

FUNCTION(tigon_version) {
  (void)self, (void)args, (void)count;
  return give_text(tigon_version(), result);
}
