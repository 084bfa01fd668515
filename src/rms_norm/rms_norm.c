/* RMSNorm: checks arguments, answers workspace queries, hands the work to the backend of the device. */
#include "tigon/rms_norm.h"

#include <math.h>

#include "base/args.h"
#include "base/check.h"
#include "base/integer.h"
#include "base/isa.h"
#include "base/status.h"
#include "rms_norm/backend.h"

/* x's leading dimensions, for the tensors that share them. */
typedef struct row_shape {
  int ndim;
  int64_t shape[3];
} row_shape;

static tigon_view check_x(tigon_checker *check, const DLTensor *x, row_shape *rows, rms_norm_shape *shape) {
  rows->ndim = x && x->ndim == 3 ? 3 : 2;
  const tigon_view view = tigon_check_tensor(check, "x", x, TIGON_FLOATS, 0, rows->ndim, (int64_t[]){-1, -1, -1});
  for (int i = 0; i < rows->ndim; i++) rows->shape[i] = view.shape[i];
  shape->heads = rows->ndim == 3 ? view.shape[1] : 1;
  shape->rows = view.shape[0] * shape->heads;
  shape->width = view.shape[rows->ndim - 1];
  tigon_check_that(check, shape->width >= 1, "x", "expected a last dimension of at least 1, got 0");
  return view;
}

static tigon_view check_like_x(tigon_checker *check, const char *name, const DLTensor *tensor, unsigned flags,
                               const row_shape *rows) {
  return tigon_check_tensor(check, name, tensor, TIGON_FLOATS, flags, rows->ndim, rows->shape);
}

static tigon_view check_rstd(tigon_checker *check, const DLTensor *rstd, unsigned flags, const row_shape *rows) {
  return tigon_check_tensor(check, "rstd", rstd, TIGON_F32, flags | TIGON_ANY_STRIDE, rows->ndim - 1, rows->shape);
}

static tigon_view check_vector(tigon_checker *check, const char *name, const DLTensor *tensor, unsigned flags,
                               const rms_norm_shape *shape) {
  return tigon_check_tensor(check, name, tensor, TIGON_FLOATS, flags | TIGON_OPTIONAL, 1, &shape->width);
}

typedef struct named_view {
  const char *name;
  const tigon_view *view;
} named_view;

static void check_all_apart(tigon_checker *check, named_view output, const named_view *others, int count) {
  for (int i = 0; i < count; i++) tigon_check_apart(check, output.name, output.view, others[i].name, others[i].view);
}

static void check_options(tigon_checker *check, int32_t casting, float offset) {
  tigon_check_that(check, casting == TIGON_CASTING_LLAMA || casting == TIGON_CASTING_GEMMA, "casting",
                   "expected TIGON_CASTING_LLAMA (0) or TIGON_CASTING_GEMMA (1), got %d", (int)casting);
  tigon_check_that(check, isfinite(offset), "offset", "expected a finite number, got %g", (double)offset);
}

/* The view's leading dimensions as rows; `leading` of them count (a vector has none). */
static rms_norm_tensor tensor_of(const tigon_view *view, int leading) {
  const int64_t bytes = tigon_kind_bytes(view->kind);
  return (rms_norm_tensor){.data = view->data,
                           .kind = view->kind,
                           .outer_bytes = leading > 0 ? view->stride[0] * bytes : 0,
                           .head_bytes = leading > 1 ? view->stride[1] * bytes : 0};
}

static void check_forward_aliases(tigon_checker *check, const tigon_view *x, const tigon_view *residual,
                                  const tigon_view *weight, const tigon_view *out, const tigon_view *sum,
                                  const tigon_view *rstd) {
  tigon_check_same_or_apart(check, "out", out, "x", x);
  tigon_check_same_or_apart(check, "residual_out", sum, "residual", residual);
  const named_view xs = {"x", x}, residuals = {"residual", residual}, weights = {"weight", weight};
  const named_view outs = {"out", out}, sums = {"residual_out", sum}, rstds = {"rstd", rstd};
  check_all_apart(check, outs, (named_view[]){residuals, weights, sums}, 3);
  check_all_apart(check, sums, (named_view[]){xs, weights}, 2);
  check_all_apart(check, rstds, (named_view[]){xs, residuals, weights, outs, sums}, 5);
}

static tigon_status prepare_forward(const char *op, const tigon_exec *exec_in, const tigon_rms_norm_args *args_in,
                                    bool query, tigon_exec *exec, rms_norm_forward *forward) {
  tigon_rms_norm_args args;
  tigon_status status = tigon_args_load(op, "args", args_in, &args, sizeof args);
  if (status == TIGON_OK) status = tigon_exec_load(op, exec_in, TIGON_ON_CPU | TIGON_ON_CUDA, exec);
  if (status != TIGON_OK) return status;

  tigon_checker check = {.op = op, .query = query, .device = exec->device};
  row_shape rows;
  rms_norm_shape shape;
  check_options(&check, args.casting, args.offset);
  tigon_check_that(&check, isfinite(args.eps) && args.eps >= 0, "eps",
                   "expected a finite number, 0 (the default) or above, got %g", (double)args.eps);
  const tigon_view x = check_x(&check, args.x, &rows, &shape);
  const tigon_view residual = check_like_x(&check, "residual", args.residual, TIGON_OPTIONAL, &rows);
  const tigon_view weight = check_vector(&check, "weight", args.weight, 0, &shape);
  const tigon_view out = check_like_x(&check, "out", args.out, TIGON_OUTPUT, &rows);
  tigon_check_that(&check, !args.residual_out || args.residual, "residual_out",
                   "expected NULL, because residual is NULL");
  const unsigned optional = args.residual ? 0 : TIGON_OPTIONAL;
  const tigon_view sum = check_like_x(&check, "residual_out", args.residual_out, TIGON_OUTPUT | optional, &rows);
  const tigon_view rstd = check_rstd(&check, args.rstd, TIGON_OUTPUT | TIGON_OPTIONAL, &rows);
  check_forward_aliases(&check, &x, &residual, &weight, &out, &sum, &rstd);
  if (check.status != TIGON_OK) return check.status;

  const int leading = rows.ndim - 1;
  *forward = (rms_norm_forward){.threads = exec->num_threads,
                                .shape = shape,
                                .x = tensor_of(&x, leading),
                                .residual = tensor_of(&residual, leading),
                                .weight = tensor_of(&weight, 0),
                                .out = tensor_of(&out, leading),
                                .sum = tensor_of(&sum, leading),
                                .rstd = tensor_of(&rstd, leading),
                                .xhat_kind = args.casting == TIGON_CASTING_LLAMA ? x.kind : TIGON_F32,
                                .eps = args.eps > 0 ? args.eps : 1e-6f,
                                .offset = args.offset};
  return TIGON_OK;
}

tigon_status tigon_rms_norm(const tigon_exec *exec, const tigon_rms_norm_args *args) {
  const char *op = "tigon_rms_norm";
  rms_norm_forward forward;
  tigon_exec loaded;
  const tigon_status status = prepare_forward(op, exec, args, false, &loaded, &forward);
  if (status != TIGON_OK) return status;
#if defined(TIGON_HAVE_CUDA)
  if (loaded.device.device_type == kDLCUDA) return tigon_rms_norm_gpu_forward(op, &loaded, &forward);
#endif
  TIGON_ISA_CALL(tigon_rms_norm_forward, &forward);
  return TIGON_OK;
}

tigon_status tigon_rms_norm_workspace(const tigon_exec *exec, const tigon_rms_norm_args *args, uint64_t *bytes) {
  const char *op = "tigon_rms_norm";
  rms_norm_forward forward;
  tigon_exec loaded;
  const tigon_status status = prepare_forward(op, exec, args, true, &loaded, &forward);
  return status == TIGON_OK ? tigon_workspace_answer(op, 0, bytes) : status;
}

/* x_dtype's kind; all zero: x's. */
static tigon_kind check_x_dtype(tigon_checker *check, DLDataType type, tigon_kind x) {
  if (type.code == 0 && type.bits == 0 && type.lanes == 0) return x;
  const tigon_kind kind = tigon_kind_of(type);
  if (kind & TIGON_FLOATS) return kind;
  tigon_check_that(check, false, "x_dtype",
                   "expected float32, float16, bfloat16 or all zeros, got code %d, %d bits, %d lanes", type.code,
                   type.bits, type.lanes);
  return x;
}

/* Ranges of rows that sum d_weight side by side; it depends on the rows alone and never shrinks as they grow. */
static int64_t backward_chunks(int64_t rows) {
  enum { MOST = 64, FEWEST_ROWS = 8 };
  const int64_t chunks = tigon_ceil_div(rows, FEWEST_ROWS);
  return chunks < MOST ? chunks : MOST;
}

typedef struct backward_views {
  tigon_view x, dy, d_sum, weight, rstd, dx, d_residual, d_weight;
} backward_views;

static void check_backward_aliases(tigon_checker *check, const backward_views *v) {
  tigon_check_same_or_apart(check, "dx", &v->dx, "dy", &v->dy);
  tigon_check_same_or_apart(check, "dx", &v->dx, "d_residual_out", &v->d_sum);
  const named_view x = {"x", &v->x}, dy = {"dy", &v->dy}, d_sum = {"d_residual_out", &v->d_sum};
  const named_view weight = {"weight", &v->weight}, rstd = {"rstd", &v->rstd}, dx = {"dx", &v->dx};
  const named_view d_residual = {"d_residual", &v->d_residual}, d_weight = {"d_weight", &v->d_weight};
  check_all_apart(check, dx, (named_view[]){x, weight, rstd}, 3);
  check_all_apart(check, d_residual, (named_view[]){x, dy, d_sum, weight, rstd, dx}, 6);
  check_all_apart(check, d_weight, (named_view[]){x, dy, d_sum, weight, rstd, dx, d_residual}, 7);
}

static backward_views check_backward(tigon_checker *check, const tigon_rms_norm_backward_args *args, row_shape *rows,
                                     rms_norm_shape *shape) {
  backward_views v = {0};
  check_options(check, args->casting, args->offset);
  tigon_check_that(check, args->accumulate_d_weight == 0 || args->accumulate_d_weight == 1, "accumulate_d_weight",
                   "expected 0 or 1, got %d", (int)args->accumulate_d_weight);
  v.x = check_x(check, args->x, rows, shape);
  v.dy = check_like_x(check, "dy", args->dy, TIGON_OPTIONAL, rows);
  v.d_sum = check_like_x(check, "d_residual_out", args->d_residual_out, TIGON_OPTIONAL, rows);
  v.weight = check_vector(check, "weight", args->weight, 0, shape);
  v.rstd = check_rstd(check, args->rstd, 0, rows);
  v.dx = check_like_x(check, "dx", args->dx, TIGON_OUTPUT | TIGON_OPTIONAL, rows);
  v.d_residual = check_like_x(check, "d_residual", args->d_residual, TIGON_OUTPUT | TIGON_OPTIONAL, rows);
  v.d_weight = check_vector(check, "d_weight", args->d_weight, TIGON_OUTPUT, shape);
  tigon_check_that(check, !args->accumulate_d_weight || !tigon_present(&v.d_weight) || v.d_weight.kind == TIGON_F32,
                   "d_weight", "expected dtype float32, because accumulate_d_weight is 1");
  check_backward_aliases(check, &v);
  return v;
}

static tigon_status choose_chunks(const char *op, const tigon_exec *exec, rms_norm_backward *backward) {
#if defined(TIGON_HAVE_CUDA)
  if (exec->device.device_type == kDLCUDA)
    return tigon_rms_norm_gpu_chunks(op, exec->device, backward, &backward->chunks);
#else
  (void)op, (void)exec;
#endif
  backward->chunks = backward_chunks(backward->shape.rows);
  return TIGON_OK;
}

/* The workspace: one row of d_weight for each chunk. */
static tigon_status take_partials(const char *op, const tigon_exec *exec, bool query, rms_norm_backward *backward,
                                  uint64_t *bytes) {
  uint64_t partial_bytes;
  if (__builtin_mul_overflow((uint64_t)backward->chunks * sizeof(float), (uint64_t)backward->shape.width,
                             &partial_bytes))
    return tigon_fail(TIGON_INVALID_ARGUMENT, op, "x", "expected a workspace below 2^64 bytes");
  tigon_arena arena = {.base = query ? NULL : exec->workspace};
  backward->partials = tigon_arena_take(&arena, partial_bytes);
  *bytes = arena.used;
  return query ? TIGON_OK : tigon_workspace_check(op, exec, arena.used);
}

static tigon_status prepare_backward(const char *op, const tigon_exec *exec_in,
                                     const tigon_rms_norm_backward_args *args_in, bool query, tigon_exec *exec,
                                     rms_norm_backward *backward, uint64_t *bytes) {
  tigon_rms_norm_backward_args args;
  tigon_status status = tigon_args_load(op, "args", args_in, &args, sizeof args);
  if (status == TIGON_OK) status = tigon_exec_load(op, exec_in, TIGON_ON_CPU | TIGON_ON_CUDA, exec);
  if (status != TIGON_OK) return status;

  tigon_checker check = {.op = op, .query = query, .device = exec->device};
  row_shape rows;
  rms_norm_shape shape;
  const backward_views v = check_backward(&check, &args, &rows, &shape);
  const tigon_kind x_kind = check_x_dtype(&check, args.x_dtype, v.x.kind);
  if (check.status != TIGON_OK) return check.status;

  const int leading = rows.ndim - 1;
  *backward = (rms_norm_backward){.threads = exec->num_threads,
                                  .shape = shape,
                                  .dy = tensor_of(&v.dy, leading),
                                  .d_sum = tensor_of(&v.d_sum, leading),
                                  .x = tensor_of(&v.x, leading),
                                  .weight = tensor_of(&v.weight, 0),
                                  .rstd = tensor_of(&v.rstd, leading),
                                  .dx = tensor_of(&v.dx, leading),
                                  .d_residual = tensor_of(&v.d_residual, leading),
                                  .d_weight = tensor_of(&v.d_weight, 0),
                                  .has_dy = tigon_present(&v.dy),
                                  .has_d_sum = tigon_present(&v.d_sum),
                                  .has_dx = tigon_present(&v.dx),
                                  .has_d_residual = tigon_present(&v.d_residual),
                                  .xhat_kind = args.casting == TIGON_CASTING_LLAMA ? x_kind : TIGON_F32,
                                  .accumulate_d_weight = args.accumulate_d_weight,
                                  .offset = args.offset};
  *bytes = 0;
  status = choose_chunks(op, exec, backward);
  if (status != TIGON_OK || !tigon_present(&v.d_weight) || !backward->has_dy) return status;
  return take_partials(op, exec, query, backward, bytes);
}

tigon_status tigon_rms_norm_backward(const tigon_exec *exec, const tigon_rms_norm_backward_args *args) {
  const char *op = "tigon_rms_norm_backward";
  rms_norm_backward backward;
  tigon_exec loaded;
  uint64_t bytes;
  const tigon_status status = prepare_backward(op, exec, args, false, &loaded, &backward, &bytes);
  if (status != TIGON_OK) return status;
#if defined(TIGON_HAVE_CUDA)
  if (loaded.device.device_type == kDLCUDA) return tigon_rms_norm_gpu_backward(op, &loaded, &backward);
#endif
  TIGON_ISA_CALL(tigon_rms_norm_backward, &backward);
  return TIGON_OK;
}

tigon_status tigon_rms_norm_backward_workspace(const tigon_exec *exec, const tigon_rms_norm_backward_args *args,
                                               uint64_t *bytes) {
  const char *op = "tigon_rms_norm_backward";
  rms_norm_backward backward;
  tigon_exec loaded;
  uint64_t used;
  const tigon_status status = prepare_backward(op, exec, args, true, &loaded, &backward, &used);
  return status == TIGON_OK ? tigon_workspace_answer(op, used, bytes) : status;
}
