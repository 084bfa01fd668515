/* Forward: checks, workspace, and the states' way to the outputs. */
#include <inttypes.h>
#include <math.h>

#include "base/gemm.h"
#include "base/integer.h"
#include "base/status.h"
#include "linear_cross_entropy/problem.h"

static const char op[] = "tigon_linear_cross_entropy";

typedef struct forward_call {
  tigon_exec exec;
  tigon_lce_forward_plan plan;
  tigon_lce_outputs outputs;
} forward_call;

/* What a shard alone cannot know is the merge's to give. */
static void check_whole(tigon_checker *check, const tigon_lce_problem *p, const tigon_lce_named *outputs) {
  const bool whole = p->vocab_begin == 0 && p->vocabulary == p->loss.classes;
  for (int i = 0; i < TIGON_LCE_OUTPUTS - 1; i++)
    tigon_check_that(check, whole || !tigon_present(outputs[i].view), outputs[i].name,
                     "expected NULL where weight holds %" PRId64 " of the %" PRId64 " classes (from %" PRId64
                     " on): take partial and merge, got a tensor",
                     p->vocabulary, p->loss.classes, p->vocab_begin);
}

static tigon_status prepare(const tigon_exec *exec, const tigon_linear_cross_entropy_args *from, bool query,
                            forward_call *call) {
  tigon_linear_cross_entropy_args args;
  tigon_status status = tigon_exec_load(op, exec, TIGON_ON_CPU, &call->exec);
  if (status == TIGON_OK) status = tigon_args_load(op, "args", from, &args, sizeof args);
  if (status != TIGON_OK) return status;
  tigon_checker check = {.op = op, .query = query};
  tigon_lce_problem *p = &call->plan.problem;
  const tigon_lce_problem_args problem = TIGON_LCE_PROBLEM_ARGS(args);
  const tigon_lce_output_args outputs = TIGON_LCE_OUTPUT_ARGS(args, partial);
  tigon_lce_check_problem(&check, &call->exec, &problem, p);
  tigon_lce_check_saved(&check, args.saved, args.saved_bytes, p);
  tigon_lce_check_outputs(&check, &p->loss, &outputs, "partial", &call->outputs);
  tigon_lce_named list[TIGON_LCE_OUTPUTS + 6] = {[TIGON_LCE_OUTPUTS] = {"x", &p->x},
                                                 {"weight", &p->weight},
                                                 {"bias", &p->bias},
                                                 {"target", &p->loss.target},
                                                 {"class_weight", &p->loss.class_weight},
                                                 {"token_weight", &p->loss.token_weight}};
  tigon_lce_list_outputs(&call->outputs, "partial", list);
  check_whole(&check, p, list);
  tigon_lce_check_apart(&check, list, TIGON_LCE_OUTPUTS, TIGON_LCE_OUTPUTS + 6);
  const tigon_lce_outputs *o = &call->outputs;
  call->plan.extras = tigon_present(&o->argmax) || tigon_present(&o->correct) || tigon_present(&o->partial) ||
                      p->loss.label_smoothing > 0;
  return check.status;
}

enum { SPLIT_ITEMS = 128 }; /* (row block, split) pairs that are enough for many threads */

/* Splits of whole GEMM tiles, from T and V alone. States need T * splits entries, which shrinks where splits do; the
 * answer is a bound that only grows: splits <= SPLIT_ITEMS / blocks + 1 and T <= blocks * TIGON_GEMM_M. */
static uint64_t plan_splits(tigon_lce_forward_plan *plan) {
  const int64_t tokens = plan->problem.loss.tokens, vocabulary = plan->problem.vocabulary;
  const int64_t tiles = tigon_ceil_div(vocabulary, TIGON_GEMM_N), blocks = tigon_ceil_div(tokens, TIGON_GEMM_M);
  if (tiles == 0 || blocks == 0) return 0;
  plan->split_columns = tigon_ceil_div(tiles, tigon_smaller(tiles, tigon_ceil_div(SPLIT_ITEMS, blocks))) * TIGON_GEMM_N;
  plan->splits = tigon_ceil_div(vocabulary, plan->split_columns);
  const int64_t states =
      tigon_smaller(tokens * tigon_smaller(tiles, SPLIT_ITEMS), (SPLIT_ITEMS + 1) * TIGON_GEMM_M + tokens);
  return (uint64_t)states * sizeof(tigon_lce_state);
}

/* The query counts the same blocks that a run takes. */
static int32_t *carve(tigon_arena *arena, tigon_lce_forward_plan *plan) {
  tigon_lce_problem *p = &plan->problem;
  int32_t *kept = tigon_lce_take_kept(arena, &p->loss);
  plan->states = tigon_arena_take(arena, plan_splits(plan));
  p->scratch = tigon_arena_take(arena, (uint64_t)p->threads * tigon_gemm_scratch());
  return kept;
}

tigon_status tigon_linear_cross_entropy_workspace(const tigon_exec *exec, const tigon_linear_cross_entropy_args *args,
                                                  uint64_t *bytes) {
  forward_call call = {0};
  const tigon_status status = prepare(exec, args, true, &call);
  if (status != TIGON_OK) return status;
  tigon_arena arena = {0};
  carve(&arena, &call.plan);
  return tigon_workspace_answer(op, arena.used, bytes);
}

tigon_status tigon_linear_cross_entropy_saved(const tigon_exec *exec, const tigon_linear_cross_entropy_args *args,
                                              uint64_t *bytes) {
  forward_call call = {0};
  const tigon_status status = prepare(exec, args, true, &call);
  if (status != TIGON_OK) return status;
  const tigon_lce_problem *p = &call.plan.problem;
  uint64_t logits;
  if (__builtin_mul_overflow((uint64_t)p->loss.tokens * sizeof(float), (uint64_t)p->vocabulary, &logits) ||
      logits > UINT64_MAX - 255)
    return tigon_fail(TIGON_INVALID_ARGUMENT, op, "weight",
                      "expected fewer than 2^64 bytes of logits, got %" PRId64 " x %" PRId64, p->loss.tokens,
                      p->vocabulary);
  return tigon_workspace_answer(op, p->width ? (logits + 255) / 256 * 256 : 0, bytes);
}

/* Without width and bias every logit is 0: one state, known at once, stands for every token. */
static void finish_zero_logits(const forward_call *call) {
  const tigon_lce_problem *p = &call->plan.problem;
  double weights = 0;
  for (int64_t v = 0; v < p->vocabulary && tigon_present(&p->loss.class_weight); v++)
    weights += tigon_lce_element(&p->loss.class_weight, p->vocab_begin + v, 1);
  const tigon_lce_state state = {.ties = (float)p->vocabulary,
                                 .weights =
                                     tigon_present(&p->loss.class_weight) ? (float)weights : (float)p->vocabulary,
                                 .argmax = (int32_t)p->vocab_begin};
  const tigon_lce_parts parts = {.data = (const char *)&state, .count = p->vocabulary > 0};
  tigon_lce_finish(&p->loss, &call->outputs, &parts, p->threads);
}

static void finish_states(const forward_call *call) {
  const tigon_lce_forward_plan *plan = &call->plan;
  const tigon_lce_parts parts = {.data = (const char *)plan->states,
                                 .count = plan->splits,
                                 .distance = plan->problem.loss.kept_count * (int64_t)sizeof(tigon_lce_state),
                                 .row_distance = sizeof(tigon_lce_state)};
  TIGON_ISA_CALL(tigon_lce_forward, plan);
  tigon_lce_finish(&plan->problem.loss, &call->outputs, &parts, plan->problem.threads);
}

tigon_status tigon_linear_cross_entropy(const tigon_exec *exec, const tigon_linear_cross_entropy_args *args) {
  forward_call call = {0};
  tigon_status status = prepare(exec, args, false, &call);
  if (status != TIGON_OK) return status;
  tigon_arena counted = {0};
  carve(&counted, &call.plan);
  status = tigon_workspace_check(op, &call.exec, counted.used);
  if (status != TIGON_OK) return status;
  tigon_arena arena = {.base = call.exec.workspace};
  int32_t *kept = carve(&arena, &call.plan);

  tigon_lce_problem *p = &call.plan.problem;
  tigon_lce_keep_tokens(op, call.exec.context, &p->loss, kept);
  tigon_lce_leave_out(&p->loss, &call.outputs);
  tigon_lce_named outputs[TIGON_LCE_OUTPUTS];
  tigon_lce_list_outputs(&call.outputs, "partial", outputs);
  bool wanted = p->saved_columns > 0;
  for (int i = 0; i < TIGON_LCE_OUTPUTS; i++) wanted |= tigon_lce_wanted(outputs[i].view);
  if (!wanted || p->loss.kept_count == 0) return TIGON_OK;
  if (p->width == 0 && !tigon_present(&p->bias))
    finish_zero_logits(&call);
  else
    finish_states(&call);
  return TIGON_OK;
}
