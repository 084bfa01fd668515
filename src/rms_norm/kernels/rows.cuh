/* Row addressing that forward and backward share. */
#ifndef TIGON_RMS_NORM_KERNELS_ROWS_CUH
#define TIGON_RMS_NORM_KERNELS_ROWS_CUH

#include "kernel/cluster.cuh"
#include "kernel/number.cuh"
#include "rms_norm/kernels/params.h"

/* Row r's place in each tensor. */
struct row_index {
  int64_t outer, head;
};

__device__ __forceinline__ row_index row_at(int64_t heads, int64_t r) {
  row_index at = {r, 0};
  if (heads != 1) {
    at.outer = r / heads;
    at.head = r - at.outer * heads;
  }
  return at;
}

/* The same below 2^31, which divides faster. */
__device__ __forceinline__ row_index row_at(int heads, int r) {
  row_index at = {r, 0};
  if (heads != 1) {
    at.outer = r / heads;
    at.head = r % heads;
  }
  return at;
}

__device__ __forceinline__ char *row_of(const rms_norm_rows &tensor, row_index at) {
  return tensor.data + at.outer * tensor.outer_bytes + at.head * tensor.head_bytes;
}

/* What xhat is multiplied by: offset + weight in fp32, or 1 without a weight. */
template <int N> __device__ __forceinline__ lanes<N> load_factor(const rms_norm_rows &weight, float offset, int i) {
  lanes<N> factor;
  if (!weight.data) {
#pragma unroll
    for (int q = 0; q < N / 2; q++) factor.pair[q] = pair_set(1.0f);
    return factor;
  }
  factor = load_lanes<N>(weight.data, weight.kind, i);
#pragma unroll
  for (int q = 0; q < N / 2; q++) factor.pair[q] = pair_add(factor.pair[q], pair_set(offset));
  return factor;
}

__device__ __forceinline__ float load_factor_element(const rms_norm_rows &weight, float offset, int64_t j) {
  return weight.data ? offset + load_element(weight.data, weight.kind, j) : 1.0f;
}

/* 1 / sqrt(sum / width + eps). The approximation's last bit is set right by one Newton step. */
__device__ __forceinline__ float rstd_of(float sum, float inverse_width, float eps) {
  const float a = __fmaf_rn(sum, inverse_width, eps), y = rsqrtf(a);
  const float square = __fmul_rn(y, y), rest = __fmaf_rn(y, y, -square);
  const float error = __fmaf_rn(-a, rest, __fmaf_rn(-a, square, 1.0f));
  return isfinite(square) && y > 0 ? __fmaf_rn(0.5f * y, error, y) : y;
}

/* Where a thread stands: its group's place in the block, and the number of its first vector of a row. */
struct standing {
  int place, first;
};

template <int V> __device__ __forceinline__ standing stand(const rms_norm_layout &layout) {
  standing at = {0, (int)threadIdx.x};
  if (layout.side_by_side > 1) {
    at.place = at.first >> layout.group_log2;
    at.first &= layout.group - 1;
  }
  if (layout.cluster > 1) at.first += (int)cluster_rank() * V * layout.group;
  return at;
}

/* The number of this block's cluster, and of clusters. */
__device__ __forceinline__ int cluster_number(const rms_norm_layout &layout) {
  return layout.cluster > 1 ? (int)blockIdx.x / layout.cluster : (int)blockIdx.x;
}
__device__ __forceinline__ int cluster_count(const rms_norm_layout &layout) {
  return layout.cluster > 1 ? (int)gridDim.x / layout.cluster : (int)gridDim.x;
}

#endif
