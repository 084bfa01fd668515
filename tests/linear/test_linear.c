/* tigon_linear forward and backward against the float64 oracle, and what it promises beyond values. */
#include "tests/linear/problem.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* Gate 1, beyond the rounding to storage: half of such a rounding at the size of the rms; an fp32 sum of `terms`
 * gathers roundings like a random walk. */
static double bound_of(tigon_kind kind, int64_t terms) {
  const double rounding = kind == TIGON_BF16 ? 0x1p-9 : kind == TIGON_F16 ? 0x1p-12 : 32 * 0x1p-24;
  return rounding + 0x1p-24 * sqrt((double)terms);
}

static double *zeros(int64_t n) {
  double *values = calloc((size_t)n + 1, sizeof *values);
  assert_non_null(values);
  return values;
}

static void free_all(double **values, int count) {
  for (int i = 0; i < count; i++) free(values[i]);
}

static void check_forward(problem *p) {
  const linear_shape s = p->shape;
  double *x = problem_values(p, X), *weight = problem_values(p, WEIGHT), *bias = problem_values(p, BIAS);
  double *y = zeros(s.tokens * s.n), *plain = zeros(s.tokens * s.n);
  reference_linear(s.tokens, s.n, s.d, x, weight, bias, y);
  plain_linear(s.tokens, s.n, s.d, x, weight, bias, (int)p->t[Y].kind, plain);
  test_gate("y", &p->t[Y], y, plain, bound_of(p->t[Y].kind, s.d));
  free_all((double *[]){x, weight, bias, y, plain}, 5);
}

typedef struct gradient {
  int which;
  const char *name;
  int64_t terms;
  double *before, *oracle, *plain;
} gradient;

static void check_gradient(const problem *p, gradient *g) {
  for (int64_t i = 0; g->before && i < p->t[g->which].count; i++) g->oracle[i] += g->before[i];
  if (p->present[g->which])
    test_gate(g->name, &p->t[g->which], g->oracle, g->plain, bound_of(p->t[g->which].kind, g->terms));
  free_all((double *[]){g->before, g->oracle, g->plain}, 3);
}

static void start_gradient(const problem *p, gradient *g, bool accumulate) {
  if (!p->present[g->which]) return;
  g->oracle = zeros(p->t[g->which].count);
  if (accumulate) g->before = problem_values(p, g->which);
  g->plain = accumulate ? problem_values(p, g->which) : zeros(p->t[g->which].count);
}

static void run_backward(problem *p, int threads) {
  const linear_shape s = p->shape;
  gradient dx = {DX, "dx", s.n, NULL, NULL, NULL}, dweight = {DWEIGHT, "dweight", s.tokens, NULL, NULL, NULL};
  gradient dbias = {DBIAS, "dbias", s.tokens, NULL, NULL, NULL};
  start_gradient(p, &dx, p->options.accumulate_dx);
  start_gradient(p, &dweight, p->options.accumulate_dweight);
  start_gradient(p, &dbias, p->options.accumulate_dweight);
  problem_backward(p, threads);
  double *dy = problem_values(p, DY), *x = problem_values(p, X), *weight = problem_values(p, WEIGHT);
  reference_linear_backward(s.tokens, s.n, s.d, dy, x, weight, dx.oracle, dweight.oracle, dbias.oracle);
  plain_linear_backward(s.tokens, s.n, s.d, dy, x, weight, (int)p->t[DX].kind, (int)p->t[DWEIGHT].kind,
                        (int)p->t[DBIAS].kind, dx.plain, dweight.plain, dbias.plain);
  check_gradient(p, &dx);
  check_gradient(p, &dweight);
  check_gradient(p, &dbias);
  free_all((double *[]){dy, x, weight}, 3);
}

static void run_case(linear_shape shape, linear_options options, linear_kinds kinds, uint64_t seed) {
  problem p, untouched;
  problem_make(&p, shape, options, kinds, seed);
  problem_make(&untouched, shape, options, kinds, seed);
  problem_forward(&p, (int)(seed % 3) + 1);
  check_forward(&p);
  run_backward(&p, (int)(seed % 4) + 1);
  for (int i = 0; i < INPUTS; i++)
    if (p.present[i]) test_tensor_check_same("an input", &p.t[i], &untouched.t[i]);
  problem_free(&p);
  problem_free(&untouched);
  test_count_case();
}

static void test_case_table(void **state) {
  (void)state;
  for (int s = 0; s < COUNT(linear_shapes); s++)
    for (int o = 0; o < COUNT(linear_option_sets); o++) {
      const int i = s * COUNT(linear_option_sets) + o;
      run_case(linear_shapes[s], linear_option_sets[o], linear_mix((s + o) % 3), (uint64_t)i);
      run_case(linear_shapes[s], linear_option_sets[o], linear_mix(i * 7 % LINEAR_MIXES), (uint64_t)i + 1000);
    }
}

/* Once by rows and once by the packed product. */
static void test_every_mix_of_dtypes(void **state) {
  (void)state;
  for (int i = 0; i < LINEAR_MIXES; i++)
    for (int64_t tokens = 3; tokens < 20; tokens += 16)
      run_case((linear_shape){tokens, 41, 77}, linear_option_sets[0], linear_mix(i), (uint64_t)i + 5000);
}

static void test_same_bits_for_any_threads(void **state) {
  (void)state;
  const linear_shape shapes[] = {{1, 700, 1000}, {4, 50, 9000}, {300, 200, 600}, {70, 900, 65}};
  for (int s = 0; s < COUNT(shapes); s++)
    for (int mix = 0; mix < 6; mix++) {
      problem one;
      problem_make(&one, shapes[s], linear_option_sets[0], linear_mix(mix), 5);
      problem_forward(&one, 1), problem_backward(&one, 1);
      const int threads[] = {2, 7, 0};
      for (int i = 0; i < COUNT(threads); i++) {
        problem many;
        problem_make(&many, shapes[s], linear_option_sets[0], linear_mix(mix), 5);
        problem_forward(&many, threads[i]);
        for (int again = 0; again < 2; again++) problem_backward(&many, threads[i]);
        for (int t = 0; t < TENSORS; t++) test_tensor_check_same("tigon_linear", &one.t[t], &many.t[t]);
        problem_free(&many);
      }
      problem_free(&one);
    }
}

/* A NaN token changes its own row of y and dx; a NaN weight row its own column of y. */
static void test_bad_values_stay_in_their_rows(void **state) {
  (void)state;
  for (int64_t tokens = 4; tokens < 50; tokens += 37) {
    const linear_shape shape = {tokens, 45, 70};
    problem clean, hurt;
    problem_make(&clean, shape, linear_option_sets[0], linear_mix(0), 5);
    problem_make(&hurt, shape, linear_option_sets[0], linear_mix(0), 5);
    test_tensor_set(&hurt.t[X], 2 * 70 + 69, NAN);
    test_tensor_set(&hurt.t[WEIGHT], 11 * 70 + 3, INFINITY);
    test_tensor_set(&hurt.t[DY], 1 * 45 + 44, NAN);
    problem_forward(&clean, 2), problem_forward(&hurt, 2);
    problem_backward(&clean, 2), problem_backward(&hurt, 2);
    for (int64_t t = 0; t < tokens; t++) {
      for (int64_t n = 0; n < 45; n++) {
        const double before = test_tensor_get(&clean.t[Y], t * 45 + n), after = test_tensor_get(&hurt.t[Y], t * 45 + n);
        assert_true(t == 2 || n == 11 ? !isfinite(after) : after == before);
      }
      for (int64_t d = 0; d < 70; d++) {
        const double before = test_tensor_get(&clean.t[DX], t * 70 + d),
                     after = test_tensor_get(&hurt.t[DX], t * 70 + d);
        assert_true(t == 1 || d == 3 ? !isfinite(after) : after == before);
      }
    }
    problem_free(&clean);
    problem_free(&hurt);
  }
}

static void test_oracle_against_finite_differences(void **state) {
  (void)state;
  enum { T = 3, N = 4, D = 5 };
  test_rng rng = {4};
  double v[T * D + N * D + N], dy[T * N], y[T * N], dx[T * D], dweight[N * D], dbias[N];
  for (int i = 0; i < COUNT(v); i++) v[i] = test_random_normal(&rng);
  for (int i = 0; i < COUNT(dy); i++) dy[i] = test_random_normal(&rng);
  double *x = v, *weight = v + T * D, *bias = weight + N * D;
  reference_linear_backward(T, N, D, dy, x, weight, dx, dweight, dbias);
  for (int i = 0; i < COUNT(v); i++) {
    double value[2], here = v[i];
    for (int side = 0; side < 2; side++) {
      v[i] = here + (side ? 1e-4 : -1e-4);
      reference_linear(T, N, D, x, weight, bias, y);
      value[side] = 0;
      for (int j = 0; j < COUNT(dy); j++) value[side] += dy[j] * y[j];
    }
    v[i] = here;
    const double expected = i < T * D ? dx[i] : i < T * D + N * D ? dweight[i - T * D] : dbias[i - T * D - N * D];
    assert_true(fabs((value[1] - value[0]) / 2e-4 - expected) < 1e-9);
  }
}

/* DLPack lets a tensor without elements have no address. */
static void test_no_columns_and_no_addresses(void **state) {
  (void)state;
  enum { T = 11, N = 5 };
  float bias_data[N] = {1, 2, 3, 4, 5}, y_data[T * N];
  tigon_tensor x, weight, bias, y, dweight;
  tigon_linear_args args = {.size = sizeof args};
  args.x = tigon_tensor_2d(&x, NULL, tigon_f32(), T, 0);
  args.weight = tigon_tensor_2d(&weight, NULL, tigon_f32(), N, 0);
  args.bias = tigon_tensor_1d(&bias, bias_data, tigon_f32(), N);
  args.y = tigon_tensor_2d(&y, y_data, tigon_f32(), T, N);
  uint64_t bytes = 0;
  test_expect_status(tigon_linear_workspace(NULL, &args, &bytes), TIGON_OK, NULL);
  test_workspace w;
  test_workspace_make(&w, bytes, 0);
  test_expect_status(tigon_linear(&w.exec, &args), TIGON_OK, NULL);
  for (int i = 0; i < T * N; i++) assert_true(y_data[i] == bias_data[i % N]);
  test_workspace_free(&w);

  tigon_linear_backward_args back = {.size = sizeof back, .dy = args.y, .x = args.x, .weight = args.weight};
  back.dweight = tigon_tensor_2d(&dweight, NULL, tigon_f32(), N, 0);
  test_expect_status(tigon_linear_backward_workspace(NULL, &back, &bytes), TIGON_OK, NULL);
  test_workspace_make(&w, bytes, 0);
  test_expect_status(tigon_linear_backward(&w.exec, &back), TIGON_OK, NULL);
  test_workspace_free(&w);
  test_count_case();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_no_columns_and_no_addresses),   cmocka_unit_test(test_case_table),
      cmocka_unit_test(test_every_mix_of_dtypes),           cmocka_unit_test(test_same_bits_for_any_threads),
      cmocka_unit_test(test_bad_values_stay_in_their_rows), cmocka_unit_test(test_oracle_against_finite_differences),
  };
  return test_gate_report("linear", cmocka_run_group_tests(tests, NULL, NULL));
}
