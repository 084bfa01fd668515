/* What forward (gpu.c) and backward (gpu_backward.c) on CUDA devices share. */
#ifndef TIGON_MOE_GPU_PARTS_H
#define TIGON_MOE_GPU_PARTS_H

#include "gpu/tensor_map.h"
#include "moe/gpu.h"
#include "moe/kernels/params.h"

/* Of a Hopper device only. */
tigon_status tigon_moe_gpu_begin(const char *op, const tigon_exec *exec, tigon_gpu_call *call);

tigon_status tigon_moe_gpu_plan(const tigon_gpu_call *call, const tigon_exec *exec, const tigon_moe_problem *p,
                                const tigon_moe_gpu_blocks *b);

/* Sorted rows of `parts` times `width` elements, in boxes of 64 by 64. */
tigon_tensor_map tigon_moe_rows_map(const tigon_moe_problem *p, const char *data, int64_t parts, int64_t width);
/* All experts' matrices (E, rows, columns), in boxes of 128 columns of a product by 64 of its depth. k_major: the depth
 * runs along the tensor's columns. */
tigon_tensor_map tigon_moe_weights_map(const tigon_view *weights, bool k_major);

tigon_status tigon_moe_gpu_maps(const tigon_gpu_call *call, int count, const tigon_tensor_map *maps,
                                CUtensorMap *const *to);

product_tiles tigon_moe_gpu_tiles(const tigon_moe_problem *p, const tigon_moe_gpu_blocks *b, int counter, int64_t width,
                                  int tile_width);
/* cluster: blocks that work together. */
tigon_status tigon_moe_gpu_product(const tigon_gpu_call *call, tigon_kernel *kernel, int cluster, void *params);

/* h (where b has it) and a of sorted rows. */
tigon_status tigon_moe_gpu_gate_up(const tigon_gpu_call *call, const tigon_moe_problem *p,
                                   const tigon_moe_gpu_blocks *b);
/* Sorted rows by weights; mn_major: the depth runs along the rows of the weights. */
tigon_status tigon_moe_gpu_rows(const tigon_gpu_call *call, bool mn_major, moe_product_params *params);

/* b->x: the rows of x in sorted order, with on_input times s */
tigon_status tigon_moe_gpu_sort_x(const tigon_gpu_call *call, const tigon_moe_problem *p,
                                  const tigon_moe_gpu_blocks *b);
/* out = the sums of b->y over the routes of each token */
tigon_status tigon_moe_gpu_combine(const tigon_gpu_call *call, const tigon_moe_problem *p,
                                   const tigon_moe_gpu_blocks *b, bool weighted, const tigon_view *out);

#endif
