/* The expert MLP on CUDA devices (gpu.c), between moe.c's checks and the kernels. */
#ifndef TIGON_MOE_GPU_H
#define TIGON_MOE_GPU_H

#include "base/args.h"
#include "moe/backend.h"

typedef struct tigon_moe_gpu_blocks {
  int32_t *counts, *totals, *first_bad, *first_row, *first_tile, *next, *end; /* the plan's scratch: kernels/params.h */
  int32_t *row_token, *row_of;
  uint8_t *row_choice;
  char *x; /* (rows, D) s x; with on_input only */
  char *h; /* (rows, 2I) the saved block; NULL: not kept */
  char *a; /* (rows, I) */
  char *y; /* (rows, D) */
} tigon_moe_gpu_blocks;

/* What these kernels need beyond the rules of the header: bf16, widths and strides that bulk copies take. */
void tigon_moe_gpu_check(tigon_checker *check, const tigon_moe_problem *p, const tigon_view *out, bool packed);

/* Bytes of the saved block: rows are padded. */
uint64_t tigon_moe_gpu_saved(const tigon_moe_problem *p);

/* Places the blocks of forward, but for h. */
void tigon_moe_gpu_take(const tigon_moe_problem *p, tigon_arena *arena, tigon_moe_gpu_blocks *b);

tigon_status tigon_moe_gpu_forward(const char *op, const tigon_exec *exec, const tigon_moe_problem *p,
                                   const tigon_moe_gpu_blocks *b, const tigon_view *out);

/* out = 0 */
tigon_status tigon_moe_gpu_clear(const char *op, const tigon_exec *exec, const tigon_view *out);

#endif
