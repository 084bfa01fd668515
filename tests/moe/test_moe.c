/* The expert MLP against the oracle, forward and backward, over the case table; and the oracle against itself. */
#include "tests/moe/check.h"

static const tigon_kind x_kinds[] = {TIGON_F32, TIGON_BF16, TIGON_F16};

static void test_cases(void **state) {
  (void)state;
  for (int i = 0; i < MOE_CASES; i++)
    for (int kind = 0; kind < 3; kind++)
      for (int with_saved = 0; with_saved < 2; with_saved++)
        moe_check_case(&moe_cases[i], x_kinds[kind], with_saved, 2, 100 + (uint64_t)i);
}

/* --- the oracle's gradients against differences of its own forward
 * ---------------------------------------------------- */

static double loss_of(const reference_moe_input *in, const double *dout, double *out) {
  reference_moe(in, out);
  double loss = 0;
  for (int64_t i = 0; i < in->tokens * in->width; i++) loss += out[i] * dout[i];
  return loss;
}

static void check_differences(const moe_case *c, uint64_t seed) {
  moe_problem p;
  moe_make(&p, c, TIGON_F32, false, seed);
  moe_dense d = moe_dense_of(&p);
  const reference_moe_input in = moe_reference_input(&p, &d);
  double *g[MOE_GRADIENTS], *out = moe_doubles(p.out.count);
  moe_make_gradients(&p, g);
  const reference_moe_gradients to = moe_reference_gradients(g);
  reference_moe_backward(&in, d.dout, 0, &to);
  double *const values[MOE_GRADIENTS] = {d.x, d.weights, d.gate, d.up, d.down};
  const int64_t counts[MOE_GRADIENTS] = {p.x.count, p.weights.count, p.gate.count, p.up.count, p.down.count};
  for (int which = 0; which < MOE_GRADIENTS; which++)
    for (int64_t i = 0; i < counts[which]; i++) {
      const double kept = values[which][i], h = 1e-5;
      values[which][i] = kept + h;
      const double above = loss_of(&in, d.dout, out);
      values[which][i] = kept - h;
      const double below = loss_of(&in, d.dout, out);
      values[which][i] = kept;
      const double difference = (above - below) / (2 * h);
      if (!(fabs(difference - g[which][i]) <= 1e-8 * (1 + fabs(g[which][i]))))
        fail_msg("%s[%lld]: gradient %.12g, difference %.12g", moe_gradient_names[which], (long long)i, g[which][i],
                 difference);
    }
  moe_free_gradients(g);
  free(out);
  moe_dense_free(&d);
  moe_free(&p);
}

static void test_oracle_differences(void **state) {
  (void)state;
  static const unsigned options[] = {0, MOE_ON_INPUT, MOE_LIMITED, MOE_ON_INPUT | MOE_LIMITED};
  for (int i = 0; i < 4; i++) {
    check_differences(&(moe_case){5, 2, 7, 8, 3, ROUTE_RANDOM, options[i]}, 7);
    check_differences(&(moe_case){6, 3, 4, 5, 4, ROUTE_INVALID, options[i]}, 8);
    check_differences(&(moe_case){4, 3, 5, 3, 2, ROUTE_DUPLICATES, options[i]}, 9);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_oracle_differences), cmocka_unit_test(test_cases)};
  return test_gate_report("moe", cmocka_run_group_tests(tests, NULL, NULL));
}
