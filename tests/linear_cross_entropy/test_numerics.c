/* Logits at the edges: huge, far below zero, peaked, flat, masked with -inf; NaN rows; long sums. */
#include "tests/linear_cross_entropy/problem.h"

static void run_and_compare(lce_tensors *t, lce_gates gates) {
  lce_run(t, 2);
  lce_compare(t, gates);
  for (int64_t i = 0; i < t->c.tokens; i++) {
    assert_true(test_tensor_get(&t->nll, i) >= 0);
    assert_true(test_tensor_get(&t->entropy, i) >= 0);
  }
  test_count_case();
}

/* The second largest logit is rarely near the largest here, and then one token makes most of the error: no statistic
 * for gate 2. */
static void test_huge_logits(void **state) {
  (void)state;
  static const lce_case cases[] = {
      {"3e4", 65, 64, 1000, F32_BIAS, .scale = 3e4, .upstream = ALL},
      {"3e4, bfloat16", 65, 64, 1000, HALF(TIGON_BF16), BF16_BIAS, .scale = 3e4, .upstream = ALL},
      {"3e5", 65, 8, 320, .scale = 3e5, .upstream = ALL},
      {"1e6, bfloat16", 65, 64, 1000, HALF(TIGON_BF16), .scale = 1e6, .upstream = ALL},
      {"float16, 300 times 100", 65, 64, 1000, HALF(TIGON_F16), .scale = 300, .inverse_temperature = 100,
       .upstream = ALL},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    lce_tensors t;
    lce_make(&t, &cases[i], i);
    run_and_compare(&t, GATE_1);
    lce_free(&t);
  }
}

/* All logits lie about `level`, with unit spread. */
static void test_shifted_logits(void **state) {
  (void)state;
  static const double levels[] = {-200, 200, -1e4, 88, 3e4, -7e4};
  for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
    const lce_case c = {"shifted", 65, 64, 1000, F32_BIAS, .upstream = ALL};
    lce_tensors t;
    lce_make(&t, &c, i);
    for (int64_t v = 0; v < c.vocabulary; v++) test_tensor_set(&t.bias, v, levels[i] + test_tensor_get(&t.bias, v));
    t.magnitude = fabs(levels[i]);
    run_and_compare(&t, BOTH_GATES);
    lce_free(&t);
  }
}

/* Column 700 stands out by far: entropy and nll are tiny, and keep their digits. */
static void check_one_hot(const lce_tensors *t) {
  const lce_case *c = &t->c;
  for (int64_t k = 0; k < c->tokens; k++) {
    double z[1000], rest = 0, weighted = 0;
    for (int64_t v = 0; v < c->vocabulary; v++) {
      z[v] = test_tensor_get(&t->bias, v);
      for (int64_t j = 0; j < c->width; j++)
        z[v] += test_tensor_get(&t->x, k * c->width + j) * test_tensor_get(&t->weight, v * c->width + j);
    }
    for (int64_t v = 0; v < c->vocabulary; v++) {
      rest += v == 700 ? 0 : exp(z[v] - z[700]);
      weighted += exp(z[v] - z[700]) * (z[v] - z[700]);
    }
    const double entropy = log1p(rest) - weighted / (1 + rest), got = test_tensor_get(&t->entropy, k);
    if (!(got >= 0 && fabs(got - entropy) <= 1e-4 * entropy + 0x1p-126))
      fail_msg("entropy[%lld] is %g, expected %g", (long long)k, got, entropy);
    if (test_tensor_get(&t->target, k) != 700) continue;
    const double nll = test_tensor_get(&t->nll, k);
    assert_true(nll >= 0 && fabs(nll - log1p(rest)) <= 1e-4 * log1p(rest) + 0x1p-126);
  }
}

static void test_one_hot(void **state) {
  (void)state;
  static const double peaks[] = {10, 30, 60, 120, 1000};
  for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++) {
    const lce_case c = {"one-hot", 64, 8, 1000, F32_BIAS, .upstream = ALL};
    lce_tensors t;
    lce_make(&t, &c, i);
    test_tensor_set(&t.bias, 700, peaks[i]);
    for (int64_t k = 0; k < c.tokens; k += 2) test_tensor_set(&t.target, k, 700);
    lce_run(&t, 2);
    check_one_hot(&t);
    lce_free(&t);
    test_count_case();
  }
}

static void test_uniform(void **state) {
  (void)state;
  static const int64_t sizes[] = {1, 2, 7, 63, 64, 65, 320, 517, 1000, 32001};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    const lce_case c = {"uniform", 7, 8, sizes[i], F32_BIAS, .upstream = ALL};
    lce_tensors t;
    lce_make(&t, &c, i);
    test_tensor_fill_value(&t.weight, 0);
    test_tensor_fill_value(&t.bias, -3);
    lce_run(&t, 2);
    const double expected = log((double)c.vocabulary);
    for (int64_t k = 0; k < c.tokens; k++) {
      assert_true(fabs(test_tensor_get(&t.entropy, k) - expected) <= 1e-6 * expected);
      assert_true(fabs(test_tensor_get(&t.nll, k) - expected) <= 1e-6 * expected);
      assert_true(fabs(test_tensor_get(&t.lse, k) - (expected - 3)) <= 1e-6 * (expected + 3));
    }
    lce_free(&t);
    test_count_case();
  }
}

/* Equal rows of weight give equal logits: each of the n largest has p = 1 / n. The rounding of lse is the same in every
 * token here (the largest logit lies on lse's own grid), one event and no statistic, so gate 2 says nothing. */
static void test_duplicate_maxima(void **state) {
  (void)state;
  const lce_case c = {"duplicates", 65, 8, 1000, F32_BIAS, .upstream = ALL};
  lce_tensors t;
  lce_make(&t, &c, 5);
  for (int64_t v = 0; v < c.vocabulary; v += 100) {
    for (int64_t j = 0; j < c.width; j++) test_tensor_set(&t.weight, v * c.width + j, test_tensor_get(&t.weight, j));
    test_tensor_set(&t.bias, v, 40);
  }
  t.magnitude = 40;
  run_and_compare(&t, GATE_1);
  for (int64_t k = 0; k < c.tokens; k++) assert_true(fabs(test_tensor_get(&t.entropy, k) - log(10)) <= 1e-6);
  lce_free(&t);
}

/* Columns [begin, end) are masked by their bias: gradients there are finite, and 0. */
static void check_masked(int64_t begin, int64_t end, double mask, tigon_kind kind) {
  const lce_case c = {"masked", 65, 8, 2000, HALF(kind), .bias = kind, .upstream = ALL, .z_loss = 0.01f};
  lce_tensors t;
  lce_make(&t, &c, 9);
  for (int64_t v = begin; v < end; v++) test_tensor_set(&t.bias, v, mask);
  for (int64_t k = 0; k < c.tokens; k++) { /* targets stand on the columns left */
    const int64_t left = k % (c.vocabulary - (end - begin));
    test_tensor_set(&t.target, k, (double)(left < begin ? left : left + end - begin));
  }
  run_and_compare(&t, BOTH_GATES);
  for (int64_t v = begin; v < end; v++) {
    assert_true(test_tensor_get(&t.dbias, v) == 0);
    for (int64_t j = 0; j < c.width; j++) assert_true(test_tensor_get(&t.dweight, v * c.width + j) == 0);
  }
  lce_free(&t);
}

static void test_masked_columns(void **state) {
  (void)state;
  static const int64_t ranges[][2] = {{0, 1}, {0, 384}, {0, 1700}, {3, 1999}, {768, 1536}, {1900, 2000}, {500, 517}};
  for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
    check_masked(ranges[i][0], ranges[i][1], -INFINITY, TIGON_F32);
    check_masked(ranges[i][0], ranges[i][1], -1e4, TIGON_BF16);
    check_masked(ranges[i][0], ranges[i][1], -INFINITY, TIGON_BF16);
  }
}

/* A token without any column above -inf has no distribution; its neighbours do not notice. */
static void test_all_masked(void **state) {
  (void)state;
  const lce_case c = {"all masked", 9, 1, 1000, .upstream = LOSS};
  lce_tensors t;
  lce_make(&t, &c, 2);
  test_tensor_fill_value(&t.x, 1);
  test_tensor_fill_value(&t.weight, 3e38); /* x of -10 gives -inf everywhere */
  test_tensor_set(&t.x, 4, -10);
  lce_run_forward(&t, 2, NULL);
  for (int64_t k = 0; k < c.tokens; k++) {
    const test_tensor *const outputs[] = {&t.loss, &t.nll, &t.lse, &t.entropy};
    for (int i = 0; i < 4; i++) assert_true(isnan(test_tensor_get(outputs[i], k)) == (k == 4));
    if (k != 4) assert_true(fabs(test_tensor_get(&t.entropy, k) - log(1000)) <= 1e-5);
  }
  lce_free(&t);
  test_count_case();
}

/* p of the target near 1: its gradient p - 1 keeps its digits. */
static void test_confident_target(void **state) {
  (void)state;
  static const double gaps[] = {2, 8, 14, 20, 40};
  for (size_t i = 0; i < sizeof gaps / sizeof *gaps; i++) {
    const lce_case c = {"confident", 1, 1, 65, F32_BIAS, .upstream = LOSS};
    lce_tensors t;
    lce_make(&t, &c, i);
    test_tensor_fill_value(&t.weight, 0);
    test_tensor_fill_value(&t.bias, -gaps[i]);
    test_tensor_set(&t.bias, 17, 0);
    test_tensor_set(&t.target, 0, 17);
    test_tensor_set(&t.d_loss, 0, 1);
    lce_run(&t, 1);
    const double others = 64 * exp(-gaps[i]), expected = -others / (1 + others);
    assert_true(fabs(test_tensor_get(&t.dbias, 17) - expected) <= 1e-6 * fabs(expected));
    assert_true(fabs(test_tensor_get(&t.nll, 0) - log1p(others)) <= 1e-6 * log1p(others) + 1.2e-7);
    lce_free(&t);
    test_count_case();
  }
}

static double dweight_error(int64_t tokens) {
  const lce_case c = {"long", tokens, 8, 8, F32_BIAS, .upstream = LOSS};
  lce_tensors t;
  lce_make(&t, &c, 77);
  lce_run(&t, 2);
  lce_expected oracle = lce_expect(&t, false);
  double error = 0, square = 0;
  for (int64_t i = 0; i < t.dweight.count; i++) {
    error += pow(test_tensor_get(&t.dweight, i) - oracle.dweight[i], 2);
    square += oracle.dweight[i] * oracle.dweight[i];
  }
  for (int64_t i = 0; i < t.dbias.count; i++)
    assert_true(fabs(test_tensor_get(&t.dbias, i) - oracle.dbias[i]) <= 1e-6 * sqrt(square));
  lce_expected_free(&oracle);
  lce_free(&t);
  test_count_case();
  return sqrt(error / square);
}

static void test_long_sums(void **state) {
  (void)state;
  const double few = dweight_error(1024);
  for (int64_t tokens = 4096; tokens <= 131072; tokens *= 4) {
    const double error = dweight_error(tokens);
    print_message("  dweight error over %lld tokens: %.3g (1024: %.3g)\n", (long long)tokens, error, few);
    assert_true(error <= 2 * few + 1e-7 && error <= 1e-6);
  }
}

static void check_row_same(const test_tensor *a, const test_tensor *b, int64_t row, int64_t width) {
  for (int64_t j = row * width; j < (row + 1) * width; j++) {
    const double x = test_tensor_get(a, j), y = test_tensor_get(b, j);
    assert_memory_equal(&x, &y, sizeof x);
  }
}

/* A bad row changes no other row's results, and an ignored one's values are never looked at. */
static void test_bad_rows(void **state) {
  (void)state;
  static const double bad[] = {NAN, INFINITY, -INFINITY};
  for (int kind = 0; kind < 3; kind++) {
    const lce_case c = {"bad rows", 129, 65, 1000, HALF(TIGON_BF16), BF16_BIAS, .upstream = ALL};
    lce_tensors good, t;
    lce_make(&good, &c, 3);
    lce_make(&t, &c, 3);
    test_tensor_set(&good.target, 100, -100);
    test_tensor_set(&t.target, 100, -100);
    for (int64_t j = 0; j < c.width; j += 2) {
      test_tensor_set(&t.x, 40 * c.width + j, bad[kind]);
      test_tensor_set(&t.x, 100 * c.width + j, bad[kind]);
    }
    test_tensor_set(&t.d_loss, 50, NAN);
    test_tensor_set(&t.d_entropy, 100, NAN);
    lce_run(&good, 2);
    lce_run(&t, 2);
    for (int64_t k = 0; k < c.tokens; k++) {
      if (k == 40) {
        assert_true(isnan(test_tensor_get(&t.loss, k)) && isnan(test_tensor_get(&t.nll, k)));
        assert_true(isnan(test_tensor_get(&t.lse, k)) && isnan(test_tensor_get(&t.entropy, k)));
        continue;
      }
      check_row_same(&good.loss, &t.loss, k, 1);
      check_row_same(&good.nll, &t.nll, k, 1);
      check_row_same(&good.lse, &t.lse, k, 1);
      check_row_same(&good.entropy, &t.entropy, k, 1);
      if (k != 50) check_row_same(&good.dx, &t.dx, k, c.width);
    }
    for (int64_t j = 0; j < c.width; j++) {
      assert_true(isnan(test_tensor_get(&t.dx, 40 * c.width + j)));
      assert_true(isnan(test_tensor_get(&t.dx, 50 * c.width + j)));
      assert_true(test_tensor_get(&t.dx, 100 * c.width + j) == 0);
    }
    lce_free(&good);
    lce_free(&t);
    test_count_case();
  }
}

/* The values of left-out rows reach no gradient, and leaving rows out changes no other row's bits. */
static void test_left_out_rows(void **state) {
  (void)state;
  const lce_case c = {"left out", 129, 65, 1000, F32_BIAS, .upstream = ALL};
  lce_tensors all, t;
  lce_make(&all, &c, 8);
  lce_make(&t, &c, 8);
  for (int64_t k = 0; k < c.tokens; k++)
    if (k % 3 != 0) {
      test_tensor_set(&t.target, k, -100);
      for (int64_t j = 0; j < c.width; j++) test_tensor_set(&t.x, k * c.width + j, NAN);
      test_tensor_set(&t.d_loss, k, NAN);
    }
  lce_run(&all, 2);
  lce_run(&t, 2);
  for (int64_t k = 0; k < c.tokens; k += 3) {
    check_row_same(&all.loss, &t.loss, k, 1);
    check_row_same(&all.entropy, &t.entropy, k, 1);
    check_row_same(&all.dx, &t.dx, k, c.width);
  }
  for (int64_t i = 0; i < t.dweight.count; i++) assert_true(isfinite(test_tensor_get(&t.dweight, i)));
  for (int64_t i = 0; i < t.dbias.count; i++) assert_true(isfinite(test_tensor_get(&t.dbias, i)));
  lce_free(&all);
  lce_free(&t);
  test_count_case();
}

static void test_zero_upstream(void **state) {
  (void)state;
  const lce_case c = {"zero upstream", 65, 65, 1000, HALF(TIGON_BF16), BF16_BIAS, .upstream = ALL};
  for (int absent = 0; absent < 2; absent++) {
    lce_tensors t;
    lce_make(&t, &c, 6);
    test_tensor_fill_value(&t.d_loss, 0);
    test_tensor_fill_value(&t.d_lse, 0);
    test_tensor_fill_value(&t.d_entropy, 0);
    if (absent) t.backward.d_loss = t.backward.d_lse = t.backward.d_entropy = NULL;
    lce_run(&t, 2);
    const test_tensor *const outputs[] = {&t.dx, &t.dweight, &t.dbias};
    for (int k = 0; k < 3; k++)
      for (int64_t i = 0; i < outputs[k]->count; i++) assert_true(test_tensor_get(outputs[k], i) == 0);
    lce_free(&t);
    test_count_case();
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_huge_logits),      cmocka_unit_test(test_shifted_logits),
      cmocka_unit_test(test_one_hot),          cmocka_unit_test(test_uniform),
      cmocka_unit_test(test_duplicate_maxima), cmocka_unit_test(test_masked_columns),
      cmocka_unit_test(test_all_masked),       cmocka_unit_test(test_confident_target),
      cmocka_unit_test(test_long_sums),        cmocka_unit_test(test_bad_rows),
      cmocka_unit_test(test_left_out_rows),    cmocka_unit_test(test_zero_upstream),
  };
  return test_gate_report("linear_cross_entropy_edges", cmocka_run_group_tests(tests, NULL, NULL));
}
