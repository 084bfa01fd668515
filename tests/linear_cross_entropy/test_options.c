/* Softcap, smoothing, weights, argmax, padding, sums into gradients: random mixes against the oracle, and the edges of
 * each. */
#include "tests/linear_cross_entropy/problem.h"

static void test_random_options(void **state) {
  (void)state;
  test_rng rng = {600};
  for (int run = 0; run < 300; run++) {
    const lce_case c = lce_random_case(&rng);
    lce_tensors t;
    lce_describe(&c);
    lce_make(&t, &c, (uint64_t)run);
    lce_run(&t, run % 3 + 1);
    lce_compare(&t, lce_random_gates(&t));
    lce_free(&t);
    test_count_case();
  }
}

/* Real vocabularies and their neighbours; nll is never below 0. The large ones with TIGON_TEST_FULL=1. */
static void test_vocabularies(void **state) {
  (void)state;
  static const int64_t sizes[] = {32001, 50257, 151935, 151936, 151937, 262144};
  for (int i = 0; i < (getenv("TIGON_TEST_FULL") ? 6 : 1); i++) {
    const lce_case c = {"vocabulary",
                        33,
                        8,
                        sizes[i] + 47,
                        HALF(TIGON_BF16),
                        .upstream = ALL,
                        .padding = 47,
                        .label_smoothing = 0.1f,
                        .softcap = 30,
                        .class_weight = WITH_ZEROS};
    lce_tensors t;
    lce_make(&t, &c, (uint64_t)i);
    lce_run(&t, 2);
    lce_compare(&t, BOTH_GATES);
    for (int64_t k = 0; k < c.tokens; k++) assert_true(test_tensor_get(&t.nll, k) >= 0);
    lce_free(&t);
    test_count_case();
  }
}

/* --- softcap ---------------------------------------------------------------------------------------------------- */

/* Weight 0: the logits before the cap are the bias. */
static void set_logits(lce_tensors *t, const double *u, int64_t n) {
  for (int64_t i = 0; i < t->weight.count; i++) test_tensor_set(&t->weight, i, 0);
  for (int64_t v = 0; v < t->classes; v++) test_tensor_set(&t->bias, v, u[v % n]);
}

/* The rest of a tile beyond the last class must not come back as -cap: with all logits at -29 it would have a share. */
static void test_cap_near_tile_ends(void **state) {
  (void)state;
  static const int64_t sizes[] = {1, 15, 17, 63, 65, 320, 767, 769, 1025};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (int64_t padding = 0; padding < 34; padding += 33) {
      const lce_case c = {"-29",
                          7,
                          8,
                          sizes[i] + padding,
                          F32_BIAS,
                          .upstream = ALL,
                          .softcap = 30,
                          .padding = padding,
                          .label_smoothing = 0.1f};
      const double u = 30 * atanh(-29.0 / 30), expected = log((double)sizes[i]);
      lce_tensors t;
      lce_make(&t, &c, i);
      set_logits(&t, &u, 1);
      t.magnitude = 30;
      lce_run(&t, 2);
      lce_compare(&t, GATE_1);
      for (int64_t k = 0; k < c.tokens; k++) {
        assert_true(fabs(test_tensor_get(&t.nll, k) - expected) <= 1e-6 * expected);
        assert_true(fabs(test_tensor_get(&t.lse, k) - (expected - 29)) <= 1e-5);
      }
      lce_free(&t);
      test_count_case();
    }
}

/* Any u, infinite ones included, has a logit within the cap and a finite gradient. */
static void test_cap_extremes(void **state) {
  (void)state;
  static const double u[] = {0,   -0.0, 1e-38, -1e-20, 1e-3,  -0.54,    0.56,     3,
                             -40, 300,  -1e5,  3e38,   -3e38, INFINITY, -INFINITY};
  static const float caps[] = {1e-30f, 0.5f, 30, 1e4f, 1e38f};
  enum { N = sizeof u / sizeof *u };
  for (size_t i = 0; i < sizeof caps / sizeof *caps; i++) {
    const lce_case c = {"extremes", 15, 4, N, F32_BIAS, .upstream = ALL, .softcap = caps[i]};
    lce_tensors t;
    lce_make(&t, &c, i);
    set_logits(&t, u, N);
    for (int64_t k = 0; k < c.tokens; k++) test_tensor_set(&t.target, k, (double)(k % N));
    lce_run(&t, 1);
    t.magnitude = (double)fmaxf(caps[i], 1);
    lce_expected oracle = lce_expect(&t, false);
    lce_gate("lse", &t.lse, oracle.lse, NULL, lce_statistic_bound(&t, oracle.lse, NULL), GATE_1);
    for (int64_t k = 0; k < c.tokens; k++)
      for (int64_t v = 0; v < N; v++) {
        const double z = oracle.z[k * N + v];
        assert_true(fabs(z) <= (double)caps[i]);
        if (v == k) assert_true(fabs(test_tensor_get(&t.nll, k) - (oracle.lse[k] - z)) <= 1e-6 * t.magnitude);
      }
    for (int64_t v = 0; v < N; v++) assert_true(isfinite(test_tensor_get(&t.dbias, v)));
    lce_expected_free(&oracle);
    lce_free(&t);
    test_count_case();
  }
}

/* tanh and its derivative keep their digits over the whole range: one class of two, each u by itself. */
static void test_cap_accuracy(void **state) {
  (void)state;
  enum { N = 400 };
  const lce_case c = {"accuracy", 1, 1, N, F32_BIAS, .upstream = LSE, .softcap = 8};
  lce_tensors t;
  lce_make(&t, &c, 1);
  double u[N], sum = 0;
  for (int v = 0; v < N; v++) u[v] = (double)(float)((v % 2 ? -1 : 1) * 8 * pow(10, -6 + 7.5 * v / N));
  set_logits(&t, u, N);
  test_tensor_set(&t.target, 0, 0);
  test_tensor_set(&t.d_lse, 0, 1);
  lce_run(&t, 1);
  for (int v = 0; v < N; v++) sum += exp(8 * tanh(u[v] / 8));
  for (int v = 0; v < N; v++) {
    const double e = exp(-2 * fabs(u[v]) / 8), slope = 4 * e / ((1 + e) * (1 + e));
    const double expected = exp(8 * tanh(u[v] / 8)) / sum * slope, got = test_tensor_get(&t.dbias, v);
    if (!(fabs(got - expected) <= 4e-6 * expected + 0x1p-126)) fail_msg("u %g: %g, expected %g", u[v], got, expected);
  }
  lce_free(&t);
  test_count_case();
}

/* --- smoothing and weights -------------------------------------------------------------------------------------- */

/* A masked class makes the smoothed loss infinite, as in torch, and no gradient NaN; a class weight of 0 takes it
 * out. */
static void test_smoothing_with_mask(void **state) {
  (void)state;
  for (int weighted = 0; weighted < 2; weighted++) {
    const lce_case c = {"mask",
                        33,
                        8,
                        1100,
                        F32_BIAS,
                        .upstream = LOSS,
                        .label_smoothing = 0.1f,
                        .class_weight = weighted ? POSITIVE : NO_WEIGHTS};
    lce_tensors t;
    lce_make(&t, &c, 4);
    for (int64_t v = 900; v < 1100; v++) {
      test_tensor_set(&t.bias, v, -INFINITY);
      if (weighted) test_tensor_set(&t.class_weight, v, 0);
    }
    for (int64_t k = 0; k < c.tokens; k++) test_tensor_set(&t.target, k, (double)(k * 27));
    lce_run(&t, 2);
    for (int64_t k = 0; k < c.tokens; k++)
      assert_true(weighted ? isfinite(test_tensor_get(&t.loss, k)) : test_tensor_get(&t.loss, k) == INFINITY);
    lce_compare(&t, BOTH_GATES);
    for (int64_t i = 0; i < t.dbias.count; i++) assert_true(isfinite(test_tensor_get(&t.dbias, i)));
    lce_free(&t);
    test_count_case();
  }
}

/* A factor of 0 removes a term that is not finite: of the token, of the target's class, of the nll at smoothing 1. */
static void test_zero_factors(void **state) {
  (void)state;
  for (int which = 0; which < 3; which++) {
    const lce_case c = {"zeros",
                        9,
                        4,
                        40,
                        F32_BIAS,
                        .upstream = LOSS,
                        .class_weight = POSITIVE,
                        .token_weight = true,
                        .label_smoothing = which == 2 ? 1 : 0};
    lce_tensors t;
    lce_make(&t, &c, 4);
    test_tensor_set(&t.bias, 7, -INFINITY);
    for (int64_t k = 0; k < c.tokens; k++) test_tensor_set(&t.token_weight, k, which == 0 ? 0 : 2);
    if (which > 0) test_tensor_set(&t.class_weight, 7, 0);
    for (int64_t k = 0; k < c.tokens; k++) test_tensor_set(&t.target, k, 7);
    lce_run(&t, 2);
    for (int64_t k = 0; k < c.tokens; k++) {
      assert_true(test_tensor_get(&t.nll, k) == INFINITY);
      assert_true(which == 2 ? test_tensor_get(&t.loss, k) > 0 && isfinite(test_tensor_get(&t.loss, k))
                             : test_tensor_get(&t.loss, k) == 0);
    }
    lce_compare(&t, GATE_1);
    lce_free(&t);
    test_count_case();
  }
}

/* p of the target near 1: what is left of its gradient is the smoothing's, and exact. */
static void test_confident_smoothing(void **state) {
  (void)state;
  static const double gaps[] = {8, 14, 20, 40};
  static const double alphas[] = {0, 1e-6, 0.1, 1};
  for (int i = 0; i < 16; i++) {
    const double gap = gaps[i % 4], a = (double)(float)alphas[i / 4];
    const lce_case c = {"confident", 1, 1, 65, F32_BIAS, .upstream = LOSS, .label_smoothing = (float)a};
    lce_tensors t;
    lce_make(&t, &c, 1);
    test_tensor_fill_value(&t.weight, 0);
    test_tensor_fill_value(&t.bias, -gap);
    test_tensor_set(&t.bias, 17, 0);
    test_tensor_set(&t.target, 0, 17);
    test_tensor_set(&t.d_loss, 0, 1);
    lce_run(&t, 1);
    const double others = 64 * exp(-gap), rest = others / (1 + others), p = 1 / (1 + others);
    const double expected = -(1 - a) * rest + a * (p - 1.0 / 65), got = test_tensor_get(&t.dbias, 17);
    assert_true(fabs(got - expected) <= 1e-6 * ((1 - a) * rest + a));
    const double loss = log1p(others) + a * 64.0 / 65 * gap;
    assert_true(fabs(test_tensor_get(&t.loss, 0) - loss) <= 1e-6 * loss + 1.2e-7);
    lce_free(&t);
    test_count_case();
  }
}

/* Large logits of nearly the same size: the smoothing term is relative to the largest and does not cancel. */
static void test_smoothing_of_shifted_logits(void **state) {
  (void)state;
  static const double levels[] = {-200, 3e3, -1e4};
  for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
    const lce_case c = {
        "shifted", 65, 8, 1000, F32_BIAS, .upstream = ALL, .label_smoothing = 0.5f, .class_weight = POSITIVE};
    lce_tensors t;
    lce_make(&t, &c, i);
    for (int64_t v = 0; v < c.vocabulary; v++) test_tensor_set(&t.bias, v, levels[i] + test_tensor_get(&t.bias, v));
    t.magnitude = fabs(levels[i]);
    lce_run(&t, 2);
    lce_compare(&t, BOTH_GATES);
    lce_free(&t);
    test_count_case();
  }
}

/* --- argmax ----------------------------------------------------------------------------------------------------- */

static void check_argmax(int64_t classes, const int64_t *at, int count, double value, double elsewhere,
                         int64_t expected, tigon_kind kind) {
  const lce_case c = {"argmax", 3, 2, classes, F32_BIAS, .upstream = LOSS, .argmax = kind};
  lce_tensors t;
  lce_make(&t, &c, 1);
  set_logits(&t, &elsewhere, 1);
  for (int i = 0; i < count; i++) test_tensor_set(&t.bias, at[i], value);
  test_tensor_set(&t.target, 0, (double)(expected < 0 ? 0 : expected));
  test_tensor_set(&t.target, 1, (double)(expected == 0));
  test_tensor_set(&t.target, 2, -100);
  lce_run_forward(&t, 2, NULL);
  for (int64_t k = 0; k < 3; k++) {
    const double got = test_tensor_get(&t.argmax, k);
    if (got != (double)(k == 2 ? -1 : expected))
      fail_msg("%g among %g: argmax %g, expected %lld", value, elsewhere, got, (long long)expected);
    assert_true(test_tensor_get(&t.correct, k) == (k == 0 && expected >= 0));
  }
  lce_free(&t);
  test_count_case();
}

static void test_argmax(void **state) {
  (void)state;
  static const int64_t ties[] = {3999, 2048, 1025, 1023, 770}, first[] = {0}, last[] = {3999}, some[] = {1500, 17};
  for (int i = 0; i < 2; i++) {
    const tigon_kind kind = i ? TIGON_I32 : TIGON_I64;
    check_argmax(4000, ties, 5, 2, -1, 770, kind); /* the lowest of equals, across vectors, tiles and splits */
    check_argmax(4000, ties, 4, 2, -1, 1023, kind);
    check_argmax(4000, ties, 2, 2, -1, 2048, kind);
    check_argmax(4000, first, 1, 2, 2, 0, kind);
    check_argmax(4000, last, 1, 3, 2, 3999, kind);
    check_argmax(4000, some, 2, 0.0, -0.0, 0, kind); /* 0 and -0 are equal */
    check_argmax(4000, some, 2, NAN, -5, 0, kind);   /* NaN never wins */
    check_argmax(4000, first, 1, NAN, -5, 1, kind);
    check_argmax(4000, some, 2, NAN, NAN, -1, kind);
    check_argmax(4000, some, 2, INFINITY, 1, 17, kind);
    check_argmax(4000, some, 2, -1e30, -INFINITY, 17, kind);
    check_argmax(4000, some, 2, -INFINITY, -INFINITY, -1, kind); /* no column above -inf */
    check_argmax(2, first, 1, -7, -8, 0, kind);
  }
}

/* --- sums into gradients, and work that is left out --------------------------------------------------------------- */

static void test_accumulate_twice(void **state) {
  (void)state;
  const lce_case c = {"twice",       65, 16, 900, HALF(TIGON_BF16), BF16_BIAS, .upstream = ALL, .accumulate = true,
                      .padding = 100};
  lce_tensors twice, once;
  lce_make(&twice, &c, 3);
  lce_make(&once, &c, 3);
  test_tensor_fill_value(&twice.dweight, 0);
  test_tensor_fill_value(&twice.dbias, 0);
  lce_run(&twice, 2);
  lce_run_backward(&twice, 2, NULL);
  once.backward.accumulate_weight_gradients = 0; /* float32 gradients, written over */
  lce_run(&once, 2);
  for (int64_t i = 0; i < twice.dweight.count; i++)
    assert_true(test_tensor_get(&twice.dweight, i) == 2 * test_tensor_get(&once.dweight, i));
  for (int64_t i = 0; i < twice.dbias.count; i++)
    assert_true(test_tensor_get(&twice.dbias, i) == 2 * test_tensor_get(&once.dbias, i));
  test_tensor_check_same("dx", &twice.dx, &once.dx);
  lce_free(&twice);
  lce_free(&once);
  test_count_case();
}

/* Without width and bias all logits are 0: answered at once, for any number of classes. */
static void test_no_width(void **state) {
  (void)state;
  static const int64_t sizes[] = {1, 5, 50257, INT32_MAX, (int64_t)1 << 50};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    enum { T = 3 };
    const int64_t target[T] = {0, -100, sizes[i] - 1};
    int64_t argmax[T];
    float out[5][T], d_loss[T] = {1, 1, 1};
    tigon_tensor t[10];
    tigon_linear_cross_entropy_args args = {.size = sizeof args, .label_smoothing = 0.25f};
    args.x = tigon_tensor_2d(&t[0], NULL, tigon_f32(), T, 0);
    args.weight = tigon_tensor_2d(&t[1], NULL, tigon_bf16(), sizes[i], 0);
    args.target = tigon_tensor_1d(&t[2], (void *)(uintptr_t)target, tigon_i64(), T);
    args.loss = tigon_tensor_1d(&t[3], out[0], tigon_f32(), T);
    args.lse = tigon_tensor_1d(&t[4], out[1], tigon_f32(), T);
    args.entropy = tigon_tensor_1d(&t[5], out[2], tigon_f32(), T);
    args.correct = sizes[i] > INT32_MAX ? NULL : tigon_tensor_1d(&t[6], out[3], tigon_f32(), T);
    args.argmax = sizes[i] > INT32_MAX ? NULL : tigon_tensor_1d(&t[7], argmax, tigon_i64(), T);
    tigon_exec exec = {.size = sizeof exec, .num_threads = 1};
    test_expect_status(tigon_linear_cross_entropy_workspace(&exec, &args, &exec.workspace_bytes), TIGON_OK, NULL);
    test_workspace w;
    test_workspace_make(&w, exec.workspace_bytes, 1);
    test_expect_status(tigon_linear_cross_entropy(&w.exec, &args), TIGON_OK, NULL);
    test_workspace_free(&w);
    const float expected = (float)log((double)(float)sizes[i]);
    for (int k = 0; k < 3; k++) assert_true(out[k][0] == expected && out[k][1] == 0 && out[k][2] == expected);
    if (args.argmax) assert_true(argmax[0] == 0 && argmax[1] == -1 && out[3][0] == 1 && out[3][2] == (sizes[i] == 1));
    tigon_linear_cross_entropy_backward_args back = {
        .size = sizeof back, .x = args.x, .weight = args.weight, .target = args.target, .lse = args.lse};
    back.d_loss = tigon_tensor_1d(&t[8], d_loss, tigon_f32(), T);
    back.dx = tigon_tensor_2d(&t[9], NULL, tigon_f32(), T, 0);
    test_expect_status(tigon_linear_cross_entropy_backward_workspace(&exec, &back, &exec.workspace_bytes), TIGON_OK,
                       NULL);
    test_workspace_make(&w, exec.workspace_bytes, 1);
    test_expect_status(tigon_linear_cross_entropy_backward(&w.exec, &back), TIGON_OK, NULL);
    test_workspace_free(&w);
    test_count_case();
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_options),
      cmocka_unit_test(test_vocabularies),
      cmocka_unit_test(test_cap_near_tile_ends),
      cmocka_unit_test(test_cap_extremes),
      cmocka_unit_test(test_cap_accuracy),
      cmocka_unit_test(test_smoothing_with_mask),
      cmocka_unit_test(test_zero_factors),
      cmocka_unit_test(test_confident_smoothing),
      cmocka_unit_test(test_smoothing_of_shifted_logits),
      cmocka_unit_test(test_argmax),
      cmocka_unit_test(test_accumulate_twice),
      cmocka_unit_test(test_no_width),
  };
  return test_gate_report("linear_cross_entropy_options", cmocka_run_group_tests(tests, NULL, NULL));
}
