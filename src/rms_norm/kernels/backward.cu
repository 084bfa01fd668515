/*
 * RMSNorm backward (include/tigon/rms_norm.h): dx, d_residual and this block's part of d_weight from one reading of dy and x.
 *
 * Blocks stay for the whole launch and take every gridDim-th row (or rows: narrow ones share a block, the widest are
 * spread over a cluster; see forward.cu for who holds what). The rows that come next are on their way to shared memory
 * while one is in work: RMS_NORM_STAGES slots a thread and vector. A slot is written by the copies of the thread that
 * reads it, and by no other, so that the ring needs no barrier; the sum over the row needs one. d_weight's sums stay in
 * registers until the rows are done. Bound by memory: dy and x in (and d_residual_out), dx out (and d_residual).
 */
#include "kernel/async.cuh"
#include "kernel/launch.cuh"
#include "kernel/reduce.cuh"
#include "rms_norm/kernels/rows.cuh"

enum { SLOT_BYTES = 16 };

/* The thread's slots: (stage, tensor, vector, thread of the block). */
template <int V>
struct ring {
  char *data;
  int tensors;

  __device__ __forceinline__ char *slot(int stage, int tensor, int k) const {
    return data + ((stage * tensors + tensor) * V + k) * (int)blockDim.x * SLOT_BYTES;
  }
};

template <int N>
__device__ __forceinline__ void copy_vector(char *slot, const char *row, int kind, int i) {
  if (kind_bytes(kind) * N == 16)
    async_copy<16>(slot, row + (size_t)i * 16);
  else
    async_copy<8>(slot, row + (size_t)i * 8);
}

/* Adds up the sums of rows that lay side by side, in their order, and stores what the block has. */
template <int N, int V>
__device__ __forceinline__ void store_partials(const rms_norm_backward_params &p, const lanes<N> (&d_weight)[V], float *room,
                                               int place, int first) {
  const int group = p.group, side_by_side = (int)blockDim.x / group, vectors = (int)(p.width / N);
  float *partials = p.partials + (int64_t)(blockIdx.x / cluster_size()) * p.width;
  if (side_by_side > 1) {
    async_wait<0>();
    __syncthreads();
    for (int k = 0; k < V; k++)
      if (first + k * group < vectors)
        store_lanes<N>((char *)(room + (int64_t)place * p.width), KIND_F32, first + k * group, d_weight[k]);
    __syncthreads();
    for (int64_t j = threadIdx.x; j < p.width; j += blockDim.x) {
      float sum = 0;
      for (int r = 0; r < side_by_side; r++) sum += room[r * p.width + j];
      partials[j] = sum;
    }
    return;
  }
#pragma unroll
  for (int k = 0; k < V; k++)
    if (first + k * group < vectors) store_lanes<N>((char *)partials, KIND_F32, first + k * group, d_weight[k]);
}

/* KIND: of all tensors but the weight; 0: each has its own. XHAT: what xhat is rounded to; 0: p.xhat_kind. */
template <int KIND, int XHAT, int N, int V>
__device__ __forceinline__ void differentiate_rows(const rms_norm_backward_params &p) {
  extern __shared__ __align__(16) char memory[];
  __shared__ group_sums room;
  const int x_kind = KIND ? KIND : p.x.kind, dy_kind = KIND ? KIND : p.dy.kind, d_sum_kind = KIND ? KIND : p.d_sum.kind;
  const int dx_kind = KIND ? KIND : p.dx.kind, d_residual_kind = KIND ? KIND : p.d_residual.kind;
  const int group = p.group, lane = (int)threadIdx.x % group, place = (int)threadIdx.x / group;
  const int vectors = (int)(p.width / N), first = (int)cluster_rank() * V * group + lane;
  const int rows = (int)p.rows, heads = (int)p.heads, step = (int)(gridDim.x / cluster_size() * (blockDim.x / group));
  const bool wants_ds = p.dx.data || p.d_residual.data;
  const ring<V> stages = {memory + threadIdx.x * SLOT_BYTES, p.d_sum.data ? 3 : 2};

  auto fetch = [&](int row, int stage) {
    if (row < rows) {
      const row_index at = row_at(heads, row);
      const char *x = row_of(p.x, at), *dy = row_of(p.dy, at), *d_sum = row_of(p.d_sum, at);
#pragma unroll
      for (int k = 0; k < V; k++) {
        const int i = first + k * group;
        if (i < vectors) {
          copy_vector<N>(stages.slot(stage, 0, k), x, x_kind, i);
          copy_vector<N>(stages.slot(stage, 1, k), dy, dy_kind, i);
          if (p.d_sum.data) copy_vector<N>(stages.slot(stage, 2, k), d_sum, d_sum_kind, i);
        }
      }
    }
    async_commit();
  };
  auto rstd_at = [&](int row) { return row < rows ? *(const float *)row_of(p.rstd, row_at(heads, row)) : 0.0f; };

  lanes<N> factor[V], d_weight[V];
#pragma unroll
  for (int k = 0; k < V; k++) {
    const int i = first + k * group;
#pragma unroll
    for (int q = 0; q < N / 2; q++) factor[k].pair[q] = d_weight[k].pair[q] = pair_set(0.0f);
    if (i < vectors) factor[k] = load_factor<N, false>(p.weight, p.weight.kind, p.offset, i);
  }

  int row = (int)(blockIdx.x / cluster_size() * (blockDim.x / group)) + place;
  for (int ahead = 0; ahead < RMS_NORM_STAGES - 1; ahead++) fetch(row + ahead * step, ahead);
  float next_rstd = rstd_at(row);
  int stage = 0, turn = 0;
  for (; row - place < rows; row += step, turn++) { /* all threads as often: they meet in the sum */
    const bool live = row < rows;
    const float rstd = next_rstd;
    next_rstd = rstd_at(row + step);
    fetch(row + (RMS_NORM_STAGES - 1) * step, stage == 0 ? RMS_NORM_STAGES - 1 : stage - 1);
    async_wait<RMS_NORM_STAGES - 1>();
    float2 products = pair_set(0.0f);
#pragma unroll
    for (int k = 0; k < V; k++) {
      if (!live || first + k * group >= vectors) continue;
      const lanes<N> x = load_lanes<N, false>(stages.slot(stage, 0, k), x_kind, 0);
      const lanes<N> dy = load_lanes<N, false>(stages.slot(stage, 1, k), dy_kind, 0);
#pragma unroll
      for (int q = 0; q < N / 2; q++) {
        const float2 xhat = pair_mul(x.pair[q], pair_set(rstd));
        d_weight[k].pair[q] = pair_fma(dy.pair[q], round_pair(XHAT ? XHAT : p.xhat_kind, xhat), d_weight[k].pair[q]);
        products = pair_fma(pair_mul(dy.pair[q], factor[k].pair[q]), xhat, products);
      }
    }
    if (wants_ds) {
      const float mean = __fdiv_rn(sum_over_group(products.x + products.y, group, &room, turn), (float)p.width);
      const row_index at = row_at(heads, row);
      char *dx = row_of(p.dx, at), *d_residual = row_of(p.d_residual, at);
      const float2 back = pair_set(-__fmul_rn(rstd, __fmul_rn(rstd, mean)));
#pragma unroll
      for (int k = 0; k < V; k++) {
        const int i = first + k * group;
        if (!live || i >= vectors) continue;
        const lanes<N> x = load_lanes<N, false>(stages.slot(stage, 0, k), x_kind, 0);
        lanes<N> ds = load_lanes<N, false>(stages.slot(stage, 1, k), dy_kind, 0);
#pragma unroll
        for (int q = 0; q < N / 2; q++)
          ds.pair[q] = pair_fma(x.pair[q], back, pair_mul(pair_set(rstd), pair_mul(ds.pair[q], factor[k].pair[q])));
        if (p.d_sum.data) {
          const lanes<N> d_sum = load_lanes<N, false>(stages.slot(stage, 2, k), d_sum_kind, 0);
#pragma unroll
          for (int q = 0; q < N / 2; q++) ds.pair[q] = pair_add(ds.pair[q], d_sum.pair[q]);
        }
        if (p.dx.data) store_lanes<N>(dx, dx_kind, i, ds);
        if (p.d_residual.data) store_lanes<N>(d_residual, d_residual_kind, i, ds);
      }
    }
    stage = stage + 1 == RMS_NORM_STAGES ? 0 : stage + 1;
  }
  let_next_kernel_start();
  if (p.partials) store_partials<N, V>(p, d_weight, (float *)memory, place, first);
}

/* Any width, alignment and kinds, and dy absent: a row a block, element by element, the second time from the caches. The
 * block's part of d_weight stands in its row of partials from the first row on; each element is one thread's. */
extern "C" __global__ void __launch_bounds__(1024)
    rms_norm_backward_any(const __grid_constant__ rms_norm_backward_params p) {
  __shared__ group_sums room;
  float *d_weight = p.partials + (int64_t)blockIdx.x * p.width;
  const bool wants_ds = p.dx.data || p.d_residual.data;
  int turn = 0;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x, turn++) {
    const row_index at = row_at(p.heads, row);
    const char *x = row_of(p.x, at), *dy = row_of(p.dy, at), *d_sum = row_of(p.d_sum, at);
    char *dx = row_of(p.dx, at), *d_residual = row_of(p.d_residual, at);
    const float rstd = *(const float *)row_of(p.rstd, at);
    float products = 0;
    if (p.dy.data)
#pragma unroll 4
      for (int64_t j = threadIdx.x; j < p.width; j += blockDim.x) {
        const float g = load_element(dy, p.dy.kind, j), xhat = __fmul_rn(load_element(x, p.x.kind, j), rstd);
        products = __fmaf_rn(__fmul_rn(g, load_factor_element(p.weight, p.offset, j)), xhat, products);
        if (p.partials) d_weight[j] = __fmaf_rn(g, round_element(p.xhat_kind, xhat), turn ? d_weight[j] : 0.0f);
      }
    if (!wants_ds) continue;
    const float mean = __fdiv_rn(sum_over_group(products, (int)blockDim.x, &room, turn), (float)p.width);
    const float back = -__fmul_rn(rstd, __fmul_rn(rstd, mean));
#pragma unroll 4
    for (int64_t j = threadIdx.x; j < p.width; j += blockDim.x) {
      float ds = 0;
      if (p.dy.data) {
        const float m = __fmul_rn(load_element(dy, p.dy.kind, j), load_factor_element(p.weight, p.offset, j));
        ds = __fmaf_rn(load_element(x, p.x.kind, j), back, __fmul_rn(rstd, m));
      }
      if (p.d_sum.data) ds += load_element(d_sum, p.d_sum.kind, j);
      if (p.dx.data) store_element(dx, p.dx.kind, j, ds);
      if (p.d_residual.data) store_element(d_residual, p.d_residual.kind, j, ds);
    }
  }
  let_next_kernel_start();
}

/* d_weight = the sum of the blocks' parts, in a fixed order: warp w adds up chunks w, w + 32, ..., then the warps' sums. */
extern "C" __global__ void __launch_bounds__(RMS_NORM_REDUCE_THREADS)
    rms_norm_d_weight(const __grid_constant__ rms_norm_reduce_params p) {
  __shared__ float sums[MOST_WARPS][RMS_NORM_REDUCE_COLUMNS];
  const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
  const int64_t j = (int64_t)blockIdx.x * RMS_NORM_REDUCE_COLUMNS + lane;
  wait_for_previous_kernel();
  float sum = 0;
  if (j < p.width)
#pragma unroll 4
    for (int64_t c = warp; c < p.chunks; c += MOST_WARPS) sum += p.partials[c * p.width + j];
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || j >= p.width) return;
  for (int w = 1; w < MOST_WARPS; w++) sum += sums[w][lane];
  if (p.accumulate) sum += load_element(p.d_weight, p.kind, j);
  store_element(p.d_weight, p.kind, j, sum);
}

/* 8 elements a thread take up to 64 registers, 16 take 84 and 32 take 128. */
#define BACKWARD(name, kind, n, v)                                                                      \
  extern "C" __global__ void __launch_bounds__((n) * (v) == 16 ? 256 : 512,                             \
                                               (n) * (v) == 8 ? 2 : (n) * (v) == 16 ? 3 : 1)            \
      rms_norm_backward_##name##_##v(const __grid_constant__ rms_norm_backward_params p) {              \
    if ((kind) <= KIND_F32 || p.xhat_kind == (kind)) /* mixed and fp32: there is one form */           \
      differentiate_rows<kind, kind, n, v>(p);                                                          \
    else                                                                                                \
      differentiate_rows<kind, KIND_F32, n, v>(p);                                                      \
  }

BACKWARD(bf16, KIND_BF16, 8, 1)
BACKWARD(bf16, KIND_BF16, 8, 2)
BACKWARD(bf16, KIND_BF16, 8, 4)
BACKWARD(f16, KIND_F16, 8, 1)
BACKWARD(f16, KIND_F16, 8, 2)
BACKWARD(f16, KIND_F16, 8, 4)
BACKWARD(f32, KIND_F32, 4, 2)
BACKWARD(f32, KIND_F32, 4, 4)
BACKWARD(f32, KIND_F32, 4, 8)
BACKWARD(mixed, 0, 4, 2)
BACKWARD(mixed, 0, 4, 4)
