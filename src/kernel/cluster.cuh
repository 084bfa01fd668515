/* Thread block clusters: ranks, barriers, and stores into another block's shared memory. Code for less than sm_90 knows
 * clusters of one block alone, on whatever device it runs. */
#ifndef TIGON_KERNEL_CLUSTER_CUH
#define TIGON_KERNEL_CLUSTER_CUH

#include <stdint.h>

__device__ __forceinline__ uint32_t cluster_rank() {
#if __CUDA_ARCH__ >= 900
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return 0;
#endif
}

/* Every thread of every block arrives; what was stored before it, remotely too, is seen after it. */
__device__ __forceinline__ void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

/* The address of the place of `shared` in the block of that rank. */
__device__ __forceinline__ uint32_t cluster_address(const void *shared, uint32_t rank) {
  uint32_t address = (uint32_t)__cvta_generic_to_shared(shared);
#if __CUDA_ARCH__ >= 900
  asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(rank));
#endif
  return address;
}

/* Stores to the place of `shared` in the block of that rank. */
__device__ __forceinline__ void cluster_store(float *shared, uint32_t rank, float value) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(cluster_address(shared, rank)), "f"(value) : "memory");
#else
  *shared = value;
#endif
}

#endif
