/* The oracle's gradients against central differences of its own forward, in float64. */
#include "tests/linear_cross_entropy/problem.h"

enum { T = 5, D = 4, V = 7 };

typedef struct inputs {
  double x[T * D], weight[V * D], bias[V];
  int64_t target[T];
  double d_loss[T], d_lse[T], d_entropy[T];
  double inverse_temperature, z_loss;
} inputs;

static double objective(const inputs *in) {
  double loss[T], lse[T], entropy[T], sum = 0;
  reference_linear_cross_entropy(T, D, V, in->x, in->weight, in->bias, in->target, -100, in->inverse_temperature,
                                 in->z_loss, loss, NULL, lse, entropy);
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
  for (uint64_t seed = 0; seed < 20; seed++) {
    test_rng rng = {seed};
    inputs in = {.inverse_temperature = seed % 2 ? 1 : 0.7, .z_loss = seed % 3 ? 0.05 : 0};
    fill(in.x, T * D, &rng);
    fill(in.weight, V * D, &rng);
    fill(in.bias, V, &rng);
    fill(in.d_loss, T, &rng);
    fill(in.d_lse, T, &rng);
    fill(in.d_entropy, T, &rng);
    for (int t = 0; t < T; t++) in.target[t] = t == 2 ? -100 : test_random_range(&rng, 0, V - 1);
    double dx[T * D], dweight[V * D], dbias[V];
    reference_linear_cross_entropy_backward(T, D, V, in.x, in.weight, in.bias, in.target, -100, in.inverse_temperature,
                                            in.z_loss, in.d_loss, in.d_lse, in.d_entropy, dx, dweight, dbias);
    check_gradient("dx", &in, in.x, dx, T * D);
    check_gradient("dweight", &in, in.weight, dweight, V * D);
    check_gradient("dbias", &in, in.bias, dbias, V);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_differences)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
