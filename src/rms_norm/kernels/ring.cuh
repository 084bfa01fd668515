/*
 * Rows on their way to shared memory while others are in work. Blocks stay for the whole launch and take every step-th
 * row (or rows: narrow ones share a block, the widest are spread over a cluster). A slot of the ring is written by the
 * copies of the thread that reads it, and by no other while rows come, so that the ring needs no barrier.
 *
 * How many bytes are under way decides the speed: on H200 about 64 KiB a multiprocessor reach the rate of a copy; more
 * are slower (docs/lab/gpu_rms_norm.md).
 */
#ifndef TIGON_RMS_NORM_KERNELS_RING_CUH
#define TIGON_RMS_NORM_KERNELS_RING_CUH

#include "kernel/async.cuh"
#include "rms_norm/kernels/rows.cuh"

/* The thread's slots: (stage, tensor, vector, thread of the block). */
template <int V> struct ring {
  char *data; /* the thread's first slot */
  int tensors;

  __device__ __forceinline__ char *slot(int stage, int tensor, int k) const {
    return data + ((stage * tensors + tensor) * V + k) * (int)blockDim.x * RMS_NORM_SLOT_BYTES;
  }
};

template <int N> __device__ __forceinline__ void copy_vector(char *slot, const char *row, int kind, int i) {
  if (kind_bytes(kind) * N == 16)
    async_copy<16>(slot, row + (size_t)i * 16);
  else
    async_copy<8>(slot, row + (size_t)i * 8);
}

/* Until at most `ahead` (1 to RMS_NORM_MOST_AHEAD) groups of copies are under way. */
__device__ __forceinline__ void wait_for_row(int ahead) {
  if (ahead == 1)
    async_wait<1>();
  else if (ahead == 2)
    async_wait<2>();
  else if (ahead == 3)
    async_wait<3>();
  else
    async_wait<4>();
}

/* Where a tensor's rows stand, as a block walks over them. */
struct walk {
  char *at;
  int64_t step_bytes;

  __device__ __forceinline__ void start(const rms_norm_rows &tensor, int heads, int row, int step) {
    at = row_of(tensor, row_at(heads, row));
    step_bytes = step * tensor.outer_bytes;
  }
  __device__ __forceinline__ void next(const rms_norm_rows &tensor, int heads, int row) {
    if (heads == 1)
      at += step_bytes;
    else
      at = row_of(tensor, row_at(heads, row));
  }
};

#endif
