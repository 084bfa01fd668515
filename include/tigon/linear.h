/*
 * Plain projection for programs: y = x weight^T + bias, and its gradients, on Tigon's packed matrix product.
 *
 * Shapes: x (T, D), weight (N, D), bias (N), y (T, N). dtypes: each float32, float16 or bfloat16; products and sums in
 * fp32, outputs rounded once.
 */
#ifndef TIGON_LINEAR_H
#define TIGON_LINEAR_H

#include "tigon/base.h"
#include "tigon/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tigon_linear_args {
  uint32_t size;
  const DLTensor *x;      /* (T, D) */
  const DLTensor *weight; /* (N, D) */
  const DLTensor *bias;   /* NULL, or (N) */
  DLTensor *y;            /* (T, N) */
} tigon_linear_args;

TIGON_API tigon_status tigon_linear(const tigon_exec *exec, const tigon_linear_args *args);
TIGON_API tigon_status tigon_linear_workspace(const tigon_exec *exec, const tigon_linear_args *args, uint64_t *bytes);

/* dx = dy weight, dweight = dy^T x, dbias = sum over tokens of dy. */
typedef struct tigon_linear_backward_args {
  uint32_t size;
  int32_t accumulate_dx;      /* 1: dx += (float32 only) */
  int32_t accumulate_dweight; /* 1: dweight += and dbias += (float32 only) */
  const DLTensor *dy;         /* (T, N) */
  const DLTensor *x;          /* needed for dweight, otherwise NULL is allowed */
  const DLTensor *weight;     /* needed for dx, otherwise NULL is allowed */
  DLTensor *dx;               /* each NULL: not wanted */
  DLTensor *dweight;
  DLTensor *dbias;
} tigon_linear_backward_args;

TIGON_API tigon_status tigon_linear_backward(const tigon_exec *exec, const tigon_linear_backward_args *args);
TIGON_API tigon_status tigon_linear_backward_workspace(const tigon_exec *exec, const tigon_linear_backward_args *args,
                                                       uint64_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
