/* Square transposes in vector registers, for sources compiled once per instruction set (isa.h). */
#ifndef TIGON_BASE_TRANSPOSE_H
#define TIGON_BASE_TRANSPOSE_H

#include "base/vec.h"

#if VF_LANES == 16
#define VF_LOW_HALVES(a, b)  __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define VF_HIGH_HALVES(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
enum { VF_TRANSPOSE_ROUNDS = 4 };
#elif VF_LANES == 8
#define VF_LOW_HALVES(a, b)  __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define VF_HIGH_HALVES(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
enum { VF_TRANSPOSE_ROUNDS = 3 };
#else
#define VF_LOW_HALVES(a, b)  __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define VF_HIGH_HALVES(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
enum { VF_TRANSPOSE_ROUNDS = 2 };
#endif

/* v[i][j] becomes v[j][i]: each round interleaves the two halves of the list (a perfect shuffle). */
static inline __attribute__((always_inline)) void vf_transpose(vf v[VF_LANES]) {
#pragma GCC unroll 4
  for (int round = 0; round < VF_TRANSPOSE_ROUNDS; round++) {
    vf next[VF_LANES];
#pragma GCC unroll 8
    for (int i = 0; i < VF_LANES / 2; i++) {
      next[2 * i] = VF_LOW_HALVES(v[i], v[i + VF_LANES / 2]);
      next[2 * i + 1] = VF_HIGH_HALVES(v[i], v[i + VF_LANES / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < VF_LANES; i++) v[i] = next[i];
  }
}

#endif
