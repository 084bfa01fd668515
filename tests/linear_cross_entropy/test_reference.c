/* The oracle's gradients against central differences of its own forward, in float64. */
#include "tests/linear_cross_entropy/problem.h"

enum { T = 5, D = 4, V = 7 };

typedef struct inputs {
  double x[T * D], weight[V * D], bias[V], class_weight[V], token_weight[T];
  int64_t target[T];
  double d_loss[T], d_lse[T], d_entropy[T];
  reference_lce_problem problem;
} inputs;

static double objective(const inputs *in) {
  double loss[T], lse[T], entropy[T], sum = 0;
  const reference_lce_outputs outputs = {.loss = loss, .lse = lse, .entropy = entropy};
  reference_linear_cross_entropy(&in->problem, &outputs);
  for (int t = 0; t < T; t++) sum += in->d_loss[t] * loss[t] + in->d_lse[t] * lse[t] + in->d_entropy[t] * entropy[t];
  return sum;
}

static void check_gradient(const char *name, inputs *in, double *values, const double *gradient, int n) {
  for (int i = 0; i < n; i++) {
    const double value = values[i], step = 1e-5;
    values[i] = value + step;
    const double above = objective(in);
    values[i] = value - step;
    const double below = objective(in);
    values[i] = value;
    const double expected = (above - below) / (2 * step);
    if (!(fabs(gradient[i] - expected) <= 1e-8 * (1 + fabs(expected))))
      fail_msg("%s[%d]: gradient %.12g, difference %.12g", name, i, gradient[i], expected);
  }
}

static void fill(double *values, int n, test_rng *rng) {
  for (int i = 0; i < n; i++) values[i] = test_random_normal(rng);
}

static void test_differences(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 60; seed++) {
    test_rng rng = {seed};
    inputs in = {0};
    in.problem = (reference_lce_problem){.tokens = T,
                                         .width = D,
                                         .vocabulary = V,
                                         .classes = seed % 7 == 3 ? V - 2 : V,
                                         .ignore_index = -100,
                                         .x = in.x,
                                         .weight = in.weight,
                                         .bias = in.bias,
                                         .target = in.target,
                                         .class_weight = seed % 4 > 1 ? in.class_weight : NULL,
                                         .token_weight = seed % 5 > 2 ? in.token_weight : NULL,
                                         .inverse_temperature = seed % 2 ? 1 : 0.7,
                                         .softcap = seed % 3 == 1 ? 2.5 : 0,
                                         .z_loss = seed % 3 ? 0.05 : 0,
                                         .label_smoothing = seed % 4 == 1 || seed % 4 == 3 ? 0.3 : 0};
    fill(in.x, T * D, &rng);
    fill(in.weight, V * D, &rng);
    fill(in.bias, V, &rng);
    fill(in.class_weight, V, &rng);
    fill(in.token_weight, T, &rng);
    fill(in.d_loss, T, &rng);
    fill(in.d_lse, T, &rng);
    fill(in.d_entropy, T, &rng);
    for (int t = 0; t < T; t++) in.target[t] = t == 2 ? -100 : test_random_range(&rng, 0, in.problem.classes - 1);
    double dx[T * D], dweight[V * D], dbias[V];
    const reference_lce_gradients gradients = {in.d_loss, in.d_lse, in.d_entropy, dx, dweight, dbias, NULL};
    reference_linear_cross_entropy_backward(&in.problem, &gradients);
    check_gradient("dx", &in, in.x, dx, T * D);
    check_gradient("dweight", &in, in.weight, dweight, V * D);
    check_gradient("dbias", &in, in.bias, dbias, V);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_differences)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
