/* What moe/gpu_route.c passes to the router's kernels. Plain C, read by both compilers. */
#ifndef TIGON_MOE_KERNELS_ROUTE_PARAMS_H
#define TIGON_MOE_KERNELS_ROUTE_PARAMS_H

#include "tigon/base.h"

enum {
  MOE_ROUTE_THREADS = 256,
  MOE_ROUTE_WARPS = MOE_ROUTE_THREADS / 32,
  MOE_ROUTE_FINISH_THREADS = 1024,
  MOE_ROUTE_FINISH_EXPERTS = 32 /* of a block */
};

/* What forward and backward both read. A token is the work of a warp or, with many experts, of a block. */
typedef struct moe_route_rows {
  const char *logits; /* (T, E) */
  int64_t logit_row_bytes, tokens;
  int32_t logit_kind, experts, choices;
  int32_t sigmoid, renormalize;
  int32_t wide_ids; /* 1: int64 */
  float scale;      /* of the weights */
} moe_route_rows;

typedef struct moe_route_params {
  moe_route_rows rows;
  char *ids;      /* (T, k) */
  float *weights; /* (T, k) */
  int64_t id_stride, weight_stride;
  const float *bias;                      /* (E), or NULL */
  int32_t groups, open_groups, group_top; /* groups 1: no matter */
  int32_t group_size, group_lanes;        /* experts of a group; lanes that work on it, a power of two */
  int32_t scored;                         /* 1: groups are scored by sums of p, and not by their largest logit */
  int64_t chunk;                          /* tokens of a block */
  int32_t *count_sum;                     /* (chunks, E) routes; or NULL */
  float *p_sum;                           /* (chunks, E) sums of P_e; or NULL */
  double *z_sum;                          /* (chunks) sums of logsumexp^2; or NULL */
  int32_t *finished;                      /* set to 0 for the kernel that follows; or NULL */
} moe_route_params;

/* counts and losses from the sums of the chunks. */
typedef struct moe_route_finish_params {
  const int32_t *count_sum; /* as above */
  const float *p_sum;
  const double *z_sum;
  double *loss_parts;   /* (blocks) */
  int32_t *finished;    /* blocks that have written theirs */
  char *counts;         /* (E), or NULL */
  float *loss, *z_loss; /* each may be NULL; with either, loss_parts and finished are there */
  int64_t count_stride, tokens;
  int32_t wide_counts, experts, choices, chunks;
} moe_route_finish_params;

/* Routes to each expert from the ids, and the first id past the experts. Starts from zeros. */
typedef struct moe_route_count_params {
  const char *ids;
  int64_t id_stride, routes;
  int32_t wide_ids, experts, choices;
  unsigned long long *count; /* (E), or NULL */
  unsigned long long *bad;   /* the number of routes from the first bad one to the last of all; 0: none is bad */
} moe_route_count_params;

typedef struct moe_route_backward_params {
  moe_route_rows rows;
  const char *ids;
  const float *d_weights; /* (T, k), or NULL */
  char *d_logits;         /* (T, E) */
  int64_t id_stride, d_weight_stride, d_logit_row_bytes;
  int32_t d_logit_kind;
  const float *d_loss, *d_z_loss;  /* (1), or NULL */
  const unsigned long long *count; /* as above; there with d_loss */
  const unsigned long long *bad;   /* there with a record */
  tigon_record *record;            /* pinned; NULL: nothing is recorded */
  tigon_record event;              /* what would be recorded, but for index and value */
} moe_route_backward_params;

#endif
