/*
 * Mixture of experts: the router, and the SwiGLU expert MLP on given expert ids and weights.
 *
 * Expert MLP. For each route r = (token t, choice j) with expert e = topk_ids[t, j] and weight s = topk_weights[t, j]:
 *
 *     g = gate_e x_t      u = up_e x_t      (I)       kept in x's dtype
 *     a = silu(g) * u                       (I)       from the rounded g and u, in fp32, rounded to x's dtype
 *     y = down_e a                          (D)       rounded to x's dtype
 *     out_t = sum over the token's routes in order of j of s * y, in fp32, rounded once to out's dtype
 *
 * With weights_on_input (Llama 4) the weight scales what the expert reads: x' = s * x_t, rounded to x's dtype, takes
 * the place of x_t, and out_t is the sum of y.
 *
 * Shapes: x, out (T, D); topk_ids (T, k) int32 or int64; topk_weights (T, k) float32, float16 or bfloat16; weights as
 * weight_layout says. The expert stride of weights is free, as is their row stride. 1 <= k <= 32, 1 <= E <= 4096,
 * 0 <= T < 2^31.
 * ids < 0 are skipped; ids >= E are skipped too and noted in the context's record. The same expert twice in one token
 * counts twice. A token without a valid id gets 0. Every route is computed: there is no capacity and nothing is
 * dropped, unless the caller sets row_limit.
 * dtypes: x, weights and out each float32, float16 or bfloat16.
 *
 * row_limit bounds the routes that are computed, and with them workspace and saved block. Routes with a valid id are
 * counted in the order of their index t * k + j; those past the limit are treated like skipped ones, in forward and in
 * backward, and the context's record gets TIGON_WORKSPACE with argument "row_limit", the index of the first such route,
 * and as value the limit that would have been enough. Of a bad id and the limit the one at the lower index is noted.
 *
 * The experts run on the CPU, and on CUDA devices of compute capability 9.x: there x, weights, out and the gradients are
 * bfloat16 (weight gradients float32 too; topk_weights and their gradient of any dtype), D and I are multiples of 8,
 * their tensors begin at multiples of 16 bytes and have strides that are multiples of 8 (of weights not negative), and D,
 * I, T * k and the number of tiles (rows / 64 times columns / 256) are at most 2^30. Anything else fails with
 * TIGON_UNSUPPORTED. Where there is nothing to compute (D or I 0, no gradient wanted) no bad id is noted. No call looks at data on the host: it can be captured, and replayed with other
 * routing. The router runs on the CPU and on CUDA devices of compute capability 8.0 and more, with all its
 * options and dtypes.
 */
#ifndef TIGON_MOE_H
#define TIGON_MOE_H

#include "tigon/base.h"
#include "tigon/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How the weight tensors lie in memory. They are read in place, and gradients are written in the same layout. The bits
 * of all results are the same for both (with tigon_cpu_isa "amx": where dout has x's dtype). */
typedef enum tigon_moe_weight_layout {
  TIGON_MOE_LAYOUT_ROWS = 0,       /* gate, up (E, I, D); gate_up (E, 2I, D), gate rows first; down (E, D, I) */
  TIGON_MOE_LAYOUT_TRANSPOSED = 1, /* gate, up (E, D, I); gate_up (E, D, 2I), gate columns first; down (E, I, D) */
  /* Gate and up in turns: refused with TIGON_UNSUPPORTED. Rows in turns, (E, 2I, D), need no copy: pass the pair gate
   * and up with twice the row stride, up one row further. Columns in turns, (E, D, 2I), are copied apart once. */
  TIGON_MOE_LAYOUT_INTERLEAVED = 2
} tigon_moe_weight_layout;

typedef struct tigon_moe_args {
  uint32_t size;
  const DLTensor *x;            /* (T, D) */
  const DLTensor *topk_ids;     /* (T, k) */
  const DLTensor *topk_weights; /* (T, k) */
  const DLTensor *gate;         /* NULL with gate_up */
  const DLTensor *up;           /* NULL with gate_up */
  const DLTensor *gate_up;      /* NULL with gate and up */
  const DLTensor *down;
  DLTensor *out;            /* (T, D) */
  void *saved;              /* 64-byte aligned block for backward, or NULL: nothing is kept */
  uint64_t saved_bytes;     /* at least tigon_moe_saved's answer */
  int64_t expert_begin;     /* first global expert of this shard; 0 in this version */
  const tigon_team *team;   /* NULL */
  int32_t weight_layout;    /* tigon_moe_weight_layout */
  int32_t weights_on_input; /* 1: topk_weights scale x and not y */
  int64_t row_limit;        /* most routes that are computed; 0: T * k */
} tigon_moe_args;

TIGON_API tigon_status tigon_moe(const tigon_exec *exec, const tigon_moe_args *args);
TIGON_API tigon_status tigon_moe_workspace(const tigon_exec *exec, const tigon_moe_args *args, uint64_t *bytes);
/* Bytes of the opaque saved block: the pre-activations g and u of every route, 2 * I * R elements of x's dtype with
 * R = T * k, or row_limit where that is less; on a CUDA device R + 63 min(E, R) rows, because experts begin at multiples
 * of 64 rows there, and the sorted order of the routes behind them, so that backward sorts them again for the record of a
 * context alone. Backward may be called more than once with a block and does not change it. It belongs to one forward
 * call with these ids, shapes and row_limit: with any other contents the behaviour is undefined. */
TIGON_API tigon_status tigon_moe_saved(const tigon_exec *exec, const tigon_moe_args *args, uint64_t *bytes);

/*
 * Gradients. Per route, with da' = down_e^T dout_t in fp32, a from the saved (or recomputed) g and u, rounded as in
 * forward. A route that forward skipped, past row_limit too, has d_topk_weights 0 and no part in the others.
 *
 *     d_topk_weights[t, j] = <da', a>          (the router gradient needs no saved y)
 *     da = s da'     du = da * silu(g)     dg = da * u * sigma(g) (1 + g (1 - sigma(g)))
 *                                                            dg, du rounded to x's dtype
 *     d_down_e = sum dout_t (s a)^T     s a rounded to x's dtype
 *     dx_row = gate_e^T dg + up_e^T du  rounded to x's dtype; dx_t = their sum over routes in order of j, in fp32
 *     d_gate_e = sum dg x_t^T           d_up_e = sum du x_t^T
 *
 * With weights_on_input, da = da' and a stands for s a, x' for x_t in the last line, and with the rounded dx_row, which
 * is the gradient of x':
 *
 *     d_topk_weights[t, j] = <dx_row, x_t> in fp32 (so also where s = 0)
 *     dx_t = sum of s * dx_row
 *
 * Weight gradients are summed in fp32 over all rows of the expert and rounded once. An expert without rows gets 0 (or
 * keeps its values with accumulate_weight_gradients). Backward twice gives the same answer twice.
 */
typedef struct tigon_moe_backward_args {
  uint32_t size;
  int32_t accumulate_weight_gradients; /* 1: weight gradients are added (they must be float32) */
  const DLTensor *dout;                /* (T, D) */
  const DLTensor *x;                   /* this and the next members as in forward */
  const DLTensor *topk_ids;
  const DLTensor *topk_weights;
  const DLTensor *gate;
  const DLTensor *up;
  const DLTensor *gate_up;
  const DLTensor *down;
  const void *saved; /* what forward filled; NULL: g and u are computed again */
  uint64_t saved_bytes;
  DLTensor *dx;             /* (T, D); each of these NULL: not wanted */
  DLTensor *d_topk_weights; /* (T, k) */
  DLTensor *d_gate;         /* shaped like gate; with gate and up */
  DLTensor *d_up;
  DLTensor *d_gate_up; /* shaped like gate_up; with gate_up */
  DLTensor *d_down;    /* shaped like down */
  int64_t expert_begin;
  const tigon_team *team;
  int32_t weight_layout; /* this and the next members as in forward */
  int32_t weights_on_input;
  int64_t row_limit;
} tigon_moe_backward_args;

TIGON_API tigon_status tigon_moe_backward(const tigon_exec *exec, const tigon_moe_backward_args *args);
TIGON_API tigon_status tigon_moe_backward_workspace(const tigon_exec *exec, const tigon_moe_backward_args *args,
                                                    uint64_t *bytes);

/*
 * Router. Scores in fp32: p = softmax(logits) over experts, or p = sigmoid(logits).
 *
 *     topk_ids[t]     = the k best experts in falling order, ties to the lowest id
 *     topk_weights    = p of those experts; with renormalize, divided by their sum (0 where that sum is 0); then times
 *                       routed_scale
 *     counts_e        = number of routes to expert e
 *     balance_loss    = E * sum_e f_e P_e,  f_e = counts_e / (T k),  P_e = mean over tokens of p_te (sigmoid: of
 *                       p_te / sum_e p_te)                    (Switch Transformer, Fedus et al., 2021); 0 when T = 0
 *     z_loss          = mean over tokens of logsumexp(logits_t)^2     (ST-MoE, Zoph et al., 2022); 0 when T = 0
 *
 * Best are the experts with the largest logits. With selection_bias they are those with the largest b_e = p_e + bias_e
 * in fp32; the bias has a say in the choice alone, the weights stay p (DeepSeek-V3). It has no gradient.
 * With n_group > 1 the experts form n_group equal groups of neighbours, and only those of the topk_group best groups
 * may be chosen (ties to the lowest group). A group's score is the sum in fp32 of its group_top largest b_e (p_e
 * without a bias) from the largest on, of all it has where it has fewer. group_top = 0 stands for 2 with selection_bias
 * (DeepSeek-V3; 1 where a group has one expert), else for 1. With group_top 1 and no bias, groups are ordered by their
 * largest logit (DeepSeek-V2).
 *
 * A NaN logit is never selected and counts as probability 0; so an expert with a NaN bias is never selected, but its p
 * counts. A token with fewer than k experts to select has id -1 and weight 0 in the places left. Softmax over a row
 * with +Inf gives the Inf columns equal shares of 1; -Inf has p = 0, also in a row with nothing above it. p below
 * 2^-126 is 0. A bias of +Inf puts its expert first and its group's score at +Inf; -Inf puts the expert last. A group
 * without an expert to select comes last. A token whose logsumexp is not finite (+Inf in its row, or nothing above
 * -Inf) adds 0 to the sum in z_loss, and NaN logits have no part in it.
 * Shapes: logits (T, E) float32, float16 or bfloat16; topk_ids (T, k) int32 or int64; topk_weights (T, k) float32;
 * counts (E) int32 or int64; balance_loss and z_loss (1) float32; selection_bias (E) float32. 1 <= k <= min(32, E), E
 * <= 4096, n_group divides E, topk_group <= n_group, k <= topk_group * E / n_group, group_top <= min(32, E / n_group).
 * CPU and CUDA devices sum in different orders: scores, and with a bias or sums of scores the choice among nearly equal
 * ones, may differ in their last bits.
 */
typedef enum tigon_moe_score { TIGON_MOE_SOFTMAX = 0, TIGON_MOE_SIGMOID = 1 } tigon_moe_score;

typedef struct tigon_moe_route_args {
  uint32_t size;
  int32_t score;                  /* tigon_moe_score */
  int32_t renormalize;            /* 1: the weights of a token sum to 1 */
  const DLTensor *logits;         /* (T, E) */
  DLTensor *topk_ids;             /* (T, k): k comes from its shape */
  DLTensor *topk_weights;         /* (T, k) */
  DLTensor *counts;               /* NULL, or (E) */
  DLTensor *balance_loss;         /* NULL, or (1) */
  const tigon_team *team;         /* NULL */
  const DLTensor *selection_bias; /* NULL, or (E) float32 */
  int32_t n_group;                /* 0 and 1: no groups */
  int32_t topk_group;             /* without groups 0 or 1 */
  int32_t group_top;              /* experts whose scores make a group's; 0: see above */
  float routed_scale;             /* finite; 0: 1 */
  DLTensor *z_loss;               /* NULL, or (1) */
} tigon_moe_route_args;

TIGON_API tigon_status tigon_moe_route(const tigon_exec *exec, const tigon_moe_route_args *args);
TIGON_API tigon_status tigon_moe_route_workspace(const tigon_exec *exec, const tigon_moe_route_args *args,
                                                 uint64_t *bytes);

/*
 * Gradient of the logits given those of topk_weights, balance_loss and z_loss; the choice of experts and f_e are
 * constants, taken from topk_ids. s = routed_scale; sum p is over the chosen experts.
 *
 *     dp_e     = s * sum over j with topk_ids[t, j] = e of dw_j;
 *                with renormalize s (dw_j - sum_i dw_i p_i / sum p) / sum p
 *     dp_e    += c_e, c_e = d_balance_loss E f_e / T (sigmoid: (c_e - sum_i c_i q_i) / sum_i p_i with q = p / sum p)
 *     dlogit_e = p_e (dp_e - sum_i p_i dp_i), or for sigmoid dp_e p_e (1 - p_e)
 *     dlogit_e += d_z_loss 2 logsumexp(logits_t) softmax(logits_t)_e / T, for both scores; 0 where the former is not
 *                 finite
 */
typedef struct tigon_moe_route_backward_args {
  uint32_t size;
  int32_t score; /* as in forward */
  int32_t renormalize;
  const DLTensor *logits;
  const DLTensor *topk_ids;       /* from forward; an id outside [0, E) has no gradient, one >= E is noted */
  const DLTensor *d_topk_weights; /* (T, k) float32; NULL = 0 */
  const DLTensor *d_balance_loss; /* (1) float32; NULL = 0 */
  DLTensor *d_logits;             /* (T, E) float32, float16 or bfloat16 */
  const tigon_team *team;         /* NULL */
  const DLTensor *d_z_loss;       /* (1) float32; NULL = 0 */
  float routed_scale;             /* as in forward */
  int32_t reserved;               /* 0 */
} tigon_moe_route_backward_args;

TIGON_API tigon_status tigon_moe_route_backward(const tigon_exec *exec, const tigon_moe_route_backward_args *args);
TIGON_API tigon_status tigon_moe_route_backward_workspace(const tigon_exec *exec,
                                                          const tigon_moe_route_backward_args *args, uint64_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
