/*
 * Naive Lightning Attention, token by token, independent of src/ except for roundings. All tensors are dense doubles;
 * the formulas and what bad decay and cu_seqlens mean stand in include/tigon/lightning_attention.h.
 *
 * sizes: B, T, H, HV, K, V, N, and the number of elements of decay (H or HV).
 * cu_seqlens NULL: N = B sequences of T tokens. Absent inputs and unwanted outputs are NULL.
 *
 * The oracle computes in float64. The plain composition does the same in float32 and rounds where the header says: out
 * and gradients once, to the given tigon_kind.
 */
#ifndef TIGON_REFERENCE_LIGHTNING_ATTENTION_H
#define TIGON_REFERENCE_LIGHTNING_ATTENTION_H

#include <stdint.h>

typedef struct lightning_inputs {
  const int64_t *sizes;
  double scale;
  const double *q, *k, *v, *decay;
  const int64_t *cu_seqlens;
  const double *initial_state;
  /* Each NULL: no pool, all sequences have their initial state, all tokens count. */
  const int64_t
      *slots;         /* (N): with them the states are a pool of slots, and those in no use keep what final_state has */
  const int64_t *has; /* (N): 0 = start from zero */
  const int64_t *lengths; /* (N): only the first tokens of each sequence count */
  int64_t pool;           /* P */
} lightning_inputs;

/* out NULL: states only. */
void lightning_oracle(const lightning_inputs *in, double *out, double *final_state);
void lightning_plain(const lightning_inputs *in, double *out, double *final_state, int out_kind);

typedef struct lightning_gradients {
  const double *dout, *d_final_state;
  double *dq, *dk, *dv, *d_initial_state;
} lightning_gradients;

void lightning_backward_oracle(const lightning_inputs *in, const lightning_gradients *grad);
/* kinds: of dq, dk and dv */
void lightning_backward_plain(const lightning_inputs *in, const lightning_gradients *grad, const int *kinds);

#endif
