/* A problem's outputs against the oracle, with both gates. */
#ifndef TIGON_TESTS_MOE_CHECK_H
#define TIGON_TESTS_MOE_CHECK_H

#include "tests/moe/problem.h"

/* Gate 1 is against the rms. Weight gradients are products of five random factors summed over few rows, so that
 * elements reach 24 times their rms. Up to four roundings to x's dtype meet in one (g, u, a, s a), each on average 2^-9
 * (bfloat16) or 2^-12 (float16) of the value. Float32 is bounded by its sums instead: up to 600 terms. */
static inline double moe_bound(tigon_kind x) {
  return x == TIGON_BF16 ? 4 * 24 * 0x1p-9 : x == TIGON_F16 ? 4 * 24 * 0x1p-12 : 2e-5;
}

/* Of a case with few rows an element may be one product and not a sum of many, so that each rounding counts in full, at
 * the size of the largest element, which is measured and not assumed. With weights on inputs there is one more
 * rounding. Float32: four sums follow one another, the errors of one of n terms grow like sqrt(n) 2^-24. */
static inline double moe_small_bound(const moe_problem *p, const double *oracle, int64_t n) {
  double most = 0, sum = 0;
  for (int64_t i = 0; i < n; i++) {
    most = fmax(most, fabs(oracle[i]));
    sum += oracle[i] * oracle[i];
  }
  const double largest = fmax(24, sum > 0 ? most / sqrt(sum / (double)n) : 0);
  const double roundings = p->c.options & MOE_ON_INPUT ? 5 : 4;
  const double terms = (double)(p->c.width + p->c.inner + p->weights.count);
  return largest * (p->x.kind == TIGON_F32    ? 4 * sqrt(terms) * 0x1p-24
                    : p->x.kind == TIGON_BF16 ? roundings * 0x1p-8
                                              : roundings * 0x1p-11);
}

static inline double *moe_doubles(int64_t n) {
  double *values = calloc((size_t)n + 1, sizeof *values);
  assert_non_null(values);
  return values;
}

/* Experts and tokens without routes have zeros, exactly; they must not count in the rms that bounds the others. */
static inline void moe_gate_output(const char *output, const moe_problem *p, const test_tensor *got,
                                   const double *oracle, const double *plain) {
  double *some_oracle = moe_doubles(got->count), *some_plain = moe_doubles(got->count);
  test_tensor some;
  int64_t nonzero = 0;
  for (int64_t i = 0; i < got->count; i++) nonzero += oracle[i] != 0;
  test_tensor_make(&some, got->kind, 1, &nonzero, (test_layout){0});
  for (int64_t i = 0, n = 0; i < got->count; i++) {
    const double value = test_tensor_get(got, i);
    if (oracle[i] == 0 && value != 0) fail_msg("%s[%lld]: expected 0, got %g", output, (long long)i, value);
    if (oracle[i] == 0) continue;
    test_tensor_set(&some, n, value);
    some_oracle[n] = oracle[i];
    some_plain[n++] = plain[i];
  }
  char name[32];
  snprintf(name, sizeof name, "%s(x=%s)", output, test_kind_name(p->x.kind));
  if (p->small)
    test_gate_pooled(name, &some, some_oracle, some_plain, moe_small_bound(p, some_oracle, nonzero));
  else
    test_gate(name, &some, some_oracle, some_plain, moe_bound(p->x.kind));
  test_tensor_free(&some);
  free(some_oracle), free(some_plain);
}

static inline void moe_check_forward(const moe_problem *p, const moe_dense *d) {
  const reference_moe_input in = moe_reference_input(p, d);
  double *oracle = moe_doubles(p->out.count), *plain = moe_doubles(p->out.count);
  reference_moe(&in, oracle);
  reference_moe_plain(&in, &p->kinds, plain);
  moe_gate_output("out", p, &p->out, oracle, plain);
  free(oracle), free(plain);
}

/* Gradients in the order dx, d_topk_weights, d_gate, d_up, d_down. */
enum { MOE_GRADIENTS = 5 };
static const char *const moe_gradient_names[MOE_GRADIENTS] = {"dx", "d_topk_weights", "d_gate", "d_up", "d_down"};

static inline void moe_make_gradients(const moe_problem *p, double *g[MOE_GRADIENTS]) {
  const moe_case *c = &p->c;
  test_tensor sums[MOE_WEIGHTS];
  moe_weight_views(p, true, sums);
  g[0] = moe_doubles(p->x.count);
  g[1] = moe_doubles(p->weights.count);
  for (int i = 0; i < MOE_WEIGHTS; i++)
    g[2 + i] =
        c->options & MOE_ACCUMULATE ? test_tensor_values(&sums[i]) : moe_doubles(c->experts * c->inner * c->width);
}

static inline void moe_free_gradients(double *g[MOE_GRADIENTS]) {
  for (int i = 0; i < MOE_GRADIENTS; i++) free(g[i]);
}

static inline reference_moe_gradients moe_reference_gradients(double *const g[MOE_GRADIENTS]) {
  return (reference_moe_gradients){g[0], g[1], g[2], g[3], g[4]};
}

/* Runs backward and compares every gradient. */
static inline void moe_check_backward(moe_problem *p, const moe_dense *d, int threads) {
  const int accumulate = (p->c.options & MOE_ACCUMULATE) != 0;
  const reference_moe_input in = moe_reference_input(p, d);
  double *oracle[MOE_GRADIENTS], *plain[MOE_GRADIENTS];
  moe_make_gradients(p, oracle);
  moe_make_gradients(p, plain);
  moe_run_backward(p, threads, NULL);
  const reference_moe_gradients to_oracle = moe_reference_gradients(oracle), to_plain = moe_reference_gradients(plain);
  reference_moe_backward(&in, d->dout, accumulate, &to_oracle);
  reference_moe_backward_plain(&in, d->dout, accumulate, &p->kinds, &to_plain);
  test_tensor got[MOE_GRADIENTS] = {p->dx, p->d_weights};
  moe_weight_views(p, true, got + 2);
  for (int i = 0; i < MOE_GRADIENTS; i++) moe_gate_output(moe_gradient_names[i], p, &got[i], oracle[i], plain[i]);
  moe_free_gradients(oracle);
  moe_free_gradients(plain);
}

static inline void moe_check_problem(moe_problem *p, int threads) {
  moe_dense d = moe_dense_of(p);
  moe_run_forward(p, threads, NULL);
  moe_check_forward(p, &d);
  moe_check_backward(p, &d, threads);
  test_count_case();
  moe_dense_free(&d);
}

/* A case forward and backward. */
static inline void moe_check_case(const moe_case *c, tigon_kind x_kind, bool with_saved, int threads, uint64_t seed) {
  moe_problem p;
  moe_make(&p, c, x_kind, with_saved, seed);
  moe_check_problem(&p, threads);
  moe_free(&p);
}

/* One of many cases that may have few rows or narrow ones. */
static inline void moe_check_small_case(const moe_case *c, tigon_kind x_kind, bool with_saved, int threads,
                                        uint64_t seed) {
  moe_problem p;
  moe_make(&p, c, x_kind, with_saved, seed);
  p.small = true;
  moe_check_problem(&p, threads);
  moe_free(&p);
}

#endif
