#include "model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "forward.h"
#include "machine.h"
#include "random.h"

bool model_preset(const char *name, model_config *config) {
  if (!strcmp(name, "tiny"))
    *config = (model_config){.layers = 2, .width = 32, .heads = 2, .experts = 4, .top_k = 2, .hidden = 32};
  else if (!strcmp(name, "small"))
    *config = (model_config){.layers = 3, .width = 128, .heads = 4, .experts = 8, .top_k = 2, .hidden = 128};
  else
    return false;
  return true;
}

bool model_config_check(const model_config *c, failure *failed) {
  const struct {
    const char *name;
    int64_t value, max;
  } limits[] = {{"layers", c->layers, MAX_LAYERS},
                {"width", c->width, 1 << 14},
                {"heads", c->heads, c->width},
                {"experts", c->experts, 4096},
                {"top_k", c->top_k, c->experts < 32 ? c->experts : 32},
                {"hidden", c->hidden, 1 << 16},
                {"vocabulary", c->vocabulary, MAX_VOCABULARY}};
  for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
    if (limits[i].value < 1 || limits[i].value > limits[i].max)
      return fail_with(failed, "%s: expected 1 to %lld, got %lld", limits[i].name, (long long)limits[i].max,
                       (long long)limits[i].value);
  if (c->width % c->heads || c->width / c->heads > 1024)
    return fail_with(failed, "heads: %lld channels cannot be split into %lld heads of at most 1024",
                     (long long)c->width, (long long)c->heads);
  return true;
}

static void add(model_shape *shape, const char *name, int ndim, const int64_t *extents, float deviation, bool decays) {
  parameter *p = &shape->parameters[shape->count++];
  *p = (parameter){.ndim = ndim, .offset = shape->elements, .count = 1, .decays = decays, .initial = deviation};
  snprintf(p->name, sizeof p->name, "%s", name);
  for (int i = 0; i < ndim; i++) {
    p->shape[i] = extents[i];
    p->count *= extents[i];
  }
  p->constant = ndim == 1;
  shape->elements += (p->count + 63) / 64 * 64;
}

/* Matrices start with variance 1 / inputs, those that add to the residual stream smaller, so that its variance does not
 * depend on the number of layers. */
static void add_layer(model_shape *shape, int64_t layer) {
  const model_config *c = &shape->config;
  const float unit = 1 / sqrtf((float)c->width), residual = 1 / sqrtf(2 * (float)c->layers);
  const struct {
    const char *name;
    int ndim;
    int64_t shape[3];
    float deviation;
  } rows[LAYER_PARAMETERS] = {
      [ATTENTION_NORM] = {"attention_norm", 1, {c->width}, 1},
      [QKVG] = {"qkvg", 2, {4 * c->width, c->width}, unit},
      [ATTENTION_OUT] = {"attention_out", 2, {c->width, c->width}, unit * residual},
      [MOE_NORM] = {"moe_norm", 1, {c->width}, 1},
      [ROUTER] = {"router", 2, {c->experts, c->width}, unit},
      [EXPERT_GATE] = {"experts.gate", 3, {c->experts, c->hidden, c->width}, unit},
      [EXPERT_UP] = {"experts.up", 3, {c->experts, c->hidden, c->width}, unit},
      [EXPERT_DOWN] = {"experts.down", 3, {c->experts, c->width, c->hidden}, residual / sqrtf((float)c->hidden)},
  };
  for (int i = 0; i < LAYER_PARAMETERS; i++) {
    char name[40];
    snprintf(name, sizeof name, "layers.%d.%s", (int)layer, rows[i].name);
    add(shape, name, rows[i].ndim, rows[i].shape, rows[i].deviation, rows[i].ndim > 1);
  }
}

void model_shape_init(model_shape *shape, const model_config *config) {
  *shape = (model_shape){.config = *config};
  const int64_t width = config->width, table[2] = {config->vocabulary, width};
  add(shape, "embedding", 2, table, 0.3f, false);
  add(shape, "final_norm", 1, &width, 1, false);
  add(shape, "output", 2, table, 0.5f / sqrtf((float)width), true);
  for (int64_t layer = 0; layer < config->layers; layer++) add_layer(shape, layer);
}

void model_decays(const model_config *config, float *decay) {
  const float steps = config->heads > 1 ? (float)(config->heads - 1) : 1;
  for (int64_t h = 0; h < config->heads; h++) decay[h] = 4 * exp2f(-8 * (float)h / steps);
}

/* The next part of the arena. Without an arena yet, only its size is counted. */
static void *take(model *m, int64_t count, uint64_t size) {
  void *part = m->arena ? m->arena + m->taken : NULL;
  m->taken += ((uint64_t)count * size + 255) / 256 * 256;
  return part;
}

static float *take_floats(model *m, int64_t count) { return take(m, count, sizeof(float)); }

static void lay_out_layer(model *m, int64_t index) {
  const model_config *c = &m->shape->config;
  layer_activations *l = &m->layers[index];
  const int64_t tokens = m->batch * m->length, width = tokens * c->width;
  if (index && !m->training) {
    *l = m->layers[0];
    return;
  }
  l->hidden = take_floats(m, width);
  l->rstd = take_floats(m, tokens);
  l->normed = take_floats(m, width);
  l->qkvg = take_floats(m, 4 * width);
  l->qkv = take_floats(m, 3 * width);
  l->attention = take_floats(m, width);
  l->head_rstd = take_floats(m, tokens * c->heads);
  l->head_normed = take_floats(m, width);
  l->gated = take_floats(m, width);
  l->middle = take_floats(m, width);
  l->moe_rstd = take_floats(m, tokens);
  l->moe_normed = take_floats(m, width);
  l->logits = take_floats(m, tokens * c->experts);
  l->ids = take(m, tokens * c->top_k, sizeof(int32_t));
  l->weights = take_floats(m, tokens * c->top_k);
  l->counts = take(m, c->experts, sizeof(int32_t));
  l->balance = take_floats(m, 1);
  l->saved_bytes = m->training ? forward_saved_bytes(m) : 0;
  l->saved = m->training ? take(m, (int64_t)l->saved_bytes, 1) : NULL;
}

/* Elements of one sequence's attention state in one layer: (H, D / H, D / H). */
static int64_t width_of_state(const model_config *c) { return c->width * (c->width / c->heads); }

static void lay_out(model *m) {
  const model_config *c = &m->shape->config;
  const int64_t tokens = m->batch * m->length, width = tokens * c->width, elements = m->shape->elements;
  m->taken = 0;
  m->weights = take_floats(m, elements);
  m->decay = take_floats(m, c->heads);
  m->tokens = take(m, tokens, sizeof(int32_t));
  m->targets = take(m, tokens, sizeof(int32_t));
  for (int64_t i = 0; i < c->layers; i++) lay_out_layer(m, i);
  m->hidden = take_floats(m, width);
  m->rstd = take_floats(m, tokens);
  m->normed = take_floats(m, width);
  m->branch = take_floats(m, width);
  m->loss = take_floats(m, tokens);
  m->lse = take_floats(m, tokens);
  if (m->decoding) {
    m->states = take_floats(m, c->layers * m->batch * width_of_state(c));
    m->next_logits = take_floats(m, m->batch * c->vocabulary);
  }
  if (m->training) {
    m->gradients = take_floats(m, elements);
    m->moment = take_floats(m, elements);
    m->variance = take_floats(m, elements);
    m->d_hidden = take_floats(m, width);
    m->d_normed = take_floats(m, width);
    m->d_branch = take_floats(m, width);
    m->d_qkvg = take_floats(m, 4 * width);
    m->d_attention = take_floats(m, width);
    m->d_logits = take_floats(m, tokens * c->experts);
    m->d_weights = take_floats(m, tokens * c->top_k);
    m->d_loss = take_floats(m, 1);
    m->d_balance = take_floats(m, 1);
  }
  m->exec.workspace = take(m, (int64_t)m->exec.workspace_bytes, 1);
}

static bool plan(model *m, failure *failed) {
  m->planning = true;
  m->exec.workspace_bytes = 0;
  lay_out(m);
  forward(m);
  if (m->training) backward(m);
  m->planning = false;
  if (m->failed_op) return fail_with(failed, "%s", tigon_last_error());
  lay_out(m);
  m->arena_bytes = m->taken;
  return true;
}

/* What makes the arena smaller. */
static const char *advice(const model *m, const model_settings *settings) {
  const uint64_t parameters = (uint64_t)m->shape->elements * sizeof(float) * (m->training ? 4 : 1);
  if (parameters > m->arena_bytes / 2) return ": most of it for the parameters (--vocab, --preset)";
  if (settings->training)
    return settings->threads > 1 ? ": lower --batch, --seq or --threads" : ": lower --batch or --seq";
  return settings->threads > 1 ? ": lower --threads" : "";
}

bool model_create(model *m, const model_shape *shape, const model_settings *settings, failure *failed) {
  if (settings->batch > INT32_MAX / settings->length)
    return fail_with(failed, "--batch %lld and --seq %lld: at most %d tokens a step", (long long)settings->batch,
                     (long long)settings->length, INT32_MAX);
  *m = (model){.shape = shape, .batch = settings->batch, .length = settings->length, .training = settings->training};
  m->decoding = !m->training;
  m->loops = elementwise_loops();
  m->exec = (tigon_exec){.size = sizeof m->exec, .num_threads = settings->threads};
  if (!plan(m, failed)) return false;
  const double memory = machine_memory();
  if ((double)m->arena_bytes > memory)
    return fail_with(failed, "needs %.1f GiB of memory, this machine has %.1f GiB%s", (double)m->arena_bytes / 0x1p30,
                     memory / 0x1p30, advice(m, settings));
  m->arena = mmap(NULL, m->arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (m->arena == MAP_FAILED) {
    m->arena = NULL;
    return fail_with(failed, "cannot have %.3g GiB of memory%s", (double)m->arena_bytes / 0x1p30, advice(m, settings));
  }
  madvise(m->arena, m->arena_bytes, MADV_HUGEPAGE);
  lay_out(m);
  model_decays(&shape->config, m->decay);
  m->crew = workers_create(settings->threads);
  const DLDevice cpu = {kDLCPU, 0};
  if (!m->crew || tigon_context_create(cpu, &m->exec.context) != TIGON_OK) {
    model_destroy(m);
    return fail_with(failed, "cannot start %d threads: no memory for them, or the limit of processes",
                     settings->threads);
  }
  return true;
}

void model_destroy(model *m) {
  tigon_context_destroy(m->exec.context);
  workers_destroy(m->crew);
  if (m->arena) munmap(m->arena, m->arena_bytes);
  *m = (model){0};
}

void model_init(model *m, uint64_t seed) {
  for (int i = 0; i < m->shape->count; i++) {
    const parameter *p = &m->shape->parameters[i];
    random_stream random = random_open(seed, (uint64_t)i);
    for (int64_t j = 0; j < p->count; j++)
      m->weights[p->offset + j] = p->constant ? p->initial : p->initial * (float)random_normal(&random);
  }
}
