/* The router's entry points: arguments, workspace, and the call of a backend. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>

#include "tigon/moe.h"

#include "base/args.h"
#include "base/context.h"
#include "base/pool.h"
#include "base/status.h"
#include "moe/backend.h"
#if defined(TIGON_HAVE_CUDA)
#include "moe/gpu_route.h"

static bool on_cuda(DLDevice device) { return device.device_type == kDLCUDA; }
#endif

/* Tokens are cut in chunks of at least TIGON_MOE_ROUTE_TOKENS, at most TIGON_MOE_ROUTE_CHUNKS chunks. */
static int64_t chunk_tokens(int64_t tokens) {
  const int64_t even = (tokens + TIGON_MOE_ROUTE_CHUNKS - 1) / TIGON_MOE_ROUTE_CHUNKS;
  return even > TIGON_MOE_ROUTE_TOKENS ? even : TIGON_MOE_ROUTE_TOKENS;
}

static int64_t chunk_count(const tigon_moe_router *r) { return (r->tokens + r->chunk - 1) / r->chunk; }

/* As many as there may be for this many tokens or fewer. */
static uint64_t chunk_bound(const tigon_moe_router *r) {
  const int64_t chunks = (r->tokens + TIGON_MOE_ROUTE_TOKENS - 1) / TIGON_MOE_ROUTE_TOKENS;
  return (uint64_t)(chunks < TIGON_MOE_ROUTE_CHUNKS ? chunks : TIGON_MOE_ROUTE_CHUNKS);
}

static void check_options(tigon_checker *check, int32_t score, int32_t renormalize, float routed_scale,
                          tigon_moe_router *r) {
  tigon_check_that(check, score == TIGON_MOE_SOFTMAX || score == TIGON_MOE_SIGMOID, "score",
                   "expected TIGON_MOE_SOFTMAX (0) or TIGON_MOE_SIGMOID (1), got %" PRId32, score);
  tigon_check_that(check, renormalize == 0 || renormalize == 1, "renormalize", "expected 0 or 1, got %" PRId32,
                   renormalize);
  tigon_check_that(check, isfinite(routed_scale), "routed_scale", "expected a finite number, got %g",
                   (double)routed_scale);
  r->sigmoid = score == TIGON_MOE_SIGMOID;
  r->renormalize = renormalize == 1;
  r->scale = routed_scale == 0.0f ? 1.0f : routed_scale;
}

static void check_logits(tigon_checker *check, const DLTensor *logits, const DLTensor *ids, unsigned ids_flags,
                         tigon_moe_router *r) {
  r->logits = tigon_check_tensor(check, "logits", logits, TIGON_FLOATS, 0, 2, (int64_t[]){-1, -1});
  r->tokens = r->logits.shape[0];
  r->experts = r->logits.shape[1];
  tigon_check_that(check, r->experts >= 1 && r->experts <= TIGON_MOE_MAX_EXPERTS, "logits",
                   "expected 1 to %d experts, got %" PRId64, TIGON_MOE_MAX_EXPERTS, r->experts);
  r->ids = tigon_check_tensor(check, "topk_ids", ids, TIGON_INDICES, ids_flags, 2, (int64_t[]){r->tokens, -1});
  r->choices = r->ids.shape[1];
  const int64_t most = r->experts < TIGON_MOE_MAX_CHOICES ? r->experts : TIGON_MOE_MAX_CHOICES;
  tigon_check_that(check, r->choices >= 1 && r->choices <= most, "topk_ids",
                   "expected 1 to %" PRId64 " choices (no more than experts), got %" PRId64, most, r->choices);
  r->chunk = chunk_tokens(r->tokens);
}

/* --- forward ---------------------------------------------------------------------------------------------------- */

static const char *const route_op = "tigon_moe_route";

typedef struct route {
  tigon_exec exec;
  tigon_moe_route_args args;
  tigon_moe_router r;
  uint64_t workspace_bytes;
} route;

static void check_groups(tigon_checker *check, const tigon_moe_route_args *a, tigon_moe_router *r) {
  r->groups = a->n_group > 0 ? a->n_group : 1;
  tigon_check_that(check, a->n_group >= 0 && r->experts % r->groups == 0, "n_group",
                   "expected a divisor of the %" PRId64 " experts (or 0), got %" PRId32, r->experts, a->n_group);
  if (check->status != TIGON_OK) return;
  const int64_t size = r->experts / r->groups;
  r->open_groups = r->groups == 1 && a->topk_group == 0 ? 1 : a->topk_group;
  tigon_check_that(check, r->open_groups >= 1 && r->open_groups <= r->groups, "topk_group",
                   "expected 1 to %" PRId64 " (n_group), got %" PRId32, r->groups, a->topk_group);
  tigon_check_that(check, r->choices <= r->open_groups * size, "topk_group",
                   "expected room for %" PRId64 " choices, got %" PRId64 " groups of %" PRId64 " experts", r->choices,
                   r->open_groups, size);
  const int64_t most = size < TIGON_MOE_MAX_CHOICES ? size : TIGON_MOE_MAX_CHOICES;
  tigon_check_that(check, a->group_top >= 0 && a->group_top <= most, "group_top",
                   "expected 0 to %" PRId64 ", got %" PRId32, most, a->group_top);
  r->group_top = a->group_top > 0 ? a->group_top : a->selection_bias && size > 1 ? 2 : 1;
}

static uint64_t take_route(char *workspace, tigon_moe_router *r) {
  tigon_arena arena = {.base = workspace};
  const uint64_t elements = chunk_bound(r) * (uint64_t)r->experts;
  if (tigon_present(&r->counts) || tigon_present(&r->loss))
    r->count_sum = tigon_arena_take(&arena, elements * sizeof(int64_t));
  if (tigon_present(&r->loss)) r->p_sum = tigon_arena_take(&arena, elements * sizeof(float));
  if (tigon_present(&r->z_loss)) r->z_sum = tigon_arena_take(&arena, chunk_bound(r) * sizeof(double));
  return arena.used;
}

static uint64_t route_bytes(route *f) {
#if defined(TIGON_HAVE_CUDA)
  if (on_cuda(f->exec.device)) return tigon_moe_gpu_route_bytes(&f->r);
#endif
  return take_route(NULL, &f->r);
}

static tigon_status prepare_route(const tigon_exec *exec, const tigon_moe_route_args *args, bool query, route *f) {
  tigon_status status = tigon_exec_load(route_op, exec, TIGON_ON_CPU | TIGON_ON_CUDA, &f->exec);
  if (status == TIGON_OK) status = tigon_args_load(route_op, "args", args, &f->args, sizeof f->args);
  if (status != TIGON_OK) return status;
  const tigon_moe_route_args *a = &f->args;
  tigon_moe_router *r = &f->r;
  *r = (tigon_moe_router){.threads = f->exec.num_threads};
  const unsigned optional = TIGON_OPTIONAL | TIGON_OUTPUT;
  tigon_checker check = {.op = route_op, .query = query, .device = f->exec.device};
  tigon_check_alone(&check, a->team, "", 0);
  check_options(&check, a->score, a->renormalize, a->routed_scale, r);
  check_logits(&check, a->logits, a->topk_ids, TIGON_OUTPUT, r);
  check_groups(&check, a, r);
  r->bias = tigon_check_tensor(&check, "selection_bias", a->selection_bias, TIGON_F32, TIGON_OPTIONAL, 1, &r->experts);
  r->weights = tigon_check_tensor(&check, "topk_weights", a->topk_weights, TIGON_F32, TIGON_OUTPUT, 2, r->ids.shape);
  r->counts =
      tigon_check_tensor(&check, "counts", a->counts, TIGON_INDICES, optional | TIGON_ANY_STRIDE, 1, &r->experts);
  tigon_check_that(&check, r->counts.kind != TIGON_I32 || r->tokens <= INT32_MAX, "counts",
                   "expected int64 for %" PRId64 " tokens", r->tokens);
  r->loss = tigon_check_tensor(&check, "balance_loss", a->balance_loss, TIGON_F32, optional, 1, (int64_t[]){1});
  r->z_loss = tigon_check_tensor(&check, "z_loss", a->z_loss, TIGON_F32, optional, 1, (int64_t[]){1});
  const char *const names[] = {"topk_ids", "topk_weights", "counts",        "balance_loss",
                               "z_loss",   "logits",       "selection_bias"};
  const tigon_view *const views[] = {&r->ids, &r->weights, &r->counts, &r->loss, &r->z_loss, &r->logits, &r->bias};
  enum { OUTPUTS = 5, ALL = sizeof names / sizeof *names };
  for (int i = 0; i < OUTPUTS; i++)
    for (int j = i + 1; j < ALL; j++) tigon_check_apart(&check, names[i], views[i], names[j], views[j]);
  if (check.status != TIGON_OK) return check.status;
  f->workspace_bytes = route_bytes(f);
  return query ? TIGON_OK : tigon_workspace_check(route_op, &f->exec, f->workspace_bytes);
}

static void route_chunk(void *context, int64_t chunk, int slot) {
  (void)slot;
  TIGON_ISA_CALL(tigon_moe_route_chunk, context, chunk);
}

/* counts and balance_loss from the chunks' sums, in order of the chunks. */
static void finish_balance(const tigon_moe_router *r) {
  if (!tigon_present(&r->counts) && !tigon_present(&r->loss)) return;
  const int64_t chunks = chunk_count(r), experts = r->experts;
  double loss = 0;
  for (int64_t e = 0; e < experts; e++) {
    int64_t count = 0;
    double p = 0;
    for (int64_t c = 0; c < chunks; c++) {
      count += r->count_sum[c * experts + e];
      if (r->p_sum) p += (double)r->p_sum[c * experts + e];
    }
    if (tigon_present(&r->counts)) tigon_store_index(r->counts.data, r->counts.kind, e * r->counts.stride[0], count);
    loss += (double)count * p;
  }
  const double tokens = (double)r->tokens;
  if (tigon_present(&r->loss))
    *(float *)(void *)r->loss.data =
        r->tokens > 0 ? (float)((double)experts * loss / (tokens * (double)r->choices * tokens)) : 0.0f;
}

static void finish_z_loss(const tigon_moe_router *r) {
  if (!tigon_present(&r->z_loss)) return;
  double sum = 0;
  for (int64_t c = 0; c < chunk_count(r); c++) sum += r->z_sum[c];
  *(float *)(void *)r->z_loss.data = r->tokens > 0 ? (float)(sum / (double)r->tokens) : 0.0f;
}

tigon_status tigon_moe_route_workspace(const tigon_exec *exec, const tigon_moe_route_args *args, uint64_t *bytes) {
  route f;
  const tigon_status status = prepare_route(exec, args, true, &f);
  return status == TIGON_OK ? tigon_workspace_answer(route_op, f.workspace_bytes, bytes) : status;
}

tigon_status tigon_moe_route(const tigon_exec *exec, const tigon_moe_route_args *args) {
  route f;
  const tigon_status status = prepare_route(exec, args, false, &f);
  if (status != TIGON_OK) return status;
#if defined(TIGON_HAVE_CUDA)
  if (on_cuda(f.exec.device)) return tigon_moe_gpu_route(route_op, &f.exec, &f.r);
#endif
  take_route(f.exec.workspace, &f.r);
  tigon_parallel(f.r.threads, chunk_count(&f.r), route_chunk, &f.r);
  finish_balance(&f.r);
  finish_z_loss(&f.r);
  return TIGON_OK;
}

/* --- backward --------------------------------------------------------------------------------------------------- */

static const char *const route_backward_op = "tigon_moe_route_backward";

typedef struct route_backward {
  tigon_exec exec;
  tigon_moe_route_backward_args args;
  tigon_moe_router r;
  uint64_t workspace_bytes;
} route_backward;

static uint64_t take_route_backward(char *workspace, tigon_moe_router *r) {
  tigon_arena arena = {.base = workspace};
  if (tigon_present(&r->d_loss)) {
    r->count = tigon_arena_take(&arena, (uint64_t)r->experts * sizeof(int64_t));
    r->balance = tigon_arena_take(&arena, (uint64_t)r->experts * sizeof(float));
  }
  return arena.used;
}

static uint64_t route_backward_bytes(route_backward *f) {
#if defined(TIGON_HAVE_CUDA)
  if (on_cuda(f->exec.device)) return tigon_moe_gpu_route_backward_bytes(&f->r);
#endif
  return take_route_backward(NULL, &f->r);
}

static tigon_status prepare_route_backward(const tigon_exec *exec, const tigon_moe_route_backward_args *args,
                                           bool query, route_backward *f) {
  tigon_status status = tigon_exec_load(route_backward_op, exec, TIGON_ON_CPU | TIGON_ON_CUDA, &f->exec);
  if (status == TIGON_OK) status = tigon_args_load(route_backward_op, "args", args, &f->args, sizeof f->args);
  if (status != TIGON_OK) return status;
  const tigon_moe_route_backward_args *a = &f->args;
  tigon_moe_router *r = &f->r;
  *r = (tigon_moe_router){.threads = f->exec.num_threads};
  tigon_checker check = {.op = route_backward_op, .query = query, .device = f->exec.device};
  tigon_check_alone(&check, a->team, "", 0);
  check_options(&check, a->score, a->renormalize, a->routed_scale, r);
  tigon_check_that(&check, a->reserved == 0, "reserved", "expected 0, got %" PRId32, a->reserved);
  check_logits(&check, a->logits, a->topk_ids, 0, r);
  r->d_weights =
      tigon_check_tensor(&check, "d_topk_weights", a->d_topk_weights, TIGON_F32, TIGON_OPTIONAL, 2, r->ids.shape);
  r->d_loss =
      tigon_check_tensor(&check, "d_balance_loss", a->d_balance_loss, TIGON_F32, TIGON_OPTIONAL, 1, (int64_t[]){1});
  r->d_z_loss = tigon_check_tensor(&check, "d_z_loss", a->d_z_loss, TIGON_F32, TIGON_OPTIONAL, 1, (int64_t[]){1});
  r->d_logits = tigon_check_tensor(&check, "d_logits", a->d_logits, TIGON_FLOATS, TIGON_OUTPUT, 2, r->logits.shape);
  tigon_check_apart(&check, "d_logits", &r->d_logits, "logits", &r->logits);
  tigon_check_apart(&check, "d_logits", &r->d_logits, "topk_ids", &r->ids);
  tigon_check_apart(&check, "d_logits", &r->d_logits, "d_topk_weights", &r->d_weights);
  tigon_check_apart(&check, "d_logits", &r->d_logits, "d_balance_loss", &r->d_loss);
  tigon_check_apart(&check, "d_logits", &r->d_logits, "d_z_loss", &r->d_z_loss);
  if (check.status != TIGON_OK) return check.status;
  f->workspace_bytes = route_backward_bytes(f);
  return query ? TIGON_OK : tigon_workspace_check(route_backward_op, &f->exec, f->workspace_bytes);
}

/* The gradient of each token's P_e: d_balance_loss E f_e / T. */
static void balance_gradient(const tigon_moe_router *r, const tigon_moe_routing *routing) {
  if (!tigon_present(&r->d_loss)) return;
  const double tokens = (double)r->tokens;
  const double scale =
      (double)tigon_load(r->d_loss.data, TIGON_F32, 0) * (double)r->experts / (tokens * (double)r->choices * tokens);
  for (int64_t e = 0; e < r->experts; e++) r->count[e] = 0;
  tigon_moe_plan_count(routing, 0, r->tokens, r->count);
  for (int64_t e = 0; e < r->experts; e++) r->balance[e] = (float)(scale * (double)r->count[e]);
}

static void route_backward_chunk(void *context, int64_t chunk, int slot) {
  (void)slot;
  TIGON_ISA_CALL(tigon_moe_route_backward_chunk, context, chunk);
}

tigon_status tigon_moe_route_backward_workspace(const tigon_exec *exec, const tigon_moe_route_backward_args *args,
                                                uint64_t *bytes) {
  route_backward f;
  const tigon_status status = prepare_route_backward(exec, args, true, &f);
  return status == TIGON_OK ? tigon_workspace_answer(route_backward_op, f.workspace_bytes, bytes) : status;
}

tigon_status tigon_moe_route_backward(const tigon_exec *exec, const tigon_moe_route_backward_args *args) {
  route_backward f;
  const tigon_status status = prepare_route_backward(exec, args, false, &f);
  if (status != TIGON_OK) return status;
  tigon_moe_router *r = &f.r;
  if (r->tokens == 0) return TIGON_OK;
#if defined(TIGON_HAVE_CUDA)
  if (on_cuda(f.exec.device)) return tigon_moe_gpu_route_backward(route_backward_op, &f.exec, r);
#endif
  take_route_backward(f.exec.workspace, r);
  const tigon_moe_routing routing = tigon_moe_routing_of(&r->ids, r->experts);
  const int64_t bad = tigon_moe_plan_first_bad(&routing);
  if (bad >= 0)
    tigon_context_note(f.exec.context, TIGON_INVALID_ARGUMENT, route_backward_op, "topk_ids", bad,
                       tigon_moe_id(&routing, bad / r->choices, bad % r->choices));
  balance_gradient(r, &routing);
  if (tigon_present(&r->d_z_loss))
    r->z_scale = 2 * (double)tigon_load(r->d_z_loss.data, TIGON_F32, 0) / (double)r->tokens;
  tigon_parallel(r->threads, chunk_count(r), route_backward_chunk, r);
  return TIGON_OK;
}
