/* What forward, backward and states alone have in common: inputs, sizes, packed sequences, and values that only the
 * data shows. */
#ifndef TIGON_LIGHTNING_ATTENTION_PROBLEM_H
#define TIGON_LIGHTNING_ATTENTION_PROBLEM_H

#include "base/args.h"
#include "base/check.h"
#include "lightning_attention/backend.h"
#include "tigon/lightning_attention.h"

enum { MAX_SIZE = 1024 }; /* of K and V */

typedef struct problem {
  tigon_view q;                                                    /* (B, T, H, K); absent for states only */
  tigon_view k;                                                    /* (B, T, H, K) */
  tigon_view v;                                                    /* (B, T, HV, V) */
  tigon_view decay;                                                /* (H) or (HV) */
  tigon_view cu_seqlens;                                           /* absent, or (N + 1) */
  tigon_view initial_state;                                        /* absent, or (P, HV, V, K) */
  slots slots;                                                     /* P = N without indices */
  int64_t batch, tokens, heads, value_heads, key_size, value_size; /* B, T, H, HV, K, V */
  int64_t sequences;                                               /* N */
} problem;

/* Checks the inputs but for states, and fills the sizes. */
void lightning_check_inputs(tigon_checker *check, problem *p, bool with_q, const DLTensor *q, const DLTensor *k,
                            const DLTensor *v, const DLTensor *decay, const DLTensor *cu_seqlens);
/* Checks the slots, the initial state and final_state, which is returned; fills p->slots. */
tigon_view lightning_check_states(tigon_checker *check, problem *p, const DLTensor *state_indices,
                                  const DLTensor *has_initial_state, const DLTensor *initial_state,
                                  const DLTensor *final_state, unsigned final_flags);
/* An optional (P, HV, V, K) float32 tensor. */
tigon_view lightning_check_state(tigon_checker *check, const problem *p, const char *name, const DLTensor *state,
                                 unsigned flags);
/* An optional vector of one of the kinds. */
tigon_view lightning_check_vector(tigon_checker *check, const char *name, const DLTensor *vector, unsigned kinds,
                                  int64_t count);
/* Fails where an output meets the memory of an input other than a state. */
void lightning_check_output_apart(tigon_checker *check, const problem *p, const char *name, const tigon_view *output);
/* The extent must be from 1 to most. */
void lightning_check_size(tigon_checker *check, const char *name, const char *what, int64_t size, int64_t most);
void lightning_check_value_heads(tigon_checker *check, int64_t heads, int64_t value_heads);
float lightning_check_scale(tigon_checker *check, float scale);
tigon_view lightning_check_decay(tigon_checker *check, const DLTensor *decay, int64_t heads, int64_t value_heads);

/* Takes the block of N + 1 bounds that packed sequences need. */
int64_t *lightning_take_bounds(tigon_arena *arena, const tigon_view *given);
/* bounds = the running maximum of what is given, clamped to [0, most]; notes the first bad position. */
void lightning_fill_bounds(const tigon_view *given, const char *name, int64_t most, bool from_zero, const char *op,
                           tigon_context *context, int64_t *bounds);
/* Notes the first negative or NaN decay. */
void lightning_note_decay(const tigon_view *decay, const char *op, tigon_context *context);
/* Notes the first slot that is neither in the pool nor -1. */
void lightning_note_slots(const slots *s, const char *op, tigon_context *context);
/* Zeros the rows of a (B, T, heads, D) output whose tokens are in no sequence. */
void lightning_zero_outside(const problem *p, const int64_t *bounds, int threads, const tigon_view *output);

/* The members of a scan that do not depend on the roles. */
scan lightning_scan_of(const problem *p, const int64_t *bounds);
/* Runs a scan with the scratch that the arena carved for it. */
void lightning_scan_run(scan *s, int threads, void *scratch);

#endif
