/*
 * What the checked entry points hand to a backend. T tokens, K of them kept (target a class and not ignored), D width,
 * C classes in all shards, V of them in this call. Kept tokens are numbered 0 .. K - 1 in rising order; kept[i] is the
 * token of number i.
 */
#ifndef TIGON_LINEAR_CROSS_ENTROPY_BACKEND_H
#define TIGON_LINEAR_CROSS_ENTROPY_BACKEND_H

#include "base/check.h"
#include "base/isa.h"
#include "tigon/linear_cross_entropy.h"

/* The tokens, and what makes a token's loss of its statistics. */
typedef struct tigon_lce_loss {
  tigon_view target;                     /* (T) */
  tigon_view class_weight, token_weight; /* each absent, or (C) contiguous and (T) */
  int64_t tokens, classes;
  int64_t ignore_index;
  float z_loss, label_smoothing;
  const int32_t *kept; /* (K) */
  int64_t kept_count;
} tigon_lce_loss;

typedef struct tigon_lce_problem {
  tigon_lce_loss loss;
  tigon_view x;      /* (T, D) */
  tigon_view weight; /* (V and padding, D) */
  tigon_view bias;   /* absent, or (V and padding) */
  int64_t width, vocabulary;
  int64_t vocab_begin;       /* class of weight's first row */
  float inverse_temperature; /* > 0 */
  float softcap;             /* 0: none */
  int threads;
  void *scratch;         /* threads times tigon_gemm_scratch() */
  float *saved;          /* (K, saved_columns): products of the first columns, without bias; written by forward only */
  int64_t saved_columns; /* whole tiles of the backward pass, or all V */
} tigon_lce_problem;

/* Statistics of some columns of one row of logits. */
typedef tigon_linear_cross_entropy_partial tigon_lce_state;

typedef struct tigon_lce_forward_plan {
  tigon_lce_problem problem;
  bool extras;             /* the states need argmax, smoothed and weights */
  int64_t splits;          /* parts of the vocabulary, each with its own states */
  int64_t split_columns;   /* columns of each but the last */
  tigon_lce_state *states; /* (splits, K) */
} tigon_lce_forward_plan;

/* What a kept token's row of dz needs, inverse_temperature included:
 * dz_v = p_v (rest + loss - entropy_scale (z_v - lse + entropy)) - loss [v = target] - smoothing class_weight_v. */
typedef struct tigon_lce_row {
  float lse, entropy;
  float loss;          /* g (1 - label_smoothing) class_weight_target, where g = d_loss token_weight */
  float rest;          /* g (2 z_loss lse + label_smoothing W / C) + d_lse */
  float entropy_scale; /* d_entropy */
  float smoothing;     /* g label_smoothing / C */
  int64_t target;      /* row of weight, which another shard may hold */
} tigon_lce_row;

typedef struct tigon_lce_backward_plan {
  tigon_lce_problem problem;
  tigon_view lse, entropy, d_loss, d_lse, d_entropy; /* (T); all but lse may be absent */
  tigon_view dx, dweight, dbias;                     /* each may be absent */
  bool accumulate;                                   /* dweight and dbias are added to */
  float smoothing, smoothing_sum;                    /* label_smoothing / C, and that times the sum of class weights */
  int64_t tile;                                      /* columns of a vocabulary tile, the last may have fewer */
  tigon_lce_row *rows;                               /* (K) */
  char *dz;                                          /* (K, tile) of dz_kind */
  tigon_kind dz_kind;                                /* bfloat16 where x and weight are, else float32 */
  float *dx_sum; /* (K, D); NULL where dx is float32 and takes the sums itself, or one tile gives them whole */
} tigon_lce_backward_plan;

/* Columns of a tile of the backward pass. */
enum { TIGON_LCE_TILE = 768 };

/* Fills the states. kept_count > 0. */
TIGON_ISA_DECLARE(void, tigon_lce_forward, (const tigon_lce_forward_plan *plan));

/* Writes the kept tokens' rows of dx and the V rows of dweight and dbias. kept_count > 0, vocabulary > 0. */
TIGON_ISA_DECLARE(void, tigon_lce_backward, (const tigon_lce_backward_plan *plan));

/* Element of an optional float32 vector; `otherwise` where absent. */
static inline float tigon_lce_element(const tigon_view *vector, int64_t i, float otherwise) {
  return tigon_present(vector) ? *(const float *)(const void *)tigon_at(vector, i) : otherwise;
}

static inline int64_t tigon_lce_target(const tigon_lce_loss *loss, int64_t token) {
  return tigon_load_index(loss->target.data, loss->target.kind, token * loss->target.stride[0]);
}

#endif
