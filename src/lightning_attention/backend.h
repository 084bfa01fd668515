/*
 * What the family's front (lightning_attention.c, backward.c, decode.c, state.c, merge.c) asks of a backend.
 *
 * Forward and all three gradients are one recurrence over a sequence, the scan, with the tensors in different roles. In
 * the order of the scan (i = 0, 1, ...: first to last token, or last to first when reversed), with state W (DX, DZ):
 *
 *     forward order                            reversed
 *     W     = lambda W + inner y_i z_i^T       W     = W + inner y_i z_i^T
 *     out_i = outer x_i W                      out_i = outer x_i W
 *                                              W     = lambda W
 *
 *            x   y   z   out  W             order     inner  outer
 *     out    q   k   v   out  S^T (K, V)    forward   1      scale
 *     dq     do  v   k   dq   S   (V, K)    forward   1      scale     summed over the group's value heads
 *     dk     v   do  q   dk   G   (V, K)    reversed  scale  1         summed over the group's value heads
 *     dv     k   q   do  dv   G^T (K, V)    reversed  scale  1
 *
 * The reversed scans start from d_final_state and end with d_initial_state. Sequence n's states are those at slot
 * state_indices[n] of the state tensors; a sequence without a slot is padding. Columns of z, W and out do not mix, so a
 * scan is cut into blocks of columns where there are few heads; an element's bits do not depend on the cut.
 */
#ifndef TIGON_LIGHTNING_ATTENTION_BACKEND_H
#define TIGON_LIGHTNING_ATTENTION_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

#include "base/block_gemm.h"
#include "base/check.h"
#include "base/isa.h"

enum { CHUNK = 64 }; /* tokens */

/* Where the states of a sequence stand. */
typedef struct slots {
  tigon_view state_indices;     /* (N), or absent: sequence n has slot n */
  tigon_view has_initial_state; /* (N), or absent: all have */
  int64_t count;                /* P */
} slots;

/* Sequence n's slot; -1 for padding. */
int64_t lightning_slot(const slots *s, int64_t n);
bool lightning_has_initial_state(const slots *s, int64_t n);

typedef struct scan {
  tigon_view x, y;                /* (B, T, H or HV, DX); no x without out */
  tigon_view z;                   /* (B, T, H or HV, DZ) */
  tigon_view out;                 /* (B, T, HV, DZ), or summed (B, T, H, DZ); absent: only the state is wanted */
  tigon_view state_in, state_out; /* (P, HV, V, K); each may be absent */
  tigon_view checkpoints;         /* (C, HV, V, K), or absent: states after every so many tokens */
  bool state_transposed;          /* the state tensors hold W^T: DX = K, DZ = V */
  bool reversed, summed;
  float inner, outer;
  tigon_view decay;      /* (H) or (HV) */
  const int64_t *bounds; /* (N + 1): tokens of the packed sequences; NULL: sequence n is batch row n */
  tigon_view lengths;    /* (N), or absent: only the first tokens of each sequence count */
  slots slots;
  const int64_t *checkpoint_begin; /* (N + 1), NULL: row n * floor(T / checkpoint_every) is the first of sequence n */
  int64_t checkpoint_every;        /* tokens, a multiple of CHUNK */
  int64_t sequences;               /* N */
  int64_t tokens;                  /* T */
  int64_t heads, group;            /* H, HV / H */
  int64_t dx, dz;                  /* DX, DZ */
  int64_t width;                   /* columns of a block */
  int64_t bundle;                  /* value heads of a unit; a multiple of the group if summed */
  char *scratch;                   /* scratch_bytes for each thread */
  uint64_t scratch_bytes;
} scan;

/* Number of independent units of work: sequences x bundles of heads x blocks of columns. */
int64_t lightning_scan_units(const scan *s);

/* Chooses the cut into units. No element's bits depend on it, so the bundle may depend on the number of threads. */
void lightning_scan_cut(scan *s, int threads);

/* First token of sequence n in its batch row, and the number of tokens that count. */
void lightning_scan_tokens(const scan *s, int64_t n, int64_t *begin, int64_t *length);

/* Rows [begin, end) of checkpoints are sequence n's. */
void lightning_checkpoint_rows(const scan *s, int64_t n, int64_t *begin, int64_t *end);

/* A thread's scratch: blocks in fp32 with room for whole register tiles (block_gemm.h). */
enum {
  TOKEN_STRIDE = CHUNK + TIGON_BLOCK_M,
  POWERS = TOKEN_STRIDE + 16,   /* lambda^0, lambda^1, ... lambda^CHUNK; zeros */
  PAIR_WEIGHTS = 2 * CHUNK + 16 /* [CHUNK + d] = inner lambda^d for 0 <= d < CHUNK, else 0 */
};
typedef struct scan_blocks {
  float *x, *y;      /* (DX, TOKEN_STRIDE) each: tokens contiguous */
  float *y_weighted; /* (CHUNK, x_stride) */
  float *z;          /* (CHUNK, z_stride) */
  float *pairs;      /* (TOKEN_STRIDE, TOKEN_STRIDE): P^T, see cpu_scan.c */
  float *out;        /* (TOKEN_STRIDE, z_stride) */
  float *heads;      /* for each value head of the unit POWERS, PAIR_WEIGHTS, state (DX + TIGON_BLOCK_M, z_stride) */
  int64_t x_stride, z_stride, head_stride;
} scan_blocks;

/* Bytes of scratch of one thread. */
uint64_t lightning_scan_scratch(const scan *s);

/* Lays the blocks out in a thread's scratch. */
void lightning_scan_carve(const scan *s, int slot, scan_blocks *blocks);

/* The decay of a value head; negative values and NaN count as 0. */
float lightning_decay(const tigon_view *decay, int64_t value_head, int64_t value_heads);

/* Runs unit `chunk` of a scan; a tigon_task. */
TIGON_ISA_DECLARE(void, tigon_lightning_scan_unit, (void *scan, int64_t chunk, int slot));

typedef struct decode {
  tigon_view q, k;   /* (N, H, K) */
  tigon_view v, out; /* (N, HV, V) */
  tigon_view state;  /* (P, HV, V, K) */
  tigon_view decay;  /* (H) or (HV) */
  slots slots;
  float scale;
  int64_t rows; /* rows of V in a unit of work */
} decode;

int64_t lightning_decode_units(const decode *d);

/* Runs unit `chunk` of a decode step: sequence, value head, block of rows; a tigon_task. */
TIGON_ISA_DECLARE(void, tigon_lightning_decode_unit, (void *decode, int64_t chunk, int slot));

/* out = lambda^length * left + right */
typedef struct merge {
  tigon_view left, right, out; /* (N, HV, V, K) */
  tigon_view decay;            /* (H) or (HV) */
  tigon_view lengths;          /* (N) */
} merge;

/* Merges value head chunk % HV of sequence chunk / HV; a tigon_task. */
TIGON_ISA_DECLARE(void, tigon_lightning_merge_unit, (void *merge, int64_t chunk, int slot));

#endif
