/* Plain projection: checks arguments, answers workspace queries, runs the packed product. */
#include "tigon/linear.h"

#include "base/args.h"
#include "base/check.h"
#include "base/gemm.h"
#include "linear/backend.h"

static tigon_view check_matrix(tigon_checker *check, const char *name, const DLTensor *tensor, unsigned flags,
                               int64_t rows, int64_t columns) {
  return tigon_check_tensor(check, name, tensor, TIGON_FLOATS, flags, 2, (int64_t[]){rows, columns});
}

static tigon_view check_bias(tigon_checker *check, const char *name, const DLTensor *tensor, unsigned flags,
                             int64_t n) {
  return tigon_check_tensor(check, name, tensor, TIGON_FLOATS, flags | TIGON_OPTIONAL, 1, &n);
}

/* Scratch for the packed products; in a query only counted. */
static tigon_status take_scratch(const char *op, const tigon_exec *exec, bool query, bool needed, void **scratch,
                                 uint64_t *bytes) {
  tigon_arena arena = {.base = query ? NULL : exec->workspace};
  *scratch = tigon_arena_take(&arena, needed ? tigon_gemm_scratch() * (uint64_t)exec->num_threads : 0);
  *bytes = arena.used;
  return query ? TIGON_OK : tigon_workspace_check(op, exec, arena.used);
}

typedef struct forward_plan {
  int threads;
  tigon_view x, weight, bias, y;
  void *scratch;
  uint64_t bytes;
} forward_plan;

static tigon_status prepare_forward(const char *op, const tigon_exec *exec_in, const tigon_linear_args *args_in,
                                    bool query, forward_plan *plan) {
  tigon_linear_args args;
  tigon_exec exec;
  tigon_status status = tigon_args_load(op, "args", args_in, &args, sizeof args);
  if (status == TIGON_OK) status = tigon_exec_load(op, exec_in, TIGON_ON_CPU, &exec);
  if (status != TIGON_OK) return status;

  tigon_checker check = {.op = op, .query = query};
  *plan = (forward_plan){.threads = exec.num_threads};
  plan->x = check_matrix(&check, "x", args.x, 0, -1, -1);
  plan->weight = check_matrix(&check, "weight", args.weight, 0, -1, plan->x.shape[1]);
  const int64_t tokens = plan->x.shape[0], n = plan->weight.shape[0];
  plan->bias = check_bias(&check, "bias", args.bias, 0, n);
  plan->y = check_matrix(&check, "y", args.y, TIGON_OUTPUT, tokens, n);
  tigon_check_apart(&check, "y", &plan->y, "x", &plan->x);
  tigon_check_apart(&check, "y", &plan->y, "weight", &plan->weight);
  tigon_check_apart(&check, "y", &plan->y, "bias", &plan->bias);
  if (check.status != TIGON_OK) return check.status;
  return take_scratch(op, &exec, query, tokens > LINEAR_FEW_TOKENS, &plan->scratch, &plan->bytes);
}

tigon_status tigon_linear(const tigon_exec *exec, const tigon_linear_args *args) {
  forward_plan plan;
  const tigon_status status = prepare_forward("tigon_linear", exec, args, false, &plan);
  if (status != TIGON_OK) return status;
  if (plan.x.shape[0] <= LINEAR_FEW_TOKENS) {
    const linear_rows rows = {plan.threads, plan.x, plan.weight, plan.bias, plan.y};
    TIGON_ISA_CALL(tigon_linear_rows, &rows);
    return TIGON_OK;
  }
  tigon_gemm_store store = {
      .data = plan.y.data, .kind = plan.y.kind, .stride = plan.y.stride[0], .alpha = 1, .bias = plan.bias};
  const tigon_gemm product = {.m = plan.x.shape[0],
                              .n = plan.weight.shape[0],
                              .k = plan.x.shape[1],
                              .a = tigon_matrix_of(&plan.x, false),
                              .b = tigon_matrix_of(&plan.weight, false),
                              .epilogue = TIGON_ISA_PICK(tigon_gemm_store_tile),
                              .context = &store};
  tigon_gemm_run(plan.threads, &product, 1, plan.scratch);
  return TIGON_OK;
}

tigon_status tigon_linear_workspace(const tigon_exec *exec, const tigon_linear_args *args, uint64_t *bytes) {
  forward_plan plan;
  const char *op = "tigon_linear";
  const tigon_status status = prepare_forward(op, exec, args, true, &plan);
  return status == TIGON_OK ? tigon_workspace_answer(op, plan.bytes, bytes) : status;
}

typedef struct backward_plan {
  int threads;
  bool accumulate_dx, accumulate_dweight;
  int64_t tokens, n, d;
  tigon_view dy, x, weight, dx, dweight, dbias;
  void *scratch;
  uint64_t bytes;
} backward_plan;

static void check_accumulate(tigon_checker *check, const char *flag_name, int32_t flag, const char *name,
                             const tigon_view *output) {
  tigon_check_that(check, flag == 0 || flag == 1, flag_name, "expected 0 or 1, got %d", (int)flag);
  tigon_check_that(check, !flag || !tigon_present(output) || output->kind == TIGON_F32, name,
                   "expected dtype float32, because %s is 1", flag_name);
}

static void check_backward_aliases(tigon_checker *check, const backward_plan *p) {
  const char *const names[] = {"dy", "x", "weight", "dx", "dweight", "dbias"};
  const tigon_view *const views[] = {&p->dy, &p->x, &p->weight, &p->dx, &p->dweight, &p->dbias};
  for (int output = 3; output < 6; output++)
    for (int other = 0; other < output; other++)
      tigon_check_apart(check, names[output], views[output], names[other], views[other]);
}

/* D, of the first tensor that has it; -1 where none is given. */
static int64_t inner_extent(const tigon_linear_backward_args *args) {
  const DLTensor *const tensors[] = {args->x, args->weight, args->dx, args->dweight};
  for (int i = 0; i < 4; i++)
    if (tensors[i] && tensors[i]->ndim == 2 && tensors[i]->shape) return tensors[i]->shape[1];
  return -1;
}

static tigon_status check_backward(const char *op, const tigon_linear_backward_args *args, bool query,
                                   backward_plan *p) {
  tigon_checker check = {.op = op, .query = query};
  p->dy = check_matrix(&check, "dy", args->dy, 0, -1, -1);
  p->tokens = p->dy.shape[0];
  p->n = p->dy.shape[1];
  p->d = inner_extent(args);
  p->x = check_matrix(&check, "x", args->x, args->dweight ? 0 : TIGON_OPTIONAL, p->tokens, p->d);
  p->weight = check_matrix(&check, "weight", args->weight, args->dx ? 0 : TIGON_OPTIONAL, p->n, p->d);
  p->dx = check_matrix(&check, "dx", args->dx, TIGON_OUTPUT | TIGON_OPTIONAL, p->tokens, p->d);
  p->dweight = check_matrix(&check, "dweight", args->dweight, TIGON_OUTPUT | TIGON_OPTIONAL, p->n, p->d);
  p->dbias = check_bias(&check, "dbias", args->dbias, TIGON_OUTPUT, p->n);
  check_accumulate(&check, "accumulate_dx", args->accumulate_dx, "dx", &p->dx);
  check_accumulate(&check, "accumulate_dweight", args->accumulate_dweight, "dweight", &p->dweight);
  check_accumulate(&check, "accumulate_dweight", args->accumulate_dweight, "dbias", &p->dbias);
  check_backward_aliases(&check, p);
  return check.status;
}

static tigon_status prepare_backward(const char *op, const tigon_exec *exec_in,
                                     const tigon_linear_backward_args *args_in, bool query, backward_plan *plan) {
  tigon_linear_backward_args args;
  tigon_exec exec;
  tigon_status status = tigon_args_load(op, "args", args_in, &args, sizeof args);
  if (status == TIGON_OK) status = tigon_exec_load(op, exec_in, TIGON_ON_CPU, &exec);
  if (status != TIGON_OK) return status;
  *plan = (backward_plan){
      .threads = exec.num_threads, .accumulate_dx = args.accumulate_dx, .accumulate_dweight = args.accumulate_dweight};
  status = check_backward(op, &args, query, plan);
  if (status != TIGON_OK) return status;
  const bool products = tigon_present(&plan->dx) || tigon_present(&plan->dweight);
  return take_scratch(op, &exec, query, products, &plan->scratch, &plan->bytes);
}

static tigon_gemm_store store_of(const tigon_view *output, bool accumulate) {
  return (tigon_gemm_store){
      .data = output->data, .kind = output->kind, .stride = output->stride[0], .alpha = 1, .accumulate = accumulate};
}

tigon_status tigon_linear_backward(const tigon_exec *exec, const tigon_linear_backward_args *args) {
  backward_plan plan;
  const tigon_status status = prepare_backward("tigon_linear_backward", exec, args, false, &plan);
  if (status != TIGON_OK) return status;
  tigon_gemm_store dx = store_of(&plan.dx, plan.accumulate_dx);
  tigon_gemm_store dweight = store_of(&plan.dweight, plan.accumulate_dweight);
  tigon_gemm products[2];
  int count = 0;
  const tigon_gemm_epilogue epilogue = TIGON_ISA_PICK(tigon_gemm_store_tile);
  if (tigon_present(&plan.dx))
    products[count++] = (tigon_gemm){.m = plan.tokens,
                                     .n = plan.d,
                                     .k = plan.n,
                                     .a = tigon_matrix_of(&plan.dy, false),
                                     .b = tigon_matrix_of(&plan.weight, true),
                                     .epilogue = epilogue,
                                     .context = &dx};
  if (tigon_present(&plan.dweight))
    products[count++] = (tigon_gemm){.m = plan.n,
                                     .n = plan.d,
                                     .k = plan.tokens,
                                     .a = tigon_matrix_of(&plan.dy, true),
                                     .b = tigon_matrix_of(&plan.x, true),
                                     .epilogue = epilogue,
                                     .context = &dweight};
  if (count) tigon_gemm_run(plan.threads, products, count, plan.scratch);
  if (tigon_present(&plan.dbias)) {
    const linear_bias_gradient gradient = {plan.threads, plan.dy, plan.dbias, plan.accumulate_dweight};
    TIGON_ISA_CALL(tigon_linear_bias_gradient, &gradient);
  }
  return TIGON_OK;
}

tigon_status tigon_linear_backward_workspace(const tigon_exec *exec, const tigon_linear_backward_args *args,
                                             uint64_t *bytes) {
  backward_plan plan;
  const char *op = "tigon_linear_backward";
  const tigon_status status = prepare_backward(op, exec, args, true, &plan);
  return status == TIGON_OK ? tigon_workspace_answer(op, plan.bytes, bytes) : status;
}
