/* The rows of moe. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench_case.h"
#include "bench_moe_check.h"

BENCH_OPERATION(moe)
BENCH_OPERATION(moe_backward)

static void route(moe_rows *r, bench_case *c) {
  DLTensor *ids = bench_input(&c->tensors, "topk_ids", tigon_i32(), SHAPE(r->tokens, MOE_CHOICES), 0);
  for (int64_t i = 0; i < r->tokens; i++) { /* two different experts, all pairs equally often */
    ((int32_t *)ids->data)[2 * i] = (int32_t)(i % r->experts);
    ((int32_t *)ids->data)[2 * i + 1] = (int32_t)((i + 1 + i / r->experts % (r->experts - 1)) % r->experts);
  }
  r->forward.topk_ids = ids;
  r->forward.topk_weights = bench_input(&c->tensors, "topk_weights", tigon_f32(), SHAPE(r->tokens, MOE_CHOICES), 1);
}

static DLTensor *open_inputs(moe_rows *r, bench_case *c) {
  const DLDataType type = bench_dtype(r->dtype);
  r->forward.size = sizeof r->forward;
  r->forward.x = bench_input(&c->tensors, "x", type, SHAPE(r->tokens, r->width), 1);
  r->forward.gate = bench_input(&c->tensors, "gate", type, SHAPE(r->experts, r->inner, r->width), 0.03f);
  r->forward.up = bench_input(&c->tensors, "up", type, SHAPE(r->experts, r->inner, r->width), 0.03f);
  r->forward.down = bench_input(&c->tensors, "down", type, SHAPE(r->experts, r->width, r->inner), 0.03f);
  route(r, c);
  return bench_input(&c->tensors, "dout", type, SHAPE(r->tokens, r->width), 1);
}

/* The saved block counts as memory of forward. */
static bool open_forward_outputs(bench *b, moe_rows *r, bench_case *c) {
  r->forward.out = bench_output(&c->tensors, "out", bench_dtype(r->dtype), SHAPE(r->tokens, r->width));
  uint64_t bytes;
  if (tigon_moe_saved(&b->exec, &r->forward, &bytes) != TIGON_OK) {
    fprintf(stderr, "tigon bench: %s\n", tigon_last_error());
    return false;
  }
  r->forward.saved = bench_output(&c->tensors, "saved", tigon_i32(), SHAPE((int64_t)bytes / 4))->data;
  r->forward.saved_bytes = bytes;
  return true;
}

static void open_backward(moe_rows *r, bench_case *c, const DLTensor *dout) {
  const DLDataType type = bench_dtype(r->dtype);
  r->backward = (tigon_moe_backward_args){.size = sizeof r->backward, .dout = dout, .x = r->forward.x};
  r->backward.topk_ids = r->forward.topk_ids;
  r->backward.topk_weights = r->forward.topk_weights;
  r->backward.gate = r->forward.gate;
  r->backward.up = r->forward.up;
  r->backward.down = r->forward.down;
  r->backward.saved = r->forward.saved;
  r->backward.saved_bytes = r->forward.saved_bytes;
  r->backward.dx = bench_output(&c->tensors, "dx", type, SHAPE(r->tokens, r->width));
  r->backward.d_topk_weights = bench_output(&c->tensors, "d_topk_weights", tigon_f32(), SHAPE(r->tokens, MOE_CHOICES));
  r->backward.d_gate = bench_output(&c->tensors, "d_gate", type, SHAPE(r->experts, r->inner, r->width));
  r->backward.d_up = bench_output(&c->tensors, "d_up", type, SHAPE(r->experts, r->inner, r->width));
  r->backward.d_down = bench_output(&c->tensors, "d_down", type, SHAPE(r->experts, r->width, r->inner));
}

static bool moe_rows_of(bench *b, const char *dtype, int64_t tokens, double *seconds) {
  moe_rows r = {.dtype = dtype, .tokens = tokens, .width = 1024, .inner = 1024, .experts = 8};
  if (b->quick) r.tokens /= 32, r.width = 64, r.inner = 32;
  bench_case c = {.family = "moe", .dtype = dtype, .scale = 1};
  snprintf(c.name, sizeof c.name, "T %lld D %lld I %lld E %lld k %d", (long long)r.tokens, (long long)r.width,
           (long long)r.inner, (long long)r.experts, MOE_CHOICES);
  const DLTensor *dout = open_inputs(&r, &c);
  bench_case_start(b, &c);
  bool good = open_forward_outputs(b, &r, &c);
  const double u = (double)r.tokens * MOE_CHOICES * (double)r.width * (double)r.inner;
  bench_pass forward = {.name = "forward", BENCH_RUNS(moe), .args = &r.forward, .flop = 6 * u};
  forward.check = check_moe_forward;
  forward.context = &r;
  forward.outputs[0] = "out";
  good = good && bench_case_measure(b, &c, &forward);

  open_backward(&r, &c, dout);
  static const char *const gradients[BENCH_MOST_OUTPUTS] = {"dx", "d_topk_weights", "d_gate", "d_up", "d_down"};
  bench_pass backward = {.name = "backward", BENCH_RUNS(moe_backward), .args = &r.backward, .flop = 12 * u};
  backward.check = check_moe_backward;
  backward.context = &r;
  for (int i = 0; i < BENCH_MOST_OUTPUTS; i++) backward.outputs[i] = gradients[i];
  good = good && bench_case_measure(b, &c, &backward);
  if (good) bench_case_sum(b, &c, &forward, &backward);
  seconds[0] = forward.ours.seconds;
  seconds[1] = backward.ours.seconds;
  bench_case_end(b, &c);
  return good;
}

bool bench_moe(bench *b) {
  double once[2], twice[2];
  if (!moe_rows_of(b, "float32", 2048, once) || !moe_rows_of(b, "bfloat16", 2048, once) ||
      !moe_rows_of(b, "bfloat16", 4096, twice))
    return false;
  bench_print_growth("moe", "tokens, forward", once[0], twice[0]);
  bench_print_growth("moe", "tokens, backward", once[1], twice[1]);
  return true;
}
