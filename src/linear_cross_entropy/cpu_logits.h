/* The logits' product, and the step from an accumulator to a logit, as forward and backward share them: both get the
 * same bits. */
#ifndef TIGON_LINEAR_CROSS_ENTROPY_CPU_LOGITS_H
#define TIGON_LINEAR_CROSS_ENTROPY_CPU_LOGITS_H

#include <math.h>

#include "base/gemm.h"
#include "base/vec.h"
#include "linear_cross_entropy/backend.h"

/* The view's rows from `first` on, as an operand. */
static inline tigon_matrix tigon_lce_operand(const tigon_view *view, int64_t first, bool transposed) {
  tigon_matrix matrix = tigon_matrix_of(view, transposed);
  matrix.data = tigon_at(view, first);
  return matrix;
}

/* x of kept tokens [first, ...) times weight rows [column, column + n), before bias and temperature. */
static inline tigon_gemm tigon_lce_logits(const tigon_lce_problem *p, int64_t first, int64_t m, int64_t column,
                                          int64_t n) {
  const bool all = p->kept_count == p->tokens;
  tigon_gemm product = {.m = m, .n = n, .k = p->width};
  product.a = tigon_lce_operand(&p->x, all ? first : 0, false);
  product.a.gather = all ? NULL : p->kept + first;
  product.b = tigon_lce_operand(&p->weight, column, false);
  return product;
}

/* Bias of columns [column, column + n) as floats; zeros past the end and without bias. */
static inline void tigon_lce_load_bias(const tigon_lce_problem *p, int64_t column, int64_t n, float *to, int64_t ld) {
  memset(to, 0, (size_t)ld * sizeof *to);
  if (tigon_present(&p->bias))
    tigon_load_row(to, p->bias.data + column * tigon_kind_bytes(p->bias.kind), p->bias.kind, n);
}

static inline vf tigon_lce_logit(vf accumulator, vf bias, vf inverse_temperature) {
  return (accumulator + bias) * inverse_temperature;
}

/* Differences from the largest logit, or from lse, stop here: e^x is 0, and 0 times it is 0 and not NaN. */
static inline vf tigon_lce_floor(vf x) { return vf_max(vf_set(-104.0f), x); }

static inline int64_t tigon_lce_target(const tigon_lce_problem *p, int64_t token) {
  return tigon_load_index(p->target.data, p->target.kind, token * p->target.stride[0]);
}

/* Element of an optional (T) float32 vector; 0 where absent. */
static inline float tigon_lce_element(const tigon_view *vector, int64_t token) {
  return tigon_present(vector) ? *(const float *)(const void *)tigon_at(vector, token) : 0.0f;
}

#endif
