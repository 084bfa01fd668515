/* What forward and backward have in common: inputs, sizes, packed sequences, and values that only the data shows. */
#ifndef TIGON_LIGHTNING_ATTENTION_PROBLEM_H
#define TIGON_LIGHTNING_ATTENTION_PROBLEM_H

#include "base/args.h"
#include "base/check.h"
#include "lightning_attention/backend.h"
#include "tigon/lightning_attention.h"

enum { MAX_SIZE = 1024 }; /* of K and V */

typedef struct problem {
  tigon_view q, k;                                                 /* (B, T, H, K) */
  tigon_view v;                                                    /* (B, T, HV, V) */
  tigon_view decay;                                                /* (H) or (HV) */
  tigon_view cu_seqlens;                                           /* absent, or (N + 1) */
  tigon_view initial_state;                                        /* absent, or (N, HV, V, K) */
  int64_t batch, tokens, heads, value_heads, key_size, value_size; /* B, T, H, HV, K, V */
  int64_t sequences;                                               /* N */
  float scale;
} problem;

/* Checks the inputs and fills the problem; initial_state comes after the others. */
void lightning_check_inputs(tigon_checker *check, problem *p, const DLTensor *q, const DLTensor *k, const DLTensor *v,
                            const DLTensor *decay, const DLTensor *cu_seqlens, const DLTensor *initial_state,
                            float scale);
/* An optional (N, HV, V, K) float32 tensor. */
tigon_view lightning_check_state(tigon_checker *check, const problem *p, const char *name, const DLTensor *state,
                                 unsigned flags);
/* Fails where an output starts at the memory of an input. */
void lightning_check_output_apart(tigon_checker *check, const problem *p, const char *name, const tigon_view *output);
/* The state that is written may be the one that is read, but then element by element. */
void lightning_check_same_strides(tigon_checker *check, const char *name, const tigon_view *written,
                                  const char *read_name, const tigon_view *read);
/* The extent must be from 1 to most. */
void lightning_check_size(tigon_checker *check, const char *name, const char *what, int64_t size, int64_t most);
void lightning_check_value_heads(tigon_checker *check, int64_t heads, int64_t value_heads);
float lightning_check_scale(tigon_checker *check, float scale);
tigon_view lightning_check_decay(tigon_checker *check, const DLTensor *decay, int64_t heads, int64_t value_heads);

/* Takes the block of N + 1 bounds that packed sequences need. */
int64_t *lightning_take_bounds(tigon_arena *arena, const problem *p);
/* bounds = the running maximum of cu_seqlens, clamped to [0, T]; notes the first bad position. */
void lightning_fill_bounds(const problem *p, const char *op, tigon_context *context, int64_t *bounds);
/* Notes the first negative or NaN decay. */
void lightning_note_decay(const tigon_view *decay, const char *op, tigon_context *context);
/* Zeros the rows of a (B, T, heads, D) output whose tokens are in no sequence. */
void lightning_zero_outside(const problem *p, const int64_t *bounds, int threads, const tigon_view *output);

/* The members of a scan that do not depend on the roles. */
scan lightning_scan_of(const problem *p, const int64_t *bounds);
/* Runs a scan with the scratch that the arena carved for it. */
void lightning_scan_run(scan *s, int threads, void *scratch);

#endif
