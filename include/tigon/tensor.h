/*
 * Constructors for DLTensor, so that C programs need no DLPack boilerplate.
 *
 *     tigon_tensor x;
 *     args.x = tigon_tensor_2d(&x, data, tigon_bf16(), tokens, width);
 *
 * Rules for the tensors that operations take:
 * - strides NULL means compact (row-major); byte_offset counts; strides are in elements.
 * - Matrices have a contiguous last dimension (stride 1, or any stride when its extent is 1) and any other strides;
 *   per-token vectors have any stride.
 * - Inputs that are only read may have stride 0 (expanded gradients). Outputs may not, and share no element with
 *   another tensor unless the operation's header names the alias; slices that interleave in one buffer are fine.
 *   Overlap is refused as far as shapes and strides show it at once; in layouts where they do not, it is the caller's
 *   to avoid.
 * - A tensor with no element may have data NULL. Data are aligned to their element size.
 * - Floating dtypes: float32, float16, bfloat16. Indices: int32 or int64. Integers are never converted from floats.
 */
#ifndef TIGON_TENSOR_H
#define TIGON_TENSOR_H

#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>

/* A DLTensor with room for its shape and strides. It must stay where it was constructed: dl.shape points into it. */
typedef struct tigon_tensor {
  DLTensor dl;
  int64_t shape[5];
  int64_t strides[5];
} tigon_tensor;

static inline DLDataType tigon_dtype(uint8_t code, uint8_t bits) {
  DLDataType type;
  type.code = code;
  type.bits = bits;
  type.lanes = 1;
  return type;
}
static inline DLDataType tigon_f32(void) { return tigon_dtype((uint8_t)kDLFloat, 32); }
static inline DLDataType tigon_f16(void) { return tigon_dtype((uint8_t)kDLFloat, 16); }
static inline DLDataType tigon_bf16(void) { return tigon_dtype((uint8_t)kDLBfloat, 16); }
static inline DLDataType tigon_i32(void) { return tigon_dtype((uint8_t)kDLInt, 32); }
static inline DLDataType tigon_i64(void) { return tigon_dtype((uint8_t)kDLInt, 64); }

/* Compact CPU tensor of up to five dimensions. Change strides, byte_offset or device afterwards where needed. */
static inline DLTensor *tigon_tensor_nd(tigon_tensor *tensor, void *data, DLDataType dtype, int ndim,
                                        const int64_t *shape) {
  int64_t stride = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    tensor->shape[i] = shape[i];
    tensor->strides[i] = stride;
    stride = (int64_t)((uint64_t)stride * (uint64_t)shape[i]); /* operations refuse what wraps around */
  }
  tensor->dl.data = data;
  tensor->dl.device.device_type = kDLCPU;
  tensor->dl.device.device_id = 0;
  tensor->dl.ndim = ndim;
  tensor->dl.dtype = dtype;
  tensor->dl.shape = tensor->shape;
  tensor->dl.strides = tensor->strides;
  tensor->dl.byte_offset = 0;
  return &tensor->dl;
}

static inline DLTensor *tigon_tensor_1d(tigon_tensor *tensor, void *data, DLDataType dtype, int64_t n) {
  return tigon_tensor_nd(tensor, data, dtype, 1, &n);
}

static inline DLTensor *tigon_tensor_2d(tigon_tensor *tensor, void *data, DLDataType dtype, int64_t n0, int64_t n1) {
  const int64_t shape[2] = {n0, n1};
  return tigon_tensor_nd(tensor, data, dtype, 2, shape);
}

static inline DLTensor *tigon_tensor_3d(tigon_tensor *tensor, void *data, DLDataType dtype, int64_t n0, int64_t n1,
                                        int64_t n2) {
  const int64_t shape[3] = {n0, n1, n2};
  return tigon_tensor_nd(tensor, data, dtype, 3, shape);
}

static inline DLTensor *tigon_tensor_4d(tigon_tensor *tensor, void *data, DLDataType dtype, int64_t n0, int64_t n1,
                                        int64_t n2, int64_t n3) {
  const int64_t shape[4] = {n0, n1, n2, n3};
  return tigon_tensor_nd(tensor, data, dtype, 4, shape);
}

#endif
