/*
 * Classifier projection and cross entropy in one: the logits (T, V) never live in memory, unless the caller lends some
 * for them (tigon_linear_cross_entropy_saved).
 *
 *     u_tv      = x_t . weight_v + bias_v
 *     z_tv      = inverse_temperature * cap(u_tv)    cap(u) = softcap * tanh(u / softcap), or u where softcap is 0
 *     lse_t     = log sum_v exp(z_tv)
 *     nll_t     = lse_t - z_{t, target_t}
 *     entropy_t = lse_t - sum_v p_tv z_tv            p_tv = exp(z_tv - lse_t)
 *     loss_t    = token_weight_t * ( (1 - label_smoothing) * w_target * nll_t
 *                                    + label_smoothing / C * sum_v w_v (lse_t - z_tv)
 *                                    + z_loss * lse_t^2 )            w = class_weight, or 1
 *
 * The cap belongs to the model and stands inside, the temperature belongs to the sampler and stands outside. Smoothing
 * and class weights are those of torch.nn.functional.cross_entropy(reduction="none"). nll, lse and entropy have no
 * weights.
 *
 * Shapes: x (T, D), weight (V, D), bias (V), target (T) int32 or int64 of any stride. Rows whose target is ignore_index
 * have 0 in every output (argmax -1), gradient 0, and cost nothing. A target outside [0, C) is treated like an ignored
 * one and is noted in the context's record. Reductions over tokens are the caller's: outputs and upstream gradients are
 * per token.
 *
 * Classes and shards: C = vocab_size classes exist in all. Row v of weight is class vocab_begin + v; targets, argmax
 * and class_weight count classes. Rows whose class is C or above are padding (tables rounded up to a tile): they are no
 * columns of z, whatever they hold, and their rows of dweight and dbias are 0 (or stay as they are where gradients are
 * added to). A call that holds every class gives all outputs.
 * A call that holds some of them (a shard; of any size, none included) gives `partial` only;
 * tigon_linear_cross_entropy_merge makes the outputs from the partials of all shards.
 *
 * Rounding points (CPU): logits stay in fp32 and are never rounded, nor are their gradients, but that these are rounded
 * once to bfloat16 where x and weight are both bfloat16; outputs per token are float32; dx, dweight and dbias are
 * summed in fp32 and rounded once. entropy is formed as ln S - D / S from running sums relative to the maximum, so it
 * has no cancellation when lse is large. nll and entropy are never below 0.
 *
 * A column with z = -inf has p = 0 and adds nothing to lse and entropy; a token whose columns all are -inf has NaN in
 * its outputs (argmax -1, correct 0). With label smoothing such a column makes the loss infinite, as in torch. A finite
 * softcap makes -softcap of -inf. A factor of 0 (token weight, class weight, 1 - label_smoothing) removes its term also
 * where the term is not finite; torch has NaN there.
 * dtypes: x, weight, bias, dx, dweight, dbias each float32, float16 or bfloat16.
 */
#ifndef TIGON_LINEAR_CROSS_ENTROPY_H
#define TIGON_LINEAR_CROSS_ENTROPY_H

#include "tigon/base.h"
#include "tigon/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * What some classes say about one token: a row of the (T, 8) float32 tensor `partial`. Sums are relative to max, and m
 * stands for it below. Two rows merge into one by taking the higher max, scaling the other's sums by e^(its m - max)
 * and adding; this is associative up to rounding. Tokens that are left out, and shards without classes, have the empty
 * row {-inf, 0, 0, 0, 0, 0, 0, -1}, which changes nothing. argmax is an integer in the place of a float: copy and
 * gather rows as bytes; a reduction or a conversion of the tensor would destroy it.
 */
typedef struct tigon_linear_cross_entropy_partial {
  float max;  /* of z over the classes; -inf: none above -inf */
  float ties; /* classes at max. The sum S of e^(z - m) is ties + rest; apart, a peaked row's ln S keeps its digits */
  float rest; /* sum of e^(z - m) over the others */
  float weighted; /* D: sum of e^(z - m) (z - m) */
  float target;   /* z of the target where it is one of the classes, else 0 */
  float smoothed; /* sum of w (z - m); where max is -inf, of w z */
  float weights;  /* sum of w: the number of classes without class_weight */
  int32_t argmax; /* lowest class at max, -1 where max is -inf */
} tigon_linear_cross_entropy_partial;

typedef struct tigon_linear_cross_entropy_args {
  uint32_t size;
  int32_t set_ignore_index; /* 0: ignore_index is -100; 1: it is the member below */
  const DLTensor *x;        /* (T, D), T < 2^31 */
  const DLTensor *weight;   /* (V, D) */
  const DLTensor *bias;     /* NULL, or (V), contiguous */
  const DLTensor *target;   /* (T), classes: the same on every shard */
  DLTensor *loss;           /* NULL: not wanted; (T) float32; so the next three. All NULL on a shard */
  DLTensor *nll;
  DLTensor *lse;     /* backward needs it */
  DLTensor *entropy; /* backward needs it where d_entropy is given */
  int64_t ignore_index;
  int64_t vocab_begin;       /* class of weight's first row */
  const tigon_team *team;    /* NULL */
  float inverse_temperature; /* positive; 0 = 1 */
  float z_loss;
  float softcap;                /* positive; 0: none */
  float label_smoothing;        /* in [0, 1] */
  const DLTensor *class_weight; /* NULL, or (C) float32, contiguous: of all classes, on every shard */
  const DLTensor *token_weight; /* NULL, or (T) float32 of any stride; any sign */
  DLTensor *argmax;     /* NULL, or (T) int32 or int64: lowest class with the largest z, never NaN. NULL on a shard */
  DLTensor *correct;    /* NULL, or (T) float32: 1 where argmax is target, else 0. NULL on a shard */
  DLTensor *partial;    /* NULL, or (T, 8) float32: rows as above */
  int64_t vocab_size;   /* C; 0: vocab_begin + V. Below 2^31 where argmax, correct or partial is given */
  void *saved;          /* NULL, or a 64-byte aligned block: logits kept for backward, as many as fit */
  uint64_t saved_bytes; /* any number */
} tigon_linear_cross_entropy_args;

TIGON_API tigon_status tigon_linear_cross_entropy(const tigon_exec *exec, const tigon_linear_cross_entropy_args *args);
TIGON_API tigon_status tigon_linear_cross_entropy_workspace(const tigon_exec *exec,
                                                            const tigon_linear_cross_entropy_args *args,
                                                            uint64_t *bytes);
/*
 * Bytes of `saved` that hold every logit, 4 T V. Memory for time: backward takes from the block what forward put there
 * and computes the rest again, 2 G to 3 G of work (G = 2 T V D) with the same bits. A smaller block keeps the logits of
 * the first saved_bytes / (4 T) classes, in steps of 768. The block belongs to one forward call and the same x, weight,
 * bias and target; backward leaves it as it is.
 */
TIGON_API tigon_status tigon_linear_cross_entropy_saved(const tigon_exec *exec,
                                                        const tigon_linear_cross_entropy_args *args, uint64_t *bytes);

/*
 * Outputs from the partials of N shards, whose classes are disjoint and together are all of [0, C). The options have
 * the values of a whole call; class_weight has to be the one that the partials were made with. `merged` takes the merge
 * of the partials alone, for trees, where the N shards need not be all. From one partial of all classes the outputs
 * have the bits of the whole call; from the same partials in the same order, the same bits on every rank.
 */
typedef struct tigon_linear_cross_entropy_merge_args {
  uint32_t size;
  int32_t set_ignore_index;
  const DLTensor *partials; /* (N, T, 8) float32, N >= 1, T < 2^31; contiguous last dimension */
  const DLTensor *target;
  const DLTensor *class_weight;
  const DLTensor *token_weight;
  DLTensor *merged; /* NULL, or (T, 8) float32 */
  DLTensor *loss;   /* each NULL, or (T), as in a whole call */
  DLTensor *nll;
  DLTensor *lse;
  DLTensor *entropy;
  DLTensor *argmax;
  DLTensor *correct;
  int64_t ignore_index;
  int64_t vocab_size; /* C, positive */
  float z_loss;
  float label_smoothing;
} tigon_linear_cross_entropy_merge_args;

TIGON_API tigon_status tigon_linear_cross_entropy_merge(const tigon_exec *exec,
                                                        const tigon_linear_cross_entropy_merge_args *args);
TIGON_API tigon_status tigon_linear_cross_entropy_merge_workspace(const tigon_exec *exec,
                                                                  const tigon_linear_cross_entropy_merge_args *args,
                                                                  uint64_t *bytes);

/*
 * Gradients; logits that forward did not save are computed again. For each token, with g = d_loss * token_weight,
 * a = label_smoothing and W the sum of all C class weights (C without them)
 *
 *     dz_v = g ( (1 - a) w_target (p_v - [v = target]) + a / C (W p_v - w_v) + 2 z_loss lse p_v )
 *            + d_lse * p_v + d_entropy * p_v * (lse - entropy - z_v)
 *     du_v = inverse_temperature * dz_v * (1 - tanh(u_v / softcap)^2)            the last factor with softcap only
 *     dx = du . weight     dweight = du^T . x     dbias = sum_t du
 *
 * On a shard lse and entropy are those of all classes, from the merge. It gives its own rows of dweight and dbias, and
 * its part of dx: the sum over shards is the gradient, so dx should be float32 there, and be rounded after the sum.
 * A column with z = -inf has p = 0: its gradient is 0, or -g a / C w_v * inverse_temperature with label smoothing.
 *
 * Workspace: O(T * D + T * tile), never T * V; see docs/linear_cross_entropy.md for the formula.
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
  float softcap; /* this and the next members as in forward */
  float label_smoothing;
  const DLTensor *class_weight;
  const DLTensor *token_weight;
  int64_t vocab_size;
  int32_t accumulate_weight_gradients; /* 1: dweight and dbias (they must be float32) are added to */
  int32_t reserved;                    /* 0 */
  const void *saved;                   /* what forward filled, or NULL: every logit is computed again */
  uint64_t saved_bytes;                /* as in forward */
} tigon_linear_cross_entropy_backward_args;

TIGON_API tigon_status tigon_linear_cross_entropy_backward(const tigon_exec *exec,
                                                           const tigon_linear_cross_entropy_backward_args *args);
TIGON_API tigon_status tigon_linear_cross_entropy_backward_workspace(
    const tigon_exec *exec, const tigon_linear_cross_entropy_backward_args *args, uint64_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
