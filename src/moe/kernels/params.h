/* What moe/gpu.c and gpu_backward.c pass to the kernels. Plain C, read by both compilers. */
#ifndef TIGON_MOE_KERNELS_PARAMS_H
#define TIGON_MOE_KERNELS_PARAMS_H

#include <cuda.h>

#include "kernel/product.h"
#include "tigon/base.h"

/* Segments of sorted rows begin at multiples of this. */
enum { MOE_ALIGN = 64 };

/* Of tiles that were handed out: one for each product of a call. */
enum { MOE_COUNT_GATE_UP, MOE_COUNT_ROWS, MOE_COUNT_ACTIVATION, MOE_COUNTERS };

/* Of routes, each the work of a warp; a multiple of 32. */
enum { MOE_MOST_CHUNKS = 256 };

enum { MOE_PLAN_THREADS = 1024 };

/* Of a tile of weight gradients, along I and along D. */
enum { MOE_WEIGHTS_INNER = 192, MOE_WEIGHTS_OUTER = PRODUCT_M };

/* The device's plan: plan.h's, in chunks of routes. A warp works on a chunk. */
typedef struct moe_plan_params {
  const void *ids; /* (T, k) int32, or int64 where wide */
  int64_t id_stride;
  int32_t wide, choices, experts;
  int32_t routes; /* T k */
  int32_t chunk, chunks;
  int32_t limit;          /* most rows; routes where there is no limit */
  int32_t *end;           /* the first route past the limit, and how many have a valid id; NULL: no limit */
  int32_t *counts;        /* (chunks, E) routes of a chunk; after the scan, those of the chunks before */
  int32_t *totals;        /* (E) */
  int32_t *first_bad;     /* (chunks) first route with an id past the experts, or routes */
  int32_t *first_row;     /* (E + 1) */
  int32_t *first_tile;    /* (E + 1) */
  int32_t *first_pair;    /* (E + 1) */
  int32_t *next;          /* (MOE_COUNTERS) */
  int32_t *row_token;     /* (rows) -1 in padding */
  uint8_t *row_choice;    /* (rows) */
  int32_t *row_of;        /* (T, k) -1: skipped */
  tigon_record *record;   /* pinned; NULL: nothing is recorded */
  tigon_record bad, full; /* what would be recorded, but for index and value */
} moe_plan_params;

enum { MOE_SCATTER_THREADS = 128 };

/* Sorted rows of x; padding is 0. */
typedef struct moe_scatter_params {
  const char *x;
  int64_t x_row_bytes, row_bytes, tokens;       /* row_bytes: of a sorted row, 2 D */
  const int32_t *row_of, *row_token, *last_row; /* last_row: the number of rows */
  char *sorted;
  int32_t choices;
} moe_scatter_params;

/* Sorted rows of s x, rounded; padding is 0. */
typedef struct moe_scale_params {
  const char *x, *weights;
  int64_t x_row_bytes, weight_row_bytes;
  int32_t weight_kind, width;          /* width: a multiple of 8 */
  const int32_t *row_token, *last_row; /* last_row: the number of rows */
  const uint8_t *row_choice;
  char *sorted;
} moe_scale_params;

/* h = x gate^T, x up^T and a = silu(g) u; or sorted rows by weights. */
typedef struct moe_product_params {
  CUtensorMap a;      /* (rows, parts, K); unused where rows are gathered */
  CUtensorMap b[2];   /* gate and up; or the weights of each part */
  CUtensorMap out, h; /* (rows, 1, width); h (rows, 2, I) */
  product_tiles tiles;
  const char *x;
  int64_t x_row_bytes;
  const int32_t *row_token; /* of x; NULL: x has sorted rows */
  int32_t depth;            /* K, a multiple of 8 */
  int32_t parts;            /* of the depth */
  int32_t width;            /* columns of the output */
  int32_t keeps_h;
} moe_product_params;

typedef struct moe_activation_params {
  CUtensorMap down;
  CUtensorMap h, dh;    /* (rows, 2, I) */
  CUtensorMap weighted; /* (rows, 1, I) s a */
  CUtensorMap sorted;   /* (rows, 1, D) the rows of dout */
  product_tiles tiles;
  const char *dout, *weights; /* weights NULL: s = 1 */
  int64_t dout_row_bytes, weight_row_bytes, rows;
  const int32_t *row_token;
  const uint8_t *row_choice;
  float *dots; /* (columns, rows) parts of <da', a>; NULL: not wanted */
  int32_t weight_kind, depth, width;
  int32_t sorts; /* 1: sorted is wanted */
} moe_activation_params;

/* Weight gradients of one or two parts, over sorted rows: outer^T inner (E, D, I), or its transpose (E, I, D). */
typedef struct moe_weights_params {
  CUtensorMap outer, inner, out[2]; /* each part has columns of its own in inner */
  void *wide[2];                    /* fp32 gradients; NULL: bf16, by `out` */
  int64_t wide_group, wide_row;     /* strides in elements */
  const int32_t *first_row;
  const char *outer_rows, *inner_rows; /* of which an expert's are prefetched */
  int64_t outer_row_bytes, inner_row_bytes;
  int32_t groups, parts, first_part, outer_width, inner_width, outer_tiles, inner_tiles;
  int32_t inner_part;  /* columns from one part to the next */
  int32_t inner_whole; /* 1: its map has boxes of a tile's width, (64, rows, blocks of 64 columns) */
  int32_t accumulates;
} moe_weights_params;

/* d_topk_weights of each route: the sum of its row's dots; or <its row of dx, x>. */
typedef struct moe_dots_params {
  const float *dots;  /* (columns, rows) */
  const char *dx, *x; /* sorted rows, and tokens; where dots is NULL */
  int64_t rows, x_row_bytes, out_row_bytes;
  const int32_t *row_of;
  char *out;
  int32_t columns, choices, width, out_kind;
  int64_t routes;
} moe_dots_params;

/* out_t = sum of s y over the routes of a token */
typedef struct moe_combine_params {
  const char *y, *weights; /* weights NULL: s = 1 */
  const int32_t *row_of;
  char *out;
  int64_t y_row_bytes, weight_row_bytes, out_row_bytes;
  int32_t weight_kind, choices, width;
} moe_combine_params;

#endif
