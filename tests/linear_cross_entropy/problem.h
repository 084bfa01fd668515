/* A linear cross entropy with all its tensors, as the tests of a backend make, run and compare it. */
#ifndef TIGON_TESTS_LINEAR_CROSS_ENTROPY_PROBLEM_H
#define TIGON_TESTS_LINEAR_CROSS_ENTROPY_PROBLEM_H

#include "tests/linear_cross_entropy/cases.h"
#include "tests/reference/linear_cross_entropy.h"
#include "tests/support/support.h"

typedef struct lce_tensors {
  lce_case c;
  double magnitude; /* of the logits, at least 1 */
  test_tensor x, weight, bias, target;
  test_tensor loss, nll, lse, entropy;
  test_tensor d_loss, d_lse, d_entropy;
  test_tensor dx, dweight, dbias;
  tigon_linear_cross_entropy_args forward;
  tigon_linear_cross_entropy_backward_args backward;
} lce_tensors;

enum { LCE_ALL_TENSORS = 14, LCE_INPUTS = 7 };

/* Inputs first. */
static inline void lce_list(lce_tensors *t, test_tensor *list[LCE_ALL_TENSORS]) {
  test_tensor *all[LCE_ALL_TENSORS] = {&t->x,       &t->weight,    &t->bias,    &t->target, &t->d_loss,
                                       &t->d_lse,   &t->d_entropy, &t->loss,    &t->nll,    &t->lse,
                                       &t->entropy, &t->dx,        &t->dweight, &t->dbias};
  memcpy(list, all, sizeof all);
}

static inline DLTensor *lce_dl(test_tensor *t) { return t->block ? &t->tensor.dl : NULL; }

static inline void lce_fill_targets(lce_tensors *t, test_rng *rng) {
  const lce_case *c = &t->c;
  const int64_t ignore = c->ignore_index ? c->ignore_index : -100;
  for (int64_t i = 0; i < c->tokens; i++) {
    int64_t target = c->vocabulary ? test_random_range(rng, 0, c->vocabulary - 1) : 0;
    if (i % 7 == 3) target = c->vocabulary - 1; /* first and last column, and both sides of tile borders */
    if (i % 7 == 4) target = 0;
    if (i % 7 == 5 && c->vocabulary > 768) target = 767 + i / 7 % 2;
    if (i % 7 == 6 && c->vocabulary > 384) target = 383 + i / 7 % 2;
    if (test_random_range(rng, 0, 99) < c->out_of_range) target = i % 2 ? c->vocabulary + i : -1 - i % 64;
    if (test_random_range(rng, 0, 99) < c->ignored) target = ignore;
    test_tensor_set(&t->target, i, (double)target);
  }
}

static inline void lce_make_upstream(lce_tensors *t, test_tensor *vector, unsigned bit, test_rng *rng) {
  const lce_case *c = &t->c;
  if (!((c->upstream ? c->upstream : LOSS) & bit)) return;
  const test_layout layout = {.vector_stride = c->layout == SPACED ? 3 : 0, .expand = c->layout == EXPANDED};
  test_tensor_make(vector, TIGON_F32, 1, &c->tokens, layout);
  for (int64_t i = 0; i < vector->count; i++) /* zeros and negatives among them */
    test_tensor_set(vector, i, c->layout != EXPANDED && i % 11 == 5 ? 0 : test_random_normal(rng) + 0.25);
}

static inline void lce_arguments(lce_tensors *t) {
  const lce_case *c = &t->c;
  t->forward = (tigon_linear_cross_entropy_args){.size = sizeof t->forward,
                                                 .set_ignore_index = c->ignore_index != 0,
                                                 .x = lce_dl(&t->x),
                                                 .weight = lce_dl(&t->weight),
                                                 .bias = lce_dl(&t->bias),
                                                 .target = lce_dl(&t->target),
                                                 .loss = lce_dl(&t->loss),
                                                 .nll = lce_dl(&t->nll),
                                                 .lse = lce_dl(&t->lse),
                                                 .entropy = lce_dl(&t->entropy),
                                                 .ignore_index = c->ignore_index,
                                                 .inverse_temperature = c->inverse_temperature,
                                                 .z_loss = c->z_loss};
  t->backward = (tigon_linear_cross_entropy_backward_args){.size = sizeof t->backward,
                                                           .set_ignore_index = c->ignore_index != 0,
                                                           .x = lce_dl(&t->x),
                                                           .weight = lce_dl(&t->weight),
                                                           .bias = lce_dl(&t->bias),
                                                           .target = lce_dl(&t->target),
                                                           .lse = lce_dl(&t->lse),
                                                           .entropy = t->d_entropy.block ? lce_dl(&t->entropy) : NULL,
                                                           .d_loss = lce_dl(&t->d_loss),
                                                           .d_lse = lce_dl(&t->d_lse),
                                                           .d_entropy = lce_dl(&t->d_entropy),
                                                           .dx = lce_dl(&t->dx),
                                                           .dweight = lce_dl(&t->dweight),
                                                           .dbias = lce_dl(&t->dbias),
                                                           .ignore_index = c->ignore_index,
                                                           .inverse_temperature = c->inverse_temperature,
                                                           .z_loss = c->z_loss};
}

/* All tensors of a case; outputs are poisoned. */
static inline void lce_make(lce_tensors *t, const lce_case *c, uint64_t seed) {
  memset(t, 0, sizeof *t);
  t->c = *c;
  if (!t->c.x) t->c.x = TIGON_F32;
  if (!t->c.weight) t->c.weight = TIGON_F32;
  test_rng rng = {seed};
  const test_layout matrix = {.row_pad = c->strided ? 5 : 0, .offset = c->strided ? 3 : 0};
  const test_layout vector = {.vector_stride = c->strided ? 2 : 0, .offset = c->strided ? 1 : 0};
  const test_layout compact = {.offset = c->strided ? 1 : 0};
  const int64_t x_shape[] = {c->tokens, c->width}, weight_shape[] = {c->vocabulary, c->width};
  test_tensor_make(&t->x, t->c.x, 2, x_shape, matrix);
  test_tensor_make(&t->weight, t->c.weight, 2, weight_shape, matrix);
  test_tensor_make(&t->target, c->target ? c->target : TIGON_I64, 1, &c->tokens, vector);
  const double scale = c->scale > 0 ? c->scale : 1;
  t->magnitude = fmax(1, scale) * fmax(1, (double)c->inverse_temperature);
  test_tensor_fill_normal(&t->x, &rng, 1);
  test_tensor_fill_normal(&t->weight, &rng, c->width ? scale / sqrt((double)c->width) : 0);
  if (c->bias) {
    test_tensor_make(&t->bias, c->bias, 1, &c->vocabulary, compact);
    test_tensor_fill_normal(&t->bias, &rng, scale / 2);
    if (!(c->unwanted & DBIAS)) test_tensor_make(&t->dbias, c->bias, 1, &c->vocabulary, compact);
  }
  lce_fill_targets(t, &rng);
  lce_make_upstream(t, &t->d_loss, LOSS, &rng);
  lce_make_upstream(t, &t->d_lse, LSE, &rng);
  lce_make_upstream(t, &t->d_entropy, ENTROPY, &rng);
  test_tensor *const vectors[] = {&t->loss, &t->nll, &t->lse, &t->entropy};
  for (int i = 0; i < 4; i++) test_tensor_make(vectors[i], TIGON_F32, 1, &c->tokens, vector);
  if (!(c->unwanted & DX)) test_tensor_make(&t->dx, t->c.x, 2, x_shape, matrix);
  if (!(c->unwanted & DWEIGHT)) test_tensor_make(&t->dweight, t->c.weight, 2, weight_shape, matrix);
  lce_arguments(t);
}

static inline void lce_free(lce_tensors *t) {
  test_tensor *list[LCE_ALL_TENSORS];
  lce_list(t, list);
  for (int i = 0; i < LCE_ALL_TENSORS; i++) test_tensor_free(list[i]);
}

static inline void lce_run_forward(lce_tensors *t, int threads, tigon_context *context) {
  uint64_t bytes = 1;
  tigon_exec exec = {.size = sizeof exec, .num_threads = threads};
  test_expect_status(tigon_linear_cross_entropy_workspace(&exec, &t->forward, &bytes), TIGON_OK, NULL);
  test_workspace w;
  test_workspace_make(&w, bytes, threads);
  w.exec.context = context;
  test_expect_status(tigon_linear_cross_entropy(&w.exec, &t->forward), TIGON_OK, NULL);
  test_workspace_free(&w);
}

static inline void lce_run_backward(lce_tensors *t, int threads, tigon_context *context) {
  uint64_t bytes = 1;
  tigon_exec exec = {.size = sizeof exec, .num_threads = threads};
  test_expect_status(tigon_linear_cross_entropy_backward_workspace(&exec, &t->backward, &bytes), TIGON_OK, NULL);
  test_workspace w;
  test_workspace_make(&w, bytes, threads);
  w.exec.context = context;
  test_expect_status(tigon_linear_cross_entropy_backward(&w.exec, &t->backward), TIGON_OK, NULL);
  test_workspace_free(&w);
}

static inline void lce_run(lce_tensors *t, int threads) {
  lce_run_forward(t, threads, NULL);
  lce_run_backward(t, threads, NULL);
}

/* Expected outputs, dense: the oracle's or the plain composition's. */
typedef struct lce_expected {
  double *loss, *nll, *lse, *entropy, *dx, *dweight, *dbias;
} lce_expected;

static inline double *lce_values(const test_tensor *t) { return t->block ? test_tensor_values(t) : NULL; }

static inline void lce_round(double *values, const test_tensor *like) {
  for (int64_t i = 0; like->block && i < like->count; i++) values[i] = tigon_round_to(like->kind, (float)values[i]);
}

/* What float32 cannot hold is expected as 0. */
static inline void lce_flush(double *values, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (fabs(values[i]) < 0x1p-126) values[i] = 0;
}

static inline lce_expected lce_expect(const lce_tensors *t, bool plain) {
  const lce_case *c = &t->c;
  double *x = lce_values(&t->x), *weight = lce_values(&t->weight), *bias = lce_values(&t->bias);
  double *d_loss = lce_values(&t->d_loss), *d_lse = lce_values(&t->d_lse), *d_entropy = lce_values(&t->d_entropy);
  int64_t *target = malloc(((size_t)c->tokens + 1) * sizeof *target);
  assert_non_null(target);
  for (int64_t i = 0; i < c->tokens; i++) target[i] = (int64_t)test_tensor_get(&t->target, i);
  const int64_t ignore = c->ignore_index ? c->ignore_index : -100;
  const double inverse_temperature = c->inverse_temperature == 0 ? 1 : (double)c->inverse_temperature;
  lce_expected e;
  double **const vectors[] = {&e.loss, &e.nll, &e.lse, &e.entropy};
  for (int i = 0; i < 4; i++) *vectors[i] = malloc(((size_t)c->tokens + 1) * sizeof(double));
  e.dx = malloc(((size_t)(c->tokens * c->width) + 1) * sizeof(double));
  e.dweight = malloc(((size_t)(c->vocabulary * c->width) + 1) * sizeof(double));
  e.dbias = malloc(((size_t)c->vocabulary + 1) * sizeof(double));
  (plain ? plain_linear_cross_entropy
         : reference_linear_cross_entropy)(c->tokens, c->width, c->vocabulary, x, weight, bias, target, ignore,
                                           inverse_temperature, (double)c->z_loss, e.loss, e.nll, e.lse, e.entropy);
  (plain ? plain_linear_cross_entropy_backward : reference_linear_cross_entropy_backward)(
      c->tokens, c->width, c->vocabulary, x, weight, bias, target, ignore, inverse_temperature, (double)c->z_loss,
      d_loss, d_lse, d_entropy, e.dx, e.dweight, e.dbias);
  if (plain) {
    lce_round(e.dx, &t->dx);
    lce_round(e.dweight, &t->dweight);
    lce_round(e.dbias, &t->dbias);
  }
  double *const inputs[] = {x, weight, bias, d_loss, d_lse, d_entropy};
  for (int i = 0; i < 6; i++) free(inputs[i]);
  free(target);
  lce_flush(e.nll, c->tokens);
  lce_flush(e.entropy, c->tokens);
  return e;
}

static inline void lce_expected_free(lce_expected *e) {
  double *const all[] = {e->loss, e->nll, e->lse, e->entropy, e->dx, e->dweight, e->dbias};
  for (int i = 0; i < 7; i++) free(all[i]);
}

/* Gate 1 relative to the largest element: gradients have a few large ones (targets) among many small. */
static inline void lce_gate(const char *output, const test_tensor *got, const double *oracle, const double *plain,
                            double relative) {
  if (!got->block || got->count == 0) return;
  double peak = 0, squares = 0;
  for (int64_t i = 0; i < got->count; i++) {
    peak = fmax(peak, fabs(oracle[i]));
    squares += oracle[i] * oracle[i];
  }
  const double rms = sqrt(squares / (double)got->count);
  test_gate(output, got, oracle, plain, rms > 0 ? relative * peak / rms : 0);
}

/* Bounds relative to the largest element. Statistics inherit the rounding of the logits; gradients and entropy inherit
 * its absolute value, which grows with them. */
static inline double lce_statistic_bound(const lce_tensors *t, const double *oracle) {
  double peak = 0;
  for (int64_t i = 0; i < t->c.tokens; i++) peak = fmax(peak, fabs(oracle[i]));
  return peak > 0 ? 5e-7 * fmax(1, t->magnitude / peak) : 0;
}

static inline double lce_bound(const lce_tensors *t) { return 1e-6 * t->magnitude; }

/* second: gate 2 as well. */
static inline void lce_compare(const lce_tensors *t, bool second) {
  lce_expected oracle = lce_expect(t, false), plain = lce_expect(t, true);
  lce_gate("loss", &t->loss, oracle.loss, second ? plain.loss : NULL, lce_statistic_bound(t, oracle.loss));
  lce_gate("nll", &t->nll, oracle.nll, second ? plain.nll : NULL, lce_statistic_bound(t, oracle.nll));
  lce_gate("lse", &t->lse, oracle.lse, second ? plain.lse : NULL, lce_statistic_bound(t, oracle.lse));
  lce_gate("entropy", &t->entropy, oracle.entropy, second ? plain.entropy : NULL,
           lce_statistic_bound(t, oracle.entropy));
  lce_gate("dx", &t->dx, oracle.dx, second ? plain.dx : NULL, lce_bound(t));
  lce_gate("dweight", &t->dweight, oracle.dweight, second ? plain.dweight : NULL, lce_bound(t));
  lce_gate("dbias", &t->dbias, oracle.dbias, second ? plain.dbias : NULL, lce_bound(t));
  lce_expected_free(&oracle);
  lce_expected_free(&plain);
}

#endif
