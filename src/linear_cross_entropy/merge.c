/* The merge of the partials of shards, and the outputs from it. */
#include <inttypes.h>

#include "linear_cross_entropy/problem.h"

static const char op[] = "tigon_linear_cross_entropy_merge";

typedef struct merge_call {
  tigon_exec exec;
  tigon_lce_loss loss;
  tigon_view partials; /* (N, T, 8) */
  tigon_lce_outputs outputs;
} merge_call;

static tigon_status prepare(const tigon_exec *exec, const tigon_linear_cross_entropy_merge_args *from, bool query,
                            merge_call *call) {
  tigon_linear_cross_entropy_merge_args args;
  tigon_status status = tigon_exec_load(op, exec, TIGON_ON_CPU, &call->exec);
  if (status == TIGON_OK) status = tigon_args_load(op, "args", from, &args, sizeof args);
  if (status != TIGON_OK) return status;
  tigon_checker check = {.op = op, .query = query};
  call->partials = tigon_check_tensor(&check, "partials", args.partials, TIGON_F32, 0, 3, (int64_t[]){-1, -1, 8});
  tigon_check_that(&check, call->partials.shape[0] > 0, "partials", "expected at least one partial, got none");
  tigon_check_that(&check, args.vocab_size > 0, "vocab_size",
                   "expected the number of classes of all shards, a positive number, got %" PRId64, args.vocab_size);
  tigon_lce_loss *l = &call->loss;
  l->tokens = call->partials.shape[1];
  l->classes = args.vocab_size;
  const tigon_lce_loss_args loss = TIGON_LCE_LOSS_ARGS(args);
  const tigon_lce_output_args outputs = TIGON_LCE_OUTPUT_ARGS(args, merged);
  tigon_lce_check_loss(&check, &loss, l);
  tigon_lce_check_outputs(&check, l, &outputs, "merged", &call->outputs);
  tigon_lce_named list[TIGON_LCE_OUTPUTS + 4] = {[TIGON_LCE_OUTPUTS] = {"partials", &call->partials},
                                                 {"target", &l->target},
                                                 {"class_weight", &l->class_weight},
                                                 {"token_weight", &l->token_weight}};
  tigon_lce_list_outputs(&call->outputs, "merged", list);
  tigon_lce_check_apart(&check, list, TIGON_LCE_OUTPUTS, TIGON_LCE_OUTPUTS + 4);
  return check.status;
}

tigon_status tigon_linear_cross_entropy_merge_workspace(const tigon_exec *exec,
                                                        const tigon_linear_cross_entropy_merge_args *args,
                                                        uint64_t *bytes) {
  merge_call call = {0};
  const tigon_status status = prepare(exec, args, true, &call);
  if (status != TIGON_OK) return status;
  tigon_arena arena = {0};
  tigon_lce_take_kept(&arena, &call.loss);
  return tigon_workspace_answer(op, arena.used, bytes);
}

tigon_status tigon_linear_cross_entropy_merge(const tigon_exec *exec,
                                              const tigon_linear_cross_entropy_merge_args *args) {
  merge_call call = {0};
  tigon_status status = prepare(exec, args, false, &call);
  if (status != TIGON_OK) return status;
  tigon_arena counted = {0};
  tigon_lce_take_kept(&counted, &call.loss);
  status = tigon_workspace_check(op, &call.exec, counted.used);
  if (status != TIGON_OK) return status;
  tigon_arena arena = {.base = call.exec.workspace};
  tigon_lce_keep_tokens(op, call.exec.context, &call.loss, tigon_lce_take_kept(&arena, &call.loss));
  tigon_lce_leave_out(&call.loss, &call.outputs);
  const tigon_lce_parts parts = {.data = call.partials.data,
                                 .count = call.partials.shape[0],
                                 .distance = call.partials.stride[0] * (int64_t)sizeof(float),
                                 .row_distance = call.partials.stride[1] * (int64_t)sizeof(float),
                                 .by_token = true};
  tigon_lce_finish(&call.loss, &call.outputs, &parts, call.exec.num_threads);
  return TIGON_OK;
}
