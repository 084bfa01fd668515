/*
 * RMSNorm forward (include/tigon/rms_norm.h): each row is read once and stays in registers between its sum of squares
 * and its scaling.
 *
 * A group of threads holds a row: V vectors of N neighbouring elements a thread, vector k of thread t of block b being
 * number (b V + k) group + t. Narrow rows share a block; the blocks of a cluster add up their sums through each other's
 * shared memory. Bound by memory: x in, out out (and residual in, residual_out out). A block is done after its row, and
 * the many blocks of a multiprocessor hide each other's latency; blocks that stay and fetch ahead, as backward's do,
 * were slower here (docs/lab/gpu_rms_norm.md).
 */
#include "kernel/reduce.cuh"
#include "rms_norm/kernels/rows.cuh"

/* A thread's part of one row, and of the weight where that is of the same kind. */
template <int KIND, int N, int V> struct part {
  held<KIND, N> s[V], weight[V];
  int first, group, vectors;
};

/* out of s for any weight and rounding. */
template <int KIND, int N, int V>
__device__ __forceinline__ void scale_row(const rms_norm_forward_params &p, const part<KIND, N, V> &row, char *out,
                                          int out_kind, float rstd) {
#pragma unroll
  for (int k = 0; k < V; k++) {
    const int i = row.first + k * row.group;
    if (i >= row.vectors) continue;
    const lanes<N> factor = load_factor<N>(p.weight, p.offset, i);
    lanes<N> v = row.s[k].get();
#pragma unroll
    for (int q = 0; q < N / 2; q++)
      v.pair[q] = pair_mul(round_pair(p.xhat_kind, pair_mul(v.pair[q], pair_set(rstd))), factor.pair[q]);
    store_lanes<N>(out, out_kind, i, v);
  }
}

/* out of s where the weight is held and xhat is not rounded. */
template <int KIND, int N, int V>
__device__ __forceinline__ void scale_row_unrounded(float offset, const part<KIND, N, V> &row, char *out, float rstd) {
#pragma unroll
  for (int k = 0; k < V; k++) {
    const int i = row.first + k * row.group;
    if (i >= row.vectors) continue;
    const lanes<N> weight = row.weight[k].get();
    lanes<N> v = row.s[k].get();
#pragma unroll
    for (int q = 0; q < N / 2; q++)
      v.pair[q] = pair_mul(pair_mul(v.pair[q], pair_set(rstd)), pair_add(weight.pair[q], pair_set(offset)));
    store_lanes<N>(out, KIND, i, v);
  }
}

/* Llama's form in 16 bits: xhat, weight and out of one kind, offset 0, so that two products are one instruction. */
template <int KIND, int N, int V>
__device__ __forceinline__ void scale_row_in_words(const part<KIND, N, V> &row, char *out, float rstd) {
#pragma unroll
  for (int k = 0; k < V; k++) {
    const int i = row.first + k * row.group;
    if (i >= row.vectors) continue;
    const lanes<N> v = row.s[k].get();
    words<N> w = row.weight[k].w;
#pragma unroll
    for (int q = 0; q < N / 2; q++)
      w.word[q] = multiply_words(KIND, pack_pair(KIND, pair_mul(v.pair[q], pair_set(rstd))), w.word[q]);
    store_words<N>(out, i, w);
  }
}

/* KIND: of all tensors but the weight; 0: each has its own. */
template <int KIND, int N, int V> __device__ __forceinline__ void normalize_rows(const rms_norm_forward_params &p) {
  __shared__ group_sums room;
  const int x_kind = KIND ? KIND : p.x.kind, sum_kind = KIND ? KIND : p.sum.kind;
  const int residual_kind = KIND ? KIND : p.residual.kind, out_kind = KIND ? KIND : p.out.kind;
  const standing here = stand<V>(p.layout);
  const int row = cluster_number(p.layout) * p.layout.side_by_side + here.place;
  const row_index at = row_at((int)p.heads, row);
  const char *x = row_of(p.x, at);
  const uint64_t policy = cache_policy(p.streams);
  part<KIND, N, V> part;
  part.first = here.first;
  part.group = p.layout.group;
  part.vectors = row < (int)p.rows ? p.layout.vectors : 0;
  const bool plain = KIND && p.weight.data && p.weight.kind == KIND;
#pragma unroll
  for (int k = 0; k < V; k++) {
    part.s[k].set(lanes<N>());
    if (part.first + k * part.group < part.vectors) part.s[k].load(x, x_kind, part.first + k * part.group, policy);
  }
#pragma unroll
  for (int k = 0; k < V; k++) /* here, so that the sum's wait hides it */
    if (plain && part.first + k * part.group < part.vectors)
      part.weight[k].load(p.weight.data, KIND, part.first + k * part.group);
  start_sums(&room, p.layout.cluster);
  if (p.sum.data) {
    const char *residual = row_of(p.residual, at);
    char *sum = row_of(p.sum, at);
#pragma unroll
    for (int k = 0; k < V; k++) {
      const int i = part.first + k * part.group;
      if (i >= part.vectors) continue;
      const lanes<N> r = load_lanes<N>(residual, residual_kind, i);
      lanes<N> v = part.s[k].get();
#pragma unroll
      for (int q = 0; q < N / 2; q++) v.pair[q] = round_pair(sum_kind, pair_add(v.pair[q], r.pair[q]));
      store_lanes<N>(sum, sum_kind, i, v);
      part.s[k].set(v);
    }
  }
  float2 squares = pair_set(0.0f);
#pragma unroll
  for (int k = 0; k < V; k++) {
    const lanes<N> v = part.s[k].get();
#pragma unroll
    for (int q = 0; q < N / 2; q++) squares = pair_fma(v.pair[q], v.pair[q], squares);
  }
  const float total =
      sum_over_group(squares.x + squares.y, part.group, p.layout.side_by_side > 1, p.layout.cluster, &room, 0);
  const float rstd = rstd_of(total, p.inverse_width, p.eps);
  if (part.first == 0 && part.vectors > 0 && p.rstd.data) *(float *)row_of(p.rstd, at) = rstd;
  char *out = row_of(p.out, at);
  if constexpr (KIND == KIND_BF16 || KIND == KIND_F16)
    if (plain && p.xhat_kind == KIND && p.offset == 0.0f) return scale_row_in_words(part, out, rstd);
  if (plain && p.xhat_kind == KIND_F32)
    scale_row_unrounded(p.offset, part, out, rstd);
  else
    scale_row(p, part, out, out_kind, rstd);
}

/* Any width, alignment and kinds: a row a block, element by element, the second time from the caches. */
extern "C" __global__ void __launch_bounds__(1024)
    rms_norm_forward_any(const __grid_constant__ rms_norm_forward_params p) {
  __shared__ group_sums room;
  int turn = 0;
  start_sums(&room, 1);
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
    const float rstd = rstd_of(sum_over_group(squares, (int)blockDim.x, false, 1, &room, turn), p.inverse_width, p.eps);
    if (p.rstd.data && threadIdx.x == 0) *(float *)row_of(p.rstd, at) = rstd;
#pragma unroll 4
    for (int64_t j = threadIdx.x; j < p.width; j += blockDim.x) {
      const float s = p.sum.data ? load_element(sum, p.sum.kind, j) : load_element(x, p.x.kind, j);
      const float xhat = round_element(p.xhat_kind, __fmul_rn(s, rstd));
      store_element(out, p.out.kind, j, __fmul_rn(xhat, load_factor_element(p.weight, p.offset, j)));
    }
  }
}

/* Up to 16 registers that a thread keeps of its row leave 64 a thread to be enough; 32 take more. */
#define FORWARD(name, kind, n, v)                                                             \
  extern "C" __global__ void __launch_bounds__(512, sizeof(held<kind, n>) * (v) > 64 ? 1 : 2) \
      rms_norm_forward_##name##_##v(const __grid_constant__ rms_norm_forward_params p) {      \
    normalize_rows<kind, n, v>(p);                                                            \
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
