/* What moe/gpu.c passes to the kernels. Plain C, read by both compilers. */
#ifndef TIGON_MOE_KERNELS_PARAMS_H
#define TIGON_MOE_KERNELS_PARAMS_H

#include <cuda.h>

#include "kernel/product.h"
#include "tigon/base.h"

/* Segments of sorted rows begin at multiples of this. */
enum { MOE_ALIGN = 64 };

/* Of routes, each the work of a warp; a multiple of 32. */
enum { MOE_MOST_CHUNKS = 256 };

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
  int32_t *next;          /* (2) the products' counters */
  int32_t *row_token;     /* (rows) -1 in padding */
  uint8_t *row_choice;    /* (rows) */
  int32_t *row_of;        /* (T, k) -1: skipped */
  tigon_record *record;   /* pinned; NULL: nothing is recorded */
  tigon_record bad, full; /* what would be recorded, but for index and value */
} moe_plan_params;

/* x' = s x, rounded, in sorted rows. */
typedef struct moe_scale_params {
  const char *x, *weights;
  int64_t x_row_bytes, weight_row_bytes;
  int32_t weight_kind, width;          /* width: a multiple of 8 */
  const int32_t *row_token, *last_row; /* last_row: the number of rows */
  const uint8_t *row_choice;
  char *scaled;
} moe_scale_params;

/* h = x gate^T, x up^T and a = silu(g) u; or y = a down^T. */
typedef struct moe_product_params {
  CUtensorMap a;      /* (rows, 1, K); unused where rows are gathered */
  CUtensorMap b[2];   /* the weights of the first and second 128 columns of a tile */
  CUtensorMap out, h; /* (rows, 1, width); h (rows, 2, I) */
  product_tiles tiles;
  const char *x;
  int64_t x_row_bytes;
  const int32_t *row_token; /* of x; NULL: x has sorted rows */
  int32_t depth;            /* K, a multiple of 8 */
  int32_t width;            /* columns of the output */
  int32_t keeps_h;
} moe_product_params;

/* out_t = sum of s y over the routes of a token */
typedef struct moe_combine_params {
  const char *y, *weights;
  const int32_t *row_of;
  char *out;
  int64_t y_row_bytes, weight_row_bytes, out_row_bytes;
  int32_t weight_kind, choices, width;
  int32_t unweighted; /* the weights have been at the input */
} moe_combine_params;

#endif
