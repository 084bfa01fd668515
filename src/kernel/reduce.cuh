/* Sums over threads, in an order that depends on the shape of the group alone; every thread gets the same bits. */
#ifndef TIGON_KERNEL_REDUCE_CUH
#define TIGON_KERNEL_REDUCE_CUH

#include "kernel/cluster.cuh"

enum { WARP = 32, MOST_WARPS = 32, MOST_CLUSTER = 16 };

/* Over `group` neighbouring lanes, a power of two up to 32. */
__device__ __forceinline__ float sum_over_lanes(float value, int group) {
  for (int step = group / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

/* Room for two sums in turn, so that one barrier a sum is enough: who writes a half again has passed the barrier that
 * its last readers came to later. */
struct group_sums {
  float warp[2][MOST_WARPS];
  float block[2][MOST_CLUSTER];
};

/*
 * Over a group of `threads` threads: up to 32 (a power of two), or whole warps, of which the block has several groups side
 * by side; over a cluster of blocks, one group a block. All threads of the block call it; turn is the number of the call.
 */
__device__ __forceinline__ float sum_over_group(float value, int threads, group_sums *room, int turn) {
  value = sum_over_lanes(value, threads < WARP ? threads : WARP);
  const int blocks = (int)cluster_size(), half = turn & 1;
  if (threads > WARP) {
    const int warp = (int)threadIdx.x / WARP, warps = threads / WARP, first = warp / warps * warps;
    if (threadIdx.x % WARP == 0) room->warp[half][warp] = value;
    __syncthreads();
    value = 0;
    for (int w = 0; w < warps; w++) value += room->warp[half][first + w];
  }
  if (blocks > 1) {
    if ((int)threadIdx.x < blocks) cluster_store(&room->block[half][cluster_rank()], threadIdx.x, value);
    cluster_barrier();
    value = 0;
    for (int b = 0; b < blocks; b++) value += room->block[half][b];
  }
  return value;
}

#endif
