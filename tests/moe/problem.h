/* A case as tensors: inputs with random values, outputs poisoned, and the args structs that point to them. */
#ifndef TIGON_TESTS_MOE_PROBLEM_H
#define TIGON_TESTS_MOE_PROBLEM_H

#include "tests/moe/cases.h"
#include "tests/reference/moe.h"

typedef struct moe_problem {
  moe_case c;
  test_tensor x, ids, weights, dout;
  test_tensor gate, up, gate_up, down; /* gate and up, or gate_up */
  test_tensor out, dx, d_weights, d_gate, d_up, d_gate_up, d_down;
  reference_moe_kinds kinds;
  unsigned char *saved; /* 64-byte aligned, poisoned; NULL: recompute */
  uint64_t saved_bytes;
} moe_problem;

static inline int64_t moe_id(const moe_case *c, test_rng *rng, int64_t t, int64_t j) {
  const int64_t last = c->experts - 1;
  switch (c->routing) {
  case ROUTE_DISTINCT:
    return (t * 7 + j * (c->experts / c->choices > 0 ? c->experts / c->choices : 1) + t / 3) % c->experts;
  case ROUTE_SKEWED:
    return test_random(rng) % 8 ? test_random_range(rng, 0, last < 1 ? last : 1) : test_random_range(rng, 0, last);
  case ROUTE_ONE:
    return last;
  case ROUTE_DUPLICATES:
    return t % c->experts;
  case ROUTE_INVALID: {
    const uint64_t part = test_random(rng) % 3;
    return part == 0   ? -1 - test_random_range(rng, 0, 5)
           : part == 1 ? c->experts + test_random_range(rng, 0, 5)
                       : test_random_range(rng, 0, last);
  }
  case ROUTE_NONE:
    return j % 2 ? -1 : c->experts + t;
  default:
    return test_random_range(rng, 0, last);
  }
}

/* A weight tensor: of a strided case a slice of one with more rows, so that rows and experts stand apart. */
static inline void moe_make_weight(test_tensor *t, tigon_kind kind, bool strided, int64_t experts, int64_t rows,
                                   int64_t width) {
  const test_layout layout = {.row_pad = strided ? 5 : 0, .offset = strided ? 3 : 0};
  test_tensor_make(t, kind, 3, (int64_t[]){experts, rows + (strided ? 2 : 0), width}, layout);
  t->tensor.shape[1] = rows;
  t->count = experts * rows * width;
}

static inline tigon_kind moe_other(tigon_kind kind, bool mixed, int step) {
  static const tigon_kind kinds[] = {TIGON_F32, TIGON_BF16, TIGON_F16};
  for (int i = 0; mixed && i < 3; i++)
    if (kinds[i] == kind) return kinds[(i + step) % 3];
  return kind;
}

static inline void moe_make_inputs(moe_problem *p, tigon_kind x_kind, test_rng *rng) {
  const moe_case *c = &p->c;
  const bool strided = c->options & MOE_STRIDED, expand = c->options & MOE_EXPAND, mixed = c->options & MOE_MIXED;
  const test_layout matrix = {.row_pad = strided ? 3 : 0, .offset = strided ? 1 : 0, .expand = expand};
  const test_layout routes = {.row_pad = strided ? 2 : 0};
  const int64_t rows[2] = {c->tokens, c->width}, choices[2] = {c->tokens, c->choices};
  test_tensor_make(&p->x, x_kind, 2, rows, matrix);
  test_tensor_make(&p->dout, moe_other(x_kind, mixed, 1), 2, rows, matrix);
  test_tensor_make(&p->ids, c->options & MOE_IDS64 ? TIGON_I64 : TIGON_I32, 2, choices, routes);
  test_tensor_make(&p->weights, moe_other(TIGON_F32, mixed, c->tokens % 3), 2, choices, routes);
  test_tensor_fill_normal(&p->x, rng, 1);
  test_tensor_fill_normal(&p->dout, rng, 1);
  for (int64_t i = 0; i < p->ids.count; i++) {
    test_tensor_set(&p->ids, i, (double)moe_id(c, rng, i / c->choices, i % c->choices));
    test_tensor_set(&p->weights, i, 1.2 * test_random_uniform(rng) - 0.2);
  }
  const double in_scale = 1 / sqrt((double)(c->width + 1)), inner_scale = 1 / sqrt((double)(c->inner + 1));
  if (c->options & MOE_PACKED) {
    moe_make_weight(&p->gate_up, moe_other(x_kind, mixed, 2), strided, c->experts, 2 * c->inner, c->width);
    test_tensor_fill_normal(&p->gate_up, rng, in_scale);
  } else {
    moe_make_weight(&p->gate, moe_other(x_kind, mixed, 2), strided, c->experts, c->inner, c->width);
    moe_make_weight(&p->up, moe_other(x_kind, mixed, 1), strided, c->experts, c->inner, c->width);
    test_tensor_fill_normal(&p->gate, rng, in_scale);
    test_tensor_fill_normal(&p->up, rng, in_scale);
  }
  moe_make_weight(&p->down, x_kind, strided, c->experts, c->width, c->inner);
  test_tensor_fill_normal(&p->down, rng, inner_scale);
}

static inline void moe_make_outputs(moe_problem *p, tigon_kind x_kind, test_rng *rng) {
  const moe_case *c = &p->c;
  const bool strided = c->options & MOE_STRIDED, mixed = c->options & MOE_MIXED, packed = c->options & MOE_PACKED;
  const bool accumulate = c->options & MOE_ACCUMULATE;
  const test_layout matrix = {.row_pad = strided ? 1 : 0, .offset = strided ? 2 : 0};
  const int64_t rows[2] = {c->tokens, c->width}, choices[2] = {c->tokens, c->choices};
  const tigon_kind gate = accumulate ? TIGON_F32 : x_kind;
  const tigon_kind up = accumulate ? TIGON_F32 : moe_other(x_kind, mixed && !packed, 1);
  const tigon_kind down = accumulate ? TIGON_F32 : moe_other(x_kind, mixed, 2);
  p->kinds = (reference_moe_kinds){.x = (int)x_kind,
                                   .out = (int)moe_other(x_kind, mixed, 1),
                                   .dx = (int)moe_other(x_kind, mixed, 2),
                                   .d_weights = (int)moe_other(TIGON_F32, mixed, 1),
                                   .d_gate = (int)gate,
                                   .d_up = (int)up,
                                   .d_down = (int)down};
  test_tensor_make(&p->out, (tigon_kind)p->kinds.out, 2, rows, matrix);
  test_tensor_make(&p->dx, (tigon_kind)p->kinds.dx, 2, rows, matrix);
  test_tensor_make(&p->d_weights, (tigon_kind)p->kinds.d_weights, 2, choices, matrix);
  if (packed) {
    moe_make_weight(&p->d_gate_up, gate, strided, c->experts, 2 * c->inner, c->width);
  } else {
    moe_make_weight(&p->d_gate, gate, strided, c->experts, c->inner, c->width);
    moe_make_weight(&p->d_up, up, strided, c->experts, c->inner, c->width);
  }
  moe_make_weight(&p->d_down, down, strided, c->experts, c->width, c->inner);
  test_tensor *const sums[] = {&p->d_gate, &p->d_up, &p->d_gate_up, &p->d_down};
  for (int i = 0; accumulate && i < 4; i++)
    if (sums[i]->block) test_tensor_fill_normal(sums[i], rng, 1);
}

static inline const DLTensor *moe_in(const test_tensor *t) { return t->block ? &t->tensor.dl : NULL; }
static inline DLTensor *moe_out(test_tensor *t) { return t->block ? &t->tensor.dl : NULL; }

static inline tigon_moe_args moe_forward_args(moe_problem *p) {
  return (tigon_moe_args){.size = sizeof(tigon_moe_args),
                          .x = moe_in(&p->x),
                          .topk_ids = moe_in(&p->ids),
                          .topk_weights = moe_in(&p->weights),
                          .gate = moe_in(&p->gate),
                          .up = moe_in(&p->up),
                          .gate_up = moe_in(&p->gate_up),
                          .down = moe_in(&p->down),
                          .out = moe_out(&p->out),
                          .saved = p->saved,
                          .saved_bytes = p->saved_bytes};
}

static inline tigon_moe_backward_args moe_backward_args(moe_problem *p) {
  return (tigon_moe_backward_args){.size = sizeof(tigon_moe_backward_args),
                                   .accumulate_weight_gradients = (p->c.options & MOE_ACCUMULATE) != 0,
                                   .dout = moe_in(&p->dout),
                                   .x = moe_in(&p->x),
                                   .topk_ids = moe_in(&p->ids),
                                   .topk_weights = moe_in(&p->weights),
                                   .gate = moe_in(&p->gate),
                                   .up = moe_in(&p->up),
                                   .gate_up = moe_in(&p->gate_up),
                                   .down = moe_in(&p->down),
                                   .saved = p->saved,
                                   .saved_bytes = p->saved_bytes,
                                   .dx = moe_out(&p->dx),
                                   .d_topk_weights = moe_out(&p->d_weights),
                                   .d_gate = moe_out(&p->d_gate),
                                   .d_up = moe_out(&p->d_up),
                                   .d_gate_up = moe_out(&p->d_gate_up),
                                   .d_down = moe_out(&p->d_down)};
}

/* The same seed gives the same values whatever the other options, as long as shapes and dtypes agree. */
static inline void moe_make(moe_problem *p, const moe_case *c, tigon_kind x_kind, bool with_saved, uint64_t seed) {
  memset(p, 0, sizeof *p);
  p->c = *c;
  test_rng rng = {seed};
  moe_make_inputs(p, x_kind, &rng);
  moe_make_outputs(p, x_kind, &rng);
  if (!with_saved) return;
  const tigon_moe_args args = moe_forward_args(p);
  test_expect_status(tigon_moe_saved(NULL, &args, &p->saved_bytes), TIGON_OK, NULL);
  p->saved = aligned_alloc(64, p->saved_bytes + 256);
  assert_non_null(p->saved);
  memset(p->saved, 0xff, p->saved_bytes + 256);
}

static inline void moe_free(moe_problem *p) {
  for (int i = 0; p->saved && i < 256; i++) assert_int_equal(p->saved[p->saved_bytes + (uint64_t)i], 0xff);
  free(p->saved);
  test_tensor *const all[] = {&p->x,      &p->ids,       &p->weights, &p->dout,      &p->gate,
                              &p->up,     &p->gate_up,   &p->down,    &p->out,       &p->dx,
                              &p->d_gate, &p->d_weights, &p->d_up,    &p->d_gate_up, &p->d_down};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (all[i]->block) test_tensor_check_surroundings(all[i]);
    test_tensor_free(all[i]);
  }
}

/* Runs with a workspace of exactly the queried size, poisoned. */
static inline void moe_run_forward(moe_problem *p, int threads, tigon_context *context) {
  const tigon_moe_args args = moe_forward_args(p);
  uint64_t bytes = 0;
  const tigon_exec sizing = {.size = sizeof sizing, .num_threads = threads};
  test_expect_status(tigon_moe_workspace(&sizing, &args, &bytes), TIGON_OK, NULL);
  test_workspace w;
  test_workspace_make(&w, bytes, threads);
  w.exec.context = context;
  test_expect_status(tigon_moe(&w.exec, &args), TIGON_OK, NULL);
  test_workspace_free(&w);
}

static inline void moe_run_backward(moe_problem *p, int threads, tigon_context *context) {
  const tigon_moe_backward_args args = moe_backward_args(p);
  uint64_t bytes = 0;
  const tigon_exec sizing = {.size = sizeof sizing, .num_threads = threads};
  test_expect_status(tigon_moe_backward_workspace(&sizing, &args, &bytes), TIGON_OK, NULL);
  test_workspace w;
  test_workspace_make(&w, bytes, threads);
  w.exec.context = context;
  test_expect_status(tigon_moe_backward(&w.exec, &args), TIGON_OK, NULL);
  test_workspace_free(&w);
}

/* --- the oracle's view -------------------------------------------------------------------------------------------- */

/* Inputs as dense float64. */
typedef struct moe_dense {
  double *x, *dout, *weights, *gate, *up, *down;
  int64_t *ids;
} moe_dense;

/* Both halves of an (E, 2I, D) tensor as (E, I, D). */
static inline void moe_split(const test_tensor *packed, double **gate, double **up) {
  const int64_t half = packed->tensor.shape[1] / 2 * packed->tensor.shape[2], experts = packed->tensor.shape[0];
  double *both = test_tensor_values(packed);
  *gate = malloc((size_t)(experts * half + 1) * sizeof **gate);
  *up = malloc((size_t)(experts * half + 1) * sizeof **up);
  for (int64_t e = 0; e < experts; e++) {
    memcpy(*gate + e * half, both + 2 * e * half, (size_t)half * sizeof **gate);
    memcpy(*up + e * half, both + (2 * e + 1) * half, (size_t)half * sizeof **up);
  }
  free(both);
}

static inline void moe_gate_up_values(const test_tensor *gate, const test_tensor *up, const test_tensor *gate_up,
                                      double **gate_values, double **up_values) {
  if (gate_up->block) {
    moe_split(gate_up, gate_values, up_values);
    return;
  }
  *gate_values = test_tensor_values(gate);
  *up_values = test_tensor_values(up);
}

static inline moe_dense moe_dense_of(const moe_problem *p) {
  moe_dense d = {.x = test_tensor_values(&p->x),
                 .dout = test_tensor_values(&p->dout),
                 .weights = test_tensor_values(&p->weights),
                 .down = test_tensor_values(&p->down)};
  moe_gate_up_values(&p->gate, &p->up, &p->gate_up, &d.gate, &d.up);
  d.ids = malloc(((size_t)p->ids.count + 1) * sizeof *d.ids);
  for (int64_t i = 0; i < p->ids.count; i++) d.ids[i] = (int64_t)test_tensor_get(&p->ids, i);
  return d;
}

static inline void moe_dense_free(moe_dense *d) {
  free(d->x), free(d->dout), free(d->weights), free(d->gate), free(d->up), free(d->down), free(d->ids);
}

#endif
