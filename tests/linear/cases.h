/* The cases that every backend of tigon_linear is tested with: each option set on each shape; dtype mixes take
 * turns. */
#ifndef TIGON_TESTS_LINEAR_CASES_H
#define TIGON_TESTS_LINEAR_CASES_H

#include "tests/support/support.h"

typedef struct linear_shape {
  int64_t tokens, n, d;
} linear_shape;

static const linear_shape linear_shapes[] = {
    {1, 1, 1},      {1, 7, 7},     {7, 1, 63},   {63, 64, 65},  {64, 64, 64},   {65, 127, 129},
    {129, 65, 127}, {1, 512, 129}, {2, 65, 300}, {3, 9, 64},    {4, 130, 33},   {5, 130, 33},
    {8, 20, 7},     {0, 9, 12},    {6, 0, 12},   {6, 9, 0},     {1, 9, 0},      {257, 400, 31},
    {400, 33, 257}, {13, 14, 600}, {500, 5, 5},  {1, 3, 40000}, {2, 1000, 100}, {150, 130, 520},
};

typedef struct linear_options {
  bool bias, strided, expand; /* expand: x and dy with stride 0 over tokens */
  bool dx, dweight, dbias;
  bool accumulate_dx, accumulate_dweight;
} linear_options;

static const linear_options linear_option_sets[] = {
    {.bias = true, .dx = true, .dweight = true, .dbias = true},
    {.strided = true, .dx = true, .dweight = true, .accumulate_dx = true},
    {.bias = true, .strided = true, .dweight = true, .dbias = true, .accumulate_dweight = true},
    {.bias = true, .expand = true, .dx = true, .dbias = true},
    {.dx = true, .dweight = true, .dbias = true, .accumulate_dx = true, .accumulate_dweight = true},
    {.expand = true, .strided = true, .dbias = true},
};

typedef struct linear_kinds {
  tigon_kind x, weight, bias, y; /* dy takes y's */
  tigon_kind dx, dweight, dbias; /* where nothing is accumulated */
} linear_kinds;

enum { LINEAR_MIXES = 81 };

/* Mix i of x, weight, bias and y; the first three are uniform. */
static inline linear_kinds linear_mix(int i) {
  static const tigon_kind k[] = {TIGON_F32, TIGON_BF16, TIGON_F16};
  if (i < 3) return (linear_kinds){k[i], k[i], k[i], k[i], k[i], k[i], k[i]};
  return (linear_kinds){k[i % 3],       k[i / 3 % 3],       k[i / 9 % 3],      k[i / 27 % 3],
                        k[(i + 1) % 3], k[(i / 3 + 2) % 3], k[(i / 9 + 1) % 3]};
}

#endif
