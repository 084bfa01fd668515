/*
 * Products on the tensor cores of Hopper: 64 x n x 16, n = 192 or 256, operands in shared memory, sums in
 * registers.
 *
 * Operands lie in blocks of 128 bytes by 8 rows under the 128-byte swizzle, as bulk copies with CU_TENSOR_MAP_SWIZZLE_128B
 * leave them: chunk c (16 bytes) of row r stands at r * 128 + (c ^ (r & 7)) * 16, from an address that is a multiple of
 * 1024. K-major: a row is 64 elements along k. MN-major: a row is 64 elements along m or n, 64 rows along k make a block,
 * and blocks of the next 64 elements follow.
 *
 * A thread of warp w, lane l has of the sums, for q = 0 to n / 8 - 1, columns 8 q + 2 (l % 4) + {0, 1} of row
 * 16 w + l / 4 in d[4 q + {0, 1}], and of the row 8 further down in d[4 q + {2, 3}].
 */
#ifndef TIGON_KERNEL_WGMMA_CUH
#define TIGON_KERNEL_WGMMA_CUH

#include "kernel/mbarrier.cuh"

enum { K_MAJOR = 0, MN_MAJOR = 1 };

/* The descriptor of an operand's first 16 k. Its low word may be advanced: by wgmma_step each further 16 k. */
template <int MAJOR> __device__ __forceinline__ uint64_t wgmma_operand(const void *shared) {
  const uint64_t address = (shared_address(shared) & 0x3ffff) >> 4;
  const uint64_t to_next_block = MAJOR == K_MAJOR ? 1 : 512, to_next_rows = 64; /* in units of 16 bytes */
  return address | to_next_block << 16 | to_next_rows << 32 | (uint64_t)1 << 62;
}
template <int MAJOR> constexpr int wgmma_step = MAJOR == K_MAJOR ? 2 : 128;

/* Before the first product that uses registers written otherwise. */
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/* Ends a group: the products since the last one. */
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/* Until at most NEWEST groups are under way. */
template <int NEWEST> __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(NEWEST) : "memory");
}

/* The compiler keeps the sums where they are across this. */
template <int N> __device__ __forceinline__ void wgmma_pin(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* The registers %0 to %63 and so on of the products below, and the places of sums that they name. */
#define WGMMA_LIST_64                                                                                         \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
  "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, " \
  "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_LIST_96                                                                                          \
  WGMMA_LIST_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, " \
                "%82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_LIST_128                                                                                       \
  WGMMA_LIST_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "   \
                "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, " \
                "%126, %127"
#define WGMMA_SUMS_8(d, i)                                                                                    \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define WGMMA_SUMS_32(d, i) WGMMA_SUMS_8(d, i), WGMMA_SUMS_8(d, i + 8), WGMMA_SUMS_8(d, i + 16), WGMMA_SUMS_8(d, i + 24)
#define WGMMA_SUMS_64(d)    WGMMA_SUMS_32(d, 0), WGMMA_SUMS_32(d, 32)
#define WGMMA_SUMS_96(d)    WGMMA_SUMS_64(d), WGMMA_SUMS_32(d, 64)
#define WGMMA_SUMS_128(d)   WGMMA_SUMS_96(d), WGMMA_SUMS_32(d, 96)

/* wgmma(d, a, b, adds): d = a b + (adds ? d : 0), a 64 x 16, b 16 x n; A to E: the operands behind the n / 2 sums. */
#define WGMMA(n, sums, A, B, ADDS, D, E)                                                        \
  template <int A_MAJOR, int B_MAJOR>                                                           \
  __device__ __forceinline__ void wgmma(float(&d)[sums], uint64_t a, uint64_t b, bool adds) {   \
    asm volatile("{\n"                                                                          \
                 ".reg .pred adds;\n"                                                           \
                 "setp.ne.b32 adds, " ADDS ", 0;\n"                                             \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" WGMMA_LIST_##sums \
                 "}, " A ", " B ", adds, 1, 1, " D ", " E ";\n"                                 \
                 "}"                                                                            \
                 : WGMMA_SUMS_##sums(d)                                                         \
                 : "l"(a), "l"(b), "r"((int)adds), "n"(A_MAJOR), "n"(B_MAJOR));                 \
  }
WGMMA(192, 96, "%96", "%97", "%98", "%99", "%100")
WGMMA(256, 128, "%128", "%129", "%130", "%131", "%132")

#endif
