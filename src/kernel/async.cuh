/* Copies from device to shared memory that run on while the thread goes on (cp.async). A thread that reads back only
 * what it copied itself needs no barrier: its wait is enough. */
#ifndef TIGON_KERNEL_ASYNC_CUH
#define TIGON_KERNEL_ASYNC_CUH

#include <stdint.h>

/* Both addresses are multiples of BYTES, which is 8 or 16. */
template <int BYTES> __device__ __forceinline__ void async_copy(void *shared, const void *global) {
  const uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
  if (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(global) : "memory");
}

/* 16 bytes, or zeros, which need no readable address. */
__device__ __forceinline__ void async_copy_or_zero(void *shared, const void *global, bool copies) {
  const uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(copies ? 16 : 0) : "memory");
}

/* Ends a group: the copies since the last one. */
__device__ __forceinline__ void async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Waits until at most NEWEST groups of this thread are under way. */
template <int NEWEST> __device__ __forceinline__ void async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(NEWEST) : "memory");
}

/* Until all copies of this thread have landed. */
__device__ __forceinline__ void async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

#endif
