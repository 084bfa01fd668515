/* Bulk copies between device and shared memory: of boxes of tensors that tensor maps describe, and of plain bytes. One
 * thread asks for a copy. Coordinates count elements, the fastest dimension first; what lies outside the tensor is read
 * as zero and not written. */
#ifndef TIGON_KERNEL_TMA_CUH
#define TIGON_KERNEL_TMA_CUH

#include <cuda.h>

#include "kernel/mbarrier.cuh"

/* The barrier gets the bytes of the whole box. */
__device__ __forceinline__ void tma_load_3d(void *shared, const CUtensorMap *map, uint64_t *barrier, int x, int y,
                                            int z) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
               "[%2];" ::"r"(shared_address(shared)),
               "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z)
               : "memory");
}

/* To the same place in both blocks of a pair, each of whose barriers gets the bytes. */
__device__ __forceinline__ void tma_load_3d_to_both(void *shared, const CUtensorMap *map, uint64_t *barrier, int x,
                                                    int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
               "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(shared)),
               "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "h"((uint16_t)3)
               : "memory");
}

/* Of data that all its writers fenced (fence_async_shared). */
__device__ __forceinline__ void tma_store_3d(const CUtensorMap *map, const void *shared, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
               "r"(shared_address(shared)), "r"(x), "r"(y), "r"(z)
               : "memory");
}

/* Plain bytes: addresses and sizes are multiples of 16. */
__device__ __forceinline__ void bulk_load(void *shared, const void *global, int bytes, uint64_t *barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

/* To the second-level cache. */
__device__ __forceinline__ void bulk_prefetch(const void *global, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}

__device__ __forceinline__ void bulk_store(void *global, const void *shared, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared_address(shared)),
               "r"(bytes)
               : "memory");
}

/* Ends a group: the thread's stores since the last one. */
__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/* Until at most NEWEST groups of the thread still read shared memory. */
template <int NEWEST> __device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(NEWEST) : "memory");
}

/* Until all stores of the thread are done and visible. */
__device__ __forceinline__ void tma_store_wait_all() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

/* The thread's ordinary writes to shared memory before it are seen by bulk copies and tensor cores behind the barrier
 * that follows it. */
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#endif
