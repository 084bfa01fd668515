/*
 * Lightning Attention: causal linear attention with a constant decay per head (Qin et al., 2024; MiniMax-01, 2025).
 *
 * For each sequence and value head hv, with h = hv / (HV / H), lambda = exp(-decay), state S (V, K) in fp32:
 *
 *     S_t = lambda * S_{t-1} + v_t k_t^T        the decay comes first, then the token is added
 *     o_t = scale * S_t q_t                     a token sees its own key and value undecayed; scale never enters S
 *
 * Shapes: q, k (B, T, H, K); v, out (B, T, HV, V); HV a multiple of H (grouped value heads share a query-key head);
 * K and V may differ, 1 <= K, V <= 1024. Packed sequences: B = 1 and cu_seqlens (N + 1), int32 or int64, sequence n is
 * tokens [cu_seqlens[n], cu_seqlens[n+1]); without cu_seqlens N = B. A sequence of length zero passes its initial state
 * to its final state.
 * decay: float32, (H) or (HV), >= 0: the positive slope s of lambda = exp(-s). 0 (of either sign) means no decay, +Inf
 * that a token sees itself only; large values do not overflow. Where H = HV the two shapes mean the same. Libraries that
 * take log decay (negative) or lambda itself differ; see docs/lightning_attention.md.
 * States: initial_state and final_state (N, HV, V, K) float32, K contiguous. Where final_state has the memory of
 * initial_state (in place), it has its strides too.
 *
 * Values that only the data shows:
 * - Bad cu_seqlens (not starting at 0, decreasing, past T) are used as their running maximum clamped to [0, T]; the
 *   context's record gets the first bad position and its value. Ending before T is not bad.
 * - A negative or NaN decay is used as 0; the record gets its position and, as the value, the bits of the float.
 * - Tokens in no sequence get output 0 and gradient 0, whatever they hold.
 * - NaN and Inf in q, k, v, states and gradients stay in their sequence and head, and do not reach earlier tokens (in the
 *   gradients of k, v and the initial state: later tokens).
 *
 * Rounding points (CPU): all intermediates in fp32, lambda^n from exp(-s n) in float64 rounded once; out rounded once to
 * its dtype. The work is done in chunks of 64 tokens counted from each sequence's start (gradients of k, v and the initial
 * state: from its end). dtypes: q, k, v, out, and gradients each float32, float16 or bfloat16; q and k have one dtype.
 */
#ifndef TIGON_LIGHTNING_ATTENTION_H
#define TIGON_LIGHTNING_ATTENTION_H

#include "tigon/base.h"
#include "tigon/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tigon_lightning_attention_args {
  uint32_t size;
  float scale;                   /* finite; 0 = 1; often K^-0.5 */
  const DLTensor *q;             /* (B, T, H, K) */
  const DLTensor *k;             /* (B, T, H, K) */
  const DLTensor *v;             /* (B, T, HV, V) */
  const DLTensor *decay;         /* (H) or (HV) float32 */
  const DLTensor *cu_seqlens;    /* NULL, or (N + 1) */
  const DLTensor *initial_state; /* NULL = zero, or (N, HV, V, K) float32 */
  DLTensor *out;                 /* (B, T, HV, V) */
  DLTensor *final_state;         /* NULL, or (N, HV, V, K) float32; may be initial_state itself */
  const tigon_team *team;        /* NULL */
} tigon_lightning_attention_args;

TIGON_API tigon_status tigon_lightning_attention(const tigon_exec *exec, const tigon_lightning_attention_args *args);
TIGON_API tigon_status tigon_lightning_attention_workspace(const tigon_exec *exec,
                                                           const tigon_lightning_attention_args *args, uint64_t *bytes);

/*
 * Gradients of q, k, v and the initial state; decay is a constant. With G_t the gradient of S_t, G after the last token
 * = d_final_state:
 *
 *     G_t  = lambda * G_{t+1} + scale * do_t q_t^T
 *     dq_t = scale * S_t^T do_t      dk_t = G_t^T v_t      dv_t = G_t k_t      d_initial_state = lambda * G_0
 *
 * (the first G has d_final_state without decay). dq and dk are summed over the value heads of a group in fp32.
 */
typedef struct tigon_lightning_attention_backward_args {
  uint32_t size;
  float scale;          /* as in forward */
  const DLTensor *dout; /* (B, T, HV, V) */
  const DLTensor *q;
  const DLTensor *k;
  const DLTensor *v;
  const DLTensor *decay;
  const DLTensor *cu_seqlens;
  const DLTensor *initial_state;
  const DLTensor *d_final_state; /* NULL = zero */
  DLTensor *dq;                  /* each NULL: not wanted */
  DLTensor *dk;
  DLTensor *dv;
  DLTensor *d_initial_state; /* (N, HV, V, K) float32; may be d_final_state itself, with its strides */
  const tigon_team *team;    /* NULL */
} tigon_lightning_attention_backward_args;

TIGON_API tigon_status tigon_lightning_attention_backward(const tigon_exec *exec,
                                                          const tigon_lightning_attention_backward_args *args);
TIGON_API tigon_status tigon_lightning_attention_backward_workspace(const tigon_exec *exec,
                                                                    const tigon_lightning_attention_backward_args *args,
                                                                    uint64_t *bytes);

/*
 * One token of N sequences: the state is updated in place and the token's output returned. Same formulas, and decay means
 * the same. Needs no workspace.
 */
typedef struct tigon_lightning_attention_decode_args {
  uint32_t size;
  float scale;            /* 0 = 1 */
  const DLTensor *q;      /* (N, H, K) */
  const DLTensor *k;      /* (N, H, K) */
  const DLTensor *v;      /* (N, HV, V) */
  const DLTensor *decay;  /* (H) or (HV) float32 */
  DLTensor *state;        /* (N, HV, V, K) float32, read and written; sequence and head strides are free */
  DLTensor *out;          /* (N, HV, V) */
  const tigon_team *team; /* NULL */
} tigon_lightning_attention_decode_args;

TIGON_API tigon_status tigon_lightning_attention_decode(const tigon_exec *exec,
                                                        const tigon_lightning_attention_decode_args *args);
TIGON_API tigon_status tigon_lightning_attention_decode_workspace(const tigon_exec *exec,
                                                                  const tigon_lightning_attention_decode_args *args,
                                                                  uint64_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
