/* The router's gradient from dots of a route's rows. */
#include "kernel/number.cuh"
#include "kernel/reduce.cuh"
#include "moe/kernels/params.h"

enum { VECTOR = 8 };

/* A thread a route: the parts of its row, one for each column of tiles. */
extern "C" __global__ void __launch_bounds__(256) moe_dots(const __grid_constant__ moe_dots_params p) {
  const int64_t route = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (route >= p.routes) return;
  const int row = p.row_of[route];
  const int64_t token = route / p.choices;
  float sum = 0;
  if (row >= 0)
#pragma unroll 4
    for (int c = 0; c < p.columns; c++) sum += p.dots[c * p.rows + row];
  store_element(p.out + token * p.out_row_bytes, p.out_kind, route - token * p.choices, sum);
}

/* A warp a route: <its row of dx, x>. */
extern "C" __global__ void __launch_bounds__(256) moe_input_dots(const __grid_constant__ moe_dots_params p) {
  const int64_t route = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
  const int lane = (int)threadIdx.x % WARP;
  if (route >= p.routes) return;
  const int row = p.row_of[route];
  const int64_t token = route / p.choices;
  float2 pairs = pair_set(0.0f);
  for (int i = lane; row >= 0 && i < p.width / VECTOR; i += WARP) {
    const lanes<VECTOR> dx = load_lanes<VECTOR>(p.dx + (int64_t)row * p.width * 2, KIND_BF16, i);
    const lanes<VECTOR> x = load_lanes<VECTOR>(p.x + token * p.x_row_bytes, KIND_BF16, i);
#pragma unroll
    for (int q = 0; q < VECTOR / 2; q++) pairs = pair_fma(dx.pair[q], x.pair[q], pairs);
  }
  const float sum = sum_over_lanes(pairs.x + pairs.y, WARP);
  if (lane == 0) store_element(p.out + token * p.out_row_bytes, p.out_kind, route - token * p.choices, sum);
}
