/* The router against the oracle, forward and backward; and the oracle against differences of its own forward. */
#include "tests/moe/route_problem.h"

static const tigon_kind kinds[] = {TIGON_F32, TIGON_BF16, TIGON_F16};

static int64_t *indices_of(const test_tensor *t) {
  int64_t *values = malloc(((size_t)t->count + 1) * sizeof *values);
  assert_non_null(values);
  for (int64_t i = 0; i < t->count; i++) values[i] = (int64_t)test_tensor_get(t, i);
  return values;
}

static double *doubles(int64_t n) {
  double *values = calloc((size_t)n + 1, sizeof *values);
  assert_non_null(values);
  return values;
}

static void check_indices(const char *what, const int64_t *got, const int64_t *expected, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (got[i] != expected[i])
      fail_msg("%s[%lld]: expected %lld, got %lld", what, (long long)i, (long long)expected[i], (long long)got[i]);
}

static void check_forward(const route_problem *p, const double *logits, int64_t *ids) {
  const route_case *c = &p->c;
  const int64_t routes = c->tokens * c->choices;
  int64_t *oracle_ids = malloc(((size_t)routes + 1) * sizeof *oracle_ids);
  int64_t *counts = malloc((size_t)c->experts * sizeof *counts), *got_counts = indices_of(&p->counts);
  double *weights = doubles(routes), *plain = doubles(routes), loss, plain_loss;
  reference_moe_route_plain(c->tokens, c->choices, c->experts, p->score, p->renormalize, logits, oracle_ids, plain,
                            counts, &plain_loss);
  reference_moe_route(c->tokens, c->choices, c->experts, p->score, p->renormalize, logits, oracle_ids, weights, counts,
                      &loss);
  check_indices("topk_ids", ids, oracle_ids, routes);
  check_indices("counts", got_counts, counts, c->experts);
  const bool one_row = c->options & ROUTE_EXPAND; /* equal rows are no sample for gate 2 */
  test_gate("topk_weights", &p->weights, weights, one_row ? NULL : plain, 2e-6);
  test_gate("balance_loss", &p->loss, &loss, &plain_loss, 2e-6);
  free(oracle_ids), free(counts), free(got_counts), free(weights), free(plain);
}

/* One rounding to the stored dtype, of the largest element; in float32 the sums over a row instead. A row's gradients are a
 * few large ones beside many small ones, so the largest is measured and not assumed. */
static double bound_of(tigon_kind kind, double largest) {
  return 2e-5 * fmax(1, largest) + largest * (kind == TIGON_BF16 ? 0x1p-8 : kind == TIGON_F16 ? 0x1p-11 : 0);
}

static void check_backward(const route_problem *p, const double *logits, const int64_t *ids) {
  const route_case *c = &p->c;
  const int64_t n = c->tokens * c->experts;
  double *d_weights = test_tensor_values(&p->d_weights), *oracle = doubles(n), *plain = doubles(n);
  const double d_loss = test_tensor_get(&p->d_loss, 0);
  reference_moe_route_backward(c->tokens, c->choices, c->experts, p->score, p->renormalize, logits, ids, d_weights,
                               d_loss, oracle);
  reference_moe_route_backward_plain(c->tokens, c->choices, c->experts, p->score, p->renormalize, logits, ids,
                                     d_weights, d_loss, (int)p->d_logits.kind, plain);
  double most = 0, sum = 0;
  for (int64_t i = 0; i < n; i++) {
    most = fmax(most, fabs(oracle[i]));
    sum += oracle[i] * oracle[i];
  }
  const double largest = sum > 0 ? most / sqrt(sum / (double)n) : 1;
  test_gate("d_logits", &p->d_logits, oracle, c->options & ROUTE_EXPAND ? NULL : plain,
            bound_of(p->d_logits.kind, largest));
  free(d_weights), free(oracle), free(plain);
}

static void test_cases(void **state) {
  (void)state;
  for (int i = 0; i < ROUTE_CASES; i++)
    for (int kind = 0; kind < 3; kind++)
      for (int mode = 0; mode < 4; mode++) {
        route_problem p;
        route_make(&p, &route_cases[i], kinds[kind], mode / 2, mode % 2, 40 + (uint64_t)i);
        double *logits = test_tensor_values(&p.logits);
        const tigon_moe_route_args args = route_args(&p);
        route_run(&args, 2);
        int64_t *ids = indices_of(&p.ids);
        check_forward(&p, logits, ids);
        const tigon_moe_route_backward_args backward = route_backward_args(&p);
        route_run_backward(&backward, 2, NULL);
        check_backward(&p, logits, ids);
        test_count_case();
        free(logits), free(ids);
        route_free(&p);
      }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases)};
  return test_gate_report("moe_route", cmocka_run_group_tests(tests, NULL, NULL));
}
