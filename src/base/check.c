#include "base/check.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/overlap.h"
#include "base/status.h"

/* "(4, *, 64)": in a pattern, a negative extent accepts any. */
static const char *shape_text(char *text, size_t size, int ndim, const int64_t *shape, bool pattern) {
  size_t used = 0;
  for (int i = 0; i < ndim && used < size; i++) {
    const char *separator = i ? ", " : "(";
    const int wrote = pattern && shape[i] < 0 ? snprintf(text + used, size - used, "%s*", separator)
                                              : snprintf(text + used, size - used, "%s%" PRId64, separator, shape[i]);
    used += (size_t)wrote;
  }
  if (used < size) snprintf(text + used, size - used, ndim ? ")" : "()");
  return text;
}

static const char *const kind_names[] = {"float32", "float16", "bfloat16", "int32", "int64", "uint8 or bool"};

static const char *kinds_text(char *text, size_t size, unsigned kinds) {
  size_t used = 0;
  text[0] = '\0';
  for (int i = 0; i < 6 && used < size; i++)
    if (kinds & 1u << i) used += (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "", kind_names[i]);
  return text;
}

static const char *type_text(char *text, size_t size, DLDataType type) {
  static const char *const codes[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  const char *code = type.code < sizeof codes / sizeof *codes ? codes[type.code] : "type";
  if (type.lanes == 1)
    snprintf(text, size, "%s%d", code, type.bits);
  else
    snprintf(text, size, "%s%dx%d", code, type.bits, type.lanes);
  return text;
}

enum { BOOL_CODE = 6 }; /* kDLBool, which DLPack 0.6 does not have */

tigon_kind tigon_kind_of(DLDataType type) {
  if (type.lanes != 1) return (tigon_kind)0;
  if (type.code == kDLFloat && type.bits == 32) return TIGON_F32;
  if (type.code == kDLFloat && type.bits == 16) return TIGON_F16;
  if (type.code == kDLBfloat && type.bits == 16) return TIGON_BF16;
  if (type.code == kDLInt && type.bits == 32) return TIGON_I32;
  if (type.code == kDLInt && type.bits == 64) return TIGON_I64;
  if ((type.code == kDLUInt || type.code == BOOL_CODE) && type.bits == 8) return TIGON_U8;
  return (tigon_kind)0;
}

static void fail_shape(tigon_checker *check, const char *name, int ndim, const int64_t *shape, const DLTensor *tensor) {
  char expected[128], got[128];
  const int shown = tensor->ndim < 0 ? 0 : tensor->ndim > 8 ? 8 : tensor->ndim;
  check->status = tigon_fail(TIGON_INVALID_ARGUMENT, check->op, name, "expected shape %s, got %s%s",
                             shape_text(expected, sizeof expected, ndim, shape, true),
                             shape_text(got, sizeof got, tensor->shape ? shown : 0, tensor->shape, false),
                             tensor->ndim > 8 ? " and more dimensions" : "");
}

/* Fills the view's shape and strides; false after a failure. */
static bool check_shape(tigon_checker *check, const char *name, const DLTensor *tensor, unsigned flags, int ndim,
                        const int64_t *shape, tigon_view *view) {
  if (tensor->ndim != ndim || !tensor->shape) {
    fail_shape(check, name, ndim, shape, tensor);
    return false;
  }
  int64_t compact = 1, elements = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    const int64_t extent = tensor->shape[i];
    if (extent < 0 || (shape[i] >= 0 && extent != shape[i])) {
      fail_shape(check, name, ndim, shape, tensor);
      return false;
    }
    view->shape[i] = extent;
    /* A stride that is never taken may be any number; nothing shall be computed from it. */
    view->stride[i] = tensor->strides && extent != 1 ? tensor->strides[i] : compact;
    /* Extents of 0 count as 1: sizes are formed from parts of a shape, also where the whole is empty. */
    if (__builtin_mul_overflow(compact, extent ? extent : 1, &compact) || compact > INT64_MAX / 8) {
      check->status = tigon_fail(TIGON_INVALID_ARGUMENT, check->op, name, "expected fewer than 2^60 elements");
      return false;
    }
    elements *= extent;
  }
  if (elements == 0) {
    memset(view->stride, 0, sizeof view->stride);
    return true;
  }
  for (int i = 0; i < ndim; i++) {
    const int64_t stride = view->stride[i];
    int64_t reach;
    if (i == ndim - 1 && !(flags & TIGON_ANY_STRIDE) && stride != 1) {
      check->status = tigon_fail(TIGON_INVALID_ARGUMENT, check->op, name,
                                 "expected a contiguous last dimension (stride 1), got stride %" PRId64, stride);
      return false;
    }
    if (__builtin_mul_overflow(stride, view->shape[i] - 1, &reach) || reach > INT64_MAX / 64 ||
        reach < INT64_MIN / 64) {
      check->status =
          tigon_fail(TIGON_INVALID_ARGUMENT, check->op, name,
                     "expected elements within 2^57 of the first, got stride %" PRId64 " in dimension %d", stride, i);
      return false;
    }
  }
  const int within = flags & TIGON_OUTPUT ? tigon_overlap_within(view) : -1;
  tigon_check_that(check, within < 0, name,
                   "expected an output without overlap, got stride %" PRId64 " in dimension %d",
                   within < 0 ? 0 : view->stride[within], within);
  return within < 0;
}

static bool check_device(tigon_checker *check, const char *name, DLDevice device) {
  const bool cuda = check->device.device_type == kDLCUDA;
  if (device.device_type == (cuda ? kDLCUDA : kDLCPU) && (!cuda || device.device_id == check->device.device_id))
    return true;
  if (cuda)
    check->status = tigon_fail(TIGON_INVALID_ARGUMENT, check->op, name,
                               "expected a tensor on CUDA device %d (device type %d, as in exec.device), got device "
                               "%d of type %d",
                               check->device.device_id, (int)kDLCUDA, device.device_id, (int)device.device_type);
  else
    check->status = tigon_fail(TIGON_INVALID_ARGUMENT, check->op, name,
                               "expected a CPU tensor (device type %d), got %d", (int)kDLCPU, (int)device.device_type);
  return false;
}

static bool check_data(tigon_checker *check, const char *name, const DLTensor *tensor, tigon_view *view) {
  if (!check_device(check, name, tensor->device)) return false;
  if (check->query) return true;
  if (tigon_elements(view) == 0) { /* may have data NULL, on which no address may be formed */
    static int64_t nothing;
    view->data = (char *)&nothing;
    return true;
  }
  if (!tensor->data) {
    check->status = tigon_fail(TIGON_INVALID_ARGUMENT, check->op, name, "expected data, got NULL");
    return false;
  }
  view->data = (char *)((uintptr_t)tensor->data + tensor->byte_offset); /* as integers: the offset may be any */
  if ((uintptr_t)view->data % (uintptr_t)tigon_kind_bytes(view->kind)) {
    check->status = tigon_fail(TIGON_INVALID_ARGUMENT, check->op, name,
                               "expected data aligned to its element size, got address %p", (void *)view->data);
    return false;
  }
  return true;
}

tigon_view tigon_check_tensor(tigon_checker *check, const char *name, const DLTensor *tensor, unsigned kinds,
                              unsigned flags, int ndim, const int64_t *shape) {
  const tigon_view absent = {.kind = TIGON_F32};
  if (check->status != TIGON_OK) return absent;
  if (!tensor) {
    if (!(flags & TIGON_OPTIONAL))
      check->status = tigon_fail(TIGON_INVALID_ARGUMENT, check->op, name, "expected a tensor, got NULL");
    return absent;
  }
  tigon_view view = {.kind = tigon_kind_of(tensor->dtype), .ndim = ndim, .shape = {1, 1, 1, 1, 1}};
  if (!(view.kind & kinds)) {
    char expected[64], got[32];
    check->status = tigon_fail(TIGON_INVALID_ARGUMENT, check->op, name, "expected dtype %s, got %s",
                               kinds_text(expected, sizeof expected, kinds), type_text(got, sizeof got, tensor->dtype));
    return absent;
  }
  if (!check_shape(check, name, tensor, flags, ndim, shape, &view)) return absent;
  if (!check_data(check, name, tensor, &view)) return absent;
  return view;
}

void tigon_check_fail(tigon_checker *check, const char *name, const char *format, ...) {
  if (check->status != TIGON_OK) return;
  char message[256];
  va_list args;
  va_start(args, format);
  (void)vsnprintf(message, sizeof message, format, args);
  va_end(args);
  check->status = tigon_fail(TIGON_INVALID_ARGUMENT, check->op, name, "%s", message);
}

void tigon_check_apart(tigon_checker *check, const char *name, const tigon_view *output, const char *other_name,
                       const tigon_view *other) {
  if (check->query || !tigon_present(output) || !tigon_present(other)) return;
  if (tigon_elements(output) == 0 || tigon_elements(other) == 0) return;
  tigon_check_that(check, !tigon_overlap(output, other), name, "expected memory of its own, got that of %s",
                   other_name);
}

void tigon_check_same_or_apart(tigon_checker *check, const char *name, const tigon_view *output, const char *other_name,
                               const tigon_view *other) {
  bool same = output->data == other->data && output->kind == other->kind && output->ndim == other->ndim;
  for (int i = 0; i < output->ndim; i++)
    same &= output->shape[i] == other->shape[i] && (output->shape[i] == 1 || output->stride[i] == other->stride[i]);
  if (!same) tigon_check_apart(check, name, output, other_name, other);
}

void tigon_check_alone(tigon_checker *check, const tigon_team *team, const char *begin_name, int64_t begin) {
  if (check->status != TIGON_OK) return;
  if (team)
    check->status = tigon_fail(TIGON_UNSUPPORTED, check->op, "team", "expected NULL: this version runs on one PE");
  else if (begin != 0)
    check->status = tigon_fail(TIGON_UNSUPPORTED, check->op, begin_name,
                               "expected 0: this version has no shards, got %" PRId64, begin);
}
