/* What happens to rows beside the products: copies in sorted order, and sums over a token's routes. bf16. */
#include "kernel/launch.cuh"
#include "kernel/number.cuh"
#include "moe/kernels/params.h"

enum { VECTOR = 8 };

/* A block a row. */
extern "C" __global__ void __launch_bounds__(256) moe_copy(const __grid_constant__ moe_copy_params p) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  for (int row = (int)blockIdx.x; row < *p.last_row; row += (int)gridDim.x) {
    const int token = p.row_token[row];
    const char *x = p.x + max(token, 0) * p.x_row_bytes;
    const bool scales = p.weights && token >= 0;
    const float s = scales ? load_element(p.weights + token * p.weight_row_bytes, p.weight_kind, p.row_choice[row]) : 1;
    for (int i = (int)threadIdx.x; i < p.width / VECTOR; i += (int)blockDim.x) {
      words<VECTOR> v = {};
      if (token >= 0) v = load_words<VECTOR>(x, i);
      if (scales) {
        lanes<VECTOR> wide = unpack<VECTOR>(KIND_BF16, v);
#pragma unroll
        for (int q = 0; q < VECTOR / 2; q++) wide.pair[q] = pair_mul(wide.pair[q], pair_set(s));
        v = pack<VECTOR>(KIND_BF16, wide);
      }
      store_words<VECTOR>(p.sorted + (int64_t)row * p.width * 2, i, v);
    }
  }
}

/* A block a token, in order of its choices. The rows of up to 8 choices are asked for before the first is added. */
extern "C" __global__ void __launch_bounds__(256) moe_combine(const __grid_constant__ moe_combine_params p) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  enum { AT_ONCE = 8 };
  const int64_t t = blockIdx.x;
  const char *weights = p.weights + t * p.weight_row_bytes;
  for (int i = (int)threadIdx.x; i < p.width / VECTOR; i += (int)blockDim.x) {
    lanes<VECTOR> sum;
#pragma unroll
    for (int q = 0; q < VECTOR / 2; q++) sum.pair[q] = pair_set(0.0f);
    for (int first = 0; first < p.choices; first += AT_ONCE) {
      words<VECTOR> y[AT_ONCE];
      float s[AT_ONCE];
#pragma unroll
      for (int j = 0; j < AT_ONCE; j++) {
        const int row = first + j < p.choices ? p.row_of[t * p.choices + first + j] : -1;
        y[j] = words<VECTOR>();
        s[j] = 0.0f;
        if (row < 0) continue;
        s[j] = p.weights ? load_element(weights, p.weight_kind, first + j) : 1.0f;
        y[j] = load_words<VECTOR>(p.y + row * p.y_row_bytes, i);
      }
#pragma unroll
      for (int j = 0; j < AT_ONCE; j++) {
        if (first + j >= p.choices || p.row_of[t * p.choices + first + j] < 0) continue; /* s = 0 times Inf is NaN */
        const lanes<VECTOR> v = unpack<VECTOR>(KIND_BF16, y[j]);
#pragma unroll
        for (int q = 0; q < VECTOR / 2; q++) sum.pair[q] = pair_fma(v.pair[q], pair_set(s[j]), sum.pair[q]);
      }
    }
    store_lanes<VECTOR>(p.out + t * p.out_row_bytes, KIND_BF16, i, sum);
  }
}
