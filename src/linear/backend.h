/* The parts of a projection that are not a packed product. */
#ifndef TIGON_LINEAR_BACKEND_H
#define TIGON_LINEAR_BACKEND_H

#include <stdbool.h>

#include "base/check.h"
#include "base/isa.h"

/* At most this many tokens are projected row by row: packing the whole weight would cost more than it saves. */
enum { LINEAR_FEW_TOKENS = 8 };

/* y (T, N) = x (T, D) weight (N, D)^T + bias, each weight row read once. The order of summation depends on D alone. */
typedef struct linear_rows {
  int threads;
  tigon_view x, weight, bias, y;
} linear_rows;

/* dbias (N) = or += the sum over tokens of dy (T, N), in fp32. */
typedef struct linear_bias_gradient {
  int threads;
  tigon_view dy, dbias;
  bool accumulate;
} linear_bias_gradient;

TIGON_ISA_DECLARE(void, tigon_linear_rows, (const linear_rows *rows));
TIGON_ISA_DECLARE(void, tigon_linear_bias_gradient, (const linear_bias_gradient *gradient));

#endif
