#include <math.h>
#include <string.h>

#include "forward.h"
#include "operation.h"

enum { COLUMNS_A_PIECE = 32 };

static void gate_rows(void *context, int64_t begin, int64_t end) {
  const layer_loop *loop = context;
  const model *m = loop->m;
  const int64_t width = m->shape->config.width, row = 4 * width, gate = begin * row + 3 * width;
  m->loops->gate_backward(loop->l->head_normed + begin * width, loop->l->qkvg + gate, row, m->d_branch + begin * width,
                          m->d_qkvg + gate, end - begin, width);
}

static void activation_rows(void *context, int64_t begin, int64_t end) {
  const layer_loop *loop = context;
  const model *m = loop->m;
  const int64_t width = m->shape->config.width, row = 4 * width;
  m->loops->silu_backward(loop->l->qkvg + begin * row, m->d_qkvg + begin * row, row, end - begin, 3 * width);
}

/* A piece is a range of columns, so that the rows of one token are added in order of the tokens. */
static void embedding_columns(void *context, int64_t begin, int64_t end) {
  const model *m = context;
  const int64_t width = m->shape->config.width;
  float *table = m->gradients + model_parameter(m->shape, -1, EMBEDDING)->offset;
  for (int64_t row = 0; row < m->shape->config.vocabulary; row++)
    memset(table + row * width + begin, 0, (size_t)(end - begin) * sizeof(float));
  for (int64_t i = 0; i < m->batch * m->length; i++) {
    float *restrict to = table + m->tokens[i] * width;
    const float *restrict from = m->d_hidden + i * width;
    for (int64_t j = begin; j < end; j++) to[j] += from[j];
  }
}

static void project_backward(model *m, float *d_out, float *x, int64_t layer, int which, float *dx, bool accumulate) {
  const parameter *p = model_parameter(m->shape, layer, which);
  const int64_t tokens = m->batch * m->length;
  tigon_tensor tdy, tx, tw, tdx, tdw;
  tigon_linear_backward_args args = {.size = sizeof args, .accumulate_dx = accumulate};
  args.dy = matrix(&tdy, d_out, tokens, p->shape[0]);
  args.x = matrix(&tx, x, tokens, p->shape[1]);
  args.weight = in_block(m, &tw, m->weights, layer, which);
  args.dx = matrix(&tdx, dx, tokens, p->shape[1]);
  args.dweight = in_block(m, &tdw, m->gradients, layer, which);
  RUN(m, tigon_linear_backward, args);
}

/* m->d_normed is the gradient of the normalised rows, m->d_hidden that of the residual stream after it and becomes that
 * before it. The last norm has nothing after it. */
static void normalise_backward(model *m, float *x, int64_t layer, int which, float *rstd, bool last) {
  const int64_t tokens = m->batch * m->length, width = m->shape->config.width;
  tigon_tensor tdy, tds, tx, tw, trstd, tdx, tdw;
  tigon_rms_norm_backward_args args = {.size = sizeof args};
  args.dy = matrix(&tdy, m->d_normed, tokens, width);
  args.d_residual_out = last ? NULL : matrix(&tds, m->d_hidden, tokens, width);
  args.x = matrix(&tx, x, tokens, width);
  args.weight = in_block(m, &tw, m->weights, layer, which);
  args.rstd = vector(&trstd, rstd, tokens);
  args.dx = matrix(&tdx, m->d_hidden, tokens, width);
  args.d_weight = in_block(m, &tdw, m->gradients, layer, which);
  RUN(m, tigon_rms_norm_backward, args);
}

static void normalise_heads_backward(model *m, layer_activations *l) {
  tigon_tensor tdy, tx, trstd, tdx;
  tigon_rms_norm_backward_args args = {.size = sizeof args};
  args.dy = heads_3d(m, &tdy, m->d_branch);
  args.x = heads_3d(m, &tx, l->attention);
  args.rstd = matrix(&trstd, l->head_rstd, m->batch * m->length, m->shape->config.heads);
  args.dx = heads_3d(m, &tdx, m->d_attention);
  RUN(m, tigon_rms_norm_backward, args);
}

static void attend_backward(model *m, layer_activations *l) {
  const model_config *c = &m->shape->config;
  tigon_tensor tdout, tq, tk, tv, td, tdq, tdk, tdv;
  tigon_lightning_attention_backward_args args = {.size = sizeof args};
  args.scale = 1 / sqrtf((float)(c->width / c->heads));
  args.dout = heads(m, &tdout, m->d_attention, 1, 0);
  args.q = heads(m, &tq, l->qkv, 3, 0);
  args.k = heads(m, &tk, l->qkv, 3, 1);
  args.v = heads(m, &tv, l->qkv, 3, 2);
  args.decay = vector(&td, m->decay, c->heads);
  args.dq = heads(m, &tdq, m->d_qkvg, 4, 0);
  args.dk = heads(m, &tdk, m->d_qkvg, 4, 1);
  args.dv = heads(m, &tdv, m->d_qkvg, 4, 2);
  RUN(m, tigon_lightning_attention_backward, args);
}

static void run_experts_backward(model *m, int64_t layer) {
  const layer_activations *l = &m->layers[layer];
  const model_config *c = &m->shape->config;
  const int64_t tokens = m->batch * m->length;
  tigon_tensor tdout, tx, tids, tweights, tgate, tup, tdown, tdx, tdweights, tdgate, tdup, tddown;
  tigon_moe_backward_args args = {.size = sizeof args, .saved = l->saved, .saved_bytes = l->saved_bytes};
  args.dout = matrix(&tdout, m->d_hidden, tokens, c->width);
  args.x = matrix(&tx, l->moe_normed, tokens, c->width);
  args.topk_ids = tigon_tensor_2d(&tids, l->ids, tigon_i32(), tokens, c->top_k);
  args.topk_weights = matrix(&tweights, l->weights, tokens, c->top_k);
  args.gate = in_block(m, &tgate, m->weights, layer, EXPERT_GATE);
  args.up = in_block(m, &tup, m->weights, layer, EXPERT_UP);
  args.down = in_block(m, &tdown, m->weights, layer, EXPERT_DOWN);
  args.dx = matrix(&tdx, m->d_normed, tokens, c->width);
  args.d_topk_weights = matrix(&tdweights, m->d_weights, tokens, c->top_k);
  args.d_gate = in_block(m, &tdgate, m->gradients, layer, EXPERT_GATE);
  args.d_up = in_block(m, &tdup, m->gradients, layer, EXPERT_UP);
  args.d_down = in_block(m, &tddown, m->gradients, layer, EXPERT_DOWN);
  RUN(m, tigon_moe_backward, args);
}

static void route_backward(model *m, layer_activations *l) {
  const model_config *c = &m->shape->config;
  const int64_t tokens = m->batch * m->length;
  tigon_tensor tlogits, tids, tdweights, tdbalance, tdlogits;
  tigon_moe_route_backward_args args = {.size = sizeof args, .score = TIGON_MOE_SOFTMAX, .renormalize = c->top_k > 1};
  args.logits = matrix(&tlogits, l->logits, tokens, c->experts);
  args.topk_ids = tigon_tensor_2d(&tids, l->ids, tigon_i32(), tokens, c->top_k);
  args.d_topk_weights = matrix(&tdweights, m->d_weights, tokens, c->top_k);
  args.d_balance_loss = vector(&tdbalance, m->d_balance, 1);
  args.d_logits = matrix(&tdlogits, m->d_logits, tokens, c->experts);
  RUN(m, tigon_moe_route_backward, args);
}

static void run_layer_backward(model *m, int64_t layer) {
  layer_activations *l = &m->layers[layer];
  run_experts_backward(m, layer);
  route_backward(m, l);
  project_backward(m, m->d_logits, l->moe_normed, layer, ROUTER, m->d_normed, true);
  normalise_backward(m, l->middle, layer, MOE_NORM, l->moe_rstd, false);
  project_backward(m, m->d_hidden, l->gated, layer, ATTENTION_OUT, m->d_branch, false);
  over_tokens(m, l, gate_rows);
  normalise_heads_backward(m, l);
  attend_backward(m, l);
  over_tokens(m, l, activation_rows);
  project_backward(m, m->d_qkvg, l->normed, layer, QKVG, m->d_normed, false);
  normalise_backward(m, l->hidden, layer, ATTENTION_NORM, l->rstd, false);
}

static void loss_backward(model *m) {
  const int64_t tokens = m->batch * m->length;
  tigon_tensor tx, tw, tt, tlse, tdloss, tdx, tdw;
  tigon_linear_cross_entropy_backward_args args = {.size = sizeof args};
  args.x = matrix(&tx, m->normed, tokens, m->shape->config.width);
  args.weight = in_block(m, &tw, m->weights, -1, OUTPUT);
  args.target = tigon_tensor_1d(&tt, m->targets, tigon_i32(), tokens);
  args.lse = vector(&tlse, m->lse, tokens);
  args.d_loss = vector(&tdloss, m->d_loss, tokens);
  tdloss.strides[0] = 0; /* one value for all tokens */
  args.dx = matrix(&tdx, m->d_normed, tokens, m->shape->config.width);
  args.dweight = in_block(m, &tdw, m->gradients, -1, OUTPUT);
  RUN(m, tigon_linear_cross_entropy_backward, args);
}

void backward(model *m) {
  loss_backward(m);
  normalise_backward(m, m->hidden, -1, FINAL_NORM, m->rstd, true);
  for (int64_t layer = m->shape->config.layers; layer-- > 0;) run_layer_backward(m, layer);
  if (!m->planning && !m->failed_op)
    parallel_for(m->crew, m->shape->config.width, COLUMNS_A_PIECE, embedding_columns, m);
}
