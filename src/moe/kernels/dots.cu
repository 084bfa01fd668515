/* The router's gradient from dots of a route's rows. */
#include "kernel/launch.cuh"
#include "kernel/number.cuh"
#include "kernel/reduce.cuh"
#include "moe/kernels/params.h"

enum { VECTOR = 8 };

/* A warp a route. */
extern "C" __global__ void __launch_bounds__(256) moe_dots(const __grid_constant__ moe_dots_params p) {
  const int64_t route = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
  const int lane = (int)threadIdx.x % WARP;
  let_next_kernel_start();
  wait_for_previous_kernel();
  if (route >= p.routes) return;
  const int row = p.row_of[route];
  const int64_t token = route / p.choices;
  float sum = 0;
  if (row >= 0 && p.dots) {
    for (int c = lane; c < p.columns; c += WARP) sum += p.dots[c * p.rows + row];
  } else if (row >= 0) {
    float2 pairs = pair_set(0.0f);
    for (int i = lane; i < p.width / VECTOR; i += WARP) {
      const lanes<VECTOR> dx = load_lanes<VECTOR>(p.dx + (int64_t)row * p.width * 2, KIND_BF16, i);
      const lanes<VECTOR> x = load_lanes<VECTOR>(p.x + token * p.x_row_bytes, KIND_BF16, i);
#pragma unroll
      for (int q = 0; q < VECTOR / 2; q++) pairs = pair_fma(dx.pair[q], x.pair[q], pairs);
    }
    sum = pairs.x + pairs.y;
  }
  sum = sum_over_lanes(sum, WARP);
  if (lane == 0) store_element(p.out + token * p.out_row_bytes, p.out_kind, route - token * p.choices, sum);
}
