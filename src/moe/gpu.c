/* The expert MLP on CUDA devices: the plan, gathered gate and up, down, and the sum over a token's routes. */
#include "moe/gpu.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/args.h"
#include "base/context.h"
#include "base/integer.h"
#include "base/status.h"
#include "moe/gpu_parts.h"

TIGON_IMAGE(moe_plan)
TIGON_IMAGE(moe_scatter_sm90a)
TIGON_IMAGE(moe_tokens)
TIGON_IMAGE(moe_experts_sm90a)

static tigon_kernel limit_kernel = TIGON_KERNEL(moe_plan, "moe_limit");
static tigon_kernel count_kernel = TIGON_KERNEL(moe_plan, "moe_count");
static tigon_kernel prefix_kernel = TIGON_KERNEL(moe_plan, "moe_prefix");
static tigon_kernel segments_kernel = TIGON_KERNEL(moe_plan, "moe_segments");
static tigon_kernel place_kernel = TIGON_KERNEL(moe_plan, "moe_place");
static tigon_kernel scatter_kernel = TIGON_KERNEL(moe_scatter_sm90a, "moe_scatter");
static tigon_kernel scale_kernel = TIGON_KERNEL(moe_tokens, "moe_scale");
static tigon_kernel combine_kernel = TIGON_KERNEL(moe_tokens, "moe_combine");
static tigon_kernel gate_up_kernels[2] = {TIGON_KERNEL(moe_experts_sm90a, "moe_gate_up"),
                                          TIGON_KERNEL(moe_experts_sm90a, "moe_gate_up_transposed")};
static tigon_kernel rows_kernels[2] = {TIGON_KERNEL(moe_experts_sm90a, "moe_rows"),
                                       TIGON_KERNEL(moe_experts_sm90a, "moe_rows_transposed")};

enum {
  ELEMENT = 2, /* bytes */
  VECTOR = 8,  /* elements of 16 bytes */
  FEWEST_ROUTES = 32,
  ROW_THREADS = 256,
  MOST_NUMBER = 1 << 30, /* of routes, columns and tiles, which the kernels count in 32 bits */
  SCALE_BLOCKS = 8,      /* a multiprocessor */
  SCATTER_BLOCKS = 6
};

static const int64_t MOST_STRIDE = (int64_t)1 << 38; /* elements: 2^39 bytes */

/* --- checks and sizes -------------------------------------------------------------------------------------------- */

static int64_t routes_of(const tigon_moe_problem *p) { return p->tokens * p->choices; }

static int64_t padded_rows(const tigon_moe_problem *p) { return tigon_moe_row_bound(p->rows, p->experts, MOE_ALIGN); }

static void unsupported(tigon_checker *check, const char *name, const char *expected, const char *format,
                        int64_t value) {
  char got[64];
  if (check->status != TIGON_OK) return;
  (void)snprintf(got, sizeof got, format, value);
  check->status = tigon_fail(TIGON_UNSUPPORTED, check->op, name, "expected %s on a CUDA device, got %s", expected, got);
}

static void check_bf16(tigon_checker *check, const char *name, const tigon_view *view) {
  if (check->status == TIGON_OK && view->kind != TIGON_BF16)
    check->status = tigon_fail(TIGON_UNSUPPORTED, check->op, name, "expected dtype bfloat16 on a CUDA device");
}

/* Rows and matrices begin at multiples of 16 bytes. */
static void check_strides(tigon_checker *check, const char *name, const tigon_view *view) {
  if (tigon_elements(view) == 0) return;
  for (int i = 0; i + 1 < view->ndim; i++) {
    if (view->stride[i] % VECTOR)
      unsupported(check, name, "strides that are multiples of 8", "%" PRId64, view->stride[i]);
    if (view->ndim == 3 && (view->stride[i] < 0 || view->stride[i] > MOST_STRIDE)) /* bulk copies reach no others */
      unsupported(check, name, "strides from 0 to 2^38", "%" PRId64, view->stride[i]);
  }
  if (!check->query && (uintptr_t)view->data % 16)
    unsupported(check, name, "16-byte alignment", "address %" PRIx64, (int64_t)(uintptr_t)view->data);
}

typedef struct named_view {
  const char *name;
  const tigon_view *view;
} named_view;

static void check_all(tigon_checker *check, const named_view *all, int count, bool may_be_wide) {
  for (int i = 0; i < count; i++) {
    if (!tigon_present(all[i].view)) continue;
    if (!may_be_wide || all[i].view->kind != TIGON_F32) check_bf16(check, all[i].name, all[i].view);
    check_strides(check, all[i].name, all[i].view);
  }
}

static void check_inputs(tigon_checker *check, const tigon_moe_problem *p, bool packed) {
  const char *const gate = packed ? "gate_up" : "gate";
  const named_view all[] = {{"x", &p->x}, {gate, &p->gate}, {packed ? "gate_up" : "up", &p->up}, {"down", &p->down}};
  if (p->width % VECTOR || p->width > MOST_NUMBER)
    unsupported(check, "x", "a width (D) that is a multiple of 8 up to 2^30", "%" PRId64, p->width);
  if (p->inner % VECTOR || p->inner > MOST_NUMBER)
    unsupported(check, gate, "an inner width (I) that is a multiple of 8 up to 2^30", "%" PRId64, p->inner);
  check_all(check, all, 4, false);
  if (check->status != TIGON_OK) return;
  const int64_t columns = tigon_ceil_div(p->inner, PRODUCT_N / 2) + tigon_ceil_div(p->width, PRODUCT_N);
  int64_t tiles;
  if (routes_of(p) > MOST_NUMBER) unsupported(check, "topk_ids", "T k up to 2^30", "%" PRId64, routes_of(p));
  if (__builtin_mul_overflow(padded_rows(p) / MOE_ALIGN, columns, &tiles) || tiles > MOST_NUMBER)
    unsupported(check, "x", "rows / 64 times columns / 256 up to 2^30", "%" PRId64, tiles);
}

void tigon_moe_gpu_check(tigon_checker *check, const tigon_moe_problem *p, const tigon_view *out, bool packed) {
  check_inputs(check, p, packed);
  check_all(check, &(named_view){"out", out}, 1, false);
}

void tigon_moe_gpu_check_backward(tigon_checker *check, const tigon_moe_problem *p, const tigon_moe_gradients *g,
                                  bool packed) {
  const named_view rows[] = {{"dout", &g->dout}, {"dx", &g->dx}};
  const named_view weights[] = {
      {packed ? "d_gate_up" : "d_gate", &g->d_gate}, {packed ? "d_gate_up" : "d_up", &g->d_up}, {"d_down", &g->d_down}};
  check_inputs(check, p, packed);
  check_all(check, rows, 2, false);
  check_all(check, weights, 3, true);
}

static int64_t chunks_at_most(const tigon_moe_problem *p) {
  return tigon_smaller(tigon_ceil_div(routes_of(p), FEWEST_ROUTES), MOE_MOST_CHUNKS);
}

static void *take_rows(tigon_arena *arena, const tigon_moe_problem *p, int64_t width) {
  return tigon_arena_take(arena, (uint64_t)(padded_rows(p) * width * ELEMENT));
}

/* What the plan counts with. */
static void take_counts(const tigon_moe_problem *p, tigon_arena *arena, tigon_moe_gpu_blocks *b) {
  const uint64_t chunks = (uint64_t)chunks_at_most(p), number = sizeof(int32_t);
  b->counts = tigon_arena_take(arena, chunks * (uint64_t)p->experts * number);
  b->totals = tigon_arena_take(arena, (uint64_t)p->experts * number);
  b->first_bad = tigon_arena_take(arena, chunks * number);
  b->end = tigon_arena_take(arena, 2 * number);
}

/* What it finds. */
static void take_places(const tigon_moe_problem *p, tigon_arena *arena, tigon_moe_gpu_blocks *b) {
  const uint64_t rows = (uint64_t)padded_rows(p), experts = (uint64_t)p->experts, number = sizeof(int32_t);
  b->first_row = tigon_arena_take(arena, (experts + 1) * number);
  b->first_tile = tigon_arena_take(arena, (experts + 1) * number);
  b->first_pair = tigon_arena_take(arena, (experts + 1) * number);
  b->row_token = tigon_arena_take(arena, rows * number);
  b->row_of = tigon_arena_take(arena, (uint64_t)routes_of(p) * number);
  b->row_choice = tigon_arena_take(arena, rows);
}

static uint64_t take_saved(const tigon_moe_problem *p, char *saved, tigon_moe_gpu_blocks *b) {
  tigon_arena arena = {.base = saved};
  b->h = take_rows(&arena, p, 2 * p->inner);
  take_places(p, &arena, b);
  return arena.used;
}

uint64_t tigon_moe_gpu_saved(const tigon_moe_problem *p) {
  tigon_moe_gpu_blocks counted;
  return take_saved(p, NULL, &counted);
}

tigon_moe_gpu_blocks tigon_moe_gpu_take(const tigon_moe_problem *p, char *saved, tigon_arena *arena) {
  tigon_moe_gpu_blocks b = {.next = tigon_arena_take(arena, MOE_COUNTERS * sizeof(int32_t))};
  take_counts(p, arena, &b);
  if (saved)
    take_saved(p, saved, &b);
  else
    take_places(p, arena, &b);
  if (p->on_input) b.x = take_rows(arena, p, p->width);
  b.a = take_rows(arena, p, p->inner);
  b.y = take_rows(arena, p, p->width);
  return b;
}

tigon_moe_gpu_blocks tigon_moe_gpu_take_backward(const tigon_moe_problem *p, const tigon_moe_gradients *g, char *saved,
                                                 bool notes, tigon_arena *arena) {
  const bool want_x = tigon_present(&g->d_gate) || tigon_present(&g->d_up);
  const int64_t columns = tigon_ceil_div(p->inner, PRODUCT_N);
  tigon_moe_gpu_blocks b = {.next = tigon_arena_take(arena, MOE_COUNTERS * sizeof(int32_t)),
                            .h_ready = saved != NULL,
                            .planned = saved && !notes};
  tigon_moe_gpu_blocks unused;
  take_counts(p, arena, &b);
  if (saved)
    take_saved(p, saved, &b);
  else
    b.h = take_rows(arena, p, 2 * p->inner);
  take_places(p, arena, b.planned ? &unused : &b);
  b.dh = take_rows(arena, p, 2 * p->inner);
  b.a = take_rows(arena, p, p->inner);
  if (want_x || (p->on_input && !saved)) b.x = take_rows(arena, p, p->width);
  if (tigon_present(&g->d_down) || tigon_moe_wants_dx_rows(p, g)) b.y = take_rows(arena, p, p->width);
  if (tigon_present(&g->d_weights) && !p->on_input)
    b.dots = tigon_arena_take(arena, (uint64_t)(padded_rows(p) * columns) * sizeof(float));
  return b;
}

/* --- the plan ---------------------------------------------------------------------------------------------------- */

tigon_status tigon_moe_gpu_plan(const tigon_gpu_call *call, const tigon_exec *exec, const tigon_moe_problem *p,
                                const tigon_moe_gpu_blocks *b) {
  const int64_t routes = routes_of(p), share = tigon_ceil_div(routes, MOE_MOST_CHUNKS);
  const int64_t chunk = tigon_round_up(share, FEWEST_ROUTES), chunks = tigon_ceil_div(routes, chunk);
  const bool limited = p->rows < routes;
  moe_plan_params params = {.ids = p->ids.data,
                            .id_stride = p->ids.stride[0],
                            .wide = p->ids.kind == TIGON_I64,
                            .choices = (int32_t)p->choices,
                            .experts = (int32_t)p->experts,
                            .routes = (int32_t)routes,
                            .chunk = (int32_t)chunk,
                            .chunks = (int32_t)chunks,
                            .limit = (int32_t)p->rows,
                            .end = limited ? b->end : NULL,
                            .counts = b->counts,
                            .totals = b->totals,
                            .first_bad = b->first_bad,
                            .first_row = b->first_row,
                            .first_tile = b->first_tile,
                            .first_pair = b->first_pair,
                            .next = b->next,
                            .row_token = b->row_token,
                            .row_choice = b->row_choice,
                            .row_of = b->row_of,
                            .record = exec->context ? exec->context->record : NULL,
                            .bad = tigon_record_of(TIGON_INVALID_ARGUMENT, call->op, "topk_ids"),
                            .full = tigon_record_of(TIGON_WORKSPACE, call->op, "row_limit")};
  const tigon_grid one = {.blocks = 1, .threads = MOE_PLAN_THREADS};
  const tigon_grid prefix = {.blocks = tigon_ceil_div(p->experts, 32), .threads = MOE_PLAN_THREADS};
  const tigon_grid each = {
      .blocks = chunks, .threads = 32, .shared_bytes = (int)(p->experts * (int64_t)sizeof(int32_t))};
  tigon_status status = limited ? tigon_gpu_launch(call, &limit_kernel, one, &params) : TIGON_OK;
  if (status == TIGON_OK) status = tigon_gpu_launch(call, &count_kernel, each, &params);
  if (status == TIGON_OK) status = tigon_gpu_launch(call, &prefix_kernel, prefix, &params);
  if (status == TIGON_OK) status = tigon_gpu_launch(call, &segments_kernel, one, &params);
  if (status == TIGON_OK) status = tigon_gpu_launch(call, &place_kernel, each, &params);
  return status;
}

/* --- products ---------------------------------------------------------------------------------------------------- */

tigon_tensor_map tigon_moe_rows_map(const tigon_moe_problem *p, const char *data, int64_t parts, int64_t width) {
  return (tigon_tensor_map){
      .data = data, .extent = {width, parts, padded_rows(p)}, .stride = {width, parts * width}, .box = {1, 64}};
}

tigon_tensor_map tigon_moe_weights_map(const tigon_view *weights, bool k_major) {
  return (tigon_tensor_map){.data = weights->data,
                            .extent = {weights->shape[2], weights->shape[1], weights->shape[0]},
                            .stride = {weights->stride[1], weights->stride[0]},
                            .box = {k_major ? PRODUCT_N / 2 : PRODUCT_K, 1}};
}

product_tiles tigon_moe_gpu_tiles(const tigon_moe_problem *p, const tigon_moe_gpu_blocks *b, int counter, int64_t width,
                                  int tile_width) {
  return (product_tiles){.first_row = b->first_row,
                         .first_tile = b->first_tile,
                         .first_pair = b->first_pair,
                         .next = b->next + counter,
                         .groups = (int32_t)p->experts,
                         .columns = (int32_t)tigon_ceil_div(width, tile_width)};
}

tigon_status tigon_moe_gpu_product(const tigon_gpu_call *call, tigon_kernel *kernel, int cluster, void *params) {
  const tigon_grid grid = {.blocks = call->device->multiprocessors / cluster * cluster,
                           .threads = PRODUCT_THREADS,
                           .shared_bytes = PRODUCT_SHARED_BYTES,
                           .cluster = cluster};
  return tigon_gpu_launch(call, kernel, grid, params);
}

tigon_status tigon_moe_gpu_gate_up(const tigon_gpu_call *call, const tigon_moe_problem *p,
                                   const tigon_moe_gpu_blocks *b) {
  moe_product_params params = {.tiles = tigon_moe_gpu_tiles(p, b, MOE_COUNT_GATE_UP, p->inner, PRODUCT_N / 2),
                               .x = p->on_input ? b->x : p->x.data,
                               .x_row_bytes = (p->on_input ? p->width : p->x.stride[0]) * ELEMENT,
                               .row_token = p->on_input ? NULL : b->row_token,
                               .depth = (int32_t)p->width,
                               .parts = 1,
                               .width = (int32_t)p->inner,
                               .keeps_h = b->h != NULL};
  tigon_tensor_map maps[] = {tigon_moe_weights_map(&p->gate, !p->transposed),
                             tigon_moe_weights_map(&p->up, !p->transposed), tigon_moe_rows_map(p, b->a, 1, p->inner),
                             tigon_moe_rows_map(p, b->h, 2, p->inner)};
  CUtensorMap *const to[] = {&params.b[0], &params.b[1], &params.out, &params.h};
  const tigon_status status = tigon_moe_gpu_maps(call, b->h ? 4 : 3, maps, to);
  return status == TIGON_OK ? tigon_moe_gpu_product(call, &gate_up_kernels[p->transposed], 2, &params) : status;
}

tigon_status tigon_moe_gpu_maps(const tigon_gpu_call *call, int count, const tigon_tensor_map *maps,
                                CUtensorMap *const *to) {
  tigon_status status = TIGON_OK;
  for (int i = 0; i < count && status == TIGON_OK; i++) status = tigon_tensor_map_make(call, &maps[i], to[i]);
  return status;
}

/* y = a down^T */
static tigon_status down(const tigon_gpu_call *call, const tigon_moe_problem *p, const tigon_moe_gpu_blocks *b) {
  moe_product_params params = {.tiles = tigon_moe_gpu_tiles(p, b, MOE_COUNT_ROWS, p->width, PRODUCT_N),
                               .depth = (int32_t)p->inner,
                               .parts = 1,
                               .width = (int32_t)p->width};
  const tigon_tensor_map maps[] = {tigon_moe_weights_map(&p->down, !p->transposed),
                                   tigon_moe_rows_map(p, b->a, 1, p->inner), tigon_moe_rows_map(p, b->y, 1, p->width)};
  CUtensorMap *const to[] = {&params.b[0], &params.a, &params.out};
  const tigon_status status = tigon_moe_gpu_maps(call, 3, maps, to);
  return status == TIGON_OK ? tigon_moe_gpu_rows(call, p->transposed, &params) : status;
}

tigon_status tigon_moe_gpu_rows(const tigon_gpu_call *call, bool mn_major, moe_product_params *params) {
  return tigon_moe_gpu_product(call, &rows_kernels[mn_major], 2, params);
}

/* --- rows -------------------------------------------------------------------------------------------------------- */

static tigon_grid row_grid(int64_t blocks, int64_t width) {
  const int64_t threads = tigon_round_up(width / VECTOR, 32);
  return (tigon_grid){.blocks = blocks, .threads = (int)tigon_smaller(threads < 32 ? 32 : threads, ROW_THREADS)};
}

static int64_t weight_row_bytes(const tigon_moe_problem *p) {
  return p->weights.stride[0] * tigon_kind_bytes(p->weights.kind);
}

static tigon_status scale_x(const tigon_gpu_call *call, const tigon_moe_problem *p, const tigon_moe_gpu_blocks *b) {
  moe_scale_params params = {.x = p->x.data,
                             .weights = p->weights.data,
                             .x_row_bytes = p->x.stride[0] * ELEMENT,
                             .weight_row_bytes = weight_row_bytes(p),
                             .weight_kind = (int32_t)p->weights.kind,
                             .width = (int32_t)p->width,
                             .row_token = b->row_token,
                             .last_row = b->first_row + p->experts,
                             .row_choice = b->row_choice,
                             .sorted = b->x};
  const int64_t blocks = tigon_smaller(padded_rows(p), (int64_t)SCALE_BLOCKS * call->device->multiprocessors);
  return tigon_gpu_launch(call, &scale_kernel, row_grid(blocks, p->width), &params);
}

tigon_status tigon_moe_gpu_sort_x(const tigon_gpu_call *call, const tigon_moe_problem *p,
                                  const tigon_moe_gpu_blocks *b) {
  if (p->on_input) return scale_x(call, p, b);
  moe_scatter_params params = {.x = p->x.data,
                               .x_row_bytes = p->x.stride[0] * ELEMENT,
                               .row_bytes = p->width * ELEMENT,
                               .tokens = p->tokens,
                               .row_of = b->row_of,
                               .row_token = b->row_token,
                               .last_row = b->first_row + p->experts,
                               .sorted = b->x,
                               .choices = (int32_t)p->choices};
  const tigon_grid grid = {.blocks = (int64_t)SCATTER_BLOCKS * call->device->multiprocessors,
                           .threads = MOE_SCATTER_THREADS};
  return tigon_gpu_launch(call, &scatter_kernel, grid, &params);
}

tigon_status tigon_moe_gpu_combine(const tigon_gpu_call *call, const tigon_moe_problem *p,
                                   const tigon_moe_gpu_blocks *b, bool weighted, const tigon_view *out) {
  moe_combine_params params = {.y = b->y,
                               .weights = weighted ? p->weights.data : NULL,
                               .row_of = b->row_of,
                               .out = out->data,
                               .y_row_bytes = p->width * ELEMENT,
                               .weight_row_bytes = weight_row_bytes(p),
                               .out_row_bytes = out->stride[0] * ELEMENT,
                               .weight_kind = (int32_t)p->weights.kind,
                               .choices = (int32_t)p->choices,
                               .width = (int32_t)p->width};
  return tigon_gpu_launch(call, &combine_kernel, row_grid(p->tokens, p->width), &params);
}

/* --- entry points ------------------------------------------------------------------------------------------------ */

tigon_status tigon_moe_gpu_begin(const char *op, const tigon_exec *exec, tigon_gpu_call *call) {
  const tigon_status status = tigon_gpu_begin(op, exec, call);
  if (status != TIGON_OK || call->device->major == 9) return status;
  return tigon_gpu_end(call, tigon_fail(TIGON_UNSUPPORTED, op, "exec.device",
                                        "expected a device of compute capability 9.x (Hopper), got %d.%d",
                                        call->device->major, call->device->minor));
}

static CUresult clear_rows(const tigon_gpu_call *call, char *data, const tigon_view *view, int axis, int64_t rows) {
  const int64_t bytes = tigon_kind_bytes(view->kind);
  return call->driver->cuMemsetD2D8Async((CUdeviceptr)data, (size_t)(view->stride[axis] * bytes), 0,
                                         (size_t)(view->shape[axis + 1] * bytes), (size_t)rows, call->stream);
}

static tigon_status clear(const tigon_gpu_call *call, const tigon_view *view) {
  if (!tigon_present(view) || tigon_elements(view) == 0) return TIGON_OK;
  CUresult result = CUDA_SUCCESS;
  if (view->ndim == 2)
    result = clear_rows(call, view->data, view, 0, view->shape[0]);
  else if (view->stride[0] == view->shape[1] * view->stride[1])
    result = clear_rows(call, view->data, view, 1, view->shape[0] * view->shape[1]);
  else
    for (int64_t e = 0; e < view->shape[0] && result == CUDA_SUCCESS; e++)
      result = clear_rows(call, tigon_at(view, e), view, 1, view->shape[1]);
  return result == CUDA_SUCCESS ? TIGON_OK : tigon_driver_fail(call->driver, call->op, "cuMemsetD2D8Async", result);
}

tigon_status tigon_moe_gpu_clear(const char *op, const tigon_exec *exec, const tigon_moe_gradients *g) {
  tigon_gpu_call call;
  tigon_status status = tigon_moe_gpu_begin(op, exec, &call);
  if (status != TIGON_OK) return status;
  const tigon_view *const rows[] = {&g->dx, &g->d_weights}, *const weights[] = {&g->d_gate, &g->d_up, &g->d_down};
  for (int i = 0; i < 2 && status == TIGON_OK; i++) status = clear(&call, rows[i]);
  for (int i = 0; i < 3 && status == TIGON_OK && !g->accumulate; i++) status = clear(&call, weights[i]);
  return tigon_gpu_end(&call, status);
}

tigon_status tigon_moe_gpu_forward(const char *op, const tigon_exec *exec, const tigon_moe_problem *p,
                                   const tigon_moe_gpu_blocks *b, const tigon_view *out) {
  tigon_gpu_call call;
  tigon_status status = tigon_moe_gpu_begin(op, exec, &call);
  if (status != TIGON_OK) return status;
  status = tigon_moe_gpu_plan(&call, exec, p, b);
  if (status == TIGON_OK && p->on_input) status = tigon_moe_gpu_sort_x(&call, p, b);
  if (status == TIGON_OK) status = tigon_moe_gpu_gate_up(&call, p, b);
  if (status == TIGON_OK) status = down(&call, p, b);
  if (status == TIGON_OK) status = tigon_moe_gpu_combine(&call, p, b, !p->on_input, out);
  return tigon_gpu_end(&call, status);
}
