/* What rms_norm promises beyond values: bits that do not depend on threads, aliases, gradients that are derivatives. */
#include "tests/rms_norm/problem.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static void run_both(problem *p, int threads) {
  problem_forward(p, threads);
  problem_backward(p, threads);
}

/* Every output, for 1, 2 and 7 threads, and for a second backward on the same inputs. */
static void test_same_bits_for_any_threads(void **state) {
  (void)state;
  const rms_shape shapes[] = {{1000, 0, 300}, {70, 0, 4097}, {40, 25, 64}, {3, 0, 70000}, {9, 0, 5}};
  for (int s = 0; s < COUNT(shapes); s++)
    for (int o = 0; o < 4; o++) {
      rms_options options = rms_option_sets[o];
      options.accumulate = false;
      problem one, many;
      problem_make(&one, shapes[s], options, rms_mix(31 * s + o), 3);
      run_both(&one, 1);
      const int threads[] = {2, 7, 0};
      for (int i = 0; i < COUNT(threads); i++) {
        problem_make(&many, shapes[s], options, rms_mix(31 * s + o), 3);
        run_both(&many, threads[i]);
        problem_backward(&many, threads[i]);
        for (int t = 0; t < TENSORS; t++)
          if (many.present[t]) test_tensor_check_same("rms_norm", &one.t[t], &many.t[t]);
        problem_free(&many);
      }
      problem_free(&one);
    }
}

static tigon_status forward_now(problem *p, DLTensor *out, DLTensor *sum) {
  tigon_rms_norm_args args = problem_forward_args(p);
  args.out = out;
  args.residual_out = sum;
  return tigon_rms_norm(NULL, &args);
}

static void check_equal_values(const test_tensor *a, const test_tensor *b) {
  for (int64_t i = 0; i < a->count; i++) assert_true(test_tensor_get(a, i) == test_tensor_get(b, i));
}

/* out = x, residual_out = residual: the values of separate outputs. */
static void test_forward_in_place(void **state) {
  (void)state;
  for (int o = 2; o < 4; o++)
    for (int mix = 0; mix < 3; mix++) {
      problem apart, inside;
      problem_make(&apart, (rms_shape){11, 0, 133}, rms_option_sets[o], rms_plain_mix(mix), 8);
      problem_make(&inside, (rms_shape){11, 0, 133}, rms_option_sets[o], rms_plain_mix(mix), 8);
      problem_forward(&apart, 1);
      test_expect_status(forward_now(&inside, problem_dl(&inside, X), problem_dl(&inside, RESIDUAL)), TIGON_OK, NULL);
      check_equal_values(&apart.t[OUT], &inside.t[X]);
      check_equal_values(&apart.t[SUM], &inside.t[RESIDUAL]);
      problem_free(&apart);
      problem_free(&inside);
    }
}

/* dx = dy, and dx = d_residual_out. */
static void test_backward_in_place(void **state) {
  (void)state;
  const int targets[] = {DY, D_SUM};
  for (int t = 0; t < 2; t++)
    for (int mix = 0; mix < 3; mix++) {
      problem apart, inside;
      problem_make(&apart, (rms_shape){19, 0, 133}, rms_option_sets[2], rms_plain_mix(mix), 8);
      problem_make(&inside, (rms_shape){19, 0, 133}, rms_option_sets[2], rms_plain_mix(mix), 8);
      run_both(&apart, 2);
      problem_forward(&inside, 2);
      test_tensor_free(&inside.t[DX]);
      inside.present[DX] = false;
      tigon_rms_norm_backward_args args = problem_backward_args(&inside);
      args.dx = problem_dl(&inside, targets[t]);
      uint64_t bytes;
      test_expect_status(tigon_rms_norm_backward_workspace(NULL, &args, &bytes), TIGON_OK, NULL);
      test_workspace w;
      test_workspace_make(&w, bytes, 2);
      test_expect_status(tigon_rms_norm_backward(&w.exec, &args), TIGON_OK, NULL);
      test_workspace_free(&w);
      check_equal_values(&apart.t[DX], &inside.t[targets[t]]);
      check_equal_values(&apart.t[D_RESIDUAL], &inside.t[D_RESIDUAL]);
      check_equal_values(&apart.t[D_WEIGHT], &inside.t[D_WEIGHT]);
      problem_free(&apart);
      problem_free(&inside);
    }
}

/* LLAMA multiplies round(xhat): with weight 1 + 2^-9 in fp32, out of bf16 x differs from a single rounding. */
static void test_casting_modes_round_where_they_say(void **state) {
  (void)state;
  rms_options options = {.weight = true, .rstd = true, .scale = 1};
  int64_t differ = 0;
  for (int32_t casting = 0; casting < 2; casting++) {
    problem p;
    options.casting = casting;
    rms_kinds kinds = rms_uniform(TIGON_BF16, TIGON_F32);
    kinds.out = TIGON_F32;
    problem_make(&p, (rms_shape){8, 0, 256}, options, kinds, 77);
    test_tensor_fill_value(&p.t[WEIGHT], 1 + 0x1p-9);
    problem_forward(&p, 1);
    for (int64_t i = 0; i < p.t[OUT].count; i++) {
      const float xhat = (float)test_tensor_get(&p.t[X], i) * (float)test_tensor_get(&p.t[RSTD], i / 256);
      const float rounded = casting == TIGON_CASTING_LLAMA ? tigon_round_to(TIGON_BF16, xhat) : xhat;
      assert_true((float)test_tensor_get(&p.t[OUT], i) == rounded * (1.0f + 0x1p-9f));
      differ += tigon_round_to(TIGON_BF16, xhat) != xhat;
    }
    problem_free(&p);
  }
  assert_true(differ > 1000);
}

/* Members past args.size are zero, the default. */
static void test_older_structs(void **state) {
  (void)state;
  problem old, now;
  problem_make(&old, (rms_shape){3, 0, 40}, rms_option_sets[0], rms_plain_mix(0), 5);
  problem_make(&now, (rms_shape){3, 0, 40}, rms_option_sets[0], rms_plain_mix(0), 5);
  tigon_rms_norm_args args = problem_forward_args(&old);
  args.eps = 3, args.offset = 5;
  args.size = offsetof(tigon_rms_norm_args, eps);
  test_expect_status(tigon_rms_norm(NULL, &args), TIGON_OK, NULL);
  problem_forward(&now, 1);
  test_tensor_check_same("out", &old.t[OUT], &now.t[OUT]);
  problem_free(&old);
  problem_free(&now);
}

static void test_workspace_never_shrinks(void **state) {
  (void)state;
  for (int64_t width = 1; width < 5000; width = width * 3 + 1) {
    uint64_t last = 0;
    for (int64_t rows = 0; rows < 3000; rows += 1 + rows / 7) {
      tigon_tensor x, rstd, dy, d_weight;
      tigon_rms_norm_backward_args args = {.size = sizeof args};
      args.x = tigon_tensor_2d(&x, NULL, tigon_bf16(), rows, width);
      args.dy = tigon_tensor_2d(&dy, NULL, tigon_bf16(), rows, width);
      args.rstd = tigon_tensor_1d(&rstd, NULL, tigon_f32(), rows);
      args.d_weight = tigon_tensor_1d(&d_weight, NULL, tigon_f32(), width);
      uint64_t bytes = 1;
      test_expect_status(tigon_rms_norm_backward_workspace(NULL, &args, &bytes), TIGON_OK, NULL);
      assert_true(bytes >= last && bytes % 256 == 0);
      last = bytes;
    }
  }
}

typedef struct function {
  int64_t rows, width;
  double eps, offset;
  const double *dy, *d_sum;
} function;

/* The scalar whose gradient backward computes: sum(dy * out) + sum(d_sum * sum). */
static double value_of(const function *f, const double *s, const double *weight) {
  const int64_t n = f->rows * f->width;
  double *out = problem_zeros(n), value = 0;
  reference_rms_norm(f->rows, f->width, s, NULL, weight, f->eps, f->offset, out, NULL, NULL);
  for (int64_t i = 0; i < n; i++) value += f->dy[i] * out[i] + f->d_sum[i] * s[i];
  free(out);
  return value;
}

static double slope(const function *f, double *s, double *weight, double *at) {
  const double step = 1e-5, here = *at;
  *at = here + step;
  const double up = value_of(f, s, weight);
  *at = here - step;
  const double down = value_of(f, s, weight);
  *at = here;
  return (up - down) / (2 * step);
}

static double *random_values(test_rng *rng, int64_t n) {
  double *values = problem_zeros(n);
  for (int64_t i = 0; i < n; i++) values[i] = test_random_normal(rng);
  return values;
}

static void test_oracle_against_finite_differences(void **state) {
  (void)state;
  test_rng rng = {1};
  for (int64_t width = 1; width <= 33; width += 4) {
    const int64_t rows = 3, n = rows * width;
    double *s = random_values(&rng, n), *weight = random_values(&rng, width), *dy = random_values(&rng, n);
    double *d_sum = random_values(&rng, n), *ds = problem_zeros(n), *d_weight = problem_zeros(width);
    const function f = {rows, width, 0.1, width % 8 == 1 ? 1 : 0, dy, d_sum};
    reference_rms_norm_backward(rows, width, dy, d_sum, s, weight, f.eps, f.offset, ds, d_weight);
    for (int64_t i = 0; i < n; i++) assert_true(fabs(slope(&f, s, weight, &s[i]) - ds[i]) < 1e-7);
    for (int64_t j = 0; j < width; j++) assert_true(fabs(slope(&f, s, weight, &weight[j]) - d_weight[j]) < 1e-7);
    double *all[] = {s, weight, dy, d_sum, ds, d_weight};
    for (int i = 0; i < COUNT(all); i++) free(all[i]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_same_bits_for_any_threads),
      cmocka_unit_test(test_forward_in_place),
      cmocka_unit_test(test_backward_in_place),
      cmocka_unit_test(test_casting_modes_round_where_they_say),
      cmocka_unit_test(test_older_structs),
      cmocka_unit_test(test_workspace_never_shrinks),
      cmocka_unit_test(test_oracle_against_finite_differences),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
