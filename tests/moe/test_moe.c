/* The expert MLP against the oracle, forward and backward, over the case table; and the oracle against itself. */
#include "tests/moe/problem.h"

static const tigon_kind x_kinds[] = {TIGON_F32, TIGON_BF16, TIGON_F16};

/* Gate 1 is against the rms. Weight gradients are products of five random factors summed over few rows, so that elements
 * reach 24 times their rms. Up to four roundings to x's dtype meet in one (g, u, a, s a), each on average 2^-9 (bfloat16)
 * or 2^-12 (float16) of the value. Float32 is bounded by its sums instead: up to 600 terms. */
static double bound_of(tigon_kind x) {
  return x == TIGON_BF16 ? 4 * 24 * 0x1p-9 : x == TIGON_F16 ? 4 * 24 * 0x1p-12 : 2e-5;
}

static double *doubles(int64_t n) {
  double *values = calloc((size_t)n + 1, sizeof *values);
  assert_non_null(values);
  return values;
}

/* Experts and tokens without routes have zeros, exactly; they must not count in the rms that bounds the others. */
static void gate_output(const char *output, const moe_problem *p, const test_tensor *got, const double *oracle,
                        const double *plain) {
  double *some_oracle = doubles(got->count), *some_plain = doubles(got->count);
  test_tensor some;
  int64_t nonzero = 0;
  for (int64_t i = 0; i < got->count; i++) nonzero += oracle[i] != 0;
  test_tensor_make(&some, got->kind, 1, &nonzero, (test_layout){0});
  for (int64_t i = 0, n = 0; i < got->count; i++) {
    const double value = test_tensor_get(got, i);
    if (oracle[i] == 0 && value != 0) fail_msg("%s[%lld]: expected 0, got %g", output, (long long)i, value);
    if (oracle[i] == 0) continue;
    test_tensor_set(&some, n, value);
    some_oracle[n] = oracle[i];
    some_plain[n++] = plain[i];
  }
  char name[32];
  snprintf(name, sizeof name, "%s(x=%s)", output, test_kind_name(p->x.kind));
  test_gate(name, &some, some_oracle, some_plain, bound_of(p->x.kind));
  test_tensor_free(&some);
  free(some_oracle), free(some_plain);
}

static void check_forward(const moe_problem *p, const moe_dense *d) {
  const moe_case *c = &p->c;
  double *oracle = doubles(p->out.count), *plain = doubles(p->out.count);
  reference_moe(c->tokens, c->choices, c->width, c->inner, c->experts, d->x, d->ids, d->weights, d->gate, d->up,
                d->down, oracle);
  reference_moe_plain(c->tokens, c->choices, c->width, c->inner, c->experts, d->x, d->ids, d->weights, d->gate, d->up,
                      d->down, &p->kinds, plain);
  gate_output("out", p, &p->out, oracle, plain);
  if (c->routing == ROUTE_NONE)
    for (int64_t i = 0; i < p->out.count; i++) assert_true(test_tensor_get(&p->out, i) == 0);
  free(oracle), free(plain);
}

/* Gradients in the order dx, d_topk_weights, d_gate, d_up, d_down. */
enum { GRADIENTS = 5 };
static const char *const gradient_names[GRADIENTS] = {"dx", "d_topk_weights", "d_gate", "d_up", "d_down"};

static void make_gradients(const moe_problem *p, double *g[GRADIENTS]) {
  const moe_case *c = &p->c;
  g[0] = doubles(p->x.count);
  g[1] = doubles(p->weights.count);
  if (c->options & MOE_ACCUMULATE) {
    moe_gate_up_values(&p->d_gate, &p->d_up, &p->d_gate_up, &g[2], &g[3]);
    g[4] = test_tensor_values(&p->d_down);
  } else {
    for (int i = 2; i < GRADIENTS; i++) g[i] = doubles(c->experts * c->inner * c->width);
  }
}

static void free_gradients(double *g[GRADIENTS]) {
  for (int i = 0; i < GRADIENTS; i++) free(g[i]);
}

/* An (E, I, D) half of a packed gradient as a tensor of its own. */
static test_tensor half_of(const test_tensor *packed, int half) {
  test_tensor t = *packed;
  t.tensor.shape[1] /= 2;
  t.count /= 2;
  t.tensor.dl.byte_offset +=
      (uint64_t)(half * t.tensor.shape[1] * t.tensor.strides[1] * tigon_kind_bytes(packed->kind));
  return t;
}

static void check_backward(moe_problem *p, const moe_dense *d) {
  const moe_case *c = &p->c;
  const int accumulate = (c->options & MOE_ACCUMULATE) != 0;
  double *oracle[GRADIENTS], *plain[GRADIENTS];
  make_gradients(p, oracle);
  make_gradients(p, plain);
  moe_run_backward(p, 2, NULL);
  reference_moe_backward(c->tokens, c->choices, c->width, c->inner, c->experts, d->dout, d->x, d->ids, d->weights,
                         d->gate, d->up, d->down, accumulate, oracle[0], oracle[1], oracle[2], oracle[3], oracle[4]);
  reference_moe_backward_plain(c->tokens, c->choices, c->width, c->inner, c->experts, d->dout, d->x, d->ids, d->weights,
                               d->gate, d->up, d->down, accumulate, &p->kinds, plain[0], plain[1], plain[2], plain[3],
                               plain[4]);
  const bool packed = c->options & MOE_PACKED;
  const test_tensor got[GRADIENTS] = {p->dx, p->d_weights, packed ? half_of(&p->d_gate_up, 0) : p->d_gate,
                                      packed ? half_of(&p->d_gate_up, 1) : p->d_up, p->d_down};
  for (int i = 0; i < GRADIENTS; i++) gate_output(gradient_names[i], p, &got[i], oracle[i], plain[i]);
  free_gradients(oracle);
  free_gradients(plain);
}

static void test_cases(void **state) {
  (void)state;
  for (int i = 0; i < MOE_CASES; i++)
    for (int kind = 0; kind < 3; kind++)
      for (int with_saved = 0; with_saved < 2; with_saved++) {
        moe_problem p;
        moe_make(&p, &moe_cases[i], x_kinds[kind], with_saved, 100 + (uint64_t)i);
        const moe_dense d = moe_dense_of(&p);
        moe_run_forward(&p, 2, NULL);
        check_forward(&p, &d);
        check_backward(&p, &d);
        test_count_case();
        moe_dense dense = d;
        moe_dense_free(&dense);
        moe_free(&p);
      }
}

/* --- the oracle's gradients against differences of its own forward ---------------------------------------------------- */

static double loss_of(const moe_case *c, const moe_dense *d, double *out) {
  reference_moe(c->tokens, c->choices, c->width, c->inner, c->experts, d->x, d->ids, d->weights, d->gate, d->up,
                d->down, out);
  double loss = 0;
  for (int64_t i = 0; i < c->tokens * c->width; i++) loss += out[i] * d->dout[i];
  return loss;
}

static void test_oracle_differences(void **state) {
  (void)state;
  static const moe_case cases[] = {
      {5, 2, 7, 8, 3, ROUTE_RANDOM, 0}, {6, 3, 4, 5, 4, ROUTE_INVALID, 0}, {4, 3, 5, 3, 2, ROUTE_DUPLICATES, 0}};
  for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
    const moe_case *c = &cases[n];
    moe_problem p;
    moe_make(&p, c, TIGON_F32, false, 7 + n);
    moe_dense d = moe_dense_of(&p);
    double *g[GRADIENTS], *out = doubles(p.out.count);
    make_gradients(&p, g);
    reference_moe_backward(c->tokens, c->choices, c->width, c->inner, c->experts, d.dout, d.x, d.ids, d.weights, d.gate,
                           d.up, d.down, 0, g[0], g[1], g[2], g[3], g[4]);
    double *const values[GRADIENTS] = {d.x, d.weights, d.gate, d.up, d.down};
    const int64_t counts[GRADIENTS] = {p.x.count, p.weights.count, p.gate.count, p.up.count, p.down.count};
    for (int which = 0; which < GRADIENTS; which++)
      for (int64_t i = 0; i < counts[which]; i++) {
        const double kept = values[which][i], h = 1e-5;
        values[which][i] = kept + h;
        const double above = loss_of(c, &d, out);
        values[which][i] = kept - h;
        const double below = loss_of(c, &d, out);
        values[which][i] = kept;
        const double difference = (above - below) / (2 * h);
        if (!(fabs(difference - g[which][i]) <= 1e-8 * (1 + fabs(g[which][i]))))
          fail_msg("%s[%lld]: gradient %.12g, difference %.12g", gradient_names[which], (long long)i, g[which][i],
                   difference);
      }
    free_gradients(g);
    free(out);
    moe_dense_free(&d);
    moe_free(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_oracle_differences), cmocka_unit_test(test_cases)};
  return test_gate_report("moe", cmocka_run_group_tests(tests, NULL, NULL));
}
