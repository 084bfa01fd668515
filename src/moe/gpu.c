/* The expert MLP on CUDA devices: the plan, gathered gate and up, down, and the sum over a token's routes. */
#include "moe/gpu.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/args.h"
#include "base/context.h"
#include "base/integer.h"
#include "base/status.h"
#include "gpu/tensor_map.h"
#include "moe/kernels/params.h"

TIGON_IMAGE(moe_plan)
TIGON_IMAGE(moe_rows)
TIGON_IMAGE(moe_experts_sm90a)

static tigon_kernel limit_kernel = TIGON_KERNEL(moe_plan, "moe_limit");
static tigon_kernel count_kernel = TIGON_KERNEL(moe_plan, "moe_count");
static tigon_kernel prefix_kernel = TIGON_KERNEL(moe_plan, "moe_prefix");
static tigon_kernel segments_kernel = TIGON_KERNEL(moe_plan, "moe_segments");
static tigon_kernel place_kernel = TIGON_KERNEL(moe_plan, "moe_place");
static tigon_kernel scale_kernel = TIGON_KERNEL(moe_rows, "moe_scale");
static tigon_kernel combine_kernel = TIGON_KERNEL(moe_rows, "moe_combine");
static tigon_kernel gate_up_kernels[2] = {TIGON_KERNEL(moe_experts_sm90a, "moe_gate_up"),
                                          TIGON_KERNEL(moe_experts_sm90a, "moe_gate_up_transposed")};
static tigon_kernel down_kernels[2] = {TIGON_KERNEL(moe_experts_sm90a, "moe_down"),
                                       TIGON_KERNEL(moe_experts_sm90a, "moe_down_transposed")};

enum {
  ELEMENT = 2, /* bytes */
  VECTOR = 8,  /* elements of 16 bytes */
  FEWEST_ROUTES = 32,
  PLAN_THREADS = 1024,
  ROW_THREADS = 256,
  SCALE_BLOCKS = 8 /* a multiprocessor */
};

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
  if (view->kind != TIGON_BF16) unsupported(check, name, "dtype bfloat16", "another", 0);
}

/* Rows and matrices begin at multiples of 16 bytes. */
static void check_strides(tigon_checker *check, const char *name, const tigon_view *view) {
  for (int i = 0; i + 1 < view->ndim; i++)
    if (view->stride[i] % VECTOR)
      unsupported(check, name, "strides that are multiples of 8", "%" PRId64, view->stride[i]);
  if (!check->query && (uintptr_t)view->data % 16)
    unsupported(check, name, "16-byte alignment", "address %" PRIx64, (int64_t)(uintptr_t)view->data);
}

void tigon_moe_gpu_check(tigon_checker *check, const tigon_moe_problem *p, const tigon_view *out, bool packed) {
  const struct {
    const char *name;
    const tigon_view *view;
  } all[] = {{"x", &p->x},
             {packed ? "gate_up" : "gate", &p->gate},
             {packed ? "gate_up" : "up", &p->up},
             {"down", &p->down},
             {"out", out}};
  if (check->status != TIGON_OK) return;
  for (int i = 0; i < 5; i++) check_bf16(check, all[i].name, all[i].view);
  if (p->width % VECTOR) unsupported(check, "x", "a width (D) that is a multiple of 8", "%" PRId64, p->width);
  if (p->inner % VECTOR)
    unsupported(check, all[1].name, "an inner width (I) that is a multiple of 8", "%" PRId64, p->inner);
  for (int i = 0; i < 5; i++) check_strides(check, all[i].name, all[i].view);
  const int64_t columns = tigon_ceil_div(p->inner, PRODUCT_N / 2) + tigon_ceil_div(p->width, PRODUCT_N);
  int64_t tiles;
  if (routes_of(p) > INT32_MAX / 2 || padded_rows(p) > INT32_MAX / 2 ||
      __builtin_mul_overflow(padded_rows(p) / MOE_ALIGN, columns, &tiles) || tiles > INT32_MAX / 2)
    unsupported(check, "x", "fewer tiles of rows", "%" PRId64 " tokens", p->tokens);
}

uint64_t tigon_moe_gpu_saved(const tigon_moe_problem *p) {
  return (uint64_t)tigon_round_up(padded_rows(p) * 2 * p->inner * ELEMENT, 256);
}

static int64_t chunks_at_most(const tigon_moe_problem *p) {
  return tigon_smaller(tigon_ceil_div(routes_of(p), FEWEST_ROUTES), MOE_MOST_CHUNKS);
}

void tigon_moe_gpu_take(const tigon_moe_problem *p, tigon_arena *arena, tigon_moe_gpu_blocks *b) {
  const uint64_t rows = (uint64_t)padded_rows(p), experts = (uint64_t)p->experts, chunks = (uint64_t)chunks_at_most(p);
  const uint64_t number = sizeof(int32_t);
  b->counts = tigon_arena_take(arena, chunks * experts * number);
  b->totals = tigon_arena_take(arena, experts * number);
  b->first_bad = tigon_arena_take(arena, chunks * number);
  b->first_row = tigon_arena_take(arena, (experts + 1) * number);
  b->first_tile = tigon_arena_take(arena, (experts + 1) * number);
  b->next = tigon_arena_take(arena, 2 * number);
  b->end = tigon_arena_take(arena, 2 * number);
  b->row_token = tigon_arena_take(arena, rows * number);
  b->row_of = tigon_arena_take(arena, (uint64_t)routes_of(p) * number);
  b->row_choice = tigon_arena_take(arena, rows);
  if (p->on_input) b->x = tigon_arena_take(arena, rows * (uint64_t)p->width * ELEMENT);
  b->a = tigon_arena_take(arena, rows * (uint64_t)p->inner * ELEMENT);
  b->y = tigon_arena_take(arena, rows * (uint64_t)p->width * ELEMENT);
}

/* --- the plan ---------------------------------------------------------------------------------------------------- */

static tigon_record event(tigon_status code, const char *op, const char *argument) {
  tigon_record record = {.code = code};
  strncpy(record.op, op, sizeof record.op - 1);
  strncpy(record.argument, argument, sizeof record.argument - 1);
  return record;
}

static tigon_status plan(const tigon_gpu_call *call, const tigon_exec *exec, const tigon_moe_problem *p,
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
                            .next = b->next,
                            .row_token = b->row_token,
                            .row_choice = b->row_choice,
                            .row_of = b->row_of,
                            .record = exec->context ? exec->context->record : NULL,
                            .bad = event(TIGON_INVALID_ARGUMENT, call->op, "topk_ids"),
                            .full = event(TIGON_WORKSPACE, call->op, "row_limit")};
  const tigon_grid one = {.blocks = 1, .threads = PLAN_THREADS};
  const tigon_grid prefix = {.blocks = tigon_ceil_div(p->experts, 32), .threads = PLAN_THREADS};
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

/* Sorted rows of `parts` times `width` elements. */
static tigon_tensor_map rows_map(const char *data, int64_t rows, int64_t parts, int64_t width, int box_rows) {
  return (tigon_tensor_map){
      .data = data, .extent = {width, parts, rows}, .stride = {width, parts * width}, .box = {1, box_rows}};
}

/* All experts' matrices: boxes of 128 columns of the product by 64 of its depth. */
static tigon_tensor_map weights_map(const tigon_view *weights, bool transposed) {
  return (tigon_tensor_map){.data = weights->data,
                            .extent = {weights->shape[2], weights->shape[1], weights->shape[0]},
                            .stride = {weights->stride[1], weights->stride[0]},
                            .box = {transposed ? PRODUCT_K : PRODUCT_N / 2, 1}};
}

static tigon_status make_map(const tigon_gpu_call *call, const char *name, tigon_tensor_map from, CUtensorMap *map) {
  return tigon_tensor_map_make(call, name, &from, map);
}

static product_tiles tiles_of(const tigon_moe_problem *p, const tigon_moe_gpu_blocks *b, int which, int64_t width,
                              int tile_width) {
  return (product_tiles){.first_row = b->first_row,
                         .first_tile = b->first_tile,
                         .next = b->next + which,
                         .groups = (int32_t)p->experts,
                         .columns = (int32_t)tigon_ceil_div(width, tile_width)};
}

static tigon_grid product_grid(const tigon_gpu_call *call) {
  return (tigon_grid){
      .blocks = call->device->multiprocessors, .threads = PRODUCT_THREADS, .shared_bytes = PRODUCT_SHARED_BYTES};
}

static tigon_status gate_up(const tigon_gpu_call *call, const tigon_moe_problem *p, const tigon_moe_gpu_blocks *b) {
  const int64_t rows = padded_rows(p);
  moe_product_params params = {.tiles = tiles_of(p, b, 0, p->inner, PRODUCT_N / 2),
                               .x = b->x ? b->x : p->x.data,
                               .x_row_bytes = (b->x ? p->width : p->x.stride[0]) * ELEMENT,
                               .row_token = b->x ? NULL : b->row_token,
                               .depth = (int32_t)p->width,
                               .width = (int32_t)p->inner,
                               .keeps_h = b->h != NULL};
  tigon_status status = make_map(call, "gate", weights_map(&p->gate, p->transposed), &params.b[0]);
  if (status == TIGON_OK) status = make_map(call, "up", weights_map(&p->up, p->transposed), &params.b[1]);
  if (status == TIGON_OK) status = make_map(call, "exec.workspace", rows_map(b->a, rows, 1, p->inner, 64), &params.out);
  if (status == TIGON_OK && b->h) status = make_map(call, "saved", rows_map(b->h, rows, 2, p->inner, 64), &params.h);
  if (status != TIGON_OK) return status;
  return tigon_gpu_launch(call, &gate_up_kernels[p->transposed], product_grid(call), &params);
}

static tigon_status down(const tigon_gpu_call *call, const tigon_moe_problem *p, const tigon_moe_gpu_blocks *b) {
  const int64_t rows = padded_rows(p);
  moe_product_params params = {
      .tiles = tiles_of(p, b, 1, p->width, PRODUCT_N), .depth = (int32_t)p->inner, .width = (int32_t)p->width};
  tigon_status status = make_map(call, "down", weights_map(&p->down, p->transposed), &params.b[0]);
  if (status == TIGON_OK)
    status = make_map(call, "exec.workspace", rows_map(b->a, rows, 1, p->inner, PRODUCT_M), &params.a);
  if (status == TIGON_OK) status = make_map(call, "exec.workspace", rows_map(b->y, rows, 1, p->width, 64), &params.out);
  if (status != TIGON_OK) return status;
  params.b[1] = params.b[0];
  return tigon_gpu_launch(call, &down_kernels[p->transposed], product_grid(call), &params);
}

/* --- rows -------------------------------------------------------------------------------------------------------- */

static int row_threads(int64_t width) {
  const int64_t threads = tigon_round_up(width / VECTOR, 32);
  return threads < 32 ? 32 : threads > ROW_THREADS ? ROW_THREADS : (int)threads;
}

static tigon_status scale(const tigon_gpu_call *call, const tigon_moe_problem *p, const tigon_moe_gpu_blocks *b) {
  moe_scale_params params = {.x = p->x.data,
                             .weights = p->weights.data,
                             .x_row_bytes = p->x.stride[0] * ELEMENT,
                             .weight_row_bytes = p->weights.stride[0] * tigon_kind_bytes(p->weights.kind),
                             .weight_kind = (int32_t)p->weights.kind,
                             .width = (int32_t)p->width,
                             .row_token = b->row_token,
                             .last_row = b->first_row + p->experts,
                             .row_choice = b->row_choice,
                             .scaled = b->x};
  const int64_t blocks = tigon_smaller(padded_rows(p), (int64_t)SCALE_BLOCKS * call->device->multiprocessors);
  return tigon_gpu_launch(call, &scale_kernel, (tigon_grid){.blocks = blocks, .threads = row_threads(p->width)},
                          &params);
}

static tigon_status combine(const tigon_gpu_call *call, const tigon_moe_problem *p, const tigon_moe_gpu_blocks *b,
                            const tigon_view *out) {
  moe_combine_params params = {.y = b->y,
                               .weights = p->weights.data,
                               .row_of = b->row_of,
                               .out = out->data,
                               .y_row_bytes = p->width * ELEMENT,
                               .weight_row_bytes = p->weights.stride[0] * tigon_kind_bytes(p->weights.kind),
                               .out_row_bytes = out->stride[0] * ELEMENT,
                               .weight_kind = (int32_t)p->weights.kind,
                               .choices = (int32_t)p->choices,
                               .width = (int32_t)p->width,
                               .unweighted = p->on_input};
  return tigon_gpu_launch(call, &combine_kernel, (tigon_grid){.blocks = p->tokens, .threads = row_threads(p->width)},
                          &params);
}

/* --- entry points ------------------------------------------------------------------------------------------------ */

static tigon_status begin(const char *op, const tigon_exec *exec, tigon_gpu_call *call) {
  const tigon_status status = tigon_gpu_begin(op, exec, call);
  if (status != TIGON_OK || call->device->major == 9) return status;
  return tigon_gpu_end(call, tigon_fail(TIGON_UNSUPPORTED, op, "exec.device",
                                        "expected a device of compute capability 9.x (Hopper), got %d.%d",
                                        call->device->major, call->device->minor));
}

tigon_status tigon_moe_gpu_clear(const char *op, const tigon_exec *exec, const tigon_view *out) {
  tigon_gpu_call call;
  const tigon_status status = begin(op, exec, &call);
  if (status != TIGON_OK) return status;
  if (tigon_elements(out) == 0) return tigon_gpu_end(&call, TIGON_OK);
  const tigon_moe_problem nothing = {.tokens = out->shape[0], .width = out->shape[1]};
  return tigon_gpu_end(&call, combine(&call, &nothing, &(tigon_moe_gpu_blocks){0}, out));
}

tigon_status tigon_moe_gpu_forward(const char *op, const tigon_exec *exec, const tigon_moe_problem *p,
                                   const tigon_moe_gpu_blocks *b, const tigon_view *out) {
  tigon_gpu_call call;
  tigon_status status = begin(op, exec, &call);
  if (status != TIGON_OK) return status;
  status = plan(&call, exec, p, b);
  if (status == TIGON_OK && p->on_input) status = scale(&call, p, b);
  if (status == TIGON_OK) status = gate_up(&call, p, b);
  if (status == TIGON_OK) status = down(&call, p, b);
  if (status == TIGON_OK) status = combine(&call, p, b, out);
  return tigon_gpu_end(&call, status);
}
