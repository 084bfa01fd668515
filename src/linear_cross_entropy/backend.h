/*
 * What the checked entry points hand to a backend. T tokens, K of them kept (target in [0, V) and not ignored), D width,
 * V vocabulary. Kept tokens are numbered 0 .. K - 1 in rising order; kept[i] is the token of number i.
 */
#ifndef TIGON_LINEAR_CROSS_ENTROPY_BACKEND_H
#define TIGON_LINEAR_CROSS_ENTROPY_BACKEND_H

#include "base/check.h"
#include "base/isa.h"

typedef struct tigon_lce_problem {
  tigon_view x;      /* (T, D) */
  tigon_view weight; /* (V, D) */
  tigon_view bias;   /* absent, or (V) */
  tigon_view target; /* (T) */
  int64_t tokens, width, vocabulary;
  int64_t ignore_index;
  float inverse_temperature; /* > 0 */
  float z_loss;
  int threads;
  const int32_t *kept; /* (K) */
  int64_t kept_count;
  void *scratch; /* threads times tigon_gemm_scratch() */
} tigon_lce_problem;

/* Statistics of some columns of one row of logits, relative to their largest. The largest ones' share of
 * sum e^(z - max) is kept apart, so that a peaked row's log-sum keeps its digits. */
typedef struct tigon_lce_state {
  float max;      /* -inf: no column, or none above -inf */
  float ties;     /* columns at max */
  float rest;     /* sum e^(z - max) over the others */
  float weighted; /* sum e^(z - max) (z - max) */
  float target;   /* the target's logit where it is one of the columns, else 0 */
} tigon_lce_state;

typedef struct tigon_lce_forward_plan {
  tigon_lce_problem problem;
  tigon_view loss, nll, lse, entropy; /* each absent or (T) */
  int64_t splits;                     /* parts of the vocabulary, each with its own states */
  int64_t split_columns;              /* columns of each but the last */
  tigon_lce_state *states;            /* (splits, K) */
} tigon_lce_forward_plan;

/* What a kept token's row of dz needs:
 * dz_v = p_v (rest + loss - entropy_scale (z_v - lse + entropy)) - loss [v = target], inverse_temperature included. */
typedef struct tigon_lce_row {
  float lse, entropy;
  float loss;          /* d_loss */
  float rest;          /* 2 d_loss z_loss lse + d_lse */
  float entropy_scale; /* d_entropy */
  int64_t target;
} tigon_lce_row;

typedef struct tigon_lce_backward_plan {
  tigon_lce_problem problem;
  tigon_view lse, entropy, d_loss, d_lse, d_entropy; /* (T); all but lse may be absent */
  tigon_view dx, dweight, dbias;                     /* each may be absent */
  int64_t tile;                                      /* columns of a vocabulary tile, the last may have fewer */
  tigon_lce_row *rows;                               /* (K) */
  float *dz;                                         /* (K, tile) */
  float *dx_sum; /* (K, D); NULL where dx is float32 and takes the sums itself, or one tile gives them whole */
} tigon_lce_backward_plan;

/* Columns of a tile of the backward pass. */
enum { TIGON_LCE_TILE = 768 };

/* Both write the kept tokens' rows of per-token outputs only, and all of dweight and dbias. kept_count > 0. */
TIGON_ISA_DECLARE(void, tigon_lce_forward, (const tigon_lce_forward_plan *plan));
TIGON_ISA_DECLARE(void, tigon_lce_backward, (const tigon_lce_backward_plan *plan));

#endif
