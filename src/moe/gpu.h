/* The expert MLP on CUDA devices (gpu.c, gpu_backward.c), between moe.c's checks and the kernels. */
#ifndef TIGON_MOE_GPU_H
#define TIGON_MOE_GPU_H

#include "base/args.h"
#include "moe/backend.h"

typedef struct tigon_moe_gpu_blocks {
  int32_t *counts, *totals, *first_bad, *first_row, *first_tile, *first_pair, *next,
      *end; /* the plan's: kernels/params.h */
  int32_t *row_token, *row_of;
  uint8_t *row_choice;
  char *x;               /* (rows, D) x, or s x with on_input; where it is needed in sorted order */
  char *h;               /* (rows, 2I) g and u; in forward NULL: not kept */
  char *a;               /* (rows, I); in backward weighted by s, unless x is */
  char *y;               /* (rows, D); in backward dout, later the rows of dx */
  bool h_ready, planned; /* backward: h, and where the plan put the rows, are the saved block's */
  char *dh;              /* (rows, 2I) backward */
  float *dots;           /* (columns of tiles, rows) backward: parts of d_topk_weights */
} tigon_moe_gpu_blocks;

/* What these kernels need beyond the rules of the header: bf16, widths and strides that bulk copies take. */
void tigon_moe_gpu_check(tigon_checker *check, const tigon_moe_problem *p, const tigon_view *out, bool packed);
void tigon_moe_gpu_check_backward(tigon_checker *check, const tigon_moe_problem *p, const tigon_moe_gradients *g,
                                  bool packed);

/* Bytes of the saved block: h and where the plan put the rows. */
uint64_t tigon_moe_gpu_saved(const tigon_moe_problem *p);

/* Places the blocks. saved: the saved block, or NULL. notes: there is a context, so that backward plans again for its
 * record; what the arena counts does not depend on it. */
tigon_moe_gpu_blocks tigon_moe_gpu_take(const tigon_moe_problem *p, char *saved, tigon_arena *arena);
tigon_moe_gpu_blocks tigon_moe_gpu_take_backward(const tigon_moe_problem *p, const tigon_moe_gradients *g, char *saved,
                                                 bool notes, tigon_arena *arena);

tigon_status tigon_moe_gpu_forward(const char *op, const tigon_exec *exec, const tigon_moe_problem *p,
                                   const tigon_moe_gpu_blocks *b, const tigon_view *out);
tigon_status tigon_moe_gpu_backward(const char *op, const tigon_exec *exec, const tigon_moe_problem *p,
                                    const tigon_moe_gpu_blocks *b, const tigon_moe_gradients *g);

/* All gradients become 0, weight gradients unless they accumulate. */
tigon_status tigon_moe_gpu_clear(const char *op, const tigon_exec *exec, const tigon_moe_gradients *g);

#endif
