/* A linear cross entropy with all its tensors, as the tests of a backend make, run and compare it. */
#ifndef TIGON_TESTS_LINEAR_CROSS_ENTROPY_PROBLEM_H
#define TIGON_TESTS_LINEAR_CROSS_ENTROPY_PROBLEM_H

#include "tests/linear_cross_entropy/cases.h"
#include "tests/reference/linear_cross_entropy.h"
#include "tests/support/support.h"

typedef struct lce_tensors {
  lce_case c;
  int64_t classes;
  double magnitude;  /* of the logits, at least 1 */
  double loss_scale; /* largest product of the weights of a loss, at least 1 */
  test_tensor x, weight, bias, target, class_weight, token_weight;
  test_tensor loss, nll, lse, entropy, argmax, correct, partial;
  test_tensor d_loss, d_lse, d_entropy;
  test_tensor dx, dweight, dbias;
  double *dweight_before, *dbias_before; /* what gradients are added to; NULL: nothing */
  tigon_linear_cross_entropy_args forward;
  tigon_linear_cross_entropy_backward_args backward;
} lce_tensors;

enum { LCE_ALL_TENSORS = 19, LCE_INPUTS = 9 };

/* Inputs first. */
static inline void lce_list(lce_tensors *t, test_tensor *list[LCE_ALL_TENSORS]) {
  test_tensor *all[LCE_ALL_TENSORS] = {
      &t->x,       &t->weight,    &t->bias, &t->target,  &t->class_weight, &t->token_weight, &t->d_loss,
      &t->d_lse,   &t->d_entropy, &t->loss, &t->nll,     &t->lse,          &t->entropy,      &t->argmax,
      &t->correct, &t->partial,   &t->dx,   &t->dweight, &t->dbias};
  memcpy(list, all, sizeof all);
}

static inline DLTensor *lce_dl(test_tensor *t) { return t->block ? &t->tensor.dl : NULL; }

static inline void lce_fill_targets(lce_tensors *t, test_rng *rng) {
  const lce_case *c = &t->c;
  const int64_t classes = t->classes;
  const int64_t ignore = c->ignore_index ? c->ignore_index : -100;
  for (int64_t i = 0; i < c->tokens; i++) {
    int64_t target = classes ? test_random_range(rng, 0, classes - 1) : 0;
    if (i % 7 == 3) target = classes - 1; /* first and last column, and both sides of tile borders */
    if (i % 7 == 4) target = 0;
    if (i % 7 == 5 && classes > 768) target = 767 + i / 7 % 2;
    if (i % 7 == 6 && classes > 384) target = 383 + i / 7 % 2;
    if (test_random_range(rng, 0, 99) < c->out_of_range) target = i % 2 ? classes + i : -1 - i % 64;
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
                                                 .z_loss = c->z_loss,
                                                 .softcap = c->softcap,
                                                 .label_smoothing = c->label_smoothing,
                                                 .class_weight = lce_dl(&t->class_weight),
                                                 .token_weight = lce_dl(&t->token_weight),
                                                 .argmax = lce_dl(&t->argmax),
                                                 .correct = lce_dl(&t->correct),
                                                 .partial = lce_dl(&t->partial),
                                                 .vocab_size = c->padding ? t->classes : 0};
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
                                                           .z_loss = c->z_loss,
                                                           .softcap = c->softcap,
                                                           .label_smoothing = c->label_smoothing,
                                                           .class_weight = lce_dl(&t->class_weight),
                                                           .token_weight = lce_dl(&t->token_weight),
                                                           .vocab_size = c->padding ? t->classes : 0,
                                                           .accumulate_weight_gradients = c->accumulate};
}

/* Weights of classes, zeros among them if asked for; of tokens, zeros and negatives among them. */
static inline void lce_make_weights(lce_tensors *t, test_rng *rng, test_layout compact, test_layout vector) {
  const lce_case *c = &t->c;
  double class_peak = 1, token_peak = 1;
  if (c->class_weight) {
    test_tensor_make(&t->class_weight, TIGON_F32, 1, &t->classes, compact);
    for (int64_t v = 0; v < t->classes; v++) {
      const double w = 0.25 + 2 * test_random_uniform(rng);
      test_tensor_set(&t->class_weight, v, c->class_weight == WITH_ZEROS && v % 5 == 2 ? 0 : w);
    }
    class_peak = 2.25;
  }
  if (c->token_weight) {
    test_tensor_make(&t->token_weight, TIGON_F32, 1, &c->tokens, vector);
    for (int64_t i = 0; i < c->tokens; i++) {
      const double w = i % 9 == 4 ? 0 : test_random_normal(rng) + 0.5;
      test_tensor_set(&t->token_weight, i, w);
      token_peak = fmax(token_peak, fabs(w));
    }
  }
  t->loss_scale = class_peak * token_peak;
}

/* Padding rows hold NaN, which must reach nothing. */
static inline void lce_spoil_padding(lce_tensors *t) {
  for (int64_t v = t->classes; v < t->c.vocabulary; v++) {
    for (int64_t j = 0; j < t->c.width; j++) test_tensor_set(&t->weight, v * t->c.width + j, NAN);
    if (t->bias.block) test_tensor_set(&t->bias, v, NAN);
  }
}

static inline double *lce_values(const test_tensor *t) { return t->block ? test_tensor_values(t) : NULL; }

/* Gradients of the weights; filled with values where they are added to. */
static inline void lce_make_weight_gradients(lce_tensors *t, test_rng *rng, test_layout matrix, test_layout compact) {
  const lce_case *c = &t->c;
  const int64_t shape[] = {c->vocabulary, c->width};
  if (!(c->unwanted & DWEIGHT)) test_tensor_make(&t->dweight, c->accumulate ? TIGON_F32 : c->weight, 2, shape, matrix);
  if (c->bias && !(c->unwanted & DBIAS))
    test_tensor_make(&t->dbias, c->accumulate ? TIGON_F32 : c->bias, 1, &c->vocabulary, compact);
  if (!c->accumulate) return;
  if (t->dweight.block) test_tensor_fill_normal(&t->dweight, rng, 0.1);
  if (t->dbias.block) test_tensor_fill_normal(&t->dbias, rng, 0.1);
  t->dweight_before = lce_values(&t->dweight);
  t->dbias_before = lce_values(&t->dbias);
}

/* All tensors of a case; outputs are poisoned. */
static inline void lce_make(lce_tensors *t, const lce_case *c, uint64_t seed) {
  memset(t, 0, sizeof *t);
  t->c = *c;
  t->classes = c->vocabulary - c->padding;
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
  const double capped = c->softcap > 0 ? fmin(scale, (double)c->softcap) : scale;
  t->magnitude = c->magnitude > 0 ? c->magnitude : fmax(1, capped) * fmax(1, (double)c->inverse_temperature);
  test_tensor_fill_normal(&t->x, &rng, 1);
  test_tensor_fill_normal(&t->weight, &rng, c->width ? scale / sqrt((double)c->width) : 0);
  if (c->bias) {
    test_tensor_make(&t->bias, c->bias, 1, &c->vocabulary, compact);
    test_tensor_fill_normal(&t->bias, &rng, scale / 2);
  }
  lce_spoil_padding(t);
  lce_fill_targets(t, &rng);
  lce_make_upstream(t, &t->d_loss, LOSS, &rng);
  lce_make_upstream(t, &t->d_lse, LSE, &rng);
  lce_make_upstream(t, &t->d_entropy, ENTROPY, &rng);
  lce_make_weights(t, &rng, compact, vector);
  test_tensor *const vectors[] = {&t->loss, &t->nll, &t->lse, &t->entropy, &t->correct};
  for (int i = 0; i < 5; i++) test_tensor_make(vectors[i], TIGON_F32, 1, &c->tokens, vector);
  const int64_t partial_shape[] = {c->tokens, 8};
  test_tensor_make(&t->partial, TIGON_F32, 2, partial_shape, matrix);
  test_tensor_make(&t->argmax, c->argmax ? c->argmax : TIGON_I64, 1, &c->tokens, vector);
  if (!(c->unwanted & DX)) test_tensor_make(&t->dx, t->c.x, 2, x_shape, matrix);
  lce_make_weight_gradients(t, &rng, matrix, compact);
  lce_arguments(t);
}

static inline void lce_free(lce_tensors *t) {
  test_tensor *list[LCE_ALL_TENSORS];
  lce_list(t, list);
  for (int i = 0; i < LCE_ALL_TENSORS; i++) test_tensor_free(list[i]);
  free(t->dweight_before);
  free(t->dbias_before);
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

/* A random case, as a failure's reader wants it. */
static inline void lce_describe(const lce_case *c) {
  print_message("  T %lld D %lld V %lld (padding %lld) %s %s bias %d, scale %g, temperature %g, cap %g, smoothing %g, "
                "z_loss %g, weights %d %d, ignored %d, bad %d, upstream %u, unwanted %u, strided %d, accumulate %d\n",
                (long long)c->tokens, (long long)c->width, (long long)c->vocabulary, (long long)c->padding,
                test_kind_name(c->x), test_kind_name(c->weight), (int)c->bias, c->scale, (double)c->inverse_temperature,
                (double)c->softcap, (double)c->label_smoothing, (double)c->z_loss, (int)c->class_weight,
                (int)c->token_weight, c->ignored, c->out_of_range, c->upstream, c->unwanted, (int)c->strided,
                (int)c->accumulate);
}

/* Expected outputs, dense: the oracle's or the plain composition's. */
typedef struct lce_expected {
  double *loss, *nll, *lse, *entropy, *dx, *dweight, *dbias;
  double *z;       /* (tokens, classes), the oracle's alone, of tokens that take part */
  double walks[3]; /* of dx, dweight and dbias */
} lce_expected;

static inline void lce_add(double *values, const double *before, int64_t n, bool plain) {
  for (int64_t i = 0; before && i < n; i++)
    values[i] = plain ? (double)((float)values[i] + (float)before[i]) : values[i] + before[i];
}

static inline void lce_round(double *values, const test_tensor *like) {
  for (int64_t i = 0; like->block && i < like->count; i++) values[i] = tigon_round_to(like->kind, (float)values[i]);
}

/* What float32 cannot hold is expected as 0. */
static inline void lce_flush(double *values, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (fabs(values[i]) < 0x1p-126) values[i] = 0;
}

static inline bool lce_left_out(const lce_tensors *t, int64_t token) {
  const double target = test_tensor_get(&t->target, token);
  return target == (double)(t->c.ignore_index ? t->c.ignore_index : -100) || target < 0 || target >= (double)t->classes;
}

/* The gradients of logits are rounded to bfloat16. */
static inline bool lce_narrow_dz(const lce_tensors *t) {
  return t->x.kind == TIGON_BF16 && t->weight.kind == TIGON_BF16;
}

/* The oracle's view of the inputs: copies, for lce_problem_free. */
static inline reference_lce_problem lce_problem(const lce_tensors *t) {
  const lce_case *c = &t->c;
  int64_t *target = malloc(((size_t)c->tokens + 1) * sizeof *target);
  assert_non_null(target);
  for (int64_t i = 0; i < c->tokens; i++) target[i] = (int64_t)test_tensor_get(&t->target, i);
  return (reference_lce_problem){.tokens = c->tokens,
                                 .width = c->width,
                                 .vocabulary = c->vocabulary,
                                 .classes = t->classes,
                                 .ignore_index = c->ignore_index ? c->ignore_index : -100,
                                 .x = lce_values(&t->x),
                                 .weight = lce_values(&t->weight),
                                 .bias = lce_values(&t->bias),
                                 .target = target,
                                 .class_weight = lce_values(&t->class_weight),
                                 .token_weight = lce_values(&t->token_weight),
                                 .inverse_temperature =
                                     c->inverse_temperature == 0 ? 1 : (double)c->inverse_temperature,
                                 .softcap = (double)c->softcap,
                                 .z_loss = (double)c->z_loss,
                                 .label_smoothing = (double)c->label_smoothing,
                                 .dz_kind = lce_narrow_dz(t) ? TIGON_BF16 : TIGON_F32};
}

static inline void lce_problem_free(const reference_lce_problem *p) {
  const void *const all[] = {p->x, p->weight, p->bias, p->target, p->class_weight, p->token_weight};
  for (int i = 0; i < 6; i++) free((void *)(uintptr_t)all[i]);
}

static inline double *lce_room(int64_t n) {
  double *room = malloc(((size_t)n + 1) * sizeof *room);
  assert_non_null(room);
  return room;
}

static inline lce_expected lce_expect(const lce_tensors *t, bool plain) {
  const lce_case *c = &t->c;
  const reference_lce_problem p = lce_problem(t);
  lce_expected e = {lce_room(c->tokens),
                    lce_room(c->tokens),
                    lce_room(c->tokens),
                    lce_room(c->tokens),
                    lce_room(c->tokens * c->width),
                    lce_room(c->vocabulary * c->width),
                    lce_room(c->vocabulary),
                    plain ? NULL : lce_room(c->tokens * t->classes),
                    {0}};
  double *d_loss = lce_values(&t->d_loss), *d_lse = lce_values(&t->d_lse), *d_entropy = lce_values(&t->d_entropy);
  const reference_lce_outputs outputs = {e.loss, e.nll, e.lse, e.entropy, NULL};
  const reference_lce_gradients gradients = {d_loss, d_lse, d_entropy, e.dx, e.dweight, e.dbias, e.walks};
  (plain ? plain_linear_cross_entropy : reference_linear_cross_entropy)(&p, &outputs);
  (plain ? plain_linear_cross_entropy_backward : reference_linear_cross_entropy_backward)(&p, &gradients);
  for (int64_t i = 0; e.z && i < c->tokens; i++)
    if (!lce_left_out(t, i)) reference_linear_cross_entropy_logits(&p, i, e.z + i * t->classes);
  lce_add(e.dweight, t->dweight_before, c->vocabulary * c->width, plain);
  lce_add(e.dbias, t->dbias_before, c->vocabulary, plain);
  if (plain) {
    lce_round(e.dx, &t->dx);
    lce_round(e.dweight, &t->dweight);
    lce_round(e.dbias, &t->dbias);
  }
  free(d_loss);
  free(d_lse);
  free(d_entropy);
  lce_problem_free(&p);
  lce_flush(e.nll, c->tokens);
  lce_flush(e.entropy, c->tokens);
  return e;
}

static inline void lce_expected_free(lce_expected *e) {
  double *const all[] = {e->loss, e->nll, e->lse, e->entropy, e->dx, e->dweight, e->dbias, e->z};
  for (int i = 0; i < 8; i++) free(all[i]);
}

/* argmax has the largest logit up to its rounding, no lower class has the same logit, and correct follows from
 * argmax. */
static inline void lce_check_argmax(const lce_tensors *t, const double *z) {
  for (int64_t i = 0; i < t->c.tokens; i++) {
    const int64_t got = (int64_t)test_tensor_get(&t->argmax, i), target = (int64_t)test_tensor_get(&t->target, i);
    const bool out = lce_left_out(t, i);
    assert_true(test_tensor_get(&t->correct, i) == (!out && got == target));
    const double *row = z + i * t->classes;
    double max = -INFINITY;
    for (int64_t v = 0; !out && v < t->classes; v++) max = row[v] > max ? row[v] : max;
    if (max == -INFINITY) {
      assert_true(got == -1);
      continue;
    }
    assert_true(got >= 0 && got < t->classes);
    if (!(row[got] >= max - 2e-6 * t->magnitude))
      fail_msg("argmax[%lld] is %lld with %.9g, the largest logit is %.9g", (long long)i, (long long)got, row[got],
               max);
  }
}

/* Gate 1 alone; gate 2 for each tensor too; or gate 2 pooled over the tensors of a run, with a sample of each. */
typedef enum lce_gates { GATE_1, BOTH_GATES, POOLED_GATES } lce_gates;

/* Of the finite ones, as the next. */
static inline double lce_peak(const double *values, int64_t n) {
  double peak = 0;
  for (int64_t i = 0; i < n; i++)
    if (isfinite(values[i])) peak = fmax(peak, fabs(values[i]));
  return peak;
}

static inline double lce_rms(const double *values, int64_t n) {
  double squares = 0;
  for (int64_t i = 0; i < n; i++) squares += isfinite(values[i]) ? values[i] * values[i] : 0;
  return n > 0 ? sqrt(squares / (double)n) : 0;
}

/* Gate 1 relative to the largest element: gradients have a few large ones (targets) among many small. */
static inline void lce_gate(const char *output, const test_tensor *got, const double *oracle, const double *plain,
                            double relative, lce_gates gates) {
  if (!got->block || got->count == 0) return;
  const double peak = lce_peak(oracle, got->count);
  const double rms = lce_rms(oracle, got->count);
  test_gate(output, got, oracle, gates == BOTH_GATES ? plain : NULL, rms > 0 ? relative * peak / rms : 0);
  if (gates != POOLED_GATES) return;
  test_tensor sample = *got; /* test_gate looks at the ratio of a tensor alone from 256 elements on */
  sample.count = got->count < 255 ? got->count : 255;
  const double sample_rms = lce_rms(oracle, sample.count);
  if (sample_rms > 0) test_gate(output, &sample, oracle, plain, relative * peak / sample_rms);
}

/* Bounds relative to the largest element. Statistics inherit the rounding of the logits; gradients and entropy inherit
 * its absolute value, which grows with them. */
static inline double lce_statistic_bound(const lce_tensors *t, const double *oracle, const double *loss) {
  const double peak = lce_peak(oracle, t->c.tokens);
  return peak > 0 ? 5e-7 * fmax(1, t->magnitude * (oracle == loss ? t->loss_scale : 1) / peak) : 0;
}

/* Besides, what rounding dz to bfloat16 makes of a sum, whose terms are each off by at most 2^-8 of themselves: 3.5
 * standard deviations of the largest sum if all its terms stand just above powers of two, 4.8 if they stand anywhere.
 * walk: of reference_lce_gradients. */
static inline double lce_gradient_bound(const lce_tensors *t, const double *oracle, int64_t n, double walk) {
  const double bound = (t->c.gradient_bound > 0 ? t->c.gradient_bound : 1e-6) * t->magnitude;
  const double peak = lce_peak(oracle, n);
  return bound + (lce_narrow_dz(t) && peak > 0 ? 3.5 / sqrt(3) * 0x1p-8 * walk / peak : 0);
}

static inline void lce_gradient_gate(const lce_tensors *t, const char *output, const test_tensor *got,
                                     const double *oracle, const double *plain, double walk, lce_gates gates) {
  lce_gate(output, got, oracle, plain, lce_gradient_bound(t, oracle, got->count, walk), gates);
}

/* The gates of a random case. Of few classes, or where the softmax is peaked, the rounding of a few numbers is most of
 * the error, and the ratio of ours to the plain composition's is chance; of one case's few tokens it is too, of many
 * cases' not. */
static inline lce_gates lce_random_gates(const lce_tensors *t) {
  return t->classes >= 300 && t->magnitude <= 2 ? POOLED_GATES : GATE_1;
}

static inline void lce_compare(const lce_tensors *t, lce_gates gates) {
  lce_expected oracle = lce_expect(t, false), plain = lce_expect(t, true);
  lce_gate("loss", &t->loss, oracle.loss, plain.loss, lce_statistic_bound(t, oracle.loss, oracle.loss), gates);
  lce_gate("nll", &t->nll, oracle.nll, plain.nll, lce_statistic_bound(t, oracle.nll, oracle.loss), gates);
  lce_gate("lse", &t->lse, oracle.lse, plain.lse, lce_statistic_bound(t, oracle.lse, oracle.loss), gates);
  lce_gate("entropy", &t->entropy, oracle.entropy, plain.entropy, lce_statistic_bound(t, oracle.entropy, oracle.loss),
           gates);
  lce_gradient_gate(t, "dx", &t->dx, oracle.dx, plain.dx, oracle.walks[0], gates);
  lce_gradient_gate(t, "dweight", &t->dweight, oracle.dweight, plain.dweight, oracle.walks[1], gates);
  lce_gradient_gate(t, "dbias", &t->dbias, oracle.dbias, plain.dbias, oracle.walks[2], gates);
  lce_check_argmax(t, oracle.z);
  lce_expected_free(&oracle);
  lce_expected_free(&plain);
}

#endif
