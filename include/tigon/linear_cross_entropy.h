/*
 * Classifier projection and cross entropy in one: the logits (T, V) never live in memory.
 *
 *     z_tv      = inverse_temperature * (x_t . weight_v + bias_v)
 *     lse_t     = log sum_v exp(z_tv)
 *     nll_t     = lse_t - z_{t, target_t}
 *     entropy_t = lse_t - sum_v p_tv z_tv            p_tv = exp(z_tv - lse_t)
 *     loss_t    = nll_t + z_loss * lse_t^2
 *
 * Shapes: x (T, D), weight (V, D), bias (V), target (T) int32 or int64 of any stride. Rows whose target is ignore_index
 * have 0 in every output, gradient 0, and cost nothing. A target outside [0, V) is treated like an ignored one and is
 * noted in the context's record. Reductions over tokens are the caller's: outputs and upstream gradients are per token.
 *
 * Rounding points (CPU): logits and their gradients stay in fp32 and are never rounded; loss, nll, lse and entropy are
 * float32; dx, dweight and dbias are summed in fp32 and rounded once. entropy is formed as ln S - D / S from running
 * sums relative to the maximum, so it has no cancellation when lse is large. A column with z = -inf has p = 0 and adds
 * nothing; a token whose columns all are -inf has NaN in its outputs. nll and entropy are never below 0.
 * dtypes: x, weight, bias, dx, dweight, dbias each float32, float16 or bfloat16.
 */
#ifndef TIGON_LINEAR_CROSS_ENTROPY_H
#define TIGON_LINEAR_CROSS_ENTROPY_H

#include "tigon/base.h"
#include "tigon/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tigon_linear_cross_entropy_args {
  uint32_t size;
  int32_t set_ignore_index; /* 0: ignore_index is -100; 1: it is the member below */
  const DLTensor *x;        /* (T, D), T < 2^31 */
  const DLTensor *weight;   /* (V, D) */
  const DLTensor *bias;     /* NULL, or (V), contiguous */
  const DLTensor *target;   /* (T) */
  DLTensor *loss;           /* NULL: not wanted; (T) float32; so the next three */
  DLTensor *nll;
  DLTensor *lse;     /* backward needs it */
  DLTensor *entropy; /* backward needs it where d_entropy is given */
  int64_t ignore_index;
  int64_t vocab_begin;       /* first global id of this shard; 0 in this version */
  const tigon_team *team;    /* NULL */
  float inverse_temperature; /* positive; 0 = 1 */
  float z_loss;
} tigon_linear_cross_entropy_args;

TIGON_API tigon_status tigon_linear_cross_entropy(const tigon_exec *exec, const tigon_linear_cross_entropy_args *args);
TIGON_API tigon_status tigon_linear_cross_entropy_workspace(const tigon_exec *exec,
                                                            const tigon_linear_cross_entropy_args *args,
                                                            uint64_t *bytes);

/*
 * Gradients, with logits recomputed. For each token
 *
 *     dz_v = d_loss * ((1 + 2 z_loss lse) p_v - [v = target]) + d_lse * p_v + d_entropy * p_v * (lse - entropy - z_v)
 *     dx = inverse_temperature * dz . weight     dweight = inverse_temperature * dz^T . x     dbias likewise
 *
 * Workspace: O(T * D + T * tile) in fp32, never T * V; see docs/linear_cross_entropy.md for the formula.
 */
typedef struct tigon_linear_cross_entropy_backward_args {
  uint32_t size;
  int32_t set_ignore_index; /* this and the next members as in forward */
  const DLTensor *x;
  const DLTensor *weight;
  const DLTensor *bias;
  const DLTensor *target;
  const DLTensor *lse;     /* from forward */
  const DLTensor *entropy; /* from forward; NULL without d_entropy */
  const DLTensor *d_loss;  /* (T) float32, any stride; NULL = 0; so the next two */
  const DLTensor *d_lse;
  const DLTensor *d_entropy;
  DLTensor *dx;      /* NULL: not wanted and its work skipped; so the next two */
  DLTensor *dweight; /* (V, D) */
  DLTensor *dbias;   /* (V) */
  int64_t ignore_index;
  int64_t vocab_begin;
  const tigon_team *team;
  float inverse_temperature;
  float z_loss;
} tigon_linear_cross_entropy_backward_args;

TIGON_API tigon_status tigon_linear_cross_entropy_backward(const tigon_exec *exec,
                                                           const tigon_linear_cross_entropy_backward_args *args);
TIGON_API tigon_status tigon_linear_cross_entropy_backward_workspace(
    const tigon_exec *exec, const tigon_linear_cross_entropy_backward_args *args, uint64_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
