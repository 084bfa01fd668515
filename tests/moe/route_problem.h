/* The router's cases, and one of them as tensors. */
#ifndef TIGON_TESTS_MOE_ROUTE_PROBLEM_H
#define TIGON_TESTS_MOE_ROUTE_PROBLEM_H

#include "tests/reference/moe.h"
#include "tests/support/support.h"

typedef enum logit_values {
  LOGITS_NORMAL,
  LOGITS_TIES,    /* five different values; with bias or groups none minus another: sums of their sigmoids differ */
  LOGITS_FALLING, /* sorted either way, from row to row */
  LOGITS_LARGE,   /* times 60: scores under- and overflow */
  LOGITS_SPECIAL  /* NaN, +Inf and -Inf among them, whole rows of each */
} logit_values;

typedef enum bias_values {
  BIAS_NONE,
  BIAS_NORMAL, /* at the size of differences between scores */
  BIAS_TIES,   /* five different values */
  BIAS_SPECIAL /* NaN, +Inf and -Inf among them */
} bias_values;

enum {
  ROUTE_STRIDED = 1,
  ROUTE_IDS64 = 2,
  ROUTE_EXPAND = 4,
  ROUTE_Z = 8,     /* with z loss */
  ROUTE_SCALE = 16 /* routed_scale 2.5 */
};

typedef struct route_case {
  int64_t tokens, choices, experts;
  logit_values values;
  unsigned options;
  bias_values bias;
  int32_t n_group, topk_group, group_top;
} route_case;

/* Each runs with both scores, with and without renormalisation, and with logits of every float dtype. */
static const route_case route_cases[] = {
    {1, 1, 1, LOGITS_NORMAL, 0, BIAS_NONE, 0, 0, 0},
    {7, 1, 2, LOGITS_NORMAL, ROUTE_IDS64, BIAS_NONE, 0, 0, 0},
    {63, 2, 7, LOGITS_NORMAL, ROUTE_STRIDED, BIAS_NONE, 0, 0, 0},
    {64, 2, 8, LOGITS_NORMAL, 0, BIAS_NONE, 0, 0, 0},
    {65, 3, 63, LOGITS_NORMAL, ROUTE_STRIDED | ROUTE_IDS64, BIAS_NONE, 0, 0, 0},
    {129, 8, 64, LOGITS_NORMAL, 0, BIAS_NONE, 0, 0, 0},
    {127, 8, 65, LOGITS_TIES, ROUTE_STRIDED, BIAS_NONE, 0, 0, 0},
    {33, 32, 127, LOGITS_NORMAL, ROUTE_IDS64, BIAS_NONE, 0, 0, 0},
    {40, 32, 32, LOGITS_TIES, 0, BIAS_NONE, 0, 0, 0},
    {20, 8, 129, LOGITS_FALLING, ROUTE_IDS64, BIAS_NONE, 0, 0, 0},
    {6, 32, 4096, LOGITS_FALLING, 0, BIAS_NONE, 0, 0, 0},
    {5, 8, 4095, LOGITS_NORMAL, ROUTE_STRIDED, BIAS_NONE, 0, 0, 0},
    {9, 1, 4096, LOGITS_TIES, ROUTE_IDS64, BIAS_NONE, 0, 0, 0},
    {64, 2, 16, LOGITS_LARGE, 0, BIAS_NONE, 0, 0, 0},
    {31, 8, 100, LOGITS_LARGE, ROUTE_STRIDED, BIAS_NONE, 0, 0, 0},
    {64, 3, 17, LOGITS_SPECIAL, 0, BIAS_NONE, 0, 0, 0},
    {70, 8, 8, LOGITS_SPECIAL, ROUTE_STRIDED | ROUTE_IDS64, BIAS_NONE, 0, 0, 0},
    {64, 8, 200, LOGITS_SPECIAL, 0, BIAS_NONE, 0, 0, 0},
    {50, 2, 30, LOGITS_NORMAL, ROUTE_EXPAND, BIAS_NONE, 0, 0, 0},
    {0, 2, 8, LOGITS_NORMAL, 0, BIAS_NONE, 0, 0, 0},
    {20000, 2, 5, LOGITS_NORMAL, 0, BIAS_NONE, 0, 0, 0},
    {33, 2, 8, LOGITS_NORMAL, ROUTE_Z, BIAS_NORMAL, 0, 0, 0},
    {50, 8, 64, LOGITS_NORMAL, ROUTE_STRIDED | ROUTE_SCALE, BIAS_NORMAL, 0, 0, 0},
    {50, 6, 60, LOGITS_TIES, 0, BIAS_TIES, 0, 0, 0},
    {40, 8, 256, LOGITS_NORMAL, ROUTE_SCALE | ROUTE_Z, BIAS_NORMAL, 8, 4, 0}, /* DeepSeek-V3 */
    {40, 6, 160, LOGITS_NORMAL, ROUTE_SCALE, BIAS_NONE, 8, 3, 0},             /* DeepSeek-V2 */
    {30, 4, 30, LOGITS_TIES, ROUTE_IDS64, BIAS_TIES, 5, 2, 3},
    {30, 4, 30, LOGITS_TIES, 0, BIAS_NONE, 10, 4, 1},
    {30, 4, 30, LOGITS_NORMAL, ROUTE_Z, BIAS_NONE, 3, 1, 4},
    {64, 3, 17, LOGITS_SPECIAL, ROUTE_Z, BIAS_NORMAL, 0, 0, 0},
    {64, 4, 24, LOGITS_SPECIAL, ROUTE_Z, BIAS_SPECIAL, 6, 3, 0},
    {64, 4, 24, LOGITS_SPECIAL, ROUTE_STRIDED, BIAS_NONE, 6, 3, 2},
    {64, 4, 24, LOGITS_SPECIAL, 0, BIAS_NONE, 6, 3, 1},
    {64, 4, 24, LOGITS_NORMAL, ROUTE_Z, BIAS_SPECIAL, 4, 2, 6},
    {40, 2, 16, LOGITS_LARGE, ROUTE_Z, BIAS_NORMAL, 4, 2, 0},
    {9, 32, 4096, LOGITS_NORMAL, ROUTE_Z, BIAS_NORMAL, 64, 8, 32},
    {9, 5, 12, LOGITS_NORMAL, 0, BIAS_NORMAL, 12, 7, 0}, /* groups of one expert */
    {20, 1, 16, LOGITS_NORMAL, 0, BIAS_NONE, 1, 1, 0},   /* Llama 4 with sigmoid */
    {1000, 2, 5, LOGITS_NORMAL, ROUTE_Z, BIAS_NONE, 0, 0, 0},
    {0, 2, 8, LOGITS_NORMAL, ROUTE_Z, BIAS_NORMAL, 4, 2, 0},
};
enum { ROUTE_CASES = sizeof route_cases / sizeof *route_cases };

typedef struct route_problem {
  route_case c;
  int score, renormalize;
  bool small; /* may have too few rows to be a sample for gate 2, which then is over all cases together */
  test_tensor logits, ids, weights, counts, loss, d_weights, d_loss, d_logits;
  test_tensor bias, z_loss, d_z_loss; /* absent where the case has none */
} route_problem;

static inline double route_special(test_rng *rng, int64_t t) {
  static const double whole[] = {NAN, INFINITY, -INFINITY};
  if (t % 16 < 3) return whole[t % 16]; /* a row of the same */
  const uint64_t part = test_random(rng) % 8;
  if (t % 16 < 6) return part == 0 ? test_random_normal(rng) : whole[(t % 16) - 3]; /* few others */
  return part < 3 ? whole[part] : test_random_normal(rng);
}

static inline double route_logit(const route_case *c, test_rng *rng, int64_t t, int64_t e) {
  switch (c->values) {
  case LOGITS_TIES:
    return 0.5 * (double)test_random_range(rng, -2, 2) + (c->bias || c->n_group ? 0.375 : 0);
  case LOGITS_FALLING:
    return (t % 2 ? 1.0 : -1.0) * (double)e / 256;
  case LOGITS_LARGE:
    return 60 * test_random_normal(rng);
  case LOGITS_SPECIAL:
    return route_special(rng, t);
  default:
    return test_random_normal(rng);
  }
}

static inline double route_bias(const route_case *c, test_rng *rng) {
  static const double specials[] = {NAN, INFINITY, -INFINITY};
  if (c->bias == BIAS_TIES) return 0.125 * (double)test_random_range(rng, -2, 2);
  const uint64_t part = test_random(rng) % 8;
  if (c->bias == BIAS_SPECIAL && part < 3) return specials[part];
  return 0.2 * test_random_normal(rng);
}

static inline void route_make_options(route_problem *p, test_rng *rng) {
  const route_case *c = &p->c;
  const int64_t one = 1;
  if (c->bias) test_tensor_make(&p->bias, TIGON_F32, 1, &c->experts, (test_layout){.offset = 3});
  for (int64_t e = 0; e < p->bias.count; e++) test_tensor_set(&p->bias, e, route_bias(c, rng));
  if (!(c->options & ROUTE_Z)) return;
  test_tensor_make(&p->z_loss, TIGON_F32, 1, &one, (test_layout){0});
  test_tensor_make(&p->d_z_loss, TIGON_F32, 1, &one, (test_layout){0});
  test_tensor_fill_normal(&p->d_z_loss, rng, 0.5);
}

static inline void route_make(route_problem *p, const route_case *c, tigon_kind kind, int score, int renormalize,
                              uint64_t seed) {
  memset(p, 0, sizeof *p);
  p->c = *c;
  p->score = score;
  p->renormalize = renormalize;
  test_rng rng = {seed};
  const bool strided = c->options & ROUTE_STRIDED, expand = c->options & ROUTE_EXPAND;
  const tigon_kind index = c->options & ROUTE_IDS64 ? TIGON_I64 : TIGON_I32;
  const test_layout in = {.row_pad = strided ? 3 : 0, .offset = strided ? 1 : 0, .expand = expand};
  const test_layout out = {.row_pad = strided ? 2 : 0, .offset = strided ? 5 : 0};
  const int64_t rows[2] = {c->tokens, c->experts}, choices[2] = {c->tokens, c->choices}, one = 1;
  test_tensor_make(&p->logits, kind, 2, rows, in);
  test_tensor_make(&p->ids, index, 2, choices, out);
  test_tensor_make(&p->weights, TIGON_F32, 2, choices, out);
  test_tensor_make(&p->counts, index, 1, &c->experts, (test_layout){.vector_stride = strided ? 3 : 1});
  test_tensor_make(&p->loss, TIGON_F32, 1, &one, (test_layout){0});
  test_tensor_make(&p->d_weights, TIGON_F32, 2, choices, in);
  test_tensor_make(&p->d_loss, TIGON_F32, 1, &one, (test_layout){0});
  test_tensor_make(&p->d_logits, kind, 2, rows, out);
  for (int64_t i = 0; i < p->logits.count; i++)
    test_tensor_set(&p->logits, i, route_logit(c, &rng, i / c->experts, i % c->experts));
  test_tensor_fill_normal(&p->d_weights, &rng, 1);
  test_tensor_fill_normal(&p->d_loss, &rng, 3);
  route_make_options(p, &rng);
}

static inline void route_free(route_problem *p) {
  test_tensor *const all[] = {&p->logits, &p->ids,      &p->weights, &p->counts, &p->loss,    &p->d_weights,
                              &p->d_loss, &p->d_logits, &p->bias,    &p->z_loss, &p->d_z_loss};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (all[i]->block) test_tensor_check_surroundings(all[i]);
    test_tensor_free(all[i]);
  }
}

static inline float route_scale(const route_case *c) { return c->options & ROUTE_SCALE ? 2.5f : 0; }

static inline const DLTensor *route_in(const test_tensor *t) { return t->block ? &t->tensor.dl : NULL; }

static inline tigon_moe_route_args route_args(route_problem *p) {
  return (tigon_moe_route_args){.size = sizeof(tigon_moe_route_args),
                                .score = p->score,
                                .renormalize = p->renormalize,
                                .logits = &p->logits.tensor.dl,
                                .topk_ids = &p->ids.tensor.dl,
                                .topk_weights = &p->weights.tensor.dl,
                                .counts = &p->counts.tensor.dl,
                                .balance_loss = &p->loss.tensor.dl,
                                .selection_bias = route_in(&p->bias),
                                .n_group = p->c.n_group,
                                .topk_group = p->c.topk_group,
                                .group_top = p->c.group_top,
                                .routed_scale = route_scale(&p->c),
                                .z_loss = p->z_loss.block ? &p->z_loss.tensor.dl : NULL};
}

static inline tigon_moe_route_backward_args route_backward_args(route_problem *p) {
  return (tigon_moe_route_backward_args){.size = sizeof(tigon_moe_route_backward_args),
                                         .score = p->score,
                                         .renormalize = p->renormalize,
                                         .logits = &p->logits.tensor.dl,
                                         .topk_ids = &p->ids.tensor.dl,
                                         .d_topk_weights = &p->d_weights.tensor.dl,
                                         .d_balance_loss = &p->d_loss.tensor.dl,
                                         .d_logits = &p->d_logits.tensor.dl,
                                         .d_z_loss = route_in(&p->d_z_loss),
                                         .routed_scale = route_scale(&p->c)};
}

static inline void route_run(const tigon_moe_route_args *args, int threads) {
  uint64_t bytes = 0;
  test_expect_status(tigon_moe_route_workspace(NULL, args, &bytes), TIGON_OK, NULL);
  test_workspace w;
  test_workspace_make(&w, bytes, threads);
  test_expect_status(tigon_moe_route(&w.exec, args), TIGON_OK, NULL);
  test_workspace_free(&w);
}

static inline void route_run_backward(const tigon_moe_route_backward_args *args, int threads, tigon_context *context) {
  uint64_t bytes = 0;
  test_expect_status(tigon_moe_route_backward_workspace(NULL, args, &bytes), TIGON_OK, NULL);
  test_workspace w;
  test_workspace_make(&w, bytes, threads);
  w.exec.context = context;
  test_expect_status(tigon_moe_route_backward(&w.exec, args), TIGON_OK, NULL);
  test_workspace_free(&w);
}

#endif
