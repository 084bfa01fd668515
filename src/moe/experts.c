/* The expert MLP on the CPU: the order of its grouped products (over all experts at once) and passes over rows. */
#include <string.h>

#include "base/pool.h"
#include "moe/backend.h"

/* Elements that one task of a pass handles. */
enum { PASS_ELEMENTS = 16384 };

tigon_moe_routing tigon_moe_routing_of(const tigon_view *ids, int64_t experts) {
  return (tigon_moe_routing){.ids = ids->data,
                             .wide = ids->kind == TIGON_I64,
                             .stride = ids->stride[0],
                             .tokens = ids->shape[0],
                             .choices = ids->shape[1],
                             .experts = experts,
                             .end = ids->shape[0] * ids->shape[1]};
}

/* --- passes ----------------------------------------------------------------------------------------------------- */

typedef struct pass {
  const tigon_moe_problem *p;
  const tigon_moe_blocks *b;
  const tigon_moe_gradients *g;
  const tigon_view *to;
  int64_t extent, chunk; /* rows or tokens, and how many a task takes */
  void (*run)(const struct pass *pass, int64_t begin, int64_t end);
} pass;

static void pass_chunk(void *context, int64_t chunk, int slot) {
  (void)slot;
  const pass *s = context;
  const int64_t begin = chunk * s->chunk;
  s->run(s, begin, s->extent - begin < s->chunk ? s->extent : begin + s->chunk);
}

static void run_pass(pass s, int64_t row_elements) {
  s.chunk = row_elements < PASS_ELEMENTS ? PASS_ELEMENTS / (row_elements > 0 ? row_elements : 1) : 1;
  tigon_parallel(s.b->threads, (s.extent + s.chunk - 1) / s.chunk, pass_chunk, &s);
}

static void scale_input(const pass *s, int64_t begin, int64_t end) {
  TIGON_ISA_CALL(tigon_moe_scale_input, s->p, s->b, begin, end);
}
static void swiglu(const pass *s, int64_t begin, int64_t end) {
  TIGON_ISA_CALL(tigon_moe_swiglu, s->p, s->b, begin, end);
}
static void swiglu_backward(const pass *s, int64_t begin, int64_t end) {
  TIGON_ISA_CALL(tigon_moe_swiglu_backward, s->p, s->b, s->g, begin, end);
}
static void combine(const pass *s, int64_t begin, int64_t end) {
  TIGON_ISA_CALL(tigon_moe_combine, s->p, s->b, s->to, begin, end);
}
static void combine_dx(const pass *s, int64_t begin, int64_t end) {
  TIGON_ISA_CALL(tigon_moe_combine_dx, s->p, s->b, s->to, begin, end);
}
static void input_dots(const pass *s, int64_t begin, int64_t end) {
  TIGON_ISA_CALL(tigon_moe_input_dots, s->p, s->b, s->to, begin, end);
}

/* --- products --------------------------------------------------------------------------------------------------- */

static void *at(void *data, tigon_kind kind, int64_t element) {
  return (char *)data + element * tigon_kind_bytes(kind);
}

/* Rows of a buffer that belong to one expert: (rows, width), transposed for products that sum over rows. */
static tigon_matrix rows_of(void *buffer, tigon_kind kind, int64_t first, int64_t column, int64_t stride,
                            bool transposed) {
  return (tigon_matrix){
      .data = at(buffer, kind, first * stride + column), .kind = kind, .stride = stride, .transposed = transposed};
}

/* Rows of a (T, D) tensor, gathered for one expert. */
static tigon_matrix tokens_of(const tigon_view *tensor, const int32_t *tokens, bool transposed) {
  tigon_matrix matrix = tigon_matrix_of(tensor, transposed);
  matrix.gather = tokens;
  return matrix;
}

/* What the experts read: rows of x, gathered, or of x scaled. */
static tigon_matrix input_of(const tigon_moe_problem *p, const tigon_moe_blocks *b, int64_t first, bool transposed) {
  return p->on_input ? rows_of(b->x, p->x.kind, first, 0, p->width, transposed)
                     : tokens_of(&p->x, b->plan.row_token + first, transposed);
}

/* One expert's matrix of a weight tensor. */
static tigon_matrix weight_of(const tigon_view *tensor, int64_t expert, bool transposed) {
  tigon_matrix matrix = tigon_matrix_of(tensor, transposed);
  matrix.data = tigon_at(tensor, expert);
  return matrix;
}

static void add(tigon_moe_products *list, int64_t m, int64_t n, int64_t k, tigon_matrix a, tigon_matrix b,
                tigon_gemm_store store) {
  tigon_gemm_store *kept = &list->store[list->count];
  *kept = store;
  list->gemm[list->count++] = (tigon_gemm){
      .m = m, .n = n, .k = k, .a = a, .b = b, .epilogue = TIGON_ISA_PICK(tigon_gemm_store_tile), .context = kept};
}

static void run(tigon_moe_blocks *b) {
  if (b->products.count > 0) tigon_gemm_run(b->threads, b->products.gemm, b->products.count, b->gemm_scratch);
  b->products.count = 0;
}

static tigon_gemm_store to_rows(void *buffer, tigon_kind kind, int64_t first, int64_t column, int64_t stride) {
  return (tigon_gemm_store){
      .data = at(buffer, kind, first * stride + column), .kind = kind, .stride = stride, .alpha = 1.0f};
}

static void plan(const tigon_moe_problem *p, tigon_moe_blocks *b) {
  tigon_moe_plan_build(&p->routing, 1, &b->plan);
  if (b->x) run_pass((pass){.p = p, .b = b, .extent = b->plan.rows, .run = scale_input}, p->width);
}

/* h = x gate^T, x up^T */
static void gate_up(const tigon_moe_problem *p, tigon_moe_blocks *b) {
  const int64_t inner = p->inner;
  for (int64_t e = 0; e < p->experts; e++) {
    const int64_t rows = b->plan.count[e], first = b->plan.begin[e];
    if (rows == 0) continue;
    const tigon_matrix x = input_of(p, b, first, false);
    add(&b->products, rows, inner, p->width, x, weight_of(&p->gate, e, p->transposed),
        to_rows(b->h, p->x.kind, first, 0, 2 * inner));
    add(&b->products, rows, inner, p->width, x, weight_of(&p->up, e, p->transposed),
        to_rows(b->h, p->x.kind, first, inner, 2 * inner));
  }
  run(b);
}

/* y = a down^T */
static void down(const tigon_moe_problem *p, tigon_moe_blocks *b) {
  for (int64_t e = 0; e < p->experts; e++) {
    const int64_t rows = b->plan.count[e], first = b->plan.begin[e];
    if (rows == 0) continue;
    add(&b->products, rows, p->width, p->inner, rows_of(b->a, p->x.kind, first, 0, p->inner, false),
        weight_of(&p->down, e, p->transposed), to_rows(b->y, p->x.kind, first, 0, p->width));
  }
  run(b);
}

void tigon_moe_run_forward(const tigon_moe_problem *p, tigon_moe_blocks *b, const tigon_view *out) {
  plan(p, b);
  gate_up(p, b);
  run_pass((pass){.p = p, .b = b, .extent = b->plan.rows, .run = swiglu}, p->inner);
  down(p, b);
  run_pass((pass){.p = p, .b = b, .to = out, .extent = p->tokens, .run = combine}, p->choices * p->width);
}

/* --- backward --------------------------------------------------------------------------------------------------- */

/* da' = dout down, in fp32 */
static void activation_gradient(const tigon_moe_problem *p, tigon_moe_blocks *b, const tigon_view *dout) {
  for (int64_t e = 0; e < p->experts; e++) {
    const int64_t rows = b->plan.count[e], first = b->plan.begin[e];
    if (rows == 0) continue;
    add(&b->products, rows, p->inner, p->width, tokens_of(dout, b->plan.row_token + first, false),
        weight_of(&p->down, e, !p->transposed), to_rows(b->wide, TIGON_F32, first, 0, p->inner));
  }
  run(b);
}

/* Rows of dx, in fp32: += dg gate or du up. Gate and up are products of their own, so that a pair and a packed tensor
 * give the same bits. */
static void add_dx_rows(const tigon_moe_problem *p, tigon_moe_blocks *b, const tigon_view *weight, int64_t column,
                        bool accumulate) {
  for (int64_t e = 0; e < p->experts; e++) {
    const int64_t rows = b->plan.count[e], first = b->plan.begin[e];
    if (rows == 0) continue;
    tigon_gemm_store store = to_rows(b->wide, TIGON_F32, first, 0, p->width);
    store.accumulate = accumulate;
    add(&b->products, rows, p->width, p->inner, rows_of(b->dh, p->x.kind, first, column, 2 * p->inner, false),
        weight_of(weight, e, !p->transposed), store);
  }
  run(b);
}

static void set_zero(const tigon_view *tensor, int64_t expert) {
  if (tigon_elements(tensor) == 0) return;
  const int64_t bytes = tigon_kind_bytes(tensor->kind);
  for (int64_t i = 0; i < tensor->shape[1]; i++)
    memset(tigon_at(tensor, expert) + i * tensor->stride[1] * bytes, 0, (size_t)(tensor->shape[2] * bytes));
}

/* Adds the product for one expert's gradient, a^T b or transposed b^T a, or clears it where there are no rows. */
static void add_weight_gradient(const tigon_moe_problem *p, tigon_moe_blocks *blocks, const tigon_moe_gradients *g,
                                const tigon_view *gradient, int64_t expert, tigon_matrix a, tigon_matrix b) {
  const int64_t rows = blocks->plan.count[expert];
  if (rows == 0) {
    if (!g->accumulate) set_zero(gradient, expert);
    return;
  }
  add(&blocks->products, gradient->shape[1], gradient->shape[2], rows, p->transposed ? b : a, p->transposed ? a : b,
      (tigon_gemm_store){.data = tigon_at(gradient, expert),
                         .kind = gradient->kind,
                         .stride = gradient->stride[1],
                         .alpha = 1.0f,
                         .accumulate = g->accumulate});
}

static void weight_gradients(const tigon_moe_problem *p, tigon_moe_blocks *b, const tigon_moe_gradients *g) {
  const tigon_kind kind = p->x.kind;
  const int64_t inner = p->inner;
  for (int64_t e = 0; e < p->experts; e++) {
    const int64_t first = b->plan.begin[e];
    if (tigon_present(&g->d_down))
      add_weight_gradient(p, b, g, &g->d_down, e, tokens_of(&g->dout, b->plan.row_token + first, true),
                          rows_of(b->a, kind, first, 0, inner, true));
    if (tigon_present(&g->d_gate))
      add_weight_gradient(p, b, g, &g->d_gate, e, rows_of(b->dh, kind, first, 0, 2 * inner, true),
                          input_of(p, b, first, true));
    if (tigon_present(&g->d_up))
      add_weight_gradient(p, b, g, &g->d_up, e, rows_of(b->dh, kind, first, inner, 2 * inner, true),
                          input_of(p, b, first, true));
  }
  run(b);
}

static void clear_skipped_routes(const tigon_moe_plan *plan, const tigon_view *d_weights) {
  for (int64_t t = 0; t < d_weights->shape[0]; t++)
    for (int64_t j = 0; j < d_weights->shape[1]; j++)
      if (plan->row_of[t * d_weights->shape[1] + j] < 0) tigon_store(tigon_at(d_weights, t), d_weights->kind, j, 0.0f);
}

void tigon_moe_run_backward(const tigon_moe_problem *p, tigon_moe_blocks *b, const tigon_moe_gradients *g,
                            bool h_ready) {
  plan(p, b);
  if (!h_ready) gate_up(p, b);
  if (b->wide) activation_gradient(p, b, &g->dout);
  run_pass((pass){.p = p, .b = b, .g = g, .extent = b->plan.rows, .run = swiglu_backward}, p->inner);
  if (tigon_present(&g->d_weights)) clear_skipped_routes(&b->plan, &g->d_weights);
  weight_gradients(p, b, g);
  if (!tigon_moe_wants_dx_rows(p, g)) return;
  add_dx_rows(p, b, &p->gate, 0, false);
  add_dx_rows(p, b, &p->up, p->inner, true);
  if (p->on_input && tigon_present(&g->d_weights))
    run_pass((pass){.p = p, .b = b, .to = &g->d_weights, .extent = b->plan.rows, .run = input_dots}, p->width);
  if (!tigon_present(&g->dx)) return;
  run_pass((pass){.p = p, .b = b, .to = &g->dx, .extent = p->tokens, .run = combine_dx}, p->choices * p->width);
}

static void clear_matrix(const tigon_view *tensor) {
  if (tigon_elements(tensor) == 0) return;
  for (int64_t i = 0; i < tensor->shape[0]; i++)
    memset(tigon_at(tensor, i), 0, (size_t)(tensor->shape[1] * tigon_kind_bytes(tensor->kind)));
}

void tigon_moe_no_gradients(const tigon_moe_gradients *g) {
  if (tigon_present(&g->dx)) clear_matrix(&g->dx);
  if (tigon_present(&g->d_weights)) clear_matrix(&g->d_weights);
  const tigon_view *const weights[] = {&g->d_gate, &g->d_up, &g->d_down};
  for (int i = 0; i < 3 && !g->accumulate; i++)
    for (int64_t e = 0; tigon_present(weights[i]) && e < weights[i]->shape[0]; e++) set_zero(weights[i], e);
}
