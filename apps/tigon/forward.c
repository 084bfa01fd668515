#include "forward.h"

#include <math.h>
#include <string.h>

#include "operation.h"

static void embed_rows(void *context, int64_t begin, int64_t end) {
  const model *m = context;
  const int64_t width = m->shape->config.width;
  const float *table = m->weights + model_parameter(m->shape, -1, EMBEDDING)->offset;
  for (int64_t i = begin; i < end; i++)
    memcpy(m->layers[0].hidden + i * width, table + m->tokens[i] * width, (size_t)width * sizeof(float));
}

static void activate_rows(void *context, int64_t begin, int64_t end) {
  const layer_loop *loop = context;
  const int64_t width = loop->m->shape->config.width;
  loop->m->loops->silu(loop->l->qkvg + begin * 4 * width, 4 * width, loop->l->qkv + begin * 3 * width, 3 * width,
                       end - begin, 3 * width);
}

static void gate_rows(void *context, int64_t begin, int64_t end) {
  const layer_loop *loop = context;
  const int64_t width = loop->m->shape->config.width;
  loop->m->loops->gate(loop->l->head_normed + begin * width, loop->l->qkvg + begin * 4 * width + 3 * width, 4 * width,
                       loop->l->gated + begin * width, end - begin, width);
}

/* out = x weight^T */
static void project(model *m, float *x, int64_t layer, int which, float *out) {
  const parameter *p = model_parameter(m->shape, layer, which);
  const int64_t tokens = m->batch * m->length;
  tigon_tensor tx, tw, ty;
  tigon_linear_args args = {.size = sizeof args};
  args.x = matrix(&tx, x, tokens, p->shape[1]);
  args.weight = in_block(m, &tw, m->weights, layer, which);
  args.y = matrix(&ty, out, tokens, p->shape[0]);
  RUN(m, tigon_linear, args);
}

/* With a residual: sum = x + residual and out = rms_norm(sum). */
static void normalise(model *m, float *x, float *residual, float *sum, int64_t layer, int which, float *rstd,
                      float *out) {
  const int64_t tokens = m->batch * m->length, width = m->shape->config.width;
  tigon_tensor tx, tr, ts, tw, trstd, tout;
  tigon_rms_norm_args args = {.size = sizeof args};
  args.x = matrix(&tx, x, tokens, width);
  if (sum != x) {
    args.residual = matrix(&tr, residual, tokens, width);
    args.residual_out = matrix(&ts, sum, tokens, width);
  }
  args.weight = in_block(m, &tw, m->weights, layer, which);
  args.rstd = vector(&trstd, rstd, tokens);
  args.out = matrix(&tout, out, tokens, width);
  RUN(m, tigon_rms_norm, args);
}

static void normalise_heads(model *m, layer_activations *l) {
  tigon_tensor tx, trstd, tout;
  tigon_rms_norm_args args = {.size = sizeof args};
  args.x = heads_3d(m, &tx, l->attention);
  args.rstd = matrix(&trstd, l->head_rstd, m->batch * m->length, m->shape->config.heads);
  args.out = heads_3d(m, &tout, l->head_normed);
  RUN(m, tigon_rms_norm, args);
}

static void attend(model *m, layer_activations *l) {
  const model_config *c = &m->shape->config;
  tigon_tensor tq, tk, tv, td, tout;
  tigon_lightning_attention_args args = {.size = sizeof args};
  args.scale = 1 / sqrtf((float)(c->width / c->heads));
  args.q = heads(m, &tq, l->qkv, 3, 0);
  args.k = heads(m, &tk, l->qkv, 3, 1);
  args.v = heads(m, &tv, l->qkv, 3, 2);
  args.decay = vector(&td, m->decay, c->heads);
  args.out = heads(m, &tout, l->attention, 1, 0);
  RUN(m, tigon_lightning_attention, args);
}

static void attend_to_state(model *m, int64_t layer) {
  const model_config *c = &m->shape->config;
  const layer_activations *l = &m->layers[layer];
  const int64_t channels = c->width / c->heads, extents[4] = {m->batch, c->heads, channels, channels};
  tigon_tensor tq, tk, tv, td, ts, tout;
  tigon_lightning_attention_decode_args args = {.size = sizeof args};
  args.scale = 1 / sqrtf((float)channels);
  args.q = heads(m, &tq, l->qkv, 3, 0);
  args.k = heads(m, &tk, l->qkv, 3, 1);
  args.v = heads(m, &tv, l->qkv, 3, 2);
  args.decay = vector(&td, m->decay, c->heads);
  float *state = m->states ? m->states + layer * m->batch * c->width * channels : NULL;
  args.state = tigon_tensor_nd(&ts, state, tigon_f32(), 4, extents);
  args.out = heads(m, &tout, l->attention, 1, 0);
  RUN(m, tigon_lightning_attention_decode, args);
}

static void route(model *m, layer_activations *l) {
  const model_config *c = &m->shape->config;
  const int64_t tokens = m->batch * m->length;
  tigon_tensor tlogits, tids, tweights, tcounts, tbalance;
  tigon_moe_route_args args = {.size = sizeof args, .score = TIGON_MOE_SOFTMAX, .renormalize = c->top_k > 1};
  args.logits = matrix(&tlogits, l->logits, tokens, c->experts);
  args.topk_ids = tigon_tensor_2d(&tids, l->ids, tigon_i32(), tokens, c->top_k);
  args.topk_weights = matrix(&tweights, l->weights, tokens, c->top_k);
  args.counts = tigon_tensor_1d(&tcounts, l->counts, tigon_i32(), c->experts);
  args.balance_loss = vector(&tbalance, l->balance, 1);
  RUN(m, tigon_moe_route, args);
}

typedef struct expert_tensors {
  tigon_tensor x, ids, weights, gate, up, down, out;
} expert_tensors;

static tigon_moe_args expert_args(const model *m, int64_t layer, expert_tensors *t) {
  const layer_activations *l = &m->layers[layer];
  const model_config *c = &m->shape->config;
  const int64_t tokens = m->batch * m->length;
  tigon_moe_args args = {.size = sizeof args, .saved = l->saved, .saved_bytes = l->saved_bytes};
  args.x = matrix(&t->x, l->moe_normed, tokens, c->width);
  args.topk_ids = tigon_tensor_2d(&t->ids, l->ids, tigon_i32(), tokens, c->top_k);
  args.topk_weights = matrix(&t->weights, l->weights, tokens, c->top_k);
  args.gate = in_block(m, &t->gate, m->weights, layer, EXPERT_GATE);
  args.up = in_block(m, &t->up, m->weights, layer, EXPERT_UP);
  args.down = in_block(m, &t->down, m->weights, layer, EXPERT_DOWN);
  args.out = matrix(&t->out, m->branch, tokens, c->width);
  return args;
}

uint64_t forward_saved_bytes(model *m) {
  expert_tensors tensors;
  const tigon_moe_args args = expert_args(m, 0, &tensors);
  uint64_t bytes = 0;
  const tigon_status status = tigon_moe_saved(&m->exec, &args, &bytes);
  if (status != TIGON_OK) m->failed_op = "tigon_moe_saved";
  return bytes;
}

static void run_experts(model *m, int64_t layer) {
  expert_tensors tensors;
  const tigon_moe_args args = expert_args(m, layer, &tensors);
  RUN(m, tigon_moe, args);
}

static void run_layer(model *m, int64_t layer) {
  layer_activations *l = &m->layers[layer];
  if (layer)
    normalise(m, m->branch, m->layers[layer - 1].middle, l->hidden, layer, ATTENTION_NORM, l->rstd, l->normed);
  else
    normalise(m, l->hidden, NULL, l->hidden, layer, ATTENTION_NORM, l->rstd, l->normed);
  project(m, l->normed, layer, QKVG, l->qkvg);
  over_tokens(m, l, activate_rows);
  if (m->decoding)
    attend_to_state(m, layer);
  else
    attend(m, l);
  normalise_heads(m, l);
  over_tokens(m, l, gate_rows);
  project(m, l->gated, layer, ATTENTION_OUT, m->branch);
  normalise(m, m->branch, l->hidden, l->middle, layer, MOE_NORM, l->moe_rstd, l->moe_normed);
  project(m, l->moe_normed, layer, ROUTER, l->logits);
  route(m, l);
  run_experts(m, layer);
}

static void measure_loss(model *m) {
  const int64_t tokens = m->batch * m->length;
  tigon_tensor tx, tw, tt, tloss, tlse;
  tigon_linear_cross_entropy_args args = {.size = sizeof args};
  args.x = matrix(&tx, m->normed, tokens, m->shape->config.width);
  args.weight = in_block(m, &tw, m->weights, -1, OUTPUT);
  args.target = tigon_tensor_1d(&tt, m->targets, tigon_i32(), tokens);
  args.loss = vector(&tloss, m->loss, tokens);
  args.lse = vector(&tlse, m->lse, tokens);
  RUN(m, tigon_linear_cross_entropy, args);
}

void forward(model *m) {
  m->failed_op = NULL;
  if (!m->planning) parallel_for(m->crew, m->batch * m->length, ROWS_A_PIECE, embed_rows, m);
  const int64_t layers = m->shape->config.layers;
  for (int64_t layer = 0; layer < layers; layer++) run_layer(m, layer);
  normalise(m, m->branch, m->layers[layers - 1].middle, m->hidden, -1, FINAL_NORM, m->rstd, m->normed);
  if (m->decoding)
    project(m, m->normed, -1, OUTPUT, m->next_logits);
  else
    measure_loss(m);
}
