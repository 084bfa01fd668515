/* A router's outputs against the oracle, with both gates. */
#ifndef TIGON_TESTS_MOE_ROUTE_CHECK_H
#define TIGON_TESTS_MOE_ROUTE_CHECK_H

#include "tests/moe/route_problem.h"

static inline int64_t *route_indices(const test_tensor *t) {
  int64_t *values = malloc(((size_t)t->count + 1) * sizeof *values);
  assert_non_null(values);
  for (int64_t i = 0; i < t->count; i++) values[i] = (int64_t)test_tensor_get(t, i);
  return values;
}

static inline double *route_doubles(int64_t n) {
  double *values = calloc((size_t)n + 1, sizeof *values);
  assert_non_null(values);
  return values;
}

/* The oracle's view: inputs as dense float64. */
typedef struct route_dense {
  reference_moe_route_input in;
  double *logits, *bias;
} route_dense;

static inline route_dense route_dense_of(const route_problem *p) {
  const route_case *c = &p->c;
  route_dense d = {.logits = test_tensor_values(&p->logits),
                   .bias = p->bias.block ? test_tensor_values(&p->bias) : NULL};
  d.in = (reference_moe_route_input){.tokens = c->tokens,
                                     .choices = c->choices,
                                     .experts = c->experts,
                                     .sigmoid = p->score,
                                     .renormalize = p->renormalize,
                                     .n_group = c->n_group,
                                     .topk_group = c->topk_group,
                                     .group_top = c->group_top,
                                     .routed_scale = (double)route_scale(c),
                                     .logits = d.logits,
                                     .bias = d.bias};
  return d;
}

static inline void route_dense_free(route_dense *d) { free(d->logits), free(d->bias); }

/* Whether float32 may take `got` for `expected`: p + bias of both differ, but by less than its rounding. */
static inline bool route_near(const route_dense *d, int64_t t, int64_t got, int64_t expected) {
  if (!d->bias || got < 0 || expected < 0) return false;
  double *p = route_doubles(d->in.experts);
  reference_moe_route_scores(&d->in, t, p);
  const double a = p[got] + d->bias[got], b = p[expected] + d->bias[expected];
  free(p);
  return a != b && fabs(a - b) <= 3e-7 * (1 + fabs(b));
}

static inline void route_check_ids(const route_dense *d, const int64_t *ids) {
  const int64_t choices = d->in.choices, routes = d->in.tokens * choices;
  int64_t *oracle = malloc(((size_t)routes + 1) * sizeof *oracle);
  reference_moe_route_select(&d->in, oracle);
  for (int64_t i = 0; i < routes; i++) {
    if (ids[i] != oracle[i] && !route_near(d, i / choices, ids[i], oracle[i]))
      fail_msg("topk_ids[%lld]: expected %lld, got %lld", (long long)i, (long long)oracle[i], (long long)ids[i]);
    for (int64_t j = i / choices * choices; j < i; j++)
      if (ids[i] >= 0 && ids[i] == ids[j])
        fail_msg("topk_ids[%lld]: expert %lld twice", (long long)i, (long long)ids[i]);
  }
  free(oracle);
}

static inline void route_check_forward(const route_problem *p, const route_dense *d, const int64_t *ids) {
  const route_case *c = &p->c;
  const int64_t routes = c->tokens * c->choices;
  int64_t *counts = malloc((size_t)c->experts * sizeof *counts), *got_counts = route_indices(&p->counts);
  double *weights = route_doubles(routes), *plain = route_doubles(routes), loss, plain_loss, z, plain_z;
  route_check_ids(d, ids);
  reference_moe_route_plain(&d->in, ids, plain, counts, &plain_loss, &plain_z);
  reference_moe_route(&d->in, ids, weights, counts, &loss, &z);
  for (int64_t e = 0; e < c->experts; e++)
    if (got_counts[e] != counts[e])
      fail_msg("counts[%lld]: expected %lld, got %lld", (long long)e, (long long)counts[e], (long long)got_counts[e]);
  const bool one_row = c->options & ROUTE_EXPAND; /* equal rows are no sample for gate 2 */
  test_gate("topk_weights", &p->weights, weights, one_row ? NULL : plain, 2e-6);
  test_gate("balance_loss", &p->loss, &loss, &plain_loss, 2e-6);
  if (p->z_loss.block) test_gate("z_loss", &p->z_loss, &z, &plain_z, 2e-6);
  free(counts), free(got_counts), free(weights), free(plain);
}

/* The fp32 sums over a row, at the size of the largest element. A row's gradients are a
 * few large ones beside many small ones, so the largest is measured and not assumed. */
static inline double route_bound(double largest) { return 2e-5 * fmax(1, largest); }

static inline void route_check_backward(const route_problem *p, const route_dense *d, const int64_t *ids) {
  const route_case *c = &p->c;
  const int64_t n = c->tokens * c->experts;
  double *d_weights = test_tensor_values(&p->d_weights), *oracle = route_doubles(n), *plain = route_doubles(n);
  const double d_loss = test_tensor_get(&p->d_loss, 0), d_z = p->d_z_loss.block ? test_tensor_get(&p->d_z_loss, 0) : 0;
  reference_moe_route_backward(&d->in, ids, d_weights, d_loss, d_z, oracle);
  reference_moe_route_backward_plain(&d->in, ids, d_weights, d_loss, d_z, (int)p->d_logits.kind, plain);
  double most = 0, sum = 0;
  for (int64_t i = 0; i < n; i++) {
    most = fmax(most, fabs(oracle[i]));
    sum += oracle[i] * oracle[i];
  }
  const double largest = sum > 0 ? most / sqrt(sum / (double)n) : 1;
  test_gate("d_logits", &p->d_logits, oracle, c->options & ROUTE_EXPAND ? NULL : plain, route_bound(largest));
  free(d_weights), free(oracle), free(plain);
}

/* A case forward and backward. */
static inline void route_check_case(const route_case *c, tigon_kind kind, int score, int renormalize, int threads,
                                    uint64_t seed) {
  route_problem p;
  route_make(&p, c, kind, score, renormalize, seed);
  route_dense d = route_dense_of(&p);
  const tigon_moe_route_args args = route_args(&p);
  route_run(&args, threads);
  int64_t *ids = route_indices(&p.ids);
  route_check_forward(&p, &d, ids);
  const tigon_moe_route_backward_args backward = route_backward_args(&p);
  route_run_backward(&backward, threads, NULL);
  route_check_backward(&p, &d, ids);
  test_count_case();
  free(ids);
  route_dense_free(&d);
  route_free(&p);
}

#endif
