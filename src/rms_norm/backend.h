/* What rms_norm.c hands to a backend: checked arguments, every tensor reduced to rows of `width` elements. */
#ifndef TIGON_RMS_NORM_BACKEND_H
#define TIGON_RMS_NORM_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/isa.h"
#include "tigon/base.h"

/* The rows of one tensor. Row r stands at data + r / heads * outer_bytes + r % heads * head_bytes. NULL data: absent,
 * or without elements. */
typedef struct rms_norm_tensor {
  char *data;
  tigon_kind kind;
  int64_t outer_bytes, head_bytes;
} rms_norm_tensor;

/* rows = outer x heads; (M, H) has one head. */
typedef struct rms_norm_shape {
  int64_t rows, heads, width;
} rms_norm_shape;

typedef struct rms_norm_forward {
  int threads;
  rms_norm_shape shape;
  rms_norm_tensor x, residual, weight, out, sum, rstd; /* sum = residual_out */
  tigon_kind xhat_kind; /* what xhat is rounded to before the weight: x's kind, or fp32 for gemma */
  float eps, offset;
} rms_norm_forward;

typedef struct rms_norm_backward {
  int threads;
  rms_norm_shape shape;
  rms_norm_tensor dy, d_sum, x, weight, rstd, dx, d_residual, d_weight; /* d_sum = d_residual_out */
  bool has_dy, has_d_sum, has_dx, has_d_residual;                       /* also in queries, where data are NULL */
  tigon_kind xhat_kind;                                                 /* what d_weight's xhat is rounded to */
  bool accumulate_d_weight;
  float offset;
  int64_t chunks;  /* the CPU's contiguous ranges of rows; the most blocks that a device's kernels spread them over */
  float *partials; /* (chunks, width) d_weight of each; NULL: no d_weight */
} rms_norm_backward;

TIGON_ISA_DECLARE(void, tigon_rms_norm_forward, (const rms_norm_forward *forward));
TIGON_ISA_DECLARE(void, tigon_rms_norm_backward, (const rms_norm_backward *backward));

/* src/rms_norm/gpu.c, in builds with CUDA. */
tigon_status tigon_rms_norm_gpu_forward(const char *op, const tigon_exec *exec, const rms_norm_forward *forward);
tigon_status tigon_rms_norm_gpu_backward(const char *op, const tigon_exec *exec, const rms_norm_backward *backward);
/* Rows of partials for that device, enough for each kernel that backward may run. */
tigon_status tigon_rms_norm_gpu_chunks(const char *op, DLDevice device, const rms_norm_backward *backward,
                                       int64_t *chunks);

#endif
