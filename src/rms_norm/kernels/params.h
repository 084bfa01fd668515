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

/* How threads stand on rows. A group of threads shares a row; groups stand side by side in a block (then their size is
 * a power of two), or the groups of a cluster's blocks share one. */
typedef struct rms_norm_layout {
  int32_t group, group_log2;
  int32_t side_by_side, cluster;
  int32_t vectors; /* of a row */
  int32_t ahead;   /* rows of a block that are on their way while one is in work; the ring has one stage more */
} rms_norm_layout;

typedef struct rms_norm_forward_params {
  int64_t rows, heads, width;
  rms_norm_rows x, residual, weight, out, sum, rstd;
  int32_t xhat_kind; /* what xhat is rounded to before the weight */
  int32_t streams;   /* x is too large for the cache: its lines give way after those of out */
  rms_norm_layout layout;
  float inverse_width, eps, offset;
} rms_norm_forward_params;

typedef struct rms_norm_backward_params {
  int64_t rows, heads, width;
  rms_norm_rows dy, d_sum, x, weight, rstd, dx, d_residual;
  float *partials;   /* (clusters of the grid, width) d_weight of each; NULL: not wanted */
  int32_t xhat_kind; /* what d_weight's xhat is rounded to */
  rms_norm_layout layout;
  float inverse_width, offset;
} rms_norm_backward_params;

typedef struct rms_norm_reduce_params {
  const float *partials; /* (chunks, width) */
  int64_t chunks, width;
  char *d_weight;
  int32_t kind, accumulate;
} rms_norm_reduce_params;

/* A slot of the ring holds a vector. */
enum { RMS_NORM_MOST_AHEAD = 4, RMS_NORM_SLOT_BYTES = 16 };

/* A block of the kernel that adds up the parts of d_weight: a sector of columns, so that many blocks share the work. */
enum { RMS_NORM_REDUCE_COLUMNS = 8, RMS_NORM_REDUCE_ROWS = 64 };

#endif
