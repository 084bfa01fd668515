/* What happens to rows beside the products: scaled copies in sorted order, and sums over a token's routes. bf16. */
#include "kernel/number.cuh"
#include "moe/kernels/params.h"

enum { VECTOR = 8, SCALE_ROWS = 4 };
static_assert(MOE_ALIGN % SCALE_ROWS == 0, "rows are whole groups");

/* A block SCALE_ROWS rows at a time, which are on their way together. */
extern "C" __global__ void __launch_bounds__(256) moe_scale(const __grid_constant__ moe_scale_params p) {
  const int rows = *p.last_row; /* a multiple of SCALE_ROWS */
  for (int first = (int)blockIdx.x * SCALE_ROWS; first < rows; first += (int)gridDim.x * SCALE_ROWS) {
    int token[SCALE_ROWS];
    float s[SCALE_ROWS];
#pragma unroll
    for (int r = 0; r < SCALE_ROWS; r++) token[r] = p.row_token[first + r];
#pragma unroll
    for (int r = 0; r < SCALE_ROWS; r++)
      s[r] = token[r] >= 0
                 ? load_element(p.weights + token[r] * p.weight_row_bytes, p.weight_kind, p.row_choice[first + r])
                 : 1.0f;
    for (int i = (int)threadIdx.x; i < p.width / VECTOR; i += (int)blockDim.x) {
      words<VECTOR> v[SCALE_ROWS];
#pragma unroll
      for (int r = 0; r < SCALE_ROWS; r++) {
        v[r] = words<VECTOR>();
        if (token[r] >= 0) v[r] = load_words<VECTOR>(p.x + token[r] * p.x_row_bytes, i);
      }
#pragma unroll
      for (int r = 0; r < SCALE_ROWS; r++) {
        lanes<VECTOR> wide = unpack<VECTOR>(KIND_BF16, v[r]);
#pragma unroll
        for (int q = 0; q < VECTOR / 2; q++) wide.pair[q] = pair_mul(wide.pair[q], pair_set(s[r]));
        store_words<VECTOR>(p.sorted + (int64_t)(first + r) * p.width * 2, i, pack<VECTOR>(KIND_BF16, wide));
      }
    }
  }
}

/* A block a token, in order of its choices. The rows of up to 8 choices are asked for before the first is added. */
extern "C" __global__ void __launch_bounds__(256) moe_combine(const __grid_constant__ moe_combine_params p) {
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
