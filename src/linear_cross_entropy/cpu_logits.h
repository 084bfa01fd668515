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

/* x of kept tokens [first, ...) times weight rows [column, column + n), before bias, softcap and temperature. */
static inline tigon_gemm tigon_lce_logits(const tigon_lce_problem *p, int64_t first, int64_t m, int64_t column,
                                          int64_t n) {
  const bool all = p->loss.kept_count == p->loss.tokens;
  tigon_gemm product = {.m = m, .n = n, .k = p->width};
  product.a = tigon_lce_operand(&p->x, all ? first : 0, false);
  product.a.gather = all ? NULL : p->loss.kept + first;
  product.b = tigon_lce_operand(&p->weight, column, false);
  return product;
}

/* Bias of columns [column, column + n) as floats; zeros past the end and without bias. */
static inline void tigon_lce_load_bias(const tigon_lce_problem *p, int64_t column, int64_t n, float *to, int64_t ld) {
  memset(to, 0, (size_t)ld * sizeof *to);
  if (tigon_present(&p->bias))
    tigon_load_row(to, p->bias.data + column * tigon_kind_bytes(p->bias.kind), p->bias.kind, n);
}

/* Class weights of the columns, 1 where absent; zeros past the end. */
static inline void tigon_lce_load_class_weight(const tigon_lce_problem *p, int64_t column, int64_t n, float *to,
                                               int64_t ld) {
  const tigon_view *weights = &p->loss.class_weight;
  memset(to, 0, (size_t)ld * sizeof *to);
  for (int64_t j = 0; j < n; j++) to[j] = tigon_lce_element(weights, p->vocab_begin + column + j, 1.0f);
}

/* In place of the bias once softcap has added it. */
static const float tigon_lce_no_bias[TIGON_GEMM_LD];

/* z (n): accumulators in, softcap tanh((z + bias) / softcap) out, and slope, unless NULL, the derivative 1 - tanh^2.
 * Whole vectors are read and written. Near 0 tanh is an odd polynomial; elsewhere it is 1 - q, q = 2 / (1 + e^(2 |y|)),
 * and the derivative q (2 - q), which keeps its digits where tanh has rounded to 1. */
static inline void tigon_lce_cap_row(float softcap, float *z, const float *bias, float *slope, int64_t n) {
  const vf cap = vf_set(softcap), one = vf_set(1.0f), two = vf_set(2.0f);
  const vi sign_bit = (vi)vf_set(-0.0f);
  for (int64_t j = 0; j < n; j += VF_LANES) {
    const vf y = (vf_load(z + j) + vf_load(bias + j)) / cap, square = y * y;
    const vi sign = (vi)y & sign_bit;
    const vf size = (vf)((vi)y ^ sign), e = vf_exp(-two * size), q = two * e / (one + e);
    vf odd = vf_set(1.643884804e-2f);
    odd = vf_fma(odd, square, vf_set(-5.267244436e-2f));
    odd = vf_fma(odd, square, vf_set(1.332073408e-1f));
    odd = vf_fma(odd, square, vf_set(-3.333294697e-1f));
    const vi near = size < vf_set(0.55f);
    const vf tanh_near = vf_fma(y, square * odd, y), tanh_far = (vf)((vi)(one - q) | sign);
    vf_store(z + j, cap * vf_select(near, tanh_near, tanh_far));
    if (slope) vf_store(slope + j, vf_select(near, vf_fma(-tanh_near, tanh_near, one), q * (two - q)));
  }
}

static inline vf tigon_lce_logit(vf accumulator, vf bias, vf inverse_temperature) {
  return (accumulator + bias) * inverse_temperature;
}

/* Differences from the largest logit, or from lse, stop here: e^x is 0, and 0 times it is 0 and not NaN. */
static inline vf tigon_lce_floor(vf x) { return vf_max(vf_set(-104.0f), x); }

#endif
