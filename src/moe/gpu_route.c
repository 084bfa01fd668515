/* The router on CUDA devices: chooses kernels by the number of experts, and cuts the tokens into chunks. */
#include "moe/gpu_route.h"

#include "base/args.h"
#include "base/context.h"
#include "base/integer.h"
#include "gpu/launch.h"
#include "moe/kernels/route_params.h"

TIGON_IMAGE(moe_route_forward)
TIGON_IMAGE(moe_route_backward)

enum {
  WARP = 32,
  SIZES = 5,
  MOST_CHUNKS = 512,      /* of forward: about as many blocks as a device takes at once */
  COUNT_BLOCKS = 128,     /* of backward's count of routes */
  COUNTED_AT_ONCE = 2048, /* routes of such a block, where there are enough blocks */
  BACKWARD_BLOCKS = 1024
};

/* A warp has a token up to 32 experts a lane, beyond that a block has. */
static const int64_t most_experts[SIZES] = {4 * WARP, 8 * WARP, 16 * WARP, 32 * WARP, TIGON_MOE_MAX_EXPERTS};
enum { WIDE = SIZES - 1 };

#define FORWARD(size)  TIGON_KERNEL(moe_route_forward, "moe_route_" size)
#define BACKWARD(size) TIGON_KERNEL(moe_route_backward, "moe_route_backward_" size)
static tigon_kernel forward_kernels[SIZES] = {FORWARD("4"), FORWARD("8"), FORWARD("16"), FORWARD("32"),
                                              FORWARD("wide")};
static tigon_kernel backward_kernels[SIZES] = {BACKWARD("4"), BACKWARD("8"), BACKWARD("16"), BACKWARD("32"),
                                               BACKWARD("wide")};
static tigon_kernel finish_kernel = TIGON_KERNEL(moe_route_forward, "moe_route_finish");
static tigon_kernel count_kernel = TIGON_KERNEL(moe_route_backward, "moe_route_count");

static int size_of(const tigon_moe_router *r) {
  int size = 0;
  while (r->experts > most_experts[size]) size++;
  return size;
}

/* Tokens that a block works on side by side. */
static int64_t side_by_side(const tigon_moe_router *r) { return size_of(r) == WIDE ? 1 : MOE_ROUTE_WARPS; }

static int64_t row_bytes(const tigon_view *view) { return view->stride[0] * tigon_kind_bytes(view->kind); }

static moe_route_rows rows_of(const tigon_moe_router *r) {
  return (moe_route_rows){.logits = r->logits.data,
                          .logit_row_bytes = row_bytes(&r->logits),
                          .tokens = r->tokens,
                          .logit_kind = (int32_t)r->logits.kind,
                          .experts = (int32_t)r->experts,
                          .choices = (int32_t)r->choices,
                          .sigmoid = r->sigmoid,
                          .renormalize = r->renormalize,
                          .wide_ids = r->ids.kind == TIGON_I64,
                          .scale = r->scale};
}

/* --- forward ---------------------------------------------------------------------------------------------------- */

typedef struct route_sums {
  int32_t *count_sum; /* kernels/route_params.h */
  float *p_sum;
  double *z_sum, *loss_parts;
  int32_t *finished;
} route_sums;

static int64_t chunk_tokens(const tigon_moe_router *r) {
  return tigon_round_up(tigon_ceil_div(r->tokens > 0 ? r->tokens : 1, MOST_CHUNKS), side_by_side(r));
}

/* As many as there may be for this many tokens or fewer; one without tokens. */
static uint64_t chunk_bound(const tigon_moe_router *r) {
  const int64_t chunks = tigon_ceil_div(r->tokens > 0 ? r->tokens : 1, side_by_side(r));
  return (uint64_t)tigon_smaller(chunks, MOST_CHUNKS);
}

static bool is_counted(const tigon_moe_router *r) { return tigon_present(&r->counts) || tigon_present(&r->loss); }

static bool has_losses(const tigon_moe_router *r) { return tigon_present(&r->loss) || tigon_present(&r->z_loss); }

static int64_t finish_blocks(const tigon_moe_router *r) {
  return is_counted(r) ? tigon_ceil_div(r->experts, MOE_ROUTE_FINISH_EXPERTS) : 1;
}

static route_sums take_route(const tigon_moe_router *r, tigon_arena *arena) {
  const uint64_t chunks = chunk_bound(r), elements = chunks * (uint64_t)r->experts;
  route_sums s = {0};
  if (is_counted(r)) s.count_sum = tigon_arena_take(arena, elements * sizeof(int32_t));
  if (tigon_present(&r->loss)) s.p_sum = tigon_arena_take(arena, elements * sizeof(float));
  if (tigon_present(&r->z_loss)) s.z_sum = tigon_arena_take(arena, chunks * sizeof(double));
  if (!has_losses(r)) return s;
  s.loss_parts = tigon_arena_take(arena, (uint64_t)finish_blocks(r) * sizeof(double));
  s.finished = tigon_arena_take(arena, sizeof(int32_t));
  return s;
}

uint64_t tigon_moe_gpu_route_bytes(const tigon_moe_router *r) {
  tigon_arena arena = {0};
  (void)take_route(r, &arena);
  return arena.used;
}

/* The largest power of two of lanes with which all groups, or as many as can, are worked on at once. */
static int32_t group_lanes(const tigon_moe_router *r) {
  const int64_t threads = size_of(r) == WIDE ? MOE_ROUTE_THREADS : WARP;
  int32_t lanes = 1;
  while (lanes < WARP && 2 * lanes * r->groups <= threads) lanes *= 2;
  return lanes;
}

static int shared_bytes(const tigon_moe_router *r, const route_sums *s) {
  const int64_t tokens = side_by_side(r), words = r->groups > 1 ? tokens * (r->experts + r->groups) : 0;
  const int64_t sums = s->p_sum && tokens > 1 ? tokens * r->experts : 0, counts = s->count_sum ? r->experts : 0;
  return (int)((counts + (words > sums ? words : sums)) * 4);
}

static tigon_status route_chunks(const tigon_gpu_call *call, const tigon_moe_router *r, const route_sums *s,
                                 int64_t chunk, int64_t chunks) {
  moe_route_params params = {.rows = rows_of(r),
                             .ids = r->ids.data,
                             .weights = (float *)(void *)r->weights.data,
                             .id_stride = r->ids.stride[0],
                             .weight_stride = r->weights.stride[0],
                             .bias = tigon_present(&r->bias) ? (const float *)(const void *)r->bias.data : NULL,
                             .groups = (int32_t)r->groups,
                             .open_groups = (int32_t)r->open_groups,
                             .group_top = r->group_top,
                             .group_size = (int32_t)(r->experts / r->groups),
                             .group_lanes = group_lanes(r),
                             .scored = tigon_present(&r->bias) || (r->groups > 1 && r->group_top > 1),
                             .chunk = chunk,
                             .count_sum = s->count_sum,
                             .p_sum = s->p_sum,
                             .z_sum = s->z_sum,
                             .finished = s->finished};
  const tigon_grid grid = {.blocks = chunks, .threads = MOE_ROUTE_THREADS, .shared_bytes = shared_bytes(r, s)};
  return tigon_gpu_launch(call, &forward_kernels[size_of(r)], grid, &params);
}

static float *scalar_of(const tigon_view *view) { return tigon_present(view) ? (float *)(void *)view->data : NULL; }

static tigon_status finish(const tigon_gpu_call *call, const tigon_moe_router *r, const route_sums *s, int64_t chunks) {
  moe_route_finish_params params = {.count_sum = s->count_sum,
                                    .p_sum = s->p_sum,
                                    .z_sum = s->z_sum,
                                    .loss_parts = s->loss_parts,
                                    .finished = s->finished,
                                    .counts = tigon_present(&r->counts) ? r->counts.data : NULL,
                                    .loss = scalar_of(&r->loss),
                                    .z_loss = scalar_of(&r->z_loss),
                                    .count_stride = r->counts.stride[0],
                                    .tokens = r->tokens,
                                    .wide_counts = r->counts.kind == TIGON_I64,
                                    .experts = (int32_t)r->experts,
                                    .choices = (int32_t)r->choices,
                                    .chunks = (int32_t)chunks};
  const tigon_grid grid = {.blocks = finish_blocks(r), .threads = MOE_ROUTE_FINISH_THREADS, .overlaps = true};
  return tigon_gpu_launch(call, &finish_kernel, grid, &params);
}

tigon_status tigon_moe_gpu_route(const char *op, const tigon_exec *exec, const tigon_moe_router *r) {
  tigon_gpu_call call;
  tigon_status status = tigon_gpu_begin(op, exec, &call);
  if (status != TIGON_OK) return status;
  tigon_arena arena = {.base = exec->workspace};
  const route_sums sums = take_route(r, &arena);
  const bool finishes = is_counted(r) || has_losses(r);
  const int64_t chunk = chunk_tokens(r), chunks = r->tokens > 0 ? tigon_ceil_div(r->tokens, chunk) : 1;
  if (r->tokens > 0 || finishes) status = route_chunks(&call, r, &sums, chunk, chunks);
  if (status == TIGON_OK && finishes) status = finish(&call, r, &sums, chunks);
  return tigon_gpu_end(&call, status);
}

/* --- backward --------------------------------------------------------------------------------------------------- */

/* What is counted, in one block that is cleared at once. */
typedef struct route_counts {
  unsigned long long *bad, *count; /* kernels/route_params.h */
  uint64_t bytes;
} route_counts;

static route_counts take_counts(const tigon_moe_router *r, tigon_arena *arena) {
  route_counts c = {.bytes = sizeof *c.bad};
  if (tigon_present(&r->d_loss)) c.bytes += (uint64_t)r->experts * sizeof *c.count;
  c.bad = tigon_arena_take(arena, c.bytes);
  if (tigon_present(&r->d_loss) && c.bad) c.count = c.bad + 1;
  return c;
}

uint64_t tigon_moe_gpu_route_backward_bytes(const tigon_moe_router *r) {
  tigon_arena arena = {0};
  (void)take_counts(r, &arena);
  return arena.used;
}

static tigon_status count_routes(const tigon_gpu_call *call, const tigon_moe_router *r, const route_counts *c) {
  const int64_t routes = r->tokens * r->choices;
  moe_route_count_params params = {.ids = r->ids.data,
                                   .id_stride = r->ids.stride[0],
                                   .routes = routes,
                                   .wide_ids = r->ids.kind == TIGON_I64,
                                   .experts = (int32_t)r->experts,
                                   .choices = (int32_t)r->choices,
                                   .count = c->count,
                                   .bad = c->bad};
  const CUresult result = call->driver->cuMemsetD2D8Async((CUdeviceptr)c->bad, c->bytes, 0, c->bytes, 1, call->stream);
  if (result != CUDA_SUCCESS) return tigon_driver_fail(call->driver, call->op, "cuMemsetD2D8Async", result);
  const tigon_grid grid = {.blocks = tigon_smaller(tigon_ceil_div(routes, COUNTED_AT_ONCE), COUNT_BLOCKS),
                           .threads = MOE_ROUTE_THREADS,
                           .shared_bytes = c->count ? (int)r->experts * (int)sizeof(int32_t) : 0};
  return tigon_gpu_launch(call, &count_kernel, grid, &params);
}

/* counted: the kernel before this one is count_routes'. */
static tigon_status differentiate(const tigon_gpu_call *call, const tigon_exec *exec, const tigon_moe_router *r,
                                  const route_counts *c, bool counted) {
  moe_route_backward_params params = {.rows = rows_of(r),
                                      .ids = r->ids.data,
                                      .d_weights = scalar_of(&r->d_weights),
                                      .d_logits = r->d_logits.data,
                                      .id_stride = r->ids.stride[0],
                                      .d_weight_stride = r->d_weights.stride[0],
                                      .d_logit_row_bytes = row_bytes(&r->d_logits),
                                      .d_logit_kind = (int32_t)r->d_logits.kind,
                                      .d_loss = scalar_of(&r->d_loss),
                                      .d_z_loss = scalar_of(&r->d_z_loss),
                                      .count = c->count,
                                      .bad = c->bad,
                                      .record = exec->context ? exec->context->record : NULL,
                                      .event = tigon_record_of(TIGON_INVALID_ARGUMENT, call->op, "topk_ids")};
  const int64_t blocks = tigon_smaller(tigon_ceil_div(r->tokens, side_by_side(r)), BACKWARD_BLOCKS);
  const tigon_grid grid = {.blocks = blocks,
                           .threads = MOE_ROUTE_THREADS,
                           .shared_bytes = params.d_loss ? (int)r->experts * (int)sizeof(float) : 0,
                           .overlaps = counted};
  return tigon_gpu_launch(call, &backward_kernels[size_of(r)], grid, &params);
}

tigon_status tigon_moe_gpu_route_backward(const char *op, const tigon_exec *exec, const tigon_moe_router *r) {
  tigon_gpu_call call;
  tigon_status status = tigon_gpu_begin(op, exec, &call);
  if (status != TIGON_OK) return status;
  tigon_arena arena = {.base = exec->workspace};
  const route_counts counts = take_counts(r, &arena);
  const bool counted = counts.count || exec->context;
  if (counted) status = count_routes(&call, r, &counts);
  if (status == TIGON_OK) status = differentiate(&call, exec, r, &counts, counted);
  return tigon_gpu_end(&call, status);
}
