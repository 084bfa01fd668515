/* Faults that users of other RMSNorm kernels reported (reference: rms_norm.md), and the sizes that they ran. */
#include <pthread.h>

#include "tests/rms_norm/problem.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static tigon_status backward(const tigon_rms_norm_backward_args *args, int threads) {
  uint64_t bytes;
  test_expect_status(tigon_rms_norm_backward_workspace(NULL, args, &bytes), TIGON_OK, NULL);
  test_workspace w;
  test_workspace_make(&w, bytes, threads);
  const tigon_status status = tigon_rms_norm_backward(&w.exec, args);
  test_workspace_free(&w);
  return status;
}

/* offset + weight in fp32: a weight of 2^-9 in bfloat16 beside an offset of 1 is not lost. */
static void test_small_weights_beside_the_offset(void **state) {
  (void)state;
  rms_options options = {.weight = true, .casting = TIGON_CASTING_GEMMA, .offset = 1, .rstd = true, .scale = 1};
  rms_kinds kinds = rms_uniform(TIGON_BF16, TIGON_BF16);
  kinds.out = TIGON_F32;
  problem p;
  problem_make(&p, (rms_shape){3, 0, 130}, options, kinds, 4);
  test_tensor_fill_value(&p.t[WEIGHT], 0x1p-9);
  problem_forward(&p, 1);
  for (int64_t i = 0; i < p.t[OUT].count; i++) {
    const float xhat = (float)test_tensor_get(&p.t[X], i) * (float)test_tensor_get(&p.t[RSTD], i / 130);
    assert_true((float)test_tensor_get(&p.t[OUT], i) == xhat * (1.0f + 0x1p-9f));
  }
  problem_free(&p);
}

static double relative_error(const double *got, const double *expected, int64_t n) {
  double error = 0, size = 0;
  for (int64_t i = 0; i < n; i++) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  return sqrt(error / size);
}

/* Error of d_weight for bfloat16 tensors, summed over `rows` rows into float32. */
static double d_weight_error(int64_t rows) {
  problem p;
  const rms_options options = {
      .weight = true, .casting = TIGON_CASTING_GEMMA, .rstd = true, .d_weight = true, .scale = 1};
  problem_make(&p, (rms_shape){rows, 0, 8}, options, rms_uniform(TIGON_BF16, TIGON_F32), 6);
  double *x = problem_values(&p, X), *dy = problem_values(&p, DY), *weight = problem_values(&p, WEIGHT);
  double *ds = problem_zeros(rows * 8), d_weight[8];
  problem_forward(&p, 2);
  problem_backward(&p, 2);
  reference_rms_norm_backward(rows, 8, dy, NULL, x, weight, problem_eps(&p), 0, ds, d_weight);
  double *got = problem_values(&p, D_WEIGHT);
  const double error = relative_error(got, d_weight, 8);
  double *all[] = {x, dy, weight, ds, got};
  for (int i = 0; i < COUNT(all); i++) free(all[i]);
  problem_free(&p);
  return error;
}

/* Sums in 16 bits lose a digit with every doubling of the rows; fp32 sums hardly do. */
static void test_d_weight_error_stays_flat(void **state) {
  (void)state;
  const int64_t most = getenv("TIGON_TEST_REDUCED") ? 8192 : 131072;
  for (int64_t rows = 1024; rows <= most; rows *= 8) {
    const double error = d_weight_error(rows);
    if (!(error < 4e-6)) fail_msg("%lld rows: relative error %.3g", (long long)rows, error);
  }
}

/* Two backward calls without accumulation give one gradient; each with accumulation adds it once. */
static void test_backward_twice(void **state) {
  (void)state;
  problem p;
  rms_options options = rms_option_sets[0];
  problem_make(&p, (rms_shape){40, 0, 64}, options, rms_plain_mix(0), 8);
  problem_forward(&p, 1);
  tigon_rms_norm_backward_args args = problem_backward_args(&p);
  double *values[4];
  for (int i = 0; i < 4; i++) {
    args.accumulate_d_weight = i >= 2;
    test_expect_status(backward(&args, 2), TIGON_OK, NULL);
    values[i] = problem_values(&p, D_WEIGHT);
  }
  for (int64_t i = 0; i < 64; i++) {
    assert_true(values[1][i] == values[0][i]);
    assert_true(values[2][i] == (double)(float)(2 * values[0][i]));
    assert_true(fabs(values[3][i] - 3 * values[0][i]) <= 0x1p-22 * fabs(values[0][i]));
  }
  for (int i = 0; i < 4; i++) free(values[i]);
  problem_free(&p);
}

/* Neither upstream gradient: all gradients are 0, and an accumulated one stays. */
static void test_no_upstream_gradient(void **state) {
  (void)state;
  rms_options options = rms_option_sets[2];
  options.no_dy = options.no_d_sum = true;
  for (int accumulate = 0; accumulate < 2; accumulate++) {
    problem p;
    options.accumulate = accumulate;
    problem_make(&p, (rms_shape){9, 0, 50}, options, rms_plain_mix(0), 8);
    double *before = problem_values(&p, D_WEIGHT);
    problem_forward(&p, 1);
    problem_backward(&p, 2);
    for (int64_t i = 0; i < p.t[DX].count; i++) assert_true(test_tensor_get(&p.t[DX], i) == 0);
    for (int64_t i = 0; i < p.t[DX].count; i++) assert_true(test_tensor_get(&p.t[D_RESIDUAL], i) == 0);
    for (int64_t i = 0; i < 50; i++) assert_true(test_tensor_get(&p.t[D_WEIGHT], i) == (accumulate ? before[i] : 0));
    free(before);
    problem_free(&p);
  }
}

/* eps from below the smallest squares to where it rules. */
static void test_eps_of_any_size(void **state) {
  (void)state;
  const float eps[] = {1e-12f, 1e-8f, 1e-5f, 1e-3f, 10};
  for (int e = 0; e < COUNT(eps); e++)
    for (int s = 0; s < 2; s++) {
      problem p;
      const rms_options options = {.rstd = true, .eps = eps[e], .scale = s ? 1 : 1e-5};
      problem_make(&p, (rms_shape){6, 0, 300}, options, rms_plain_mix(0), 2);
      double *x = problem_values(&p, X), *rstd = problem_zeros(6);
      problem_forward(&p, 1);
      reference_rms_norm(6, 300, x, NULL, NULL, (double)eps[e], 0, NULL, NULL, rstd);
      for (int64_t r = 0; r < 6; r++) assert_true(fabs(test_tensor_get(&p.t[RSTD], r) / rstd[r] - 1) < 0x1p-22);
      free(x), free(rstd);
      problem_free(&p);
    }
}

/* Widths and row counts at which tiles of other kernels end. */
static void test_widths_of_models(void **state) {
  (void)state;
  const int64_t widths[] = {41, 123, 1023, 2048, 2050, 5120, 7168, 8192, 12288, 16384, 65536};
  const int64_t counts[] = {1, 3, 131, 132, 133};
  for (int w = 0; w < COUNT(widths); w++)
    for (int c = 0; c < COUNT(counts); c++) {
      if (widths[w] * counts[c] > 700000 || (getenv("TIGON_TEST_REDUCED") && c != w % COUNT(counts))) continue;
      problem p;
      problem_make(&p, (rms_shape){counts[c], 0, widths[w]}, rms_option_sets[w % 2], rms_plain_mix(c % 3), 5);
      double *x = problem_values(&p, X), *rstd = problem_zeros(p.rows);
      problem_forward(&p, 3);
      problem_backward(&p, 3);
      reference_rms_norm(p.rows, widths[w], x, NULL, NULL, problem_eps(&p), 0, NULL, NULL, rstd);
      for (int64_t r = 0; r < p.rows; r++) assert_true(fabs(test_tensor_get(&p.t[RSTD], r) / rstd[r] - 1) < 0x1p-21);
      assert_true(isfinite(test_tensor_get(&p.t[DX], p.t[DX].count - 1)));
      free(x), free(rstd);
      problem_free(&p);
      test_count_case();
    }
}

typedef struct caller {
  problem p;
  int rounds;
} caller;

static void *call_again_and_again(void *context) {
  caller *c = context;
  for (int i = 0; i < c->rounds; i++) {
    const tigon_rms_norm_args forward = problem_forward_args(&c->p);
    const tigon_rms_norm_backward_args args = problem_backward_args(&c->p);
    char scratch[1 << 15] __attribute__((aligned(64)));
    tigon_exec exec = {.size = sizeof exec, .num_threads = 2, .workspace = scratch, .workspace_bytes = sizeof scratch};
    if (tigon_rms_norm(&exec, &forward) != TIGON_OK || tigon_rms_norm_backward(&exec, &args) != TIGON_OK) return c;
  }
  return NULL;
}

/* Calls of one shape at the same time, each with its own workspace: no buffer is shared behind their backs. */
static void test_concurrent_calls(void **state) {
  (void)state;
  enum { CALLERS = 4 };
  caller callers[CALLERS + 1];
  pthread_t threads[CALLERS];
  for (int i = 0; i <= CALLERS; i++) {
    problem_make(&callers[i].p, (rms_shape){67, 0, 120}, rms_option_sets[2], rms_plain_mix(1), 3);
    callers[i].rounds = i == CALLERS ? 1 : 300;
  }
  for (int i = 0; i < CALLERS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, call_again_and_again, &callers[i]), 0);
  for (int i = 0; i < CALLERS; i++) {
    void *failed = NULL;
    assert_int_equal(pthread_join(threads[i], &failed), 0);
    assert_null(failed);
  }
  assert_null(call_again_and_again(&callers[CALLERS]));
  for (int i = 0; i < CALLERS; i++) {
    for (int t = 0; t < TENSORS; t++)
      if (callers[i].p.present[t]) test_tensor_check_same("rms_norm", &callers[i].p.t[t], &callers[CALLERS].p.t[t]);
    problem_free(&callers[i].p);
  }
  problem_free(&callers[CALLERS].p);
}

/* Errors of a query carry the operation's own name. */
static void test_queries_name_the_operation(void **state) {
  (void)state;
  uint64_t bytes;
  test_expect_status(tigon_rms_norm_workspace(NULL, NULL, &bytes), TIGON_INVALID_ARGUMENT, "tigon_rms_norm: args");
  test_expect_status(tigon_rms_norm_backward_workspace(NULL, NULL, &bytes), TIGON_INVALID_ARGUMENT,
                     "tigon_rms_norm_backward: args");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_small_weights_beside_the_offset),
      cmocka_unit_test(test_d_weight_error_stays_flat),
      cmocka_unit_test(test_backward_twice),
      cmocka_unit_test(test_no_upstream_gradient),
      cmocka_unit_test(test_eps_of_any_size),
      cmocka_unit_test(test_widths_of_models),
      cmocka_unit_test(test_concurrent_calls),
      cmocka_unit_test(test_queries_name_the_operation),
  };
  return test_gate_report("rms_norm", cmocka_run_group_tests(tests, NULL, NULL));
}
