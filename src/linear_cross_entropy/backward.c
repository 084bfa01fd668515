/* Backward: checks, workspace, and the rows that the backend leaves out. */
#include <inttypes.h>

#include "base/gemm.h"
#include "base/integer.h"
#include "linear_cross_entropy/problem.h"

static const char op[] = "tigon_linear_cross_entropy_backward";

static void check_gradients(tigon_checker *check, const tigon_linear_cross_entropy_backward_args *args,
                            tigon_lce_backward_plan *plan) {
  const tigon_lce_problem *p = &plan->problem;
  const int64_t tokens = p->loss.tokens;
  plan->lse = tigon_lce_check_vector(check, "lse", args->lse, 0, tokens);
  plan->d_loss = tigon_lce_check_vector(check, "d_loss", args->d_loss, TIGON_OPTIONAL, tokens);
  plan->d_lse = tigon_lce_check_vector(check, "d_lse", args->d_lse, TIGON_OPTIONAL, tokens);
  plan->d_entropy = tigon_lce_check_vector(check, "d_entropy", args->d_entropy, TIGON_OPTIONAL, tokens);
  plan->entropy = tigon_lce_check_vector(check, "entropy", args->entropy, args->d_entropy ? 0 : TIGON_OPTIONAL, tokens);
  const int32_t accumulate = args->accumulate_weight_gradients;
  tigon_check_that(check, accumulate == 0 || accumulate == 1, "accumulate_weight_gradients",
                   "expected 0 or 1, got %" PRId32, accumulate);
  tigon_check_that(check, args->reserved == 0, "reserved", "expected 0, got %" PRId32, args->reserved);
  plan->accumulate = accumulate == 1;
  const unsigned flags = TIGON_OPTIONAL | TIGON_OUTPUT, kinds = accumulate ? TIGON_F32 : TIGON_FLOATS;
  plan->dx = tigon_check_tensor(check, "dx", args->dx, TIGON_FLOATS, flags, 2, p->x.shape);
  plan->dweight = tigon_check_tensor(check, "dweight", args->dweight, kinds, flags, 2, p->weight.shape);
  plan->dbias = tigon_check_tensor(check, "dbias", args->dbias, kinds, flags, 1, p->weight.shape);
}

static tigon_status prepare(const tigon_exec *exec, tigon_exec *settings,
                            const tigon_linear_cross_entropy_backward_args *from, bool query,
                            tigon_lce_backward_plan *plan) {
  tigon_linear_cross_entropy_backward_args args;
  tigon_status status = tigon_exec_load(op, exec, TIGON_ON_CPU, settings);
  if (status == TIGON_OK) status = tigon_args_load(op, "args", from, &args, sizeof args);
  if (status != TIGON_OK) return status;
  tigon_checker check = {.op = op, .query = query};
  tigon_lce_problem *p = &plan->problem;
  const tigon_lce_problem_args problem = TIGON_LCE_PROBLEM_ARGS(args);
  tigon_lce_check_problem(&check, settings, &problem, p);
  tigon_lce_check_saved(&check, args.saved, args.saved_bytes, p);
  check_gradients(&check, &args, plan);
  const tigon_lce_named list[] = {{"dx", &plan->dx},
                                  {"dweight", &plan->dweight},
                                  {"dbias", &plan->dbias},
                                  {"x", &p->x},
                                  {"weight", &p->weight},
                                  {"bias", &p->bias},
                                  {"target", &p->loss.target},
                                  {"class_weight", &p->loss.class_weight},
                                  {"token_weight", &p->loss.token_weight},
                                  {"lse", &plan->lse},
                                  {"entropy", &plan->entropy},
                                  {"d_loss", &plan->d_loss},
                                  {"d_lse", &plan->d_lse},
                                  {"d_entropy", &plan->d_entropy}};
  tigon_lce_check_apart(&check, list, 3, sizeof list / sizeof *list);
  return check.status;
}

static int32_t *carve(tigon_arena *arena, tigon_lce_backward_plan *plan) {
  tigon_lce_problem *p = &plan->problem;
  const uint64_t tokens = (uint64_t)p->loss.tokens;
  plan->tile = tigon_smaller(TIGON_LCE_TILE, (p->vocabulary + 15) / 16 * 16);
  const bool sums = tigon_present(&plan->dx) && plan->dx.kind != TIGON_F32 && p->vocabulary > plan->tile;
  int32_t *kept = tigon_lce_take_kept(arena, &p->loss);
  plan->rows = tigon_arena_take(arena, tokens * sizeof(tigon_lce_row));
  plan->dz_kind = p->x.kind == TIGON_BF16 && p->weight.kind == TIGON_BF16 ? TIGON_BF16 : TIGON_F32;
  plan->dz = tigon_arena_take(arena, tokens * (uint64_t)(plan->tile * tigon_kind_bytes(plan->dz_kind)));
  plan->dx_sum = tigon_arena_take(arena, sums ? tokens * (uint64_t)p->width * sizeof(float) : 0);
  p->scratch = tigon_arena_take(arena, (uint64_t)p->threads * tigon_gemm_scratch());
  return kept;
}

tigon_status tigon_linear_cross_entropy_backward_workspace(const tigon_exec *exec,
                                                           const tigon_linear_cross_entropy_backward_args *args,
                                                           uint64_t *bytes) {
  tigon_lce_backward_plan plan = {0};
  tigon_exec settings;
  const tigon_status status = prepare(exec, &settings, args, true, &plan);
  if (status != TIGON_OK) return status;
  tigon_arena arena = {0};
  carve(&arena, &plan);
  return tigon_workspace_answer(op, arena.used, bytes);
}

static void plan_smoothing(tigon_lce_backward_plan *plan) {
  const tigon_lce_loss *l = &plan->problem.loss;
  if (l->label_smoothing == 0) return;
  double sum = (double)l->classes;
  if (tigon_present(&l->class_weight)) {
    sum = 0;
    for (int64_t v = 0; v < l->classes; v++) sum += tigon_lce_element(&l->class_weight, v, 1);
  }
  const double smoothing = (double)l->label_smoothing / (double)l->classes;
  plan->smoothing = (float)smoothing;
  plan->smoothing_sum = (float)(smoothing * sum);
}

static void zero_row(const tigon_view *view, int64_t row) {
  char *to = tigon_at(view, row);
  for (int64_t i = 0; i < view->shape[1]; i++)
    memset(to + i * tigon_kind_bytes(view->kind), 0, (size_t)tigon_kind_bytes(view->kind));
}

/* Rows of dx of the tokens that take no part. */
static void zero_left_out(const tigon_lce_loss *l, const tigon_view *dx) {
  if (!tigon_lce_wanted(dx)) return;
  int64_t next = 0;
  for (int64_t token = 0; token < l->tokens; token++) {
    if (next < l->kept_count && l->kept[next] == token)
      next++;
    else
      zero_row(dx, token);
  }
}

static void zero_from(const tigon_view *view, int64_t row) {
  for (; tigon_lce_wanted(view) && row < view->shape[0]; row++) zero_row(view, row);
}

tigon_status tigon_linear_cross_entropy_backward(const tigon_exec *exec,
                                                 const tigon_linear_cross_entropy_backward_args *args) {
  tigon_lce_backward_plan plan = {0};
  tigon_exec settings;
  tigon_status status = prepare(exec, &settings, args, false, &plan);
  if (status != TIGON_OK) return status;
  tigon_arena counted = {0};
  carve(&counted, &plan);
  status = tigon_workspace_check(op, &settings, counted.used);
  if (status != TIGON_OK) return status;
  tigon_arena arena = {.base = settings.workspace};
  int32_t *kept = carve(&arena, &plan);

  tigon_lce_problem *p = &plan.problem;
  const bool upstream = tigon_present(&plan.d_loss) || tigon_present(&plan.d_lse) || tigon_present(&plan.d_entropy);
  tigon_lce_keep_tokens(op, settings.context, &p->loss, kept);
  if (!upstream || p->vocabulary == 0) p->loss.kept_count = 0;
  const int64_t written = p->loss.kept_count ? p->vocabulary : 0; /* rows of dweight and dbias; those after are zeros */
  zero_left_out(&p->loss, &plan.dx);
  if (!plan.accumulate) {
    zero_from(&plan.dweight, written);
    zero_from(&plan.dbias, written);
  }
  const bool wanted = tigon_lce_wanted(&plan.dx) || tigon_lce_wanted(&plan.dweight) || tigon_lce_wanted(&plan.dbias);
  if (!wanted || p->loss.kept_count == 0) return TIGON_OK;
  plan_smoothing(&plan);
  TIGON_ISA_CALL(tigon_lce_backward, &plan);
  return TIGON_OK;
}
