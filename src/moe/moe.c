/* The expert MLP's entry points: arguments, sizes of workspace and saved block, and the call of a backend. */
#include <inttypes.h>
#include <stddef.h>

#include "tigon/moe.h"

#include "base/args.h"
#include "base/context.h"
#include "base/status.h"
#include "moe/backend.h"
#if defined(TIGON_HAVE_CUDA)
#include "moe/gpu.h"
#endif

/* --- what forward and backward have in common ------------------------------------------------------------------- */

typedef struct input_arguments {
  const DLTensor *x, *topk_ids, *topk_weights, *gate, *up, *gate_up, *down;
  int32_t weight_layout, weights_on_input;
  int64_t row_limit;
} input_arguments;

static const int64_t any3[] = {-1, -1, -1};

/* The axis of gate, up and gate_up that holds the experts' inner width. */
static int inner_axis(const tigon_moe_problem *p) { return p->transposed ? 2 : 1; }

/* One half of a packed tensor: of its rows, transposed of its columns. */
static tigon_view half_of(const tigon_moe_problem *p, const tigon_view *packed, int half) {
  tigon_view view = *packed;
  if (!tigon_present(packed)) return view;
  const int axis = inner_axis(p);
  view.shape[axis] /= 2;
  if (half && view.data) view.data += view.shape[axis] * view.stride[axis] * tigon_kind_bytes(view.kind);
  return view;
}

static void check_options(tigon_checker *check, const input_arguments *in, tigon_moe_problem *p) {
  if (check->status == TIGON_OK && in->weight_layout == TIGON_MOE_LAYOUT_INTERLEAVED)
    check->status = tigon_fail(TIGON_UNSUPPORTED, check->op, "weight_layout",
                               "expected gate and up apart (TIGON_MOE_LAYOUT_ROWS or _TRANSPOSED), got INTERLEAVED: of "
                               "(E, 2I, D) pass rows 0::2 as gate and 1::2 as up, two views with twice the row stride; "
                               "of (E, D, 2I) copy columns 0::2 and 1::2 apart once");
  tigon_check_that(
      check, in->weight_layout == TIGON_MOE_LAYOUT_ROWS || in->weight_layout == TIGON_MOE_LAYOUT_TRANSPOSED,
      "weight_layout", "expected TIGON_MOE_LAYOUT_ROWS (0) or TIGON_MOE_LAYOUT_TRANSPOSED (1), got %" PRId32,
      in->weight_layout);
  tigon_check_that(check, in->weights_on_input == 0 || in->weights_on_input == 1, "weights_on_input",
                   "expected 0 or 1, got %" PRId32, in->weights_on_input);
  tigon_check_that(check, in->row_limit >= 0, "row_limit", "expected 0 (none) or more, got %" PRId64, in->row_limit);
  p->transposed = in->weight_layout == TIGON_MOE_LAYOUT_TRANSPOSED;
  p->on_input = in->weights_on_input == 1;
}

static void check_gate_up(tigon_checker *check, const input_arguments *in, tigon_moe_problem *p) {
  const int axis = inner_axis(p);
  int64_t shape[] = {-1, p->width, p->width};
  shape[axis] = -1;
  if (in->gate_up) {
    tigon_check_that(check, !in->gate, "gate", "expected NULL beside gate_up");
    tigon_check_that(check, !in->up, "up", "expected NULL beside gate_up");
    const tigon_view packed = tigon_check_tensor(check, "gate_up", in->gate_up, TIGON_FLOATS, 0, 3, shape);
    tigon_check_that(check, packed.shape[axis] % 2 == 0, "gate_up", "expected an even %s extent (2I), got %" PRId64,
                     p->transposed ? "third" : "second", packed.shape[axis]);
    p->gate = half_of(p, &packed, 0);
    p->up = half_of(p, &packed, 1);
  } else {
    tigon_check_that(check, in->gate || in->up, "gate", "expected a tensor here and in up, or one in gate_up");
    p->gate = tigon_check_tensor(check, "gate", in->gate, TIGON_FLOATS, 0, 3, shape);
    p->up = tigon_check_tensor(check, "up", in->up, TIGON_FLOATS, 0, 3, p->gate.shape);
  }
  p->experts = p->gate.shape[0];
  p->inner = p->gate.shape[axis];
  tigon_check_that(check, p->experts >= 1 && p->experts <= TIGON_MOE_MAX_EXPERTS, in->gate_up ? "gate_up" : "gate",
                   "expected 1 to %d experts, got %" PRId64, TIGON_MOE_MAX_EXPERTS, p->experts);
}

static tigon_moe_problem check_inputs(tigon_checker *check, const input_arguments *in) {
  tigon_moe_problem p = {0};
  check_options(check, in, &p);
  p.x = tigon_check_tensor(check, "x", in->x, TIGON_FLOATS, 0, 2, any3);
  p.tokens = p.x.shape[0];
  p.width = p.x.shape[1];
  tigon_check_that(check, p.tokens <= INT32_MAX, "x", "expected at most %d tokens, got %" PRId64, INT32_MAX, p.tokens);
  p.ids = tigon_check_tensor(check, "topk_ids", in->topk_ids, TIGON_INDICES, 0, 2, (int64_t[]){p.tokens, -1});
  p.choices = p.ids.shape[1];
  tigon_check_that(check, p.choices >= 1 && p.choices <= TIGON_MOE_MAX_CHOICES, "topk_ids",
                   "expected 1 to %d choices, got %" PRId64, TIGON_MOE_MAX_CHOICES, p.choices);
  p.weights =
      tigon_check_tensor(check, "topk_weights", in->topk_weights, TIGON_FLOATS, 0, 2, (int64_t[]){p.tokens, p.choices});
  check_gate_up(check, in, &p);
  const int64_t first = p.transposed ? p.inner : p.width, second = p.transposed ? p.width : p.inner;
  p.down = tigon_check_tensor(check, "down", in->down, TIGON_FLOATS, 0, 3, (int64_t[]){p.experts, first, second});
  /* So that no size of a row buffer overflows. */
  int64_t elements;
  const int64_t widest = p.width > p.inner ? p.width : p.inner;
  const bool fits = !__builtin_mul_overflow(p.tokens * p.choices, widest, &elements) && elements < INT64_MAX / 64;
  tigon_check_that(check, fits, "x", "expected fewer than 2^57 elements in a row buffer");
  if (check->status != TIGON_OK) return p;
  const int64_t routes = p.tokens * p.choices;
  p.rows = in->row_limit > 0 && in->row_limit < routes ? in->row_limit : routes;
  return p;
}

/* Nothing to multiply: outputs are 0, and no memory is needed. */
static bool is_trivial(const tigon_moe_problem *p) { return p->rows == 0 || p->width == 0 || p->inner == 0; }

static uint64_t row_bytes(const tigon_moe_problem *p, int64_t width, tigon_kind kind) {
  return (uint64_t)(p->rows * width * tigon_kind_bytes(kind));
}

#if defined(TIGON_HAVE_CUDA)
static bool on_cuda(DLDevice device) { return device.device_type == kDLCUDA; }
#endif

static uint64_t saved_size(const tigon_moe_problem *p, DLDevice device) {
  if (is_trivial(p)) return 0;
#if defined(TIGON_HAVE_CUDA)
  if (on_cuda(device)) return tigon_moe_gpu_saved(p);
#else
  (void)device;
#endif
  return (row_bytes(p, 2 * p->inner, p->x.kind) + 255) / 256 * 256;
}

static void check_saved(tigon_checker *check, const tigon_moe_problem *p, const void *saved, uint64_t bytes) {
  if (!saved || check->query || check->status != TIGON_OK) return;
  const uint64_t needed = saved_size(p, check->device);
  tigon_check_that(check, (uintptr_t)saved % 64 == 0, "saved", "expected 64-byte alignment, got address %p", saved);
  tigon_check_that(check, bytes >= needed, "saved_bytes", "expected at least %" PRIu64 ", got %" PRIu64, needed, bytes);
}

/* Plan, products (at most `per_expert` for each expert with rows at a time) and the threads' scratch. */
static void take_common(tigon_arena *arena, const tigon_moe_problem *p, int64_t per_expert, tigon_moe_blocks *b) {
  const uint64_t experts = (uint64_t)p->experts, rows = (uint64_t)p->rows;
  b->plan.count = tigon_arena_take(arena, experts * sizeof(int64_t));
  b->plan.begin = tigon_arena_take(arena, experts * sizeof(int64_t));
  b->plan.next = tigon_arena_take(arena, experts * sizeof(int64_t));
  b->plan.row_token = tigon_arena_take(arena, rows * sizeof(int32_t));
  b->plan.row_choice = tigon_arena_take(arena, rows);
  b->plan.row_of = tigon_arena_take(arena, (uint64_t)(p->tokens * p->choices) * sizeof(int64_t));
  const uint64_t products = (uint64_t)per_expert * (experts < rows ? experts : rows);
  b->products.gemm = tigon_arena_take(arena, products * sizeof(tigon_gemm));
  b->products.store = tigon_arena_take(arena, products * sizeof(tigon_gemm_store));
  b->gemm_scratch = tigon_arena_take(arena, (uint64_t)b->threads * tigon_gemm_scratch());
}

/* Cuts the routing at the limit, and notes the first event: an id past the experts, or a route past the limit. */
static void prepare_routing(const tigon_exec *exec, const char *op, tigon_moe_problem *p) {
  p->routing = tigon_moe_routing_of(&p->ids, p->experts);
  const int64_t routes = p->routing.end;
  int64_t needed = 0;
  if (p->rows < routes) p->routing.end = tigon_moe_plan_end(&p->routing, p->rows, &needed);
  const int64_t bad = tigon_moe_plan_first_bad(&p->routing);
  if (p->routing.ids && bad >= 0 && bad < p->routing.end)
    tigon_context_note(exec->context, TIGON_INVALID_ARGUMENT, op, "topk_ids", bad,
                       tigon_moe_id(&p->routing, bad / p->choices, bad % p->choices));
  else if (p->routing.end < routes)
    tigon_context_note(exec->context, TIGON_WORKSPACE, op, "row_limit", p->routing.end, needed);
}

/* --- forward ---------------------------------------------------------------------------------------------------- */

static const char *const forward_op = "tigon_moe";

typedef struct forward {
  tigon_exec exec;
  tigon_moe_args args;
  tigon_moe_problem p;
  tigon_view out;
  uint64_t workspace_bytes;
} forward;

static uint64_t take_forward(const forward *f, char *workspace, tigon_moe_blocks *b) {
  const tigon_moe_problem *p = &f->p;
  tigon_arena arena = {.base = workspace};
  *b = (tigon_moe_blocks){.threads = f->exec.num_threads};
  if (is_trivial(p)) return 0;
  take_common(&arena, p, 2, b);
  b->a = tigon_arena_take(&arena, row_bytes(p, p->inner, p->x.kind));
  b->h = f->args.saved;
  if (p->on_input) { /* y follows the scaled x in time */
    b->y = b->x = tigon_arena_take(&arena, row_bytes(p, p->width, p->x.kind));
    if (!b->h) b->h = tigon_arena_take(&arena, row_bytes(p, 2 * p->inner, p->x.kind));
  } else { /* y follows h in time, so that they can share memory where h is not kept. */
    const int64_t y_width = b->h || p->width > 2 * p->inner ? p->width : 2 * p->inner;
    b->y = tigon_arena_take(&arena, row_bytes(p, y_width, p->x.kind));
    if (!b->h) b->h = b->y;
  }
  return arena.used;
}

static uint64_t forward_bytes(const forward *f) {
#if defined(TIGON_HAVE_CUDA)
  if (on_cuda(f->exec.device)) {
    tigon_arena arena = {0};
    if (!is_trivial(&f->p)) (void)tigon_moe_gpu_take(&f->p, f->args.saved, &arena);
    return arena.used;
  }
#endif
  tigon_moe_blocks counted;
  return take_forward(f, NULL, &counted);
}

#if defined(TIGON_HAVE_CUDA)
static tigon_status run_on_cuda(const forward *f) {
  if (is_trivial(&f->p)) return tigon_moe_gpu_clear(forward_op, &f->exec, &(tigon_moe_gradients){.dx = f->out});
  tigon_arena arena = {.base = f->exec.workspace};
  const tigon_moe_gpu_blocks blocks = tigon_moe_gpu_take(&f->p, f->args.saved, &arena);
  return tigon_moe_gpu_forward(forward_op, &f->exec, &f->p, &blocks, &f->out);
}
#endif

static tigon_status prepare_forward(const tigon_exec *exec, const tigon_moe_args *args, bool query, forward *f) {
  tigon_status status = tigon_exec_load(forward_op, exec, TIGON_ON_CPU | TIGON_ON_CUDA, &f->exec);
  if (status == TIGON_OK) status = tigon_args_load(forward_op, "args", args, &f->args, sizeof f->args);
  if (status != TIGON_OK) return status;
  const tigon_moe_args *a = &f->args;
  tigon_checker check = {.op = forward_op, .query = query, .device = f->exec.device};
  const input_arguments in = {a->x,    a->topk_ids,      a->topk_weights,     a->gate,     a->up, a->gate_up,
                              a->down, a->weight_layout, a->weights_on_input, a->row_limit};
  f->p = check_inputs(&check, &in);
  const tigon_moe_problem *p = &f->p;
  f->out = tigon_check_tensor(&check, "out", a->out, TIGON_FLOATS, TIGON_OUTPUT, 2, p->x.shape);
  tigon_check_apart(&check, "out", &f->out, "x", &p->x);
  tigon_check_apart(&check, "out", &f->out, "topk_ids", &p->ids);
  tigon_check_apart(&check, "out", &f->out, "topk_weights", &p->weights);
  tigon_check_apart(&check, "out", &f->out, a->gate_up ? "gate_up" : "gate", &p->gate);
  tigon_check_apart(&check, "out", &f->out, a->gate_up ? "gate_up" : "up", &p->up);
  tigon_check_apart(&check, "out", &f->out, "down", &p->down);
  tigon_check_alone(&check, a->team, "expert_begin", a->expert_begin);
#if defined(TIGON_HAVE_CUDA)
  if (check.status == TIGON_OK && on_cuda(f->exec.device)) tigon_moe_gpu_check(&check, p, &f->out, a->gate_up != NULL);
#endif
  check_saved(&check, p, a->saved, a->saved_bytes);
  if (check.status != TIGON_OK) return check.status;
  f->workspace_bytes = forward_bytes(f);
  return query ? TIGON_OK : tigon_workspace_check(forward_op, &f->exec, f->workspace_bytes);
}

tigon_status tigon_moe_workspace(const tigon_exec *exec, const tigon_moe_args *args, uint64_t *bytes) {
  forward f;
  const tigon_status status = prepare_forward(exec, args, true, &f);
  return status == TIGON_OK ? tigon_workspace_answer(forward_op, f.workspace_bytes, bytes) : status;
}

tigon_status tigon_moe_saved(const tigon_exec *exec, const tigon_moe_args *args, uint64_t *bytes) {
  forward f;
  const tigon_status status = prepare_forward(exec, args, true, &f);
  return status == TIGON_OK ? tigon_workspace_answer(forward_op, saved_size(&f.p, f.exec.device), bytes) : status;
}

tigon_status tigon_moe(const tigon_exec *exec, const tigon_moe_args *args) {
  forward f;
  const tigon_status status = prepare_forward(exec, args, false, &f);
  if (status != TIGON_OK) return status;
#if defined(TIGON_HAVE_CUDA)
  if (on_cuda(f.exec.device)) return run_on_cuda(&f);
#endif
  prepare_routing(&f.exec, forward_op, &f.p);
  if (is_trivial(&f.p)) {
    const tigon_moe_gradients only_out = {.dx = f.out};
    tigon_moe_no_gradients(&only_out);
    return TIGON_OK;
  }
  tigon_moe_blocks blocks;
  take_forward(&f, f.exec.workspace, &blocks);
  tigon_moe_run_forward(&f.p, &blocks, &f.out);
  return TIGON_OK;
}

/* --- backward --------------------------------------------------------------------------------------------------- */

static const char *const backward_op = "tigon_moe_backward";

typedef struct backward {
  tigon_exec exec;
  tigon_moe_backward_args args;
  tigon_moe_problem p;
  tigon_moe_gradients g;
  uint64_t workspace_bytes;
} backward;

static uint64_t take_backward(const backward *f, char *workspace, tigon_moe_blocks *b) {
  const tigon_moe_problem *p = &f->p;
  const tigon_moe_gradients *g = &f->g;
  tigon_arena arena = {.base = workspace};
  *b = (tigon_moe_blocks){.threads = f->exec.num_threads};
  const bool want_rows = tigon_moe_wants_dx_rows(p, g);
  const bool want_x_gradient = tigon_present(&g->d_gate) || tigon_present(&g->d_up);
  const bool want_dh = want_rows || want_x_gradient;
  const bool want_da = want_dh || tigon_present(&g->d_weights);
  if (is_trivial(p) || (!want_da && !tigon_present(&g->d_down))) return 0;
  take_common(&arena, p, 3, b);
  if (want_dh || !f->args.saved) b->h = tigon_arena_take(&arena, row_bytes(p, 2 * p->inner, p->x.kind));
  b->dh = want_dh ? b->h : NULL;
  if (f->args.saved) b->h = (void *)(uintptr_t)f->args.saved;
  if (p->on_input && (want_x_gradient || !f->args.saved))
    b->x = tigon_arena_take(&arena, row_bytes(p, p->width, p->x.kind));
  if (tigon_present(&g->d_down)) b->a = tigon_arena_take(&arena, row_bytes(p, p->inner, p->x.kind));
  const int64_t wide = want_rows && p->width > p->inner ? p->width : p->inner;
  if (want_da) b->wide = tigon_arena_take(&arena, row_bytes(p, wide, TIGON_F32));
  return arena.used;
}

static void check_gate_up_gradients(tigon_checker *check, const tigon_moe_backward_args *a, const tigon_moe_problem *p,
                                    tigon_moe_gradients *g) {
  const unsigned flags = TIGON_OPTIONAL | TIGON_OUTPUT;
  if (a->gate_up) {
    tigon_check_that(check, !a->d_gate, "d_gate", "expected NULL: the weights are packed in gate_up");
    tigon_check_that(check, !a->d_up, "d_up", "expected NULL: the weights are packed in gate_up");
    int64_t shape[] = {p->experts, p->gate.shape[1], p->gate.shape[2]};
    shape[inner_axis(p)] *= 2;
    const tigon_view packed = tigon_check_tensor(check, "d_gate_up", a->d_gate_up, TIGON_FLOATS, flags, 3, shape);
    g->d_gate = half_of(p, &packed, 0);
    g->d_up = half_of(p, &packed, 1);
  } else {
    tigon_check_that(check, !a->d_gate_up, "d_gate_up", "expected NULL: the weights are the pair gate and up");
    g->d_gate = tigon_check_tensor(check, "d_gate", a->d_gate, TIGON_FLOATS, flags, 3, p->gate.shape);
    g->d_up = tigon_check_tensor(check, "d_up", a->d_up, TIGON_FLOATS, flags, 3, p->gate.shape);
  }
}

static void check_gradients(tigon_checker *check, const tigon_moe_backward_args *a, const tigon_moe_problem *p,
                            tigon_moe_gradients *g) {
  const unsigned flags = TIGON_OPTIONAL | TIGON_OUTPUT;
  g->dout = tigon_check_tensor(check, "dout", a->dout, TIGON_FLOATS, 0, 2, p->x.shape);
  g->dx = tigon_check_tensor(check, "dx", a->dx, TIGON_FLOATS, flags, 2, p->x.shape);
  g->d_weights =
      tigon_check_tensor(check, "d_topk_weights", a->d_topk_weights, TIGON_FLOATS, flags, 2, p->weights.shape);
  check_gate_up_gradients(check, a, p, g);
  g->d_down = tigon_check_tensor(check, "d_down", a->d_down, TIGON_FLOATS, flags, 3, p->down.shape);
  tigon_check_that(check, a->accumulate_weight_gradients == 0 || a->accumulate_weight_gradients == 1,
                   "accumulate_weight_gradients", "expected 0 or 1, got %" PRId32, a->accumulate_weight_gradients);
  g->accumulate = a->accumulate_weight_gradients;
  const char *const names[] = {a->gate_up ? "d_gate_up" : "d_gate", a->gate_up ? "d_gate_up" : "d_up", "d_down"};
  const tigon_view *const views[] = {&g->d_gate, &g->d_up, &g->d_down};
  for (int i = 0; i < 3 && g->accumulate; i++)
    tigon_check_that(check, !tigon_present(views[i]) || views[i]->kind == TIGON_F32, names[i],
                     "expected dtype float32 with accumulate_weight_gradients");
}

/* Outputs stand apart from inputs and from each other. */
static void check_backward_apart(tigon_checker *check, const backward *f) {
  const tigon_moe_problem *p = &f->p;
  const tigon_moe_gradients *g = &f->g;
  const bool packed = f->args.gate_up != NULL;
  const struct {
    const char *name;
    const tigon_view *view;
  } all[] = {{"dx", &g->dx},
             {"d_topk_weights", &g->d_weights},
             {packed ? "d_gate_up" : "d_gate", &g->d_gate},
             {packed ? "d_gate_up" : "d_up", &g->d_up},
             {"d_down", &g->d_down},
             {"dout", &g->dout},
             {"x", &p->x},
             {"topk_ids", &p->ids},
             {"topk_weights", &p->weights},
             {packed ? "gate_up" : "gate", &p->gate},
             {packed ? "gate_up" : "up", &p->up},
             {"down", &p->down}};
  enum { OUTPUTS = 5, ALL = sizeof all / sizeof *all };
  for (int i = 0; i < OUTPUTS; i++)
    for (int j = i + 1; j < ALL; j++) tigon_check_apart(check, all[i].name, all[i].view, all[j].name, all[j].view);
}

#if defined(TIGON_HAVE_CUDA)
static bool wants_nothing(const backward *f) {
  const tigon_moe_gradients *g = &f->g;
  return is_trivial(&f->p) || !(tigon_present(&g->dx) || tigon_present(&g->d_weights) || tigon_present(&g->d_gate) ||
                                tigon_present(&g->d_up) || tigon_present(&g->d_down));
}

static tigon_moe_gpu_blocks take_on_cuda(const backward *f, tigon_arena *arena) {
  return tigon_moe_gpu_take_backward(&f->p, &f->g, (char *)(uintptr_t)f->args.saved, f->exec.context, arena);
}

static tigon_status run_backward_on_cuda(const backward *f) {
  if (wants_nothing(f)) return tigon_moe_gpu_clear(backward_op, &f->exec, &f->g);
  tigon_arena arena = {.base = f->exec.workspace};
  const tigon_moe_gpu_blocks blocks = take_on_cuda(f, &arena);
  return tigon_moe_gpu_backward(backward_op, &f->exec, &f->p, &blocks, &f->g);
}
#endif

static uint64_t backward_bytes(const backward *f) {
#if defined(TIGON_HAVE_CUDA)
  if (on_cuda(f->exec.device)) {
    tigon_arena arena = {0};
    if (!wants_nothing(f)) (void)take_on_cuda(f, &arena);
    return arena.used;
  }
#endif
  tigon_moe_blocks counted;
  return take_backward(f, NULL, &counted);
}

static tigon_status prepare_backward(const tigon_exec *exec, const tigon_moe_backward_args *args, bool query,
                                     backward *f) {
  tigon_status status = tigon_exec_load(backward_op, exec, TIGON_ON_CPU | TIGON_ON_CUDA, &f->exec);
  if (status == TIGON_OK) status = tigon_args_load(backward_op, "args", args, &f->args, sizeof f->args);
  if (status != TIGON_OK) return status;
  const tigon_moe_backward_args *a = &f->args;
  tigon_checker check = {.op = backward_op, .query = query, .device = f->exec.device};
  const input_arguments in = {a->x,    a->topk_ids,      a->topk_weights,     a->gate,     a->up, a->gate_up,
                              a->down, a->weight_layout, a->weights_on_input, a->row_limit};
  f->p = check_inputs(&check, &in);
  check_gradients(&check, a, &f->p, &f->g);
  if (check.status == TIGON_OK) check_backward_apart(&check, f);
  tigon_check_alone(&check, a->team, "expert_begin", a->expert_begin);
#if defined(TIGON_HAVE_CUDA)
  if (check.status == TIGON_OK && on_cuda(f->exec.device))
    tigon_moe_gpu_check_backward(&check, &f->p, &f->g, a->gate_up != NULL);
#endif
  check_saved(&check, &f->p, a->saved, a->saved_bytes);
  if (check.status != TIGON_OK) return check.status;
  f->workspace_bytes = backward_bytes(f);
  return query ? TIGON_OK : tigon_workspace_check(backward_op, &f->exec, f->workspace_bytes);
}

tigon_status tigon_moe_backward_workspace(const tigon_exec *exec, const tigon_moe_backward_args *args,
                                          uint64_t *bytes) {
  backward f;
  const tigon_status status = prepare_backward(exec, args, true, &f);
  return status == TIGON_OK ? tigon_workspace_answer(backward_op, f.workspace_bytes, bytes) : status;
}

tigon_status tigon_moe_backward(const tigon_exec *exec, const tigon_moe_backward_args *args) {
  backward f;
  const tigon_status status = prepare_backward(exec, args, false, &f);
  if (status != TIGON_OK) return status;
#if defined(TIGON_HAVE_CUDA)
  if (on_cuda(f.exec.device)) return run_backward_on_cuda(&f);
#endif
  prepare_routing(&f.exec, backward_op, &f.p);
  if (f.workspace_bytes == 0) {
    tigon_moe_no_gradients(&f.g);
    return TIGON_OK;
  }
  tigon_moe_blocks blocks;
  take_backward(&f, f.exec.workspace, &blocks);
  tigon_moe_run_backward(&f.p, &blocks, &f.g, f.args.saved != NULL);
  return TIGON_OK;
}
