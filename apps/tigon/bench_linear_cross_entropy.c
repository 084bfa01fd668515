/* The rows of linear_cross_entropy. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench_case.h"

BENCH_OPERATION(linear_cross_entropy)
BENCH_OPERATION(linear_cross_entropy_backward)

enum { SAMPLES = 4, MOST_WIDTH = 1024 };

typedef struct classifier_rows {
  tigon_linear_cross_entropy_args forward;
  tigon_linear_cross_entropy_backward_args backward;
  const char *dtype;
  int64_t tokens, width, classes;
  double lse[SAMPLES]; /* of the sampled tokens, from the plain formula */
} classifier_rows;

static int64_t sample_token(const classifier_rows *r, int sample) { return sample * (r->tokens - 1) / (SAMPLES - 1); }

static int64_t target_of(const classifier_rows *r, int64_t token) {
  return (int64_t)bench_value(r->forward.target, token);
}

static double logit(const classifier_rows *r, int64_t token, int64_t class) {
  double sum = 0;
  for (int64_t i = 0; i < r->width; i++)
    sum += bench_value(r->forward.x, token * r->width + i) * bench_value(r->forward.weight, class * r->width + i);
  return sum;
}

/* Logits are a few units large: no maximum is needed in float64. */
static void plain_lse(classifier_rows *r) {
  for (int s = 0; s < SAMPLES; s++) {
    double sum = 0;
    for (int64_t v = 0; v < r->classes; v++) sum += exp(logit(r, sample_token(r, s), v));
    r->lse[s] = log(sum);
  }
}

static bool check_forward(void *context) {
  const classifier_rows *r = context;
  bench_judge judge;
  bench_judge_start(&judge);
  for (int s = 0; s < SAMPLES; s++) {
    const int64_t token = sample_token(r, s);
    bench_judge_add(&judge, bench_value(r->forward.loss, token), r->lse[s] - logit(r, token, target_of(r, token)));
  }
  return bench_judge_accepts(&judge, r->dtype);
}

static bool check_dx(const classifier_rows *r) {
  bench_judge judge;
  bench_judge_start(&judge);
  for (int s = 0; s < SAMPLES; s++) {
    double sum[MOST_WIDTH] = {0};
    const int64_t token = sample_token(r, s), target = target_of(r, token);
    const double upstream = bench_value(r->backward.d_loss, token);
    for (int64_t v = 0; v < r->classes; v++) {
      const double dz = upstream * (exp(logit(r, token, v) - r->lse[s]) - (v == target));
      for (int64_t i = 0; i < r->width; i++) sum[i] += dz * bench_value(r->forward.weight, v * r->width + i);
    }
    for (int64_t i = 0; i < r->width; i++)
      bench_judge_add(&judge, bench_value(r->backward.dx, token * r->width + i), sum[i]);
  }
  return bench_judge_accepts(&judge, r->dtype);
}

/* Classes that are a token's target; the log-sum-exp of all tokens is forward's own, of which samples were checked. */
static bool check_dweight(const classifier_rows *r) {
  bench_judge judge;
  bench_judge_start(&judge);
  for (int s = 0; s < SAMPLES; s++) {
    double sum[MOST_WIDTH] = {0};
    const int64_t class = target_of(r, sample_token(r, s));
    for (int64_t token = 0; token < r->tokens; token++) {
      const double p = exp(logit(r, token, class) - bench_value(r->forward.lse, token));
      const double dz = bench_value(r->backward.d_loss, token) * (p - (class == target_of(r, token)));
      for (int64_t i = 0; i < r->width; i++) sum[i] += dz * bench_value(r->forward.x, token * r->width + i);
    }
    for (int64_t i = 0; i < r->width; i++)
      bench_judge_add(&judge, bench_value(r->backward.dweight, class * r->width + i), sum[i]);
  }
  return bench_judge_accepts(&judge, r->dtype);
}

static bool check_backward(void *context) { return check_dx(context) && check_dweight(context); }

/* The saved logits count as memory of forward, and are what a peer keeps too. */
static bool keep_logits(bench *b, classifier_rows *r, bench_case *c) {
  uint64_t bytes;
  if (tigon_linear_cross_entropy_saved(&b->exec, &r->forward, &bytes) != TIGON_OK) {
    fprintf(stderr, "tigon bench: %s\n", tigon_last_error());
    return false;
  }
  r->forward.saved = bench_output(&c->tensors, "saved", tigon_i32(), SHAPE((int64_t)bytes / 4))->data;
  r->forward.saved_bytes = bytes;
  return true;
}

static bool cross_entropy_rows(bench *b, const char *dtype, int64_t tokens, bool saved, double *seconds) {
  classifier_rows r = {.dtype = dtype, .tokens = tokens, .width = MOST_WIDTH, .classes = 32000};
  if (b->quick) r.tokens /= 64, r.width = 32, r.classes = 500;
  bench_case c = {.family = "linear_cross_entropy", .dtype = dtype, .scale = 1};
  const DLDataType type = bench_dtype(dtype);
  snprintf(c.name, sizeof c.name, "%lld x %lld x %lld%s", (long long)r.tokens, (long long)r.width, (long long)r.classes,
           saved ? "" : ", recompute");
  r.forward.size = sizeof r.forward;
  r.forward.x = bench_input(&c.tensors, "x", type, SHAPE(r.tokens, r.width), 1);
  r.forward.weight = bench_input(&c.tensors, "weight", type, SHAPE(r.classes, r.width), 0.03f);
  DLTensor *target = bench_input(&c.tensors, "target", tigon_i64(), SHAPE(r.tokens), 0);
  for (int64_t i = 0; i < r.tokens; i++) ((int64_t *)target->data)[i] = i * 7919 % r.classes;
  r.forward.target = target;
  DLTensor *d_loss = bench_input(&c.tensors, "d_loss", tigon_f32(), SHAPE(r.tokens), 1);
  plain_lse(&r);
  bench_case_start(b, &c);
  r.forward.loss = bench_output(&c.tensors, "loss", tigon_f32(), SHAPE(r.tokens));
  r.forward.lse = bench_output(&c.tensors, "lse", tigon_f32(), SHAPE(r.tokens));
  bench_pass forward = {.name = "forward", BENCH_RUNS(linear_cross_entropy), .args = &r.forward};
  forward.flop = 2.0 * (double)r.tokens * (double)r.width * (double)r.classes;
  forward.check = check_forward;
  forward.context = &r;
  forward.outputs[0] = "loss";
  bool good = (!saved || keep_logits(b, &r, &c)) && bench_case_measure(b, &c, &forward);

  r.backward = (tigon_linear_cross_entropy_backward_args){.size = sizeof r.backward, .x = r.forward.x};
  r.backward.weight = r.forward.weight;
  r.backward.target = target;
  r.backward.lse = r.forward.lse;
  r.backward.d_loss = d_loss;
  r.backward.saved = r.forward.saved;
  r.backward.saved_bytes = r.forward.saved_bytes;
  r.backward.dx = bench_output(&c.tensors, "dx", type, SHAPE(r.tokens, r.width));
  r.backward.dweight = bench_output(&c.tensors, "dweight", type, SHAPE(r.classes, r.width));
  bench_pass backward = {.name = "backward", BENCH_RUNS(linear_cross_entropy_backward), .args = &r.backward};
  backward.flop = (saved ? 2 : 3) * forward.flop;
  backward.check = check_backward;
  backward.context = &r;
  backward.outputs[0] = "dx";
  backward.outputs[1] = "dweight";
  good = good && bench_case_measure(b, &c, &backward);
  if (good) bench_case_sum(b, &c, &forward, &backward);
  seconds[0] = forward.ours.seconds;
  seconds[1] = backward.ours.seconds;
  bench_case_end(b, &c);
  return good;
}

/* The mode without saved logits, of little memory, which no peer has. */
static bool recompute_rows(bench *b, const char *dtype) {
  double seconds[2];
  bench_peer *peer = b->peer;
  b->peer = NULL;
  const bool good = cross_entropy_rows(b, dtype, 2048, false, seconds);
  b->peer = peer;
  return good;
}

bool bench_linear_cross_entropy(bench *b) {
  double once[2], twice[2];
  if (!cross_entropy_rows(b, "float32", 2048, true, once) || !recompute_rows(b, "float32") ||
      !cross_entropy_rows(b, "bfloat16", 2048, true, once) || !recompute_rows(b, "bfloat16") ||
      !cross_entropy_rows(b, "bfloat16", 4096, true, twice))
    return false;
  bench_print_growth("linear_cross_entropy", "tokens, forward", once[0], twice[0]);
  bench_print_growth("linear_cross_entropy", "tokens, backward", once[1], twice[1]);
  return true;
}
