/* A case as tensors: inputs with random values, outputs poisoned, and the args structs that point to them. */
#ifndef TIGON_TESTS_MOE_PROBLEM_H
#define TIGON_TESTS_MOE_PROBLEM_H

#include "tests/moe/cases.h"
#include "tests/reference/moe.h"

/* Strides and offsets are multiples of this: a device takes vectors. */
#if defined(TIGON_TEST_ON_GPU)
enum { MOE_STEP = 8 };
#else
enum { MOE_STEP = 1 };
#endif

typedef struct moe_problem {
  moe_case c;
  test_tensor x, ids, weights, dout;
  test_tensor gate, up, gate_up, down; /* gate and up, or gate_up */
  test_tensor out, dx, d_weights, d_gate, d_up, d_gate_up, d_down;
  reference_moe_kinds kinds;
  int64_t row_limit;
  bool small;           /* may have too few rows to be a sample for gate 2, which then is over all cases together */
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

/* A weight tensor of `rows` x `width` an expert, which a transposed case stores as width x rows. Of a strided case it
 * is a slice of a larger tensor, so that rows and experts stand apart. */
static inline void moe_make_weight(test_tensor *t, tigon_kind kind, const moe_case *c, int64_t rows, int64_t width) {
  const bool strided = c->options & MOE_STRIDED, transposed = c->options & MOE_TRANSPOSED;
  const test_layout layout = {.row_pad = strided ? 5 * MOE_STEP : 0, .offset = strided ? 3 * MOE_STEP : 0};
  const int64_t first = transposed ? width : rows, second = transposed ? rows : width;
  test_tensor_make(t, kind, 3, (int64_t[]){c->experts, first + (strided ? 2 : 0), second}, layout);
  t->tensor.shape[1] = first;
  t->count = c->experts * rows * width;
}

/* A weight tensor, or half of a packed one, with its elements in the order of (E, rows, width), whatever its layout.
 * For values only: its descriptor is not to be passed on. */
static inline test_tensor moe_rows_view(const test_tensor *t, const moe_case *c) {
  test_tensor view = *t;
  if (!(c->options & MOE_TRANSPOSED)) return view;
  view.tensor.shape[1] = t->tensor.shape[2], view.tensor.shape[2] = t->tensor.shape[1];
  view.tensor.strides[1] = t->tensor.strides[2], view.tensor.strides[2] = t->tensor.strides[1];
  return view;
}

static inline test_tensor moe_half_view(const test_tensor *packed, const moe_case *c, int half) {
  test_tensor view = moe_rows_view(packed, c);
  view.tensor.shape[1] /= 2;
  view.count /= 2;
  view.tensor.dl.byte_offset +=
      (uint64_t)(half * view.tensor.shape[1] * view.tensor.strides[1] * tigon_kind_bytes(packed->kind));
  return view;
}

/* gate, up and down, or their gradients, as (E, I, D) twice and (E, D, I). */
enum { MOE_WEIGHTS = 3 };
static inline void moe_weight_views(const moe_problem *p, bool gradients, test_tensor views[MOE_WEIGHTS]) {
  const test_tensor *packed = gradients ? &p->d_gate_up : &p->gate_up;
  if (p->c.options & MOE_PACKED) {
    views[0] = moe_half_view(packed, &p->c, 0);
    views[1] = moe_half_view(packed, &p->c, 1);
  } else {
    views[0] = moe_rows_view(gradients ? &p->d_gate : &p->gate, &p->c);
    views[1] = moe_rows_view(gradients ? &p->d_up : &p->up, &p->c);
  }
  views[2] = moe_rows_view(gradients ? &p->d_down : &p->down, &p->c);
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
  const test_layout matrix = {
      .row_pad = strided ? 3 * MOE_STEP : 0, .offset = strided ? MOE_STEP : 0, .expand = expand};
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
  if (c->options & MOE_PACKED) {
    moe_make_weight(&p->gate_up, moe_other(x_kind, mixed, 2), c, 2 * c->inner, c->width);
  } else {
    moe_make_weight(&p->gate, moe_other(x_kind, mixed, 2), c, c->inner, c->width);
    moe_make_weight(&p->up, moe_other(x_kind, mixed, 1), c, c->inner, c->width);
  }
  moe_make_weight(&p->down, x_kind, c, c->width, c->inner);
  test_tensor weights[MOE_WEIGHTS];
  moe_weight_views(p, false, weights);
  for (int i = 0; i < MOE_WEIGHTS; i++)
    test_tensor_fill_normal(&weights[i], rng, 1 / sqrt((double)((i < 2 ? c->width : c->inner) + 1)));
}

/* The limit that leaves a third of the valid routes out. */
static inline int64_t moe_limit(const moe_problem *p) {
  int64_t valid = 0;
  for (int64_t i = 0; i < p->ids.count; i++) {
    const double id = test_tensor_get(&p->ids, i);
    valid += id >= 0 && id < (double)p->c.experts;
  }
  return valid < 2 ? 1 : (2 * valid + 2) / 3;
}

static inline void moe_make_outputs(moe_problem *p, tigon_kind x_kind, test_rng *rng) {
  const moe_case *c = &p->c;
  const bool mixed = c->options & MOE_MIXED, packed = c->options & MOE_PACKED, strided = c->options & MOE_STRIDED;
  const bool accumulate = c->options & MOE_ACCUMULATE;
  const test_layout matrix = {.row_pad = strided ? MOE_STEP : 0, .offset = strided ? 2 * MOE_STEP : 0};
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
    moe_make_weight(&p->d_gate_up, gate, c, 2 * c->inner, c->width);
  } else {
    moe_make_weight(&p->d_gate, gate, c, c->inner, c->width);
    moe_make_weight(&p->d_up, up, c, c->inner, c->width);
  }
  moe_make_weight(&p->d_down, down, c, c->width, c->inner);
  test_tensor sums[MOE_WEIGHTS];
  moe_weight_views(p, true, sums);
  for (int i = 0; accumulate && i < MOE_WEIGHTS; i++) test_tensor_fill_normal(&sums[i], rng, 1);
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
                          .saved_bytes = p->saved_bytes,
                          .weight_layout = p->c.options & MOE_TRANSPOSED ? TIGON_MOE_LAYOUT_TRANSPOSED : 0,
                          .weights_on_input = (p->c.options & MOE_ON_INPUT) != 0,
                          .row_limit = p->row_limit};
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
                                   .d_down = moe_out(&p->d_down),
                                   .weight_layout = p->c.options & MOE_TRANSPOSED ? TIGON_MOE_LAYOUT_TRANSPOSED : 0,
                                   .weights_on_input = (p->c.options & MOE_ON_INPUT) != 0,
                                   .row_limit = p->row_limit};
}

/* The same seed gives the same values whatever the other options, layouts too, as long as shapes and dtypes agree. */
static inline void moe_make(moe_problem *p, const moe_case *c, tigon_kind x_kind, bool with_saved, uint64_t seed) {
  memset(p, 0, sizeof *p);
  p->c = *c;
  test_rng rng = {seed};
  moe_make_inputs(p, x_kind, &rng);
  moe_make_outputs(p, x_kind, &rng);
  if (c->options & MOE_LIMITED) p->row_limit = moe_limit(p);
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

static inline moe_dense moe_dense_of(const moe_problem *p) {
  test_tensor weights[MOE_WEIGHTS];
  moe_weight_views(p, false, weights);
  moe_dense d = {.x = test_tensor_values(&p->x),
                 .dout = test_tensor_values(&p->dout),
                 .weights = test_tensor_values(&p->weights),
                 .gate = test_tensor_values(&weights[0]),
                 .up = test_tensor_values(&weights[1]),
                 .down = test_tensor_values(&weights[2])};
  d.ids = malloc(((size_t)p->ids.count + 1) * sizeof *d.ids);
  for (int64_t i = 0; i < p->ids.count; i++) d.ids[i] = (int64_t)test_tensor_get(&p->ids, i);
  return d;
}

static inline reference_moe_input moe_reference_input(const moe_problem *p, const moe_dense *d) {
  const moe_case *c = &p->c;
  return (reference_moe_input){
      c->tokens, c->choices, c->width, c->inner, c->experts, (c->options & MOE_ON_INPUT) != 0, p->row_limit, d->x,
      d->ids,    d->weights, d->gate,  d->up,    d->down};
}

static inline void moe_dense_free(moe_dense *d) {
  free(d->x), free(d->dout), free(d->weights), free(d->gate), free(d->up), free(d->down), free(d->ids);
}

#endif
