/* Linear cross entropy: argument checks, workspace, and the rows that every backend leaves out. */
#include "tigon/linear_cross_entropy.h"

#include <inttypes.h>
#include <math.h>

#include "base/args.h"
#include "base/context.h"
#include "base/gemm.h"
#include "linear_cross_entropy/backend.h"

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* A (T) float32 vector, of any stride. */
static tigon_view check_vector(tigon_checker *check, const char *name, const DLTensor *tensor, unsigned flags,
                               int64_t tokens) {
  return tigon_check_tensor(check, name, tensor, TIGON_F32, flags | TIGON_ANY_STRIDE, 1, &tokens);
}

static void check_apart(tigon_checker *check, const tigon_view *const *views, const char *const *names, int outputs,
                        int count) {
  for (int i = 0; i < outputs; i++)
    for (int j = i + 1; j < count; j++) tigon_check_apart(check, names[i], views[i], names[j], views[j]);
}

/* Members that forward and backward have in common. */
typedef struct common_args {
  const DLTensor *x, *weight, *bias, *target;
  int32_t set_ignore_index;
  int64_t ignore_index, vocab_begin;
  const tigon_team *team;
  float inverse_temperature, z_loss;
} common_args;

static void check_common(tigon_checker *check, const tigon_exec *exec, const common_args *args, tigon_lce_problem *p) {
  tigon_check_alone(check, args->team, "vocab_begin", args->vocab_begin);
  tigon_check_that(check, args->set_ignore_index == 0 || args->set_ignore_index == 1, "set_ignore_index",
                   "expected 0 or 1, got %" PRId32, args->set_ignore_index);
  tigon_check_that(check, isfinite(args->inverse_temperature) && args->inverse_temperature >= 0, "inverse_temperature",
                   "expected a positive finite number, or 0 for 1, got %g", (double)args->inverse_temperature);
  tigon_check_that(check, isfinite(args->z_loss), "z_loss", "expected a finite number, got %g", (double)args->z_loss);
  p->x = tigon_check_tensor(check, "x", args->x, TIGON_FLOATS, 0, 2, (int64_t[]){-1, -1});
  tigon_check_that(check, p->x.shape[0] <= INT32_MAX, "x", "expected at most %" PRId32 " rows, got %" PRId64, INT32_MAX,
                   p->x.shape[0]);
  p->tokens = p->x.shape[0];
  p->width = p->x.shape[1];
  p->weight = tigon_check_tensor(check, "weight", args->weight, TIGON_FLOATS, 0, 2, (int64_t[]){-1, p->width});
  p->vocabulary = p->weight.shape[0];
  p->bias = tigon_check_tensor(check, "bias", args->bias, TIGON_FLOATS, TIGON_OPTIONAL, 1, &p->vocabulary);
  p->target = tigon_check_tensor(check, "target", args->target, TIGON_INDICES, TIGON_ANY_STRIDE, 1, &p->tokens);
  p->ignore_index = args->set_ignore_index ? args->ignore_index : -100;
  p->inverse_temperature = args->inverse_temperature == 0 ? 1.0f : args->inverse_temperature;
  p->z_loss = args->z_loss;
  p->threads = exec->num_threads;
}

static int32_t *take_kept(tigon_arena *arena, const tigon_lce_problem *p) {
  return tigon_arena_take(arena, (uint64_t)p->tokens * sizeof(int32_t));
}

static void *take_scratch(tigon_arena *arena, const tigon_lce_problem *p) {
  return tigon_arena_take(arena, (uint64_t)p->threads * tigon_gemm_scratch());
}

/* Lists the tokens that take part, and records the first target that is neither a class nor ignored. */
static void keep_tokens(const char *op, tigon_context *context, tigon_lce_problem *p, int32_t *kept) {
  bool noted = false;
  p->kept = kept;
  p->kept_count = 0;
  for (int64_t token = 0; token < p->tokens; token++) {
    const int64_t target = tigon_load_index(p->target.data, p->target.kind, token * p->target.stride[0]);
    if (target == p->ignore_index) continue;
    if (target >= 0 && target < p->vocabulary) {
      kept[p->kept_count++] = (int32_t)token;
    } else if (!noted) {
      tigon_context_note(context, TIGON_INVALID_ARGUMENT, op, "target", token, target);
      noted = true;
    }
  }
}

static void zero_row(const tigon_view *view, int64_t row) {
  char *to = tigon_at(view, row);
  for (int64_t i = 0; i < view->shape[1]; i++)
    memset(to + i * tigon_kind_bytes(view->kind), 0, (size_t)tigon_kind_bytes(view->kind));
}

/* Zeroes a per-token output's rows of tokens that take no part. */
static void zero_left_out(const tigon_lce_problem *p, const tigon_view *view) {
  if (!tigon_present(view) || tigon_elements(view) == 0) return;
  int64_t next = 0;
  for (int64_t token = 0; token < p->tokens; token++) {
    if (next < p->kept_count && p->kept[next] == token)
      next++;
    else
      zero_row(view, token);
  }
}

static void zero_all(const tigon_view *view) {
  if (!tigon_present(view) || tigon_elements(view) == 0) return;
  for (int64_t i = 0; i < view->shape[0]; i++) zero_row(view, i);
}

/* --- forward ---------------------------------------------------------------------------------------------------- */

enum { SPLIT_ITEMS = 128 }; /* (row block, split) pairs that are enough for many threads */

/* Splits of whole GEMM tiles, from T and V alone. States need T * splits entries, which shrinks where splits do; the
 * answer is a bound that only grows: splits <= SPLIT_ITEMS / blocks + 1 and T <= blocks * TIGON_GEMM_M. */
static uint64_t plan_splits(tigon_lce_forward_plan *plan) {
  const tigon_lce_problem *p = &plan->problem;
  const int64_t tiles = ceil_div(p->vocabulary, TIGON_GEMM_N), blocks = ceil_div(p->tokens, TIGON_GEMM_M);
  if (tiles == 0 || blocks == 0) return 0;
  plan->split_columns = ceil_div(tiles, smaller(tiles, ceil_div(SPLIT_ITEMS, blocks))) * TIGON_GEMM_N;
  plan->splits = ceil_div(p->vocabulary, plan->split_columns);
  const int64_t states = smaller(p->tokens * smaller(tiles, SPLIT_ITEMS), (SPLIT_ITEMS + 1) * TIGON_GEMM_M + p->tokens);
  return (uint64_t)states * sizeof(tigon_lce_state);
}

static tigon_status prepare_forward(const char *op, const tigon_exec *exec, tigon_exec *settings,
                                    const tigon_linear_cross_entropy_args *from, bool query,
                                    tigon_lce_forward_plan *plan) {
  tigon_linear_cross_entropy_args args;
  tigon_status status = tigon_exec_load(op, exec, settings);
  if (status == TIGON_OK) status = tigon_args_load(op, "args", from, &args, sizeof args);
  if (status != TIGON_OK) return status;
  tigon_checker check = {.op = op, .query = query};
  tigon_lce_problem *p = &plan->problem;
  const common_args common = {args.x,
                              args.weight,
                              args.bias,
                              args.target,
                              args.set_ignore_index,
                              args.ignore_index,
                              args.vocab_begin,
                              args.team,
                              args.inverse_temperature,
                              args.z_loss};
  check_common(&check, settings, &common, p);
  const unsigned flags = TIGON_OPTIONAL | TIGON_OUTPUT;
  plan->loss = check_vector(&check, "loss", args.loss, flags, p->tokens);
  plan->nll = check_vector(&check, "nll", args.nll, flags, p->tokens);
  plan->lse = check_vector(&check, "lse", args.lse, flags, p->tokens);
  plan->entropy = check_vector(&check, "entropy", args.entropy, flags, p->tokens);
  const tigon_view *const views[] = {&plan->loss, &plan->nll, &plan->lse, &plan->entropy,
                                     &p->x,       &p->weight, &p->bias,   &p->target};
  static const char *const names[] = {"loss", "nll", "lse", "entropy", "x", "weight", "bias", "target"};
  check_apart(&check, views, names, 4, 8);
  return check.status;
}

/* The query counts the same blocks that a run takes. */
static int32_t *carve_forward(tigon_arena *arena, tigon_lce_forward_plan *plan) {
  tigon_lce_problem *p = &plan->problem;
  int32_t *kept = take_kept(arena, p);
  plan->states = tigon_arena_take(arena, plan_splits(plan));
  p->scratch = take_scratch(arena, p);
  return kept;
}

tigon_status tigon_linear_cross_entropy_workspace(const tigon_exec *exec, const tigon_linear_cross_entropy_args *args,
                                                  uint64_t *bytes) {
  static const char op[] = "tigon_linear_cross_entropy_workspace";
  tigon_lce_forward_plan plan = {0};
  tigon_exec settings;
  const tigon_status status = prepare_forward(op, exec, &settings, args, true, &plan);
  if (status != TIGON_OK) return status;
  tigon_arena arena = {0};
  carve_forward(&arena, &plan);
  return tigon_workspace_answer(op, arena.used, bytes);
}

tigon_status tigon_linear_cross_entropy(const tigon_exec *exec, const tigon_linear_cross_entropy_args *args) {
  static const char op[] = "tigon_linear_cross_entropy";
  tigon_lce_forward_plan plan = {0};
  tigon_exec settings;
  tigon_status status = prepare_forward(op, exec, &settings, args, false, &plan);
  if (status != TIGON_OK) return status;
  tigon_arena counted = {0};
  carve_forward(&counted, &plan);
  status = tigon_workspace_check(op, &settings, counted.used);
  if (status != TIGON_OK) return status;
  tigon_arena arena = {.base = settings.workspace};
  int32_t *kept = carve_forward(&arena, &plan);

  tigon_lce_problem *p = &plan.problem;
  keep_tokens(op, settings.context, p, kept);
  const tigon_view *const outputs[] = {&plan.loss, &plan.nll, &plan.lse, &plan.entropy};
  bool wanted = false;
  for (int i = 0; i < 4; i++) {
    zero_left_out(p, outputs[i]);
    wanted |= tigon_present(outputs[i]);
  }
  if (wanted && p->kept_count > 0) TIGON_ISA_CALL(tigon_lce_forward, &plan);
  return TIGON_OK;
}

/* --- backward --------------------------------------------------------------------------------------------------- */

static tigon_status prepare_backward(const char *op, const tigon_exec *exec, tigon_exec *settings,
                                     const tigon_linear_cross_entropy_backward_args *from, bool query,
                                     tigon_lce_backward_plan *plan) {
  tigon_linear_cross_entropy_backward_args args;
  tigon_status status = tigon_exec_load(op, exec, settings);
  if (status == TIGON_OK) status = tigon_args_load(op, "args", from, &args, sizeof args);
  if (status != TIGON_OK) return status;
  tigon_checker check = {.op = op, .query = query};
  tigon_lce_problem *p = &plan->problem;
  const common_args common = {args.x,
                              args.weight,
                              args.bias,
                              args.target,
                              args.set_ignore_index,
                              args.ignore_index,
                              args.vocab_begin,
                              args.team,
                              args.inverse_temperature,
                              args.z_loss};
  check_common(&check, settings, &common, p);
  plan->lse = check_vector(&check, "lse", args.lse, 0, p->tokens);
  plan->d_loss = check_vector(&check, "d_loss", args.d_loss, TIGON_OPTIONAL, p->tokens);
  plan->d_lse = check_vector(&check, "d_lse", args.d_lse, TIGON_OPTIONAL, p->tokens);
  plan->d_entropy = check_vector(&check, "d_entropy", args.d_entropy, TIGON_OPTIONAL, p->tokens);
  plan->entropy = check_vector(&check, "entropy", args.entropy, args.d_entropy ? 0 : TIGON_OPTIONAL, p->tokens);
  const unsigned flags = TIGON_OPTIONAL | TIGON_OUTPUT;
  plan->dx = tigon_check_tensor(&check, "dx", args.dx, TIGON_FLOATS, flags, 2, p->x.shape);
  plan->dweight = tigon_check_tensor(&check, "dweight", args.dweight, TIGON_FLOATS, flags, 2, p->weight.shape);
  plan->dbias = tigon_check_tensor(&check, "dbias", args.dbias, TIGON_FLOATS, flags, 1, &p->vocabulary);
  const tigon_view *const views[] = {&plan->dx,      &plan->dweight, &plan->dbias, &p->x,
                                     &p->weight,     &p->bias,       &p->target,   &plan->lse,
                                     &plan->entropy, &plan->d_loss,  &plan->d_lse, &plan->d_entropy};
  static const char *const names[] = {"dx",     "dweight", "dbias",   "x",      "weight", "bias",
                                      "target", "lse",     "entropy", "d_loss", "d_lse",  "d_entropy"};
  check_apart(&check, views, names, 3, 12);
  return check.status;
}

static int32_t *carve_backward(tigon_arena *arena, tigon_lce_backward_plan *plan) {
  tigon_lce_problem *p = &plan->problem;
  const uint64_t tokens = (uint64_t)p->tokens;
  plan->tile = smaller(TIGON_LCE_TILE, ceil_div(p->vocabulary, 16) * 16);
  const bool sums = tigon_present(&plan->dx) && plan->dx.kind != TIGON_F32 && p->vocabulary > plan->tile;
  int32_t *kept = take_kept(arena, p);
  plan->rows = tigon_arena_take(arena, tokens * sizeof(tigon_lce_row));
  plan->dz = tigon_arena_take(arena, tokens * (uint64_t)plan->tile * sizeof(float));
  plan->dx_sum = tigon_arena_take(arena, sums ? tokens * (uint64_t)p->width * sizeof(float) : 0);
  p->scratch = take_scratch(arena, p);
  return kept;
}

tigon_status tigon_linear_cross_entropy_backward_workspace(const tigon_exec *exec,
                                                           const tigon_linear_cross_entropy_backward_args *args,
                                                           uint64_t *bytes) {
  static const char op[] = "tigon_linear_cross_entropy_backward_workspace";
  tigon_lce_backward_plan plan = {0};
  tigon_exec settings;
  const tigon_status status = prepare_backward(op, exec, &settings, args, true, &plan);
  if (status != TIGON_OK) return status;
  tigon_arena arena = {0};
  carve_backward(&arena, &plan);
  return tigon_workspace_answer(op, arena.used, bytes);
}

tigon_status tigon_linear_cross_entropy_backward(const tigon_exec *exec,
                                                 const tigon_linear_cross_entropy_backward_args *args) {
  static const char op[] = "tigon_linear_cross_entropy_backward";
  tigon_lce_backward_plan plan = {0};
  tigon_exec settings;
  tigon_status status = prepare_backward(op, exec, &settings, args, false, &plan);
  if (status != TIGON_OK) return status;
  tigon_arena counted = {0};
  carve_backward(&counted, &plan);
  status = tigon_workspace_check(op, &settings, counted.used);
  if (status != TIGON_OK) return status;
  tigon_arena arena = {.base = settings.workspace};
  int32_t *kept = carve_backward(&arena, &plan);

  tigon_lce_problem *p = &plan.problem;
  keep_tokens(op, settings.context, p, kept);
  if (!tigon_present(&plan.d_loss) && !tigon_present(&plan.d_lse) && !tigon_present(&plan.d_entropy)) p->kept_count = 0;
  zero_left_out(p, &plan.dx);
  if (p->kept_count == 0) {
    zero_all(&plan.dweight);
    zero_all(&plan.dbias);
  } else if (tigon_present(&plan.dx) || tigon_present(&plan.dweight) || tigon_present(&plan.dbias)) {
    TIGON_ISA_CALL(tigon_lce_backward, &plan);
  }
  return TIGON_OK;
}
