/*
 * Many logits: products of sizes are formed in 64 bits, and the last token and class are as right as the first. A small
 * shape by default; TIGON_TEST_FULL=1 takes 16400 tokens and 131072 classes, more than 2^31 logits.
 */
#include "tests/linear_cross_entropy/problem.h"

/* The oracle of one token: its statistics, and its dx for d_loss = g. */
static void check_token(const lce_tensors *t, int64_t token, double g) {
  const lce_case *c = &t->c;
  double loss, lse, entropy, dx[8], x[8];
  int64_t argmax;
  assert_true(c->width <= 8);
  reference_lce_problem p = lce_problem(t);
  const int64_t target = p.target[token];
  for (int64_t j = 0; j < c->width; j++) x[j] = p.x[token * c->width + j];
  reference_lce_problem one = p;
  one.tokens = 1;
  one.x = x;
  one.target = &target;
  double *dweight = lce_room(c->vocabulary * c->width), *dbias = lce_room(c->vocabulary);
  const reference_lce_outputs outputs = {.loss = &loss, .lse = &lse, .entropy = &entropy, .argmax = &argmax};
  const reference_lce_gradients gradients = {.d_loss = &g, .dx = dx, .dweight = dweight, .dbias = dbias};
  reference_linear_cross_entropy(&one, &outputs);
  reference_linear_cross_entropy_backward(&one, &gradients);
  assert_true(fabs(test_tensor_get(&t->loss, token) - loss) <= 1e-6 * loss);
  assert_true(fabs(test_tensor_get(&t->lse, token) - lse) <= 1e-6 * lse);
  assert_true(fabs(test_tensor_get(&t->entropy, token) - entropy) <= 2e-6 * entropy);
  assert_true(test_tensor_get(&t->argmax, token) == (double)argmax);
  double peak = 0;
  for (int64_t j = 0; j < c->width; j++) peak = fmax(peak, fabs(dx[j]));
  for (int64_t j = 0; j < c->width; j++)
    assert_true(fabs(test_tensor_get(&t->dx, token * c->width + j) - dx[j]) <= 1e-5 * peak);
  free(dweight);
  free(dbias);
  lce_problem_free(&p);
}

static void test_many_logits(void **state) {
  (void)state;
  const bool full = getenv("TIGON_TEST_FULL") != NULL;
  const lce_case c = {"many logits", full ? 16400 : 300, 2, full ? 131072 : 5000, F32_BIAS, .upstream = LOSS};
  lce_tensors t;
  lce_make(&t, &c, 12);
  lce_run(&t, 2);
  check_token(&t, 0, test_tensor_get(&t.d_loss, 0));
  check_token(&t, c.tokens / 2, test_tensor_get(&t.d_loss, c.tokens / 2));
  check_token(&t, c.tokens - 1, test_tensor_get(&t.d_loss, c.tokens - 1));

  /* dbias of the first and the last class, from the tokens' lse */
  for (int64_t v = 0; v < c.vocabulary; v += c.vocabulary - 1) {
    double sum = 0, size = 0;
    for (int64_t k = 0; k < c.tokens; k++) {
      double z = test_tensor_get(&t.bias, v);
      for (int64_t j = 0; j < c.width; j++)
        z += test_tensor_get(&t.x, k * c.width + j) * test_tensor_get(&t.weight, v * c.width + j);
      const double hit = test_tensor_get(&t.target, k) == (double)v;
      const double dz = test_tensor_get(&t.d_loss, k) * (exp(z - test_tensor_get(&t.lse, k)) - hit);
      sum += dz;
      size += fabs(dz);
    }
    assert_true(fabs(test_tensor_get(&t.dbias, v) - sum) <= 2e-6 * size);
  }
  print_message("  %lld logits\n", (long long)(c.tokens * c.vocabulary));
  lce_free(&t);
  test_count_case();
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_many_logits)};
  return test_gate_report("linear_cross_entropy_large", cmocka_run_group_tests(tests, NULL, NULL));
}
