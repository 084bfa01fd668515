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

static inline bool route_close(double a, double b) { return a == b || fabs(a - b) <= 3e-7 * (1 + fabs(b)); }

static inline int route_falling(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  if (isnan(x) || isnan(y)) return isnan(x) - isnan(y);
  return (x < y) - (x > y);
}

/* Whether float32 may choose other groups: the last one chosen and the first one left are close, and not all that are
 * close are equal. All ids must then come from groups at least as good. */
static inline bool route_groups_near(const route_dense *d, int64_t t, const int64_t *ids) {
  const int64_t groups = d->in.n_group, last = d->in.topk_group - 1, size = groups > 1 ? d->in.experts / groups : 1;
  if (groups < 2 || last + 1 == groups || (!d->bias && d->in.group_top < 2)) return false;
  double *score = route_doubles(2 * groups), *sorted = score + groups;
  reference_moe_route_groups(&d->in, t, score);
  memcpy(sorted, score, (size_t)groups * sizeof *sorted);
  qsort(sorted, (size_t)groups, sizeof *sorted, route_falling);
  const double least = sorted[last];
  bool near = false;
  for (int64_t g = 0; g < groups; g++) near = near || (score[g] != least && route_close(score[g], least));
  near = near && route_close(sorted[last + 1], least);
  for (int64_t j = 0; j < d->in.choices; j++)
    near = near && ids[j] >= 0 && (score[ids[j] / size] >= least || route_close(score[ids[j] / size], least));
  free(score);
  return near;
}

/* Of equal values in a group the lowest ids come first, each once. */
static inline void route_check_ties(const route_dense *d, const int64_t *ids, const double *values) {
  const int64_t size = d->in.n_group > 1 ? d->in.experts / d->in.n_group : d->in.experts;
  for (int64_t j = 0; j < d->in.choices && ids[j] >= 0; j++)
    for (int64_t e = ids[j] / size * size; e <= ids[j]; e++) {
      int64_t before = 0;
      for (int64_t i = 0; i < j; i++) before += ids[i] == e;
      if (values[e] == values[ids[j]] && before != (e < ids[j]))
        fail_msg("topk_ids: %lld is taken %lld times before its equal %lld", (long long)e, (long long)before,
                 (long long)ids[j]);
    }
}

/* With a bias, p + bias is rounded to float32, where close values may change places. */
static inline void route_check_ids(const route_dense *d, const int64_t *ids) {
  const int64_t choices = d->in.choices, experts = d->in.experts, routes = d->in.tokens * choices;
  int64_t *oracle = malloc(((size_t)routes + 1) * sizeof *oracle);
  double *values = route_doubles(experts);
  reference_moe_route_select(&d->in, oracle);
  for (int64_t t = 0; t < d->in.tokens; t++) {
    const int64_t *got = ids + t * choices, *expected = oracle + t * choices;
    if (d->bias)
      reference_moe_route_scores(&d->in, t, values);
    else
      memcpy(values, d->logits + t * experts, (size_t)experts * sizeof *values);
    route_check_ties(d, got, values);
    const bool groups_near = route_groups_near(d, t, got);
    for (int64_t j = 0; j < choices && !groups_near; j++) {
      if (got[j] == expected[j]) continue;
      const bool near = d->bias && got[j] >= 0 && expected[j] >= 0 && route_close(values[got[j]], values[expected[j]]);
      if (!near)
        fail_msg("topk_ids[%lld]: expected %lld, got %lld", (long long)(t * choices + j), (long long)expected[j],
                 (long long)got[j]);
    }
  }
  free(oracle), free(values);
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
  (p->small ? test_gate_pooled : test_gate)("topk_weights", &p->weights, weights, one_row ? NULL : plain, 2e-6);
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
  /* Saturated rows have a group of their own: what their plain composition loses would hide all else. */
  const char *name = c->values == LOGITS_LARGE ? "d_logits(large)" : "d_logits";
  const double *compared = c->options & ROUTE_EXPAND ? NULL : plain;
  if (p->small)
    test_gate_pooled(name, &p->d_logits, oracle, compared, route_bound(largest));
  else
    test_gate(name, &p->d_logits, oracle, compared, route_bound(largest));
  free(d_weights), free(oracle), free(plain);
}

static inline void route_check_problem(route_problem *p, int threads) {
  route_dense d = route_dense_of(p);
  const tigon_moe_route_args args = route_args(p);
  route_run(&args, threads);
  int64_t *ids = route_indices(&p->ids);
  route_check_forward(p, &d, ids);
  const tigon_moe_route_backward_args backward = route_backward_args(p);
  route_run_backward(&backward, threads, NULL);
  route_check_backward(p, &d, ids);
  test_count_case();
  free(ids);
  route_dense_free(&d);
}

#endif
