#include "ffi/rows.h"

#include <stdint.h>
#include <stdio.h>

#include "ffi/errors.h"

enum { MAX_GROUPS = 2 };

/* Neighbouring leading dimensions that one stride reaches in every tensor; groups[0] is the innermost. */
typedef struct row_group {
  int64_t size;
  int64_t stride[FFI_MAX_ROW_TENSORS];
} row_group;

static int64_t stride_of(const DLTensor *tensor, int dimension) {
  if (tensor->strides) return tensor->strides[dimension];
  int64_t stride = 1;
  for (int i = tensor->ndim - 1; i > dimension; i--) stride *= tensor->shape[i];
  return stride;
}

static void print_shape(char *text, size_t size, const int64_t *shape, int ndim, const char *last) {
  size_t used = 0;
  for (int i = 0; i < ndim && used < size; i++)
    used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? ", " : "(", (long long)shape[i]);
  if (used < size) (void)snprintf(text + used, size - used, "%s%s)", ndim ? "" : "(", last);
}

/* The stride of a leading dimension, which a flat vector of one value a row does not have itself. */
static int64_t row_stride(const ffi_row_tensor *row, const DLTensor *first, int dimension) {
  if (!row->flat) return stride_of(row->tensor, dimension);
  int64_t stride = stride_of(row->tensor, 0);
  for (int i = first->ndim - 2; i > dimension; i--) stride *= first->shape[i];
  return stride;
}

/* The tensor's leading dimensions are those of the first; values a row may also be one vector. */
static int check_leading(const char *op, ffi_row_tensor *tensor, const DLTensor *first) {
  const int leading = first->ndim - 1, ndim = tensor->per_row ? leading : first->ndim;
  int64_t rows = 1;
  for (int i = 0; i < leading; i++) rows *= first->shape[i];
  tensor->flat = tensor->per_row && tensor->tensor->ndim == 1 && tensor->tensor->shape[0] == rows;
  if (tensor->flat) return 0;
  bool same = tensor->tensor->ndim == ndim;
  for (int i = 0; same && i < leading; i++) same = tensor->tensor->shape[i] == first->shape[i];
  if (same) return 0;
  char expected[160], got[160];
  print_shape(expected, sizeof expected, first->shape, leading, tensor->per_row ? "" : leading ? ", H" : "H");
  print_shape(got, sizeof got, tensor->tensor->shape, tensor->tensor->ndim, "");
  return ffi_fail("ValueError", op, tensor->name, tensor->length, "expected shape %s, got %s", expected, got);
}

static bool continues(const row_group *group, const ffi_row_tensor *tensors, int count, int dimension) {
  for (int k = 0; k < count; k++)
    if (row_stride(&tensors[k], tensors[0].tensor, dimension) != group->stride[k] * group->size) return false;
  return true;
}

/* One row or none: any stride will do. */
static int one_group(const ffi_row_tensor *tensors, int count, int leading, int64_t rows, row_group *group) {
  group->size = rows;
  for (int k = 0; k < count; k++) group->stride[k] = tensors[k].per_row ? 1 : tensors[0].tensor->shape[leading];
  return 1;
}

/* The number of groups; more than MAX_GROUPS where they do not fit. */
static int find_groups(const ffi_row_tensor *tensors, int count, int leading, row_group groups[MAX_GROUPS]) {
  const int64_t *shape = tensors[0].tensor->shape;
  int found = 0;
  for (int i = 0; i < leading; i++)
    if (shape[i] == 0) return one_group(tensors, count, leading, 0, groups);
  for (int i = leading - 1; i >= 0; i--) {
    if (shape[i] == 1) continue;
    if (found && continues(&groups[found - 1], tensors, count, i)) {
      groups[found - 1].size *= shape[i];
      continue;
    }
    if (found++ == MAX_GROUPS) return found;
    groups[found - 1].size = shape[i];
    for (int k = 0; k < count; k++) groups[found - 1].stride[k] = row_stride(&tensors[k], tensors[0].tensor, i);
  }
  return found ? found : one_group(tensors, count, leading, 1, groups);
}

static void make_view(ffi_row_tensor *row, const row_group *groups, int found, int k) {
  const DLTensor *tensor = row->tensor;
  for (int i = 0; i < found; i++) {
    row->shape[i] = groups[found - 1 - i].size;
    row->strides[i] = groups[found - 1 - i].stride[k];
  }
  row->view = *tensor;
  row->view.ndim = found;
  if (!row->per_row) {
    row->shape[found] = tensor->shape[tensor->ndim - 1];
    row->strides[found] = stride_of(tensor, tensor->ndim - 1);
    row->view.ndim++;
  }
  row->view.shape = row->shape;
  row->view.strides = row->strides;
}

int ffi_fold_rows(const char *op, ffi_row_tensor *tensors, int count) {
  const DLTensor *first = tensors[0].tensor;
  tensors[0].flat = false;
  if (first->ndim < 1 || first->ndim > FFI_MAX_DIMENSIONS)
    return ffi_fail("ValueError", op, tensors[0].name, tensors[0].length, "expected 1 to %d dimensions, got %d",
                    FFI_MAX_DIMENSIONS, (int)first->ndim);
  for (int k = 1; k < count; k++)
    if (check_leading(op, &tensors[k], first)) return -1;
  row_group groups[MAX_GROUPS];
  const int found = find_groups(tensors, count, first->ndim - 1, groups);
  if (found > MAX_GROUPS)
    return ffi_fail("ValueError", op, tensors[0].name, tensors[0].length,
                    "its leading dimensions need more than two strides; make the tensors contiguous");
  for (int k = 0; k < count; k++) make_view(&tensors[k], groups, found, k);
  return 0;
}
