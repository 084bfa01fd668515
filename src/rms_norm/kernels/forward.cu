/*
 * RMSNorm forward (include/tigon/rms_norm.h): each row is read once and stays in registers between its sum of squares and
 * its scaling.
 *
 * A group of threads holds a row: V vectors of N neighbouring elements a thread, vector k of thread t of block b being
 * number (b V + k) group + t. Narrow rows share a block; the widest are spread over a cluster of blocks, which add up
 * their sums through each other's shared memory. Bound by memory: x in, out out (and residual in, residual_out out); what
 * hides the latency is the many blocks of a multiprocessor, of which each waits for its own row.
 */
#include "kernel/reduce.cuh"
#include "rms_norm/kernels/rows.cuh"

/* A thread's part of one row. */
template <int N, int V>
struct part {
  lanes<N> s[V];
  int first, group, vectors;
};

/* out of s; every kind is a constant where that pays (WEIGHT and XHAT may be those of the tensors, 0 otherwise). */
template <int WEIGHT, int XHAT, int N, int V>
__device__ __forceinline__ void scale_row(const rms_norm_forward_params &p, part<N, V> &row, char *out, int out_kind,
                                          float rstd) {
  const int weight_kind = WEIGHT ? WEIGHT : p.weight.kind, xhat_kind = XHAT ? XHAT : p.xhat_kind;
#pragma unroll
  for (int k = 0; k < V; k++) {
    const int i = row.first + k * row.group;
    if (i >= row.vectors) continue;
    const lanes<N> factor = load_factor<N, WEIGHT != 0>(p.weight, weight_kind, p.offset, i);
#pragma unroll
    for (int q = 0; q < N / 2; q++)
      row.s[k].pair[q] = pair_mul(round_pair(xhat_kind, pair_mul(row.s[k].pair[q], pair_set(rstd))), factor.pair[q]);
    store_lanes<N>(out, out_kind, i, row.s[k]);
  }
}

/* KIND: of all tensors but the weight; 0: each has its own. */
template <int KIND, int N, int V>
__device__ __forceinline__ void normalize_rows(const rms_norm_forward_params &p) {
  __shared__ group_sums room;
  const int x_kind = KIND ? KIND : p.x.kind, sum_kind = KIND ? KIND : p.sum.kind;
  const int residual_kind = KIND ? KIND : p.residual.kind, out_kind = KIND ? KIND : p.out.kind;
  const int group = p.group, lane = (int)threadIdx.x % group, place = (int)threadIdx.x / group;
  part<N, V> part;
  part.first = (int)cluster_rank() * V * group + lane;
  part.group = group;
  part.vectors = (int)(p.width / N);
  const int rows = (int)p.rows, side_by_side = (int)blockDim.x / group;
  const int step = (int)(gridDim.x / cluster_size()) * side_by_side;
  int turn = 0;
  for (int begin = (int)(blockIdx.x / cluster_size()) * side_by_side; begin < rows; begin += step, turn++) {
    const int row = begin + place;
    const bool live = row < rows;
    const row_index at = row_at((int)p.heads, row);
    const char *x = row_of(p.x, at);
#pragma unroll
    for (int k = 0; k < V; k++) {
      const int i = part.first + k * group;
#pragma unroll
      for (int q = 0; q < N / 2; q++) part.s[k].pair[q] = pair_set(0.0f);
      if (live && i < part.vectors) part.s[k] = load_lanes<N, true>(x, x_kind, i);
    }
    if (p.sum.data) {
      const char *residual = row_of(p.residual, at);
      char *sum = row_of(p.sum, at);
#pragma unroll
      for (int k = 0; k < V; k++) {
        const int i = part.first + k * group;
        if (!live || i >= part.vectors) continue;
        const lanes<N> r = load_lanes<N, true>(residual, residual_kind, i);
#pragma unroll
        for (int q = 0; q < N / 2; q++)
          part.s[k].pair[q] = round_pair(sum_kind, pair_add(part.s[k].pair[q], r.pair[q]));
        store_lanes<N>(sum, sum_kind, i, part.s[k]);
      }
    }
    float2 squares = pair_set(0.0f);
#pragma unroll
    for (int k = 0; k < V; k++)
#pragma unroll
      for (int q = 0; q < N / 2; q++) squares = pair_fma(part.s[k].pair[q], part.s[k].pair[q], squares);
    const float rstd = rstd_of(sum_over_group(squares.x + squares.y, group, &room, turn), p.width, p.eps);
    if (!live) continue;
    if (p.rstd.data && lane == 0 && cluster_rank() == 0) *(float *)row_of(p.rstd, at) = rstd;
    char *out = row_of(p.out, at);
    if (KIND && p.weight.data && p.weight.kind == KIND && p.xhat_kind == KIND)
      scale_row<KIND, KIND>(p, part, out, out_kind, rstd);
    else if (KIND && p.weight.data && p.weight.kind == KIND)
      scale_row<KIND, KIND_F32>(p, part, out, out_kind, rstd);
    else
      scale_row<0, 0>(p, part, out, out_kind, rstd);
  }
}

/* Any width, alignment and kinds: a row a block, element by element, the second time from the caches. */
extern "C" __global__ void __launch_bounds__(1024) rms_norm_forward_any(const __grid_constant__ rms_norm_forward_params p) {
  __shared__ group_sums room;
  int turn = 0;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x, turn++) {
    const row_index at = row_at(p.heads, row);
    const char *x = row_of(p.x, at), *residual = row_of(p.residual, at);
    char *sum = row_of(p.sum, at), *out = row_of(p.out, at);
    float squares = 0;
#pragma unroll 4
    for (int64_t j = threadIdx.x; j < p.width; j += blockDim.x) {
      float s = load_element(x, p.x.kind, j);
      if (p.sum.data) {
        s = round_element(p.sum.kind, s + load_element(residual, p.residual.kind, j));
        store_element(sum, p.sum.kind, j, s);
      }
      squares = __fmaf_rn(s, s, squares);
    }
    const float rstd = rstd_of(sum_over_group(squares, (int)blockDim.x, &room, turn), p.width, p.eps);
    if (p.rstd.data && threadIdx.x == 0) *(float *)row_of(p.rstd, at) = rstd;
#pragma unroll 4
    for (int64_t j = threadIdx.x; j < p.width; j += blockDim.x) {
      const float s = p.sum.data ? load_element(sum, p.sum.kind, j) : load_element(x, p.x.kind, j);
      const float xhat = round_element(p.xhat_kind, __fmul_rn(s, rstd));
      store_element(out, p.out.kind, j, __fmul_rn(xhat, load_factor_element(p.weight, p.offset, j)));
    }
  }
}

/* 32 elements a thread take up to 128 registers, fewer take 64. */
#define FORWARD(name, kind, n, v)                                                                       \
  extern "C" __global__ void __launch_bounds__(512, (n) * (v) > 16 ? 1 : 2)                             \
      rms_norm_forward_##name##_##v(const __grid_constant__ rms_norm_forward_params p) {                \
    normalize_rows<kind, n, v>(p);                                                                      \
  }

FORWARD(bf16, KIND_BF16, 8, 1)
FORWARD(bf16, KIND_BF16, 8, 2)
FORWARD(bf16, KIND_BF16, 8, 4)
FORWARD(f16, KIND_F16, 8, 1)
FORWARD(f16, KIND_F16, 8, 2)
FORWARD(f16, KIND_F16, 8, 4)
FORWARD(f32, KIND_F32, 4, 2)
FORWARD(f32, KIND_F32, 4, 4)
FORWARD(f32, KIND_F32, 4, 8)
FORWARD(mixed, 0, 4, 2)
FORWARD(mixed, 0, 4, 4)
FORWARD(mixed, 0, 4, 8)
