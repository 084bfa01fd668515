/*
 * Tensors of rows with any number of leading dimensions, as views that rms_norm takes: (M, H), or (T, N, H) where one
 * stride does not reach all rows. Nothing is copied.
 */
#ifndef TIGON_FFI_ROWS_H
#define TIGON_FFI_ROWS_H

#include <dlpack/dlpack.h>
#include <stdbool.h>

enum { FFI_MAX_ROW_TENSORS = 8, FFI_MAX_DIMENSIONS = 16 };

/* A tensor of rows, or of one value a row, of the same call. */
typedef struct ffi_row_tensor {
  const DLTensor *tensor;
  const char *name; /* `length` characters */
  int length;
  bool per_row;    /* has the leading dimensions only, or is a vector of all rows */
  bool flat;       /* the latter */
  uint32_t offset; /* of its pointer in the args struct */
  DLTensor view;   /* the result; its shape and strides lie in the two arrays */
  int64_t shape[3], strides[3];
} ffi_row_tensor;

/* Fills the views. Leading dimensions are folded in the same way in all tensors. 0, or -1 with a raised error. */
int ffi_fold_rows(const char *op, ffi_row_tensor *tensors, int count);

#endif
