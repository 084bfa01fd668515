/* One rms_norm problem: its tensors, its calls, and what the oracle says about them. */
#ifndef TIGON_TESTS_RMS_NORM_PROBLEM_H
#define TIGON_TESTS_RMS_NORM_PROBLEM_H

#include "tests/reference/rms_norm.h"
#include "tests/rms_norm/cases.h"

enum { X, RESIDUAL, WEIGHT, RSTD, DY, D_SUM, OUT, SUM, DX, D_RESIDUAL, D_WEIGHT, TENSORS };

typedef struct problem {
  rms_shape shape;
  rms_options options;
  rms_kinds kinds;
  int64_t rows;
  test_tensor t[TENSORS];
  bool present[TENSORS];
} problem;

static inline void problem_tensor(problem *p, int which, tigon_kind kind) {
  const rms_shape s = p->shape;
  const bool strided = p->options.strided, input = which == X || which == DY || which == D_SUM;
  const int64_t shape[] = {s.outer, s.heads ? s.heads : s.width, s.width};
  const int ndim = s.heads ? 3 : 2;
  test_layout layout = {.expand = p->options.expand && input};
  if (strided) layout.offset = p->options.whole ? 8 : 3 + which;
  if (which == WEIGHT || which == D_WEIGHT) {
    test_tensor_make(&p->t[which], kind, 1, &s.width, layout);
  } else if (which == RSTD) {
    if (strided) layout.vector_stride = 2;
    test_tensor_make(&p->t[which], kind, ndim - 1, shape, layout);
  } else {
    if (strided) layout.row_pad = p->options.whole ? 8 * (1 + which % 2) : 1 + which % 4;
    test_tensor_make(&p->t[which], kind, ndim, shape, layout);
  }
  p->present[which] = true;
}

static inline void problem_make(problem *p, rms_shape shape, rms_options options, rms_kinds kinds, uint64_t seed) {
  memset(p, 0, sizeof *p);
  /* With one element xhat is +-1 and ds cancels to nothing unless eps matters. */
  if (shape.width == 1) options.eps = 0.5f;
  p->shape = shape;
  p->options = options;
  p->kinds = kinds;
  p->rows = shape.outer * (shape.heads ? shape.heads : 1);
  problem_tensor(p, X, kinds.x);
  problem_tensor(p, OUT, kinds.out);
  problem_tensor(p, RSTD, TIGON_F32);
  if (options.weight) problem_tensor(p, WEIGHT, kinds.weight);
  if (options.residual) problem_tensor(p, RESIDUAL, kinds.residual);
  if (options.residual) problem_tensor(p, SUM, kinds.sum);
  if (!options.no_dy) problem_tensor(p, DY, kinds.out);
  if (options.residual && !options.no_d_sum) problem_tensor(p, D_SUM, kinds.sum);
  if (options.dx) problem_tensor(p, DX, kinds.dx);
  if (options.d_residual) problem_tensor(p, D_RESIDUAL, kinds.d_residual);
  if (options.d_weight) problem_tensor(p, D_WEIGHT, options.accumulate ? TIGON_F32 : kinds.d_weight);

  test_rng rng = {seed};
  test_tensor_fill_normal(&p->t[X], &rng, options.scale);
  if (p->present[RESIDUAL]) test_tensor_fill_normal(&p->t[RESIDUAL], &rng, options.scale);
  if (p->present[DY]) test_tensor_fill_normal(&p->t[DY], &rng, 1);
  if (p->present[D_SUM]) test_tensor_fill_normal(&p->t[D_SUM], &rng, 1);
  if (p->present[D_WEIGHT] && options.accumulate) test_tensor_fill_normal(&p->t[D_WEIGHT], &rng, 1);
  for (int64_t i = 0; p->present[WEIGHT] && i < shape.width; i++)
    test_tensor_set(&p->t[WEIGHT], i, 1 - (double)options.offset + 0.3 * test_random_normal(&rng));
}

static inline void problem_free(problem *p) {
  for (int i = 0; i < TENSORS; i++)
    if (p->present[i]) {
      test_tensor_check_surroundings(&p->t[i]);
      test_tensor_free(&p->t[i]);
    }
}

static inline DLTensor *problem_dl(problem *p, int which) { return p->present[which] ? &p->t[which].tensor.dl : NULL; }

static inline tigon_rms_norm_args problem_forward_args(problem *p) {
  return (tigon_rms_norm_args){.size = sizeof(tigon_rms_norm_args),
                               .casting = p->options.casting,
                               .x = problem_dl(p, X),
                               .residual = problem_dl(p, RESIDUAL),
                               .weight = problem_dl(p, WEIGHT),
                               .out = problem_dl(p, OUT),
                               .residual_out = problem_dl(p, SUM),
                               .rstd = p->options.rstd ? problem_dl(p, RSTD) : NULL,
                               .eps = p->options.eps,
                               .offset = p->options.offset};
}

/* Backward reads what forward wrote: residual_out and rstd must be filled. */
static inline tigon_rms_norm_backward_args problem_backward_args(problem *p) {
  return (tigon_rms_norm_backward_args){.size = sizeof(tigon_rms_norm_backward_args),
                                        .casting = p->options.casting,
                                        .dy = problem_dl(p, DY),
                                        .d_residual_out = problem_dl(p, D_SUM),
                                        .x = problem_dl(p, p->options.residual ? SUM : X),
                                        .weight = problem_dl(p, WEIGHT),
                                        .rstd = problem_dl(p, RSTD),
                                        .dx = problem_dl(p, DX),
                                        .d_residual = problem_dl(p, D_RESIDUAL),
                                        .d_weight = problem_dl(p, D_WEIGHT),
                                        .x_dtype = test_dtype(p->kinds.x),
                                        .accumulate_d_weight = p->options.accumulate,
                                        .offset = p->options.offset};
}

static inline void problem_forward(problem *p, int threads) {
  const tigon_rms_norm_args args = problem_forward_args(p);
  uint64_t bytes = 1;
  test_expect_status(tigon_rms_norm_workspace(NULL, &args, &bytes), TIGON_OK, NULL);
  test_workspace w;
  test_workspace_make(&w, bytes, threads);
  test_expect_status(tigon_rms_norm(&w.exec, &args), TIGON_OK, NULL);
  test_workspace_free(&w);
}

static inline void problem_backward(problem *p, int threads) {
  const tigon_rms_norm_backward_args args = problem_backward_args(p);
  uint64_t bytes = 1;
  test_expect_status(tigon_rms_norm_backward_workspace(NULL, &args, &bytes), TIGON_OK, NULL);
  test_workspace w;
  test_workspace_make(&w, bytes, threads);
  test_expect_status(tigon_rms_norm_backward(&w.exec, &args), TIGON_OK, NULL);
  if (bytes > 0) {
    w.exec.workspace_bytes--;
    test_expect_status(tigon_rms_norm_backward(&w.exec, &args), TIGON_WORKSPACE, "exec.workspace_bytes");
    w.exec.workspace_bytes++;
  }
  test_workspace_free(&w);
}

static inline double problem_eps(const problem *p) { return (double)(p->options.eps > 0 ? p->options.eps : 1e-6f); }

static inline tigon_kind problem_xhat_kind(const problem *p) {
  return p->options.casting == TIGON_CASTING_LLAMA ? p->kinds.x : TIGON_F32;
}

static inline double *problem_values(const problem *p, int which) {
  return p->present[which] ? test_tensor_values(&p->t[which]) : NULL;
}

static inline double *problem_zeros(int64_t n) {
  double *values = calloc((size_t)n + 1, sizeof *values);
  assert_non_null(values);
  return values;
}

#endif
