/* The router on CUDA devices (gpu_route.c), behind route.c's checks. */
#ifndef TIGON_MOE_GPU_ROUTE_H
#define TIGON_MOE_GPU_ROUTE_H

#include "moe/backend.h"

/* Bytes of the workspace. */
uint64_t tigon_moe_gpu_route_bytes(const tigon_moe_router *r);
uint64_t tigon_moe_gpu_route_backward_bytes(const tigon_moe_router *r);

tigon_status tigon_moe_gpu_route(const char *op, const tigon_exec *exec, const tigon_moe_router *r);
/* tokens > 0 */
tigon_status tigon_moe_gpu_route_backward(const char *op, const tigon_exec *exec, const tigon_moe_router *r);

#endif
