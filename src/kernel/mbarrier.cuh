/* Barriers in shared memory that count arrivals and bytes, and what is copied while they wait. Parity: 0 for a barrier's
 * first phase, then in turns. */
#ifndef TIGON_KERNEL_MBARRIER_CUH
#define TIGON_KERNEL_MBARRIER_CUH

#include <stdint.h>

#include "kernel/cluster.cuh"

__device__ __forceinline__ uint32_t shared_address(const void *shared) {
  return (uint32_t)__cvta_generic_to_shared(shared);
}

__device__ __forceinline__ void mbarrier_init(uint64_t *barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

/* Between the initialisations and the block's barrier behind which others use them. */
__device__ __forceinline__ void mbarrier_fence_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint64_t *barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

/* At the barrier of the block of that rank. */
__device__ __forceinline__ void mbarrier_arrive_at(uint64_t *barrier, uint32_t rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(cluster_address(barrier, rank)) : "memory");
}

/* Stores to the block of that rank, whose barrier there gets the 4 bytes. */
__device__ __forceinline__ void mbarrier_send(int *shared, uint64_t *barrier, uint32_t rank, int value) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(cluster_address(shared, rank)),
      "r"(value), "r"(cluster_address(barrier, rank))
      : "memory");
}

/* Arrives, and the phase also waits for that many bytes of bulk copies. */
__device__ __forceinline__ void mbarrier_arrive_expect(uint64_t *barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

/* Arrives when the thread's cp.async so far have landed; the barrier counts such arrivals like others. */
__device__ __forceinline__ void mbarrier_arrive_async(uint64_t *barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

/* Until the phase of that parity is complete; its writes are visible then. */
__device__ __forceinline__ void mbarrier_wait(uint64_t *barrier, int parity) {
  asm volatile("{\n"
               ".reg .pred done;\n"
               "again:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@done bra through;\n"
               "bra again;\n"
               "through:\n"
               "}" ::"r"(shared_address(barrier)),
               "r"(parity)
               : "memory");
}

#endif
