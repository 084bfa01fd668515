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
 * that a token sees itself only; large values do not overflow. Where H = HV the two shapes mean the same.
 * States: initial_state and final_state (N, HV, V, K) float32, K contiguous, the other strides free. Where final_state
 * has the memory of initial_state (in place), it has its strides too.
 *
 * State pools: with state_indices (N), int32 or int64, the state tensors are pools (P, HV, V, K) of the same P, and
 * sequence n reads and writes slot state_indices[n] of them. Slots that no sequence names stay bitwise untouched. -1 is
 * padding: the sequence's tokens get output 0, and nothing else is written or read for it. The indices that are not
 * negative are unique; that is the caller's duty: a slot named twice has undefined contents afterwards (and so have the
 * outputs of the sequences that read it in place), but nothing else is affected.
 * has_initial_state (N), bool, uint8, int32 or int64: where it is 0 a sequence starts from zero and its initial state
 * is not read, so that a new request may take over a slot that holds anything, NaN too.
 * An absent final_state leaves the pool as it is: draft tokens are verified so, and the accepted ones are committed
 * with tigon_lightning_attention_state.
 *
 * Conventions of other libraries:
 *     decay      flash-linear-attention passes g_gamma = -decay (log decay), FlashInfer lambda = exp(-decay); cuLA and
 *                SGLang pass decay itself, OpenNLPLab and vLLM call it slope.
 *     state      S as above is decayed when it is used (exponent offset 1: cuLA, flash-linear-attention, SGLang,
 *                MiniMax's model code). Libraries with exponent offset 0 (OpenNLPLab, FlashInfer's option) store
 *                lambda * S: multiply theirs by exp(decay), or ours by lambda, in exchange. Outputs are the same.
 *     scale      FlashInfer multiplies the state by scale as well; divide by it.
 *     layout     S is [V, K] with K contiguous. flash-linear-attention stores [K, V] unless state_v_first is set.
 *     heads      flash-linear-attention wants q and k repeated to HV heads; value head hv here reads head
 *                hv / (HV / H).
 *
 * Values that only the data shows (the context's record gets the first, in the order of this list):
 * - Bad cu_seqlens (not starting at 0, decreasing, past T) are used as their running maximum clamped to [0, T]; the
 *   record gets the first bad position and its value. Ending before T is not bad.
 * - A negative or NaN decay is used as 0; the record gets its position and, as the value, the bits of the float.
 * - A slot below -1, or P and more, is padding; the record gets its position and value.
 * - Tokens in no sequence get output 0 and gradient 0, whatever they hold.
 * - NaN and Inf in q, k, v, states and gradients stay in their sequence and head, and do not reach earlier tokens (in
 *   the gradients of k, v and the initial state: later tokens).
 *
 * Rounding points (CPU): all intermediates in fp32, lambda^n from exp(-s n) in float64 rounded once; out rounded once
 * to its dtype. The work is done in chunks of 64 tokens counted from each sequence's start (gradients of k, v and the
 * initial state: from its end). dtypes: q, k, v, out, and gradients each float32, float16 or bfloat16; q and k have one
 * dtype.
 */
#ifndef TIGON_LIGHTNING_ATTENTION_H
#define TIGON_LIGHTNING_ATTENTION_H

#include "tigon/base.h"
#include "tigon/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Prefill, and verification of draft tokens.
 *
 * Checkpoints: the states after checkpoint_every, 2 checkpoint_every, ... tokens of each sequence, counted from its
 * start in this call, up to its length. They have the bits of final_state of a call that ends there. Sequence n's are
 * rows checkpoint_begin[n], checkpoint_begin[n] + 1, ... of checkpoints; without checkpoint_begin (then without
 * cu_seqlens) n * floor(T / checkpoint_every) is its first row. Padding has none. Rows that do not fit, at
 * checkpoint_begin[n + 1] or past C, are not written, and the record gets argument "checkpoints", the first such
 * sequence, and how many rows it has. Bad values in checkpoint_begin (negative, decreasing, past C) are used as their
 * running maximum clamped to [0, C], and recorded. All other rows stay as they were.
 */
typedef struct tigon_lightning_attention_args {
  uint32_t size;
  float scale;                   /* finite; 0 = 1; often K^-0.5 */
  const DLTensor *q;             /* (B, T, H, K) */
  const DLTensor *k;             /* (B, T, H, K) */
  const DLTensor *v;             /* (B, T, HV, V) */
  const DLTensor *decay;         /* (H) or (HV) float32 */
  const DLTensor *cu_seqlens;    /* NULL, or (N + 1) */
  const DLTensor *initial_state; /* NULL = zero, or (N, HV, V, K) float32; a pool (P, HV, V, K) with state_indices */
  DLTensor *out;                 /* (B, T, HV, V) */
  DLTensor *final_state;         /* NULL, or like initial_state; may be initial_state itself */
  const tigon_team *team;        /* NULL */
  const DLTensor *state_indices; /* NULL, or (N) int32 or int64: initial_state or final_state is needed with it */
  const DLTensor *has_initial_state; /* NULL = 1, or (N) bool, uint8, int32 or int64; needs initial_state */
  DLTensor *checkpoints;             /* NULL, or (C, HV, V, K) float32 */
  const DLTensor *checkpoint_begin;  /* NULL, or (N + 1) int32 or int64; needed with cu_seqlens and checkpoints */
  int64_t checkpoint_every;          /* tokens: a positive multiple of 64 with checkpoints, 0 without */
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
 *
 * Pools are refused with TIGON_UNSUPPORTED, since forward may have overwritten the states that backward needs: gather
 * them before forward, initial_state[n] = pool[state_indices[n]], zero where has_initial_state is 0.
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
  DLTensor *d_initial_state;         /* (N, HV, V, K) float32; may be d_final_state itself, with its strides */
  const tigon_team *team;            /* NULL */
  const DLTensor *state_indices;     /* NULL */
  const DLTensor *has_initial_state; /* NULL */
} tigon_lightning_attention_backward_args;

TIGON_API tigon_status tigon_lightning_attention_backward(const tigon_exec *exec,
                                                          const tigon_lightning_attention_backward_args *args);
TIGON_API tigon_status tigon_lightning_attention_backward_workspace(const tigon_exec *exec,
                                                                    const tigon_lightning_attention_backward_args *args,
                                                                    uint64_t *bytes);

/*
 * One token of N sequences: the state is updated in place and the token's output returned. Same formulas, and decay,
 * state_indices and bad values mean the same. Where lambda is 1/2 or more, lambda S is taken as S - (1 - lambda) S with
 * 1 - lambda rounded once: a rounded lambda would move the state away from prefill's over many tokens. An infinite
 * element of the state may become NaN. Needs no workspace.
 */
typedef struct tigon_lightning_attention_decode_args {
  uint32_t size;
  float scale;            /* 0 = 1 */
  const DLTensor *q;      /* (N, H, K) */
  const DLTensor *k;      /* (N, H, K) */
  const DLTensor *v;      /* (N, HV, V) */
  const DLTensor *decay;  /* (H) or (HV) float32 */
  DLTensor *state;        /* (N, HV, V, K) float32, read and written, last stride 1; (P, HV, V, K) with state_indices */
  DLTensor *out;          /* (N, HV, V) */
  const tigon_team *team; /* NULL */
  const DLTensor *state_indices; /* NULL, or (N) int32 or int64 */
} tigon_lightning_attention_decode_args;

TIGON_API tigon_status tigon_lightning_attention_decode(const tigon_exec *exec,
                                                        const tigon_lightning_attention_decode_args *args);
TIGON_API tigon_status tigon_lightning_attention_decode_workspace(const tigon_exec *exec,
                                                                  const tigon_lightning_attention_decode_args *args,
                                                                  uint64_t *bytes);

/*
 * States only: the final state after the first lengths[n] tokens of each sequence (all of them without lengths),
 *
 *     S = lambda^L S_initial + sum_{j < L} lambda^(L - 1 - j) v_j k_j^T
 *
 * with the bits that forward gives it. Arguments are as in forward; tokens past lengths[n] are not read. A length
 * outside [0, the sequence's length] is clamped to it, and the record gets its position and value (after
 * state_indices).
 *
 * Two uses: without an initial state it is the local state of a part of a sequence (sequence or context parallelism,
 * with tigon_lightning_attention_merge); in place over a pool, with lengths = the numbers of accepted tokens, it
 * commits drafts that forward verified.
 */
typedef struct tigon_lightning_attention_state_args {
  uint32_t size;
  const DLTensor *k;                 /* (B, T, H, K) */
  const DLTensor *v;                 /* (B, T, HV, V) */
  const DLTensor *decay;             /* (H) or (HV) float32 */
  const DLTensor *cu_seqlens;        /* NULL, or (N + 1) */
  const DLTensor *lengths;           /* NULL, or (N) int32 or int64 */
  const DLTensor *initial_state;     /* NULL = zero, or as in forward */
  const DLTensor *state_indices;     /* NULL, or (N) */
  const DLTensor *has_initial_state; /* NULL, or (N) */
  DLTensor *final_state;             /* (N, HV, V, K) or (P, HV, V, K) float32; may be initial_state itself */
  const tigon_team *team;            /* NULL */
} tigon_lightning_attention_state_args;

TIGON_API tigon_status tigon_lightning_attention_state(const tigon_exec *exec,
                                                       const tigon_lightning_attention_state_args *args);
TIGON_API tigon_status tigon_lightning_attention_state_workspace(const tigon_exec *exec,
                                                                 const tigon_lightning_attention_state_args *args,
                                                                 uint64_t *bytes);

/*
 * Joins the states of two neighbouring parts of each sequence:
 *
 *     out = lambda^lengths[n] * left + right
 *
 * where left is the state before a part (or the state of all that stands before it), right the local state of the part,
 * started from zero, and lengths[n] the part's number of tokens. Parts may be joined in any grouping, equal up to
 * rounding; their lengths add up. lambda^0 = 1, also where decay is +Inf. A negative length counts as 0; the record
 * gets it (after a bad decay). One fp32 product and sum an element. Needs no workspace.
 */
typedef struct tigon_lightning_attention_merge_args {
  uint32_t size;
  const DLTensor *left;    /* (N, HV, V, K) float32 */
  const DLTensor *right;   /* (N, HV, V, K) float32 */
  const DLTensor *decay;   /* (H) or (HV) float32; H is any divisor of HV */
  const DLTensor *lengths; /* (N) int32 or int64 */
  DLTensor *out;           /* (N, HV, V, K) float32; may be left or right itself, with its strides */
  const tigon_team *team;  /* NULL */
} tigon_lightning_attention_merge_args;

TIGON_API tigon_status tigon_lightning_attention_merge(const tigon_exec *exec,
                                                       const tigon_lightning_attention_merge_args *args);
TIGON_API tigon_status tigon_lightning_attention_merge_workspace(const tigon_exec *exec,
                                                                 const tigon_lightning_attention_merge_args *args,
                                                                 uint64_t *bytes);

/* Families of slopes that published models use as decay. h counts all heads_total heads H of the model. */
typedef enum tigon_lightning_attention_slope_kind {
  /* ALiBi (Press et al., 2022): 2^(-8 (h + 1) / H) for H a power of two. Otherwise, with n the largest power of two
   * below H, the n slopes of n heads, then those of 2n heads at h = 0, 2, 4, ... Times MiniMax's factor
   * 1 - l / (L - 1) + 1e-5 of layer l of L (1 + 1e-5 where L = 1). Ling and Ring pass max(0, l - 1) for l. */
  TIGON_LIGHTNING_ATTENTION_ALIBI = 0,
  /* (8 / H) (1 - l / L) h: TransNormer, and flash-linear-attention's chunk_lightning_attn. Head 0 has no decay. */
  TIGON_LIGHTNING_ATTENTION_LINEAR = 1
} tigon_lightning_attention_slope_kind;

/*
 * Fills slopes[0 .. heads) with those of heads [head_begin, head_begin + heads) of the model: a tensor-parallel rank r
 * of R asks for head_begin = r H / R, heads = H / R. layers = 0 (and layer = 0) leaves the layer's factor out. Computed
 * in float64, rounded once, so a slice has the bits of the whole.
 *
 * TIGON_INVALID_ARGUMENT, and nothing written: an unknown kind; layers below 0; layer outside [0, layers); heads_total
 * outside [1, 2^31); a range of heads outside [0, heads_total); slopes NULL.
 */
TIGON_API tigon_status tigon_lightning_attention_slopes(int32_t kind, int64_t layer, int64_t layers,
                                                        int64_t heads_total, int64_t head_begin, int64_t heads,
                                                        float *slopes);

#ifdef __cplusplus
}
#endif
#endif
