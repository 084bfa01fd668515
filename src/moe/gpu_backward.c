/* The expert MLP's gradients on CUDA devices (the formulas: include/tigon/moe.h). */
#include "base/integer.h"
#include "moe/gpu_parts.h"

TIGON_IMAGE(moe_activation_sm90a)
TIGON_IMAGE(moe_weights_sm90a)
TIGON_IMAGE(moe_dots)

static tigon_kernel activation_kernels[2] = {TIGON_KERNEL(moe_activation_sm90a, "moe_activation"),
                                             TIGON_KERNEL(moe_activation_sm90a, "moe_activation_transposed")};
/* By whether the rows of a gradient run along the outer width. */
static tigon_kernel weights_kernels[2] = {TIGON_KERNEL(moe_weights_sm90a, "moe_weights"),
                                          TIGON_KERNEL(moe_weights_sm90a, "moe_weights_transposed")};
static tigon_kernel dots_kernel = TIGON_KERNEL(moe_dots, "moe_dots");
static tigon_kernel input_dots_kernel = TIGON_KERNEL(moe_dots, "moe_input_dots");

enum { ELEMENT = 2, DOT_THREADS = 256, WARP = 32 };

/* dh, the weighted a, the parts of <da', a>, and dout in sorted order */
static tigon_status activation(const tigon_gpu_call *call, const tigon_moe_problem *p, const tigon_moe_gpu_blocks *b,
                               const tigon_moe_gradients *g) {
  const tigon_view *dout = &g->dout;
  moe_activation_params params = {.tiles = tigon_moe_gpu_tiles(p, b, MOE_COUNT_ACTIVATION, p->inner, PRODUCT_N),
                                  .dout = dout->data,
                                  .weights = p->on_input ? NULL : p->weights.data,
                                  .dout_row_bytes = dout->stride[0] * ELEMENT,
                                  .weight_row_bytes = p->weights.stride[0] * tigon_kind_bytes(p->weights.kind),
                                  .rows = tigon_moe_row_bound(p->rows, p->experts, MOE_ALIGN),
                                  .row_token = b->row_token,
                                  .row_choice = b->row_choice,
                                  .dots = b->dots,
                                  .weight_kind = (int32_t)p->weights.kind,
                                  .depth = (int32_t)p->width,
                                  .width = (int32_t)p->inner,
                                  .sorts = tigon_present(&g->d_down)};
  const tigon_tensor_map maps[] = {tigon_moe_weights_map(&p->down, p->transposed),
                                   tigon_moe_rows_map(p, b->h, 2, p->inner), tigon_moe_rows_map(p, b->dh, 2, p->inner),
                                   tigon_moe_rows_map(p, b->a, 1, p->inner), tigon_moe_rows_map(p, b->y, 1, p->width)};
  CUtensorMap *const to[] = {&params.down, &params.h, &params.dh, &params.weighted, &params.sorted};
  const tigon_status status = tigon_moe_gpu_maps(call, params.sorts ? 5 : 4, maps, to);
  return status == TIGON_OK ? tigon_moe_gpu_product(call, &activation_kernels[p->transposed], 1, &params) : status;
}

/* y = dg gate + du up */
static tigon_status dx_rows(const tigon_gpu_call *call, const tigon_moe_problem *p, const tigon_moe_gpu_blocks *b) {
  moe_product_params params = {.tiles = tigon_moe_gpu_tiles(p, b, MOE_COUNT_ROWS, p->width, PRODUCT_N),
                               .depth = (int32_t)p->inner,
                               .parts = 2,
                               .width = (int32_t)p->width};
  const tigon_tensor_map maps[] = {tigon_moe_weights_map(&p->gate, p->transposed),
                                   tigon_moe_weights_map(&p->up, p->transposed),
                                   tigon_moe_rows_map(p, b->dh, 2, p->inner), tigon_moe_rows_map(p, b->y, 1, p->width)};
  CUtensorMap *const to[] = {&params.b[0], &params.b[1], &params.a, &params.out};
  const tigon_status status = tigon_moe_gpu_maps(call, 4, maps, to);
  return status == TIGON_OK ? tigon_moe_gpu_rows(call, !p->transposed, &params) : status;
}

/* Sorted rows of both operands of a weight gradient. In `inner` columns of a second part may follow. */
typedef struct operands {
  const char *outer, *inner;
  int64_t inner_row, inner_part; /* elements of a row, columns from one part to the next */
  bool transposed;               /* the gradient's rows run along the outer width */
} operands;

/* In boxes of PRODUCT_K rows by 64 columns. */
static tigon_tensor_map narrow_map(const tigon_moe_problem *p, const char *data, int64_t row_width) {
  const int64_t rows = tigon_moe_row_bound(p->rows, p->experts, MOE_ALIGN);
  return (tigon_tensor_map){
      .data = data, .extent = {row_width, rows, 1}, .stride = {row_width, rows * row_width}, .box = {PRODUCT_K, 1}};
}

/* In boxes of a tile's width. Columns past a part are another part's or zeros: what they give is not stored. The blocks
 * of 64 columns come behind the rows, so that their stride is the smaller one, which cuda.h does not foresee and drivers
 * take. */
static tigon_tensor_map whole_map(const tigon_moe_problem *p, const char *data, int64_t row_width) {
  return (tigon_tensor_map){.data = data,
                            .extent = {64, tigon_moe_row_bound(p->rows, p->experts, MOE_ALIGN), row_width / 64},
                            .stride = {row_width, 64},
                            .box = {PRODUCT_K, MOE_WEIGHTS_INNER / 64}};
}

/* gradients[i] = inner^T outer, or its transpose, for `parts` parts from first_part on. */
static tigon_status weight_gradients(const tigon_gpu_call *call, const tigon_moe_problem *p,
                                     const tigon_moe_gpu_blocks *b, const tigon_moe_gradients *g, operands rows,
                                     const tigon_view *const *gradients, int first_part, int parts) {
  const tigon_view *one = gradients[0];
  const bool wide = one->kind == TIGON_F32, whole = rows.inner_row % 64 == 0 && rows.inner_part % 64 == 0;
  moe_weights_params params = {.first_row = b->first_row,
                               .outer_rows = rows.outer,
                               .inner_rows = rows.inner,
                               .outer_row_bytes = p->width * ELEMENT,
                               .inner_row_bytes = rows.inner_row * ELEMENT,
                               .groups = (int32_t)p->experts,
                               .parts = parts,
                               .first_part = first_part,
                               .outer_width = (int32_t)p->width,
                               .inner_width = (int32_t)p->inner,
                               .outer_tiles = (int32_t)tigon_ceil_div(p->width, MOE_WEIGHTS_OUTER),
                               .inner_tiles = (int32_t)tigon_ceil_div(p->inner, MOE_WEIGHTS_INNER),
                               .inner_part = (int32_t)rows.inner_part,
                               .inner_whole = whole,
                               .wide_group = one->stride[0],
                               .wide_row = one->stride[1],
                               .accumulates = g->accumulate};
  tigon_tensor_map maps[4] = {narrow_map(p, rows.outer, p->width), whole ? whole_map(p, rows.inner, rows.inner_row)
                                                                         : narrow_map(p, rows.inner, rows.inner_row)};
  CUtensorMap *const to[] = {&params.outer, &params.inner, &params.out[0], &params.out[1]};
  for (int i = 0; i < parts; i++) {
    if (wide)
      params.wide[i] = gradients[i]->data;
    else
      maps[2 + i] = (tigon_tensor_map){.data = gradients[i]->data,
                                       .extent = {one->shape[2], one->shape[1], one->shape[0]},
                                       .stride = {gradients[i]->stride[1], gradients[i]->stride[0]},
                                       .box = {64, 1}};
  }
  const tigon_status status = tigon_moe_gpu_maps(call, wide ? 2 : 2 + parts, maps, to);
  return status == TIGON_OK ? tigon_moe_gpu_product(call, &weights_kernels[rows.transposed], 2, &params) : status;
}

static tigon_status down_gradient(const tigon_gpu_call *call, const tigon_moe_problem *p, const tigon_moe_gpu_blocks *b,
                                  const tigon_moe_gradients *g) {
  const tigon_view *const one = &g->d_down;
  const operands rows = {.outer = b->y, .inner = b->a, .inner_row = p->inner, .transposed = p->transposed};
  return weight_gradients(call, p, b, g, rows, &one, 0, 1);
}

/* Both at once where they lie alike. */
static tigon_status gate_up_gradients(const tigon_gpu_call *call, const tigon_moe_problem *p,
                                      const tigon_moe_gpu_blocks *b, const tigon_moe_gradients *g) {
  const tigon_view *const both[] = {&g->d_gate, &g->d_up};
  const operands rows = {
      .outer = b->x, .inner = b->dh, .inner_row = 2 * p->inner, .inner_part = p->inner, .transposed = !p->transposed};
  if (tigon_present(both[0]) && tigon_present(both[1]) && both[0]->kind == both[1]->kind &&
      both[0]->stride[0] == both[1]->stride[0] && both[0]->stride[1] == both[1]->stride[1])
    return weight_gradients(call, p, b, g, rows, both, 0, 2);
  tigon_status status = TIGON_OK;
  for (int i = 0; i < 2 && status == TIGON_OK; i++)
    if (tigon_present(both[i])) status = weight_gradients(call, p, b, g, rows, &both[i], i, 1);
  return status;
}

/* d_topk_weights from the parts of <da', a>; or with on_input from the rows of dx. */
static tigon_status dots(const tigon_gpu_call *call, const tigon_moe_problem *p, const tigon_moe_gpu_blocks *b,
                         const tigon_view *d_weights) {
  const int64_t routes = p->tokens * p->choices;
  moe_dots_params params = {.dots = b->dots,
                            .dx = b->y,
                            .x = p->x.data,
                            .rows = tigon_moe_row_bound(p->rows, p->experts, MOE_ALIGN),
                            .x_row_bytes = p->x.stride[0] * ELEMENT,
                            .out_row_bytes = d_weights->stride[0] * tigon_kind_bytes(d_weights->kind),
                            .row_of = b->row_of,
                            .out = d_weights->data,
                            .columns = (int32_t)tigon_ceil_div(p->inner, PRODUCT_N),
                            .choices = (int32_t)p->choices,
                            .width = (int32_t)p->width,
                            .out_kind = (int32_t)d_weights->kind,
                            .routes = routes};
  const int each = b->dots ? DOT_THREADS : DOT_THREADS / WARP; /* routes of a block */
  const tigon_grid grid = {.blocks = tigon_ceil_div(routes, each), .threads = DOT_THREADS};
  return tigon_gpu_launch(call, b->dots ? &dots_kernel : &input_dots_kernel, grid, &params);
}

/* Of a plan that was saved: no tile is handed out. */
static tigon_status restart(const tigon_gpu_call *call, const tigon_moe_gpu_blocks *b) {
  const size_t bytes = MOE_COUNTERS * sizeof *b->next;
  const CUresult result =
      call->driver->cuMemsetD2D8Async((CUdeviceptr)(uintptr_t)b->next, bytes, 0, bytes, 1, call->stream);
  return result == CUDA_SUCCESS ? TIGON_OK : tigon_driver_fail(call->driver, call->op, "cuMemsetD2D8Async", result);
}

static tigon_status run(const tigon_gpu_call *call, const tigon_exec *exec, const tigon_moe_problem *p,
                        const tigon_moe_gpu_blocks *b, const tigon_moe_gradients *g) {
  const bool want_x = tigon_present(&g->d_gate) || tigon_present(&g->d_up);
  tigon_status status = b->planned ? restart(call, b) : tigon_moe_gpu_plan(call, exec, p, b);
  if (status == TIGON_OK && b->x) status = tigon_moe_gpu_sort_x(call, p, b);
  if (status == TIGON_OK && !b->h_ready) status = tigon_moe_gpu_gate_up(call, p, b);
  if (status == TIGON_OK) status = activation(call, p, b, g);
  if (status == TIGON_OK && b->dots) status = dots(call, p, b, &g->d_weights);
  if (status == TIGON_OK && tigon_present(&g->d_down)) status = down_gradient(call, p, b, g);
  if (status == TIGON_OK && want_x) status = gate_up_gradients(call, p, b, g);
  if (status != TIGON_OK || !tigon_moe_wants_dx_rows(p, g)) return status;
  status = dx_rows(call, p, b); /* in the place of dout */
  if (status == TIGON_OK && p->on_input && tigon_present(&g->d_weights)) status = dots(call, p, b, &g->d_weights);
  if (status == TIGON_OK && tigon_present(&g->dx)) status = tigon_moe_gpu_combine(call, p, b, p->on_input, &g->dx);
  return status;
}

tigon_status tigon_moe_gpu_backward(const char *op, const tigon_exec *exec, const tigon_moe_problem *p,
                                    const tigon_moe_gpu_blocks *b, const tigon_moe_gradients *g) {
  tigon_gpu_call call;
  const tigon_status status = tigon_moe_gpu_begin(op, exec, &call);
  return status == TIGON_OK ? tigon_gpu_end(&call, run(&call, exec, p, b, g)) : status;
}
