/* Four warps that act as one: barriers among some threads of a block, and the share of its registers that each takes. */
#ifndef TIGON_KERNEL_WARPGROUP_CUH
#define TIGON_KERNEL_WARPGROUP_CUH

#include <stdint.h>

enum { WARPGROUP = 128 };

/* Barrier `number` (1 to 15; 0 is __syncthreads') among `threads` threads in whole warps. */
__device__ __forceinline__ void named_barrier(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* Counts for the barrier as others' named_barrier does, without waiting. */
__device__ __forceinline__ void named_barrier_arrive(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* By all warps of a warpgroup, at the start of its branch; a multiple of 8. */
template <int REGISTERS> __device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> __device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

/* Loads what store_matrices stores. */
__device__ __forceinline__ void load_matrices(uint32_t address, uint32_t &a, uint32_t &b, uint32_t &c, uint32_t &d) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "r"(address)
               : "memory");
}

/* Stores four 8 x 8 matrices of 16-bit elements, the thread's part of each in one word; lanes 8 i to 8 i + 7 give the
 * addresses of the rows of matrix i. */
__device__ __forceinline__ void store_matrices(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

/* The same of matrices that are stored transposed: a lane's address is that of a column's elements. */
__device__ __forceinline__ void store_matrices_transposed(uint32_t address, uint32_t a, uint32_t b, uint32_t c,
                                                          uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

#endif
