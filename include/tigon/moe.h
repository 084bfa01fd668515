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
 * Shapes: x, out (T, D); topk_ids (T, k) int32 or int64; topk_weights (T, k) float32, float16 or bfloat16; gate and up
 * (E, I, D) as a pair, or gate_up (E, 2I, D) packed, gate rows first; down (E, D, I). The expert stride of weights is
 * free, as is their row stride. 1 <= k <= 32, 1 <= E <= 4096, 0 <= T < 2^31.
 * ids < 0 are skipped; ids >= E are skipped too and noted in the context's record. The same expert twice in one token
 * counts twice. A token without a valid id gets 0. Every route is computed: there is no capacity and nothing is dropped.
 * dtypes: x, weights and out each float32, float16 or bfloat16.
 */
#ifndef TIGON_MOE_H
#define TIGON_MOE_H

#include "tigon/base.h"
#include "tigon/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tigon_moe_args {
  uint32_t size;
  const DLTensor *x;            /* (T, D) */
  const DLTensor *topk_ids;     /* (T, k) */
  const DLTensor *topk_weights; /* (T, k) */
  const DLTensor *gate;         /* (E, I, D), or NULL with gate_up */
  const DLTensor *up;           /* (E, I, D), or NULL with gate_up */
  const DLTensor *gate_up;      /* (E, 2I, D), or NULL with gate and up */
  const DLTensor *down;         /* (E, D, I) */
  DLTensor *out;                /* (T, D) */
  void *saved;                  /* 64-byte aligned block for backward, or NULL: nothing is kept */
  uint64_t saved_bytes;         /* at least tigon_moe_saved's answer */
  int64_t expert_begin;         /* first global expert of this shard; 0 in this version */
  const tigon_team *team;       /* NULL */
} tigon_moe_args;

TIGON_API tigon_status tigon_moe(const tigon_exec *exec, const tigon_moe_args *args);
TIGON_API tigon_status tigon_moe_workspace(const tigon_exec *exec, const tigon_moe_args *args, uint64_t *bytes);
/* Bytes of the opaque saved block: the pre-activations g and u of every route, 2 * I * T * k elements of x's dtype, and
 * what the backend keeps of its row plan (the CPU: nothing). It is unchanged by backward and belongs to one forward call
 * with these ids. */
TIGON_API tigon_status tigon_moe_saved(const tigon_exec *exec, const tigon_moe_args *args, uint64_t *bytes);

/*
 * Gradients. Per route, with da' = down_e^T dout_t in fp32, a from the saved (or recomputed) g and u, rounded as in
 * forward:
 *
 *     d_topk_weights[t, j] = <da', a>          (the router gradient needs no saved y; a skipped route gets 0)
 *     da = s da'     du = da * silu(g)     dg = da * u * sigma(g) (1 + g (1 - sigma(g)))     dg, du rounded to x's dtype
 *     d_down_e = sum dout_t (s a)^T     s a rounded to x's dtype
 *     dx_row = gate_e^T dg + up_e^T du  rounded to x's dtype; dx_t = their sum over routes in order of j, in fp32
 *     d_gate_e = sum dg x_t^T           d_up_e = sum du x_t^T
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
  DLTensor *d_gate;         /* (E, I, D); with gate and up */
  DLTensor *d_up;
  DLTensor *d_gate_up; /* (E, 2I, D); with gate_up */
  DLTensor *d_down;    /* (E, D, I) */
  int64_t expert_begin;
  const tigon_team *team;
} tigon_moe_backward_args;

TIGON_API tigon_status tigon_moe_backward(const tigon_exec *exec, const tigon_moe_backward_args *args);
TIGON_API tigon_status tigon_moe_backward_workspace(const tigon_exec *exec, const tigon_moe_backward_args *args,
                                                    uint64_t *bytes);

/*
 * Router. Scores in fp32: p = softmax(logits) over experts, or p = sigmoid(logits).
 *
 *     topk_ids[t]     = the k experts with the largest logits in falling order, ties to the lowest id
 *     topk_weights    = p of those experts; with renormalize, divided by their sum (0 where that sum is 0)
 *     counts_e        = number of routes to expert e
 *     balance_loss    = E * sum_e f_e P_e,  f_e = counts_e / (T k),  P_e = mean over tokens of p_te (sigmoid: of
 *                       p_te / sum_e p_te)                    (Switch Transformer, Fedus et al., 2021); 0 when T = 0
 *
 * A NaN logit is never selected and counts as probability 0; a token with fewer than k other logits has id -1 and weight
 * 0 in the places left. Softmax over a row with +Inf gives the Inf columns equal shares of 1; -Inf has p = 0, also in a row
 * with nothing above it. p below 2^-126 is 0.
 * Shapes: logits (T, E) float32, float16 or bfloat16; topk_ids (T, k) int32 or int64; topk_weights (T, k) float32;
 * counts (E) int32 or int64; balance_loss (1) float32. 1 <= k <= min(32, E), E <= 4096.
 */
typedef enum tigon_moe_score { TIGON_MOE_SOFTMAX = 0, TIGON_MOE_SIGMOID = 1 } tigon_moe_score;

typedef struct tigon_moe_route_args {
  uint32_t size;
  int32_t score;          /* tigon_moe_score */
  int32_t renormalize;    /* 1: the weights of a token sum to 1 */
  const DLTensor *logits; /* (T, E) */
  DLTensor *topk_ids;     /* (T, k): k comes from its shape */
  DLTensor *topk_weights; /* (T, k) */
  DLTensor *counts;       /* NULL, or (E) */
  DLTensor *balance_loss; /* NULL, or (1) */
  const tigon_team *team; /* NULL */
} tigon_moe_route_args;

TIGON_API tigon_status tigon_moe_route(const tigon_exec *exec, const tigon_moe_route_args *args);
TIGON_API tigon_status tigon_moe_route_workspace(const tigon_exec *exec, const tigon_moe_route_args *args,
                                                 uint64_t *bytes);

/*
 * Gradient of the logits given those of topk_weights and balance_loss; f_e is a constant, counted from topk_ids.
 *
 *     dp_e     = sum over j with topk_ids[t, j] = e of dw_j; with renormalize of (dw_j - sum_i dw_i w_i) / sum_i p_i
 *     dp_e    += c_e, c_e = d_balance_loss E f_e / T (sigmoid: (c_e - sum_i c_i q_i) / sum_i p_i with q = p / sum p)
 *     dlogit_e = p_e (dp_e - sum_i p_i dp_i), or for sigmoid dp_e p_e (1 - p_e)
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
} tigon_moe_route_backward_args;

TIGON_API tigon_status tigon_moe_route_backward(const tigon_exec *exec, const tigon_moe_route_backward_args *args);
TIGON_API tigon_status tigon_moe_route_backward_workspace(const tigon_exec *exec,
                                                          const tigon_moe_route_backward_args *args, uint64_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
