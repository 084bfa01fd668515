/* The router's cases, and one of them as tensors. */
#ifndef TIGON_TESTS_MOE_ROUTE_PROBLEM_H
#define TIGON_TESTS_MOE_ROUTE_PROBLEM_H

#include "tests/reference/moe.h"
#include "tests/support/support.h"

typedef enum logit_values {
  LOGITS_NORMAL,
  LOGITS_TIES,    /* five different values */
  LOGITS_FALLING, /* sorted either way, from row to row */
  LOGITS_LARGE,   /* times 60: scores under- and overflow */
  LOGITS_SPECIAL  /* NaN, +Inf and -Inf among them, whole rows of each */
} logit_values;

enum { ROUTE_STRIDED = 1, ROUTE_IDS64 = 2, ROUTE_EXPAND = 4 };

typedef struct route_case {
  int64_t tokens, choices, experts;
  logit_values values;
  unsigned options;
} route_case;

/* Each runs with both scores, with and without renormalisation, and with logits of every float dtype. */
static const route_case route_cases[] = {
    {1, 1, 1, LOGITS_NORMAL, 0},
    {7, 1, 2, LOGITS_NORMAL, ROUTE_IDS64},
    {63, 2, 7, LOGITS_NORMAL, ROUTE_STRIDED},
    {64, 2, 8, LOGITS_NORMAL, 0},
    {65, 3, 63, LOGITS_NORMAL, ROUTE_STRIDED | ROUTE_IDS64},
    {129, 8, 64, LOGITS_NORMAL, 0},
    {127, 8, 65, LOGITS_TIES, ROUTE_STRIDED},
    {33, 32, 127, LOGITS_NORMAL, ROUTE_IDS64},
    {40, 32, 32, LOGITS_TIES, 0},
    {20, 8, 129, LOGITS_FALLING, ROUTE_IDS64},
    {6, 32, 4096, LOGITS_FALLING, 0},
    {5, 8, 4095, LOGITS_NORMAL, ROUTE_STRIDED},
    {9, 1, 4096, LOGITS_TIES, ROUTE_IDS64},
    {64, 2, 16, LOGITS_LARGE, 0},
    {31, 8, 100, LOGITS_LARGE, ROUTE_STRIDED},
    {64, 3, 17, LOGITS_SPECIAL, 0},
    {70, 8, 8, LOGITS_SPECIAL, ROUTE_STRIDED | ROUTE_IDS64},
    {64, 8, 200, LOGITS_SPECIAL, 0},
    {50, 2, 30, LOGITS_NORMAL, ROUTE_EXPAND},
    {0, 2, 8, LOGITS_NORMAL, 0},
    {20000, 2, 5, LOGITS_NORMAL, 0},
};
enum { ROUTE_CASES = sizeof route_cases / sizeof *route_cases };

typedef struct route_problem {
  route_case c;
  int score, renormalize;
  test_tensor logits, ids, weights, counts, loss, d_weights, d_loss, d_logits;
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
    return 0.5 * (double)test_random_range(rng, -2, 2);
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
}

static inline void route_free(route_problem *p) {
  test_tensor *const all[] = {&p->logits, &p->ids,       &p->weights, &p->counts,
                              &p->loss,   &p->d_weights, &p->d_loss,  &p->d_logits};
  for (int i = 0; i < 8; i++) {
    test_tensor_check_surroundings(all[i]);
    test_tensor_free(all[i]);
  }
}

static inline tigon_moe_route_args route_args(route_problem *p) {
  return (tigon_moe_route_args){.size = sizeof(tigon_moe_route_args),
                                .score = p->score,
                                .renormalize = p->renormalize,
                                .logits = &p->logits.tensor.dl,
                                .topk_ids = &p->ids.tensor.dl,
                                .topk_weights = &p->weights.tensor.dl,
                                .counts = &p->counts.tensor.dl,
                                .balance_loss = &p->loss.tensor.dl};
}

static inline tigon_moe_route_backward_args route_backward_args(route_problem *p) {
  return (tigon_moe_route_backward_args){.size = sizeof(tigon_moe_route_backward_args),
                                         .score = p->score,
                                         .renormalize = p->renormalize,
                                         .logits = &p->logits.tensor.dl,
                                         .topk_ids = &p->ids.tensor.dl,
                                         .d_topk_weights = &p->d_weights.tensor.dl,
                                         .d_balance_loss = &p->d_loss.tensor.dl,
                                         .d_logits = &p->d_logits.tensor.dl};
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
