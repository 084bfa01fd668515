/* The rows of lightning_attention. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench_case.h"

BENCH_OPERATION(lightning_attention)
BENCH_OPERATION(lightning_attention_backward)

enum { CHUNK = 64, MOST_WIDTH = 128 };

typedef struct attention_rows {
  tigon_lightning_attention_args forward;
  tigon_lightning_attention_backward_args backward;
  const char *dtype;
  int64_t tokens, heads, width;
} attention_rows;

static double dot(const attention_rows *r, const DLTensor *a, int64_t s, const DLTensor *b, int64_t t, int64_t head) {
  double sum = 0;
  for (int64_t i = 0; i < r->width; i++)
    sum += bench_value(a, (s * r->heads + head) * r->width + i) * bench_value(b, (t * r->heads + head) * r->width + i);
  return sum;
}

/* Token `at` of got is scale * the sum over s of lambda^|at - s| (one_at . other_s) value_s, s up to at, or from it
 * on. */
static void judge_token(bench_judge *judge, const attention_rows *r, const DLTensor *got, int64_t at, int64_t head,
                        const DLTensor *one, const DLTensor *other, const DLTensor *value, bool causal) {
  double sum[MOST_WIDTH] = {0};
  const double slope = bench_value(r->forward.decay, head);
  for (int64_t s = causal ? 0 : at; s < (causal ? at + 1 : r->tokens); s++) {
    const double weight = r->forward.scale * exp(-slope * fabs((double)(at - s))) * dot(r, one, at, other, s, head);
    for (int64_t i = 0; i < r->width; i++) sum[i] += weight * bench_value(value, (s * r->heads + head) * r->width + i);
  }
  for (int64_t i = 0; i < r->width; i++)
    bench_judge_add(judge, bench_value(got, (at * r->heads + head) * r->width + i), sum[i]);
}

static bool judged(const attention_rows *r, const DLTensor *got, const DLTensor *one, const DLTensor *other,
                   const DLTensor *value, bool causal) {
  bench_judge judge;
  bench_judge_start(&judge);
  for (int sample = 0; sample < 6; sample++)
    judge_token(&judge, r, got, sample * (r->tokens - 1) / 5, sample * 3 % r->heads, one, other, value, causal);
  return bench_judge_accepts(&judge, r->dtype);
}

static bool check_forward(void *context) {
  const attention_rows *r = context;
  return judged(r, r->forward.out, r->forward.q, r->forward.k, r->forward.v, true);
}

static bool check_backward(void *context) {
  const attention_rows *r = context;
  const tigon_lightning_attention_backward_args *g = &r->backward;
  return judged(r, g->dq, g->dout, g->v, g->k, true) && judged(r, g->dk, g->v, g->dout, g->q, false) &&
         judged(r, g->dv, g->k, g->q, g->dout, false);
}

static bool lightning_rows(bench *b, const char *dtype, int64_t tokens, double *seconds) {
  attention_rows r = {.dtype = dtype, .tokens = b->quick ? tokens / 16 : tokens, .heads = 8, .width = MOST_WIDTH};
  if (b->quick) r.heads = 2, r.width = 16;
  bench_case c = {.family = "lightning_attention", .dtype = dtype};
  const DLDataType type = bench_dtype(dtype);
  snprintf(c.name, sizeof c.name, "T %lld, %lld heads of %lld", (long long)r.tokens, (long long)r.heads,
           (long long)r.width);
  r.forward.size = sizeof r.forward;
  r.forward.scale = 1 / sqrtf((float)r.width);
  c.scale = r.forward.scale;
  r.forward.q = bench_input(&c.tensors, "q", type, SHAPE(1, r.tokens, r.heads, r.width), 1);
  r.forward.k = bench_input(&c.tensors, "k", type, SHAPE(1, r.tokens, r.heads, r.width), 1);
  r.forward.v = bench_input(&c.tensors, "v", type, SHAPE(1, r.tokens, r.heads, r.width), 1);
  DLTensor *decay = bench_input(&c.tensors, "decay", tigon_f32(), SHAPE(r.heads), 0);
  for (int h = 0; h < r.heads; h++) ((float *)decay->data)[h] = 1.0f / (float)(2 << h); /* ALiBi slopes */
  r.forward.decay = decay;
  DLTensor *dout = bench_input(&c.tensors, "dout", type, SHAPE(1, r.tokens, r.heads, r.width), 1);
  bench_case_start(b, &c);
  r.forward.out = bench_output(&c.tensors, "out", type, SHAPE(1, r.tokens, r.heads, r.width));
  /* A chunk of a head: q k', p v, q S, v' k forward; backward is three such scans, for dq, dk and dv. Squares count
   * whole, though the parts above the diagonal are skipped, as is usual for causal attention of this kind. */
  const double square = 2.0 * CHUNK * CHUNK * (double)r.width, state = 2.0 * CHUNK * (double)(r.width * r.width);
  bench_pass forward = {.name = "forward", BENCH_RUNS(lightning_attention), .args = &r.forward};
  forward.flop = (double)(r.tokens / CHUNK * r.heads) * (2 * square + 2 * state);
  forward.check = check_forward;
  forward.context = &r;
  forward.outputs[0] = "out";
  bool good = bench_case_measure(b, &c, &forward);

  r.backward = (tigon_lightning_attention_backward_args){.size = sizeof r.backward, .scale = r.forward.scale};
  r.backward.dout = dout;
  r.backward.q = r.forward.q;
  r.backward.k = r.forward.k;
  r.backward.v = r.forward.v;
  r.backward.decay = decay;
  r.backward.dq = bench_output(&c.tensors, "dq", type, SHAPE(1, r.tokens, r.heads, r.width));
  r.backward.dk = bench_output(&c.tensors, "dk", type, SHAPE(1, r.tokens, r.heads, r.width));
  r.backward.dv = bench_output(&c.tensors, "dv", type, SHAPE(1, r.tokens, r.heads, r.width));
  bench_pass backward = {.name = "backward", BENCH_RUNS(lightning_attention_backward), .args = &r.backward};
  backward.flop = 3 * forward.flop;
  backward.check = check_backward;
  backward.context = &r;
  backward.outputs[0] = "dq";
  backward.outputs[1] = "dk";
  backward.outputs[2] = "dv";
  good = good && bench_case_measure(b, &c, &backward);
  if (good) bench_case_sum(b, &c, &forward, &backward);
  seconds[0] = forward.ours.seconds;
  seconds[1] = backward.ours.seconds;
  bench_case_end(b, &c);
  return good;
}

bool bench_lightning_attention(bench *b) {
  double once[2], twice[2];
  if (!lightning_rows(b, "float32", 4096, once) || !lightning_rows(b, "bfloat16", 4096, once) ||
      !lightning_rows(b, "bfloat16", 8192, twice))
    return false;
  bench_print_growth("lightning_attention", "sequence length, forward", once[0], twice[0]);
  bench_print_growth("lightning_attention", "sequence length, backward", once[1], twice[1]);
  return true;
}
