/* What rms_norm/gpu.c passes to the kernels. Plain C, read by both compilers. */
#ifndef TIGON_RMS_NORM_KERNELS_PARAMS_H
#define TIGON_RMS_NORM_KERNELS_PARAMS_H

#include <stdint.h>

/* Row r stands at data + r / heads * outer_bytes + r % heads * head_bytes. NULL data: absent. */
typedef struct rms_norm_rows {
  char *data;
  int64_t outer_bytes, head_bytes;
  int32_t kind;
} rms_norm_rows;

typedef struct rms_norm_forward_params {
  int64_t rows, heads, width;
  rms_norm_rows x, residual, weight, out, sum, rstd;
  int32_t xhat_kind; /* what xhat is rounded to before the weight */
  int32_t group;     /* threads of a block that share a row */
  float eps, offset;
} rms_norm_forward_params;

typedef struct rms_norm_backward_params {
  int64_t rows, heads, width;
  rms_norm_rows dy, d_sum, x, weight, rstd, dx, d_residual;
  float *partials;   /* (clusters of the grid, width) d_weight of each; NULL: not wanted */
  int32_t xhat_kind; /* what d_weight's xhat is rounded to */
  int32_t group;
  float offset;
} rms_norm_backward_params;

typedef struct rms_norm_reduce_params {
  const float *partials; /* (chunks, width) */
  int64_t chunks, width;
  char *d_weight;
  int32_t kind, accumulate;
} rms_norm_reduce_params;

/* Rows that backward copies to shared memory: the one in work and those on their way. */
enum { RMS_NORM_STAGES = 3 };

/* Columns and threads of a block of the kernel that adds up the partial d_weight. */
enum { RMS_NORM_REDUCE_COLUMNS = 32, RMS_NORM_REDUCE_THREADS = 1024 };

#endif
