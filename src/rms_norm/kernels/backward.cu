/*
 * RMSNorm backward (include/tigon/rms_norm.h): dx, d_residual and this block's part of d_weight from one reading of dy
 * and x.
 *
 * Who holds what of a row is as in forward.cu, and rows come through the ring (ring.cuh). d_weight's sums stay in
 * registers until the rows are done. Bound by memory: dy and x in (and d_residual_out), dx out (and d_residual).
 */
#include "kernel/launch.cuh"
#include "kernel/reduce.cuh"
#include "rms_norm/kernels/ring.cuh"

/* Adds up the sums of rows that lay side by side, in their order, and stores what the block has. */
template <int N, int V>
__device__ __forceinline__ void store_partials(const rms_norm_backward_params &p, const lanes<N> (&d_weight)[V],
                                               float *room, int place, int first) {
  const int group = p.layout.group, side_by_side = p.layout.side_by_side, vectors = p.layout.vectors;
  float *partials = p.partials + cluster_number(p.layout) * p.width;
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
  const rms_norm_layout &layout = p.layout;
  const standing here = stand<V>(layout);
  const int group = layout.group, vectors = layout.vectors, first = here.first;
  const int rows = (int)p.rows, heads = (int)p.heads, step = cluster_count(layout) * layout.side_by_side;
  const bool adds = p.d_sum.data;
  let_next_kernel_start(); /* all blocks are here; those of the reduction wait for this kernel's end, in freed places */
  const ring<V> stages = {memory + threadIdx.x * RMS_NORM_SLOT_BYTES, adds ? 3 : 2};

  int row = cluster_number(layout) * layout.side_by_side + here.place, coming = row, stage = 0;
  walk x, dy, d_sum, dx, d_residual, rstds;
  x.start(p.x, heads, row, step);
  dy.start(p.dy, heads, row, step);
  if (adds) d_sum.start(p.d_sum, heads, row, step);
  dx.start(p.dx, heads, row, step);
  d_residual.start(p.d_residual, heads, row, step);
  rstds.start(p.rstd, heads, row, step);
  auto fetch = [&](int stage) {
#pragma unroll
    for (int k = 0; k < V; k++) {
      const int i = first + k * group;
      if (coming >= rows || i >= vectors) continue;
      copy_vector<N>(stages.slot(stage, 0, k), x.at, x_kind, i);
      copy_vector<N>(stages.slot(stage, 1, k), dy.at, dy_kind, i);
      if (adds) copy_vector<N>(stages.slot(stage, 2, k), d_sum.at, d_sum_kind, i);
    }
    async_commit();
    coming += step;
    x.next(p.x, heads, coming);
    dy.next(p.dy, heads, coming);
    if (adds) d_sum.next(p.d_sum, heads, coming);
  };
  for (int ahead = 0; ahead < layout.ahead; ahead++) fetch(ahead);
  start_sums(&room, layout.cluster);
  float next_rstd = row < rows ? *(const float *)rstds.at : 0.0f;
  lanes<N> factor[V], d_weight[V];
#pragma unroll
  for (int k = 0; k < V; k++) {
#pragma unroll
    for (int q = 0; q < N / 2; q++) factor[k].pair[q] = d_weight[k].pair[q] = pair_set(0.0f);
    if (first + k * group < vectors) factor[k] = load_factor<N>(p.weight, p.offset, first + k * group);
  }
  for (int turn = 0; row - here.place < rows; turn++) { /* all threads as often: they meet in the sum */
    const bool live = row < rows;
    const float rstd = next_rstd;
    row += step;
    rstds.next(p.rstd, heads, row);
    if (row < rows) next_rstd = *(const float *)rstds.at;
    fetch(stage == 0 ? layout.ahead : stage - 1);
    wait_for_row(layout.ahead);
    float2 products = pair_set(0.0f);
    lanes<N> m[V];
    held<KIND, N> s[V];
#pragma unroll
    for (int k = 0; k < V; k++) {
      if (!live || first + k * group >= vectors) continue;
      s[k].load(stages.slot(stage, 0, k), x_kind, 0);
      const lanes<N> g = load_lanes<N>(stages.slot(stage, 1, k), dy_kind, 0), v = s[k].get();
#pragma unroll
      for (int q = 0; q < N / 2; q++) {
        const float2 xhat = pair_mul(v.pair[q], pair_set(rstd));
        d_weight[k].pair[q] = pair_fma(g.pair[q], round_pair(XHAT ? XHAT : p.xhat_kind, xhat), d_weight[k].pair[q]);
        m[k].pair[q] = pair_mul(g.pair[q], factor[k].pair[q]);
        products = pair_fma(m[k].pair[q], xhat, products);
      }
    }
    const float mean =
        __fmul_rn(sum_over_group(products.x + products.y, group, layout.side_by_side > 1, layout.cluster, &room, turn),
                  p.inverse_width);
    const float2 back = pair_set(-__fmul_rn(rstd, __fmul_rn(rstd, mean)));
#pragma unroll
    for (int k = 0; k < V; k++) {
      const int i = first + k * group;
      if (!live || i >= vectors) continue;
      const lanes<N> v = s[k].get();
      lanes<N> ds;
#pragma unroll
      for (int q = 0; q < N / 2; q++) ds.pair[q] = pair_fma(v.pair[q], back, pair_mul(pair_set(rstd), m[k].pair[q]));
      if (adds) {
        const lanes<N> more = load_lanes<N>(stages.slot(stage, 2, k), d_sum_kind, 0);
#pragma unroll
        for (int q = 0; q < N / 2; q++) ds.pair[q] = pair_add(ds.pair[q], more.pair[q]);
      }
      if (p.dx.data) store_lanes<N>(dx.at, dx_kind, i, ds);
      if (p.d_residual.data) store_lanes<N>(d_residual.at, d_residual_kind, i, ds);
    }
    dx.next(p.dx, heads, row);
    d_residual.next(p.d_residual, heads, row);
    stage = stage == layout.ahead ? 0 : stage + 1;
  }
  if (p.partials) store_partials<N, V>(p, d_weight, (float *)memory, here.place, first);
}

/* Any width, alignment and kinds, and dy absent: a row a block, element by element, the second time from the caches.
 * The block's part of d_weight stands in its row of partials from the first row on; each element is one thread's. */
extern "C" __global__ void __launch_bounds__(1024)
    rms_norm_backward_any(const __grid_constant__ rms_norm_backward_params p) {
  __shared__ group_sums room;
  float *d_weight = p.partials + (int64_t)blockIdx.x * p.width;
  const bool wants_ds = p.dx.data || p.d_residual.data;
  int turn = 0;
  let_next_kernel_start();
  start_sums(&room, 1);
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
    const float mean = __fmul_rn(sum_over_group(products, (int)blockDim.x, false, 1, &room, turn), p.inverse_width);
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
}

/* d_weight = the sum of the blocks' parts, in a fixed order: thread row r adds up chunks r, r + ROWS, ..., the rows of
 * a warp add up theirs, then the warps' sums are added up. */
extern "C" __global__ void __launch_bounds__(RMS_NORM_REDUCE_COLUMNS *RMS_NORM_REDUCE_ROWS)
    rms_norm_d_weight(const __grid_constant__ rms_norm_reduce_params p) {
  enum { COLUMNS = RMS_NORM_REDUCE_COLUMNS, WARPS = COLUMNS * RMS_NORM_REDUCE_ROWS / WARP };
  __shared__ float sums[WARPS][COLUMNS];
  const int column = (int)threadIdx.x % COLUMNS, row = (int)threadIdx.x / COLUMNS, warp = (int)threadIdx.x / WARP;
  const int64_t j = (int64_t)blockIdx.x * COLUMNS + column;
  wait_for_previous_kernel();
  float sum = 0;
  if (j < p.width)
#pragma unroll 8
    for (int64_t c = row; c < p.chunks; c += RMS_NORM_REDUCE_ROWS) sum += p.partials[c * p.width + j];
  for (int step = COLUMNS; step < WARP; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x % WARP < COLUMNS) sums[warp][column] = sum;
  __syncthreads();
  if (row > 0 || j >= p.width) return;
  sum = 0;
#pragma unroll
  for (int w = 0; w < WARPS; w++) sum += sums[w][column];
  if (p.accumulate) sum += load_element(p.d_weight, p.kind, j);
  store_element(p.d_weight, p.kind, j, sum);
}

#define BACKWARD(name, kind, n, v)                                                           \
  extern "C" __global__ void __launch_bounds__(512, 1)                                       \
      rms_norm_backward_##name##_##v(const __grid_constant__ rms_norm_backward_params p) {   \
    if ((kind) <= KIND_F32 || p.xhat_kind == (kind)) /* mixed and fp32: there is one form */ \
      differentiate_rows<kind, kind, n, v>(p);                                               \
    else                                                                                     \
      differentiate_rows<kind, KIND_F32, n, v>(p);                                           \
  }

BACKWARD(bf16, KIND_BF16, 8, 2)
BACKWARD(f16, KIND_F16, 8, 2)
BACKWARD(f32, KIND_F32, 4, 2)
BACKWARD(f32, KIND_F32, 4, 4)
BACKWARD(mixed, 0, 4, 2)
BACKWARD(mixed, 0, 4, 4)
