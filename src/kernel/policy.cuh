/* What a load tells the second-level cache about the lines that it brings. */
#ifndef TIGON_KERNEL_POLICY_CUH
#define TIGON_KERNEL_POLICY_CUH

#include <stdint.h>

/* Lines of the usual priority, or (`last`) such as give way last. */
__device__ __forceinline__ uint64_t cache_policy(bool last) {
  uint64_t usual, evict_last;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(usual));
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(evict_last));
  return last ? evict_last : usual;
}

/* 16 or 8 bytes, as words. Not ordered with other accesses but by its result. */
__device__ __forceinline__ uint4 load_16_bytes(const void *from, uint64_t policy) {
  uint4 raw;
  asm volatile("ld.global.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
               : "l"(from), "l"(policy));
  return raw;
}

__device__ __forceinline__ uint2 load_8_bytes(const void *from, uint64_t policy) {
  uint2 raw;
  asm volatile("ld.global.L2::cache_hint.v2.b32 {%0, %1}, [%2], %3;"
               : "=r"(raw.x), "=r"(raw.y)
               : "l"(from), "l"(policy));
  return raw;
}

#endif
