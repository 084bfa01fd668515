/* Sums over threads, in an order that depends on the shape of the group alone; every thread gets the same bits. */
#ifndef TIGON_KERNEL_REDUCE_CUH
#define TIGON_KERNEL_REDUCE_CUH

#include "kernel/cluster.cuh"

enum { WARP = 32, MOST_WARPS = 32, MOST_CLUSTER = 16 };

/* Over `group` neighbouring lanes, a power of two up to 32. */
__device__ __forceinline__ float sum_over_lanes(float value, int group) {
  if (group == WARP) { /* the common case, unrolled */
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
  }
  for (int step = group / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

/* Room for two sums in turn, so that one barrier a sum is enough: who writes a half again has passed the barrier that
 * its last readers came to later. */
struct group_sums {
  float4 warp[2][MOST_WARPS / 4];
  float block[2][MOST_CLUSTER];
};

/* Before the first sum, by all threads of the block: warps that it does not have add zero (they are added up in fours),
 * and the other blocks of the cluster have started, so that their memory may be written. */
__device__ __forceinline__ void start_sums(group_sums *room, int cluster) {
  if (cluster == 1 && (blockDim.x <= WARP || blockDim.x % (4 * WARP) == 0)) return;
  if (threadIdx.x < 2 * MOST_WARPS) ((float *)room->warp)[threadIdx.x] = 0;
  if (cluster > 1)
    cluster_barrier();
  else
    __syncthreads();
}

/*
 * Over a group of `threads` threads: up to 32 (a power of two), or whole warps; several groups may stand side by side
 * in the block (`several`), or one group in each of `cluster` blocks. All threads of the block call it; turn is the
 * number of the call.
 */
__device__ __forceinline__ float sum_over_group(float value, int threads, bool several, int cluster, group_sums *room,
                                                int turn) {
  value = sum_over_lanes(value, threads < WARP ? threads : WARP);
  const int half = turn & 1;
  if (threads > WARP) {
    const int warp = (int)threadIdx.x / WARP, warps = threads / WARP;
    if (threadIdx.x % WARP == 0) ((float *)room->warp[half])[warp] = value;
    __syncthreads();
    value = 0;
    if (several) {
      const int first = warp / warps * warps;
      for (int w = 0; w < warps; w++) value += ((const float *)room->warp[half])[first + w];
    } else {
      for (int w = 0; w < warps; w += 4) {
        const float4 four = room->warp[half][w / 4];
        value += (four.x + four.y) + (four.z + four.w);
      }
    }
  }
  if (cluster > 1) {
    if ((int)threadIdx.x < cluster) cluster_store(&room->block[half][cluster_rank()], threadIdx.x, value);
    cluster_barrier();
    value = 0;
    for (int b = 0; b < cluster; b++) value += room->block[half][b];
  }
  return value;
}

#endif
