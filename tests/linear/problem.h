/* One projection: its tensors and its calls. */
#ifndef TIGON_TESTS_LINEAR_PROBLEM_H
#define TIGON_TESTS_LINEAR_PROBLEM_H

#include "tests/linear/cases.h"
#include "tests/reference/linear.h"

enum { X, WEIGHT, BIAS, DY, Y, DX, DWEIGHT, DBIAS, TENSORS };
enum { INPUTS = Y }; /* tensors before Y are inputs */

typedef struct problem {
  linear_shape shape;
  linear_options options;
  test_tensor t[TENSORS];
  bool present[TENSORS];
} problem;

static inline void problem_matrix(problem *p, int which, tigon_kind kind, int64_t rows, int64_t columns) {
  const bool strided = p->options.strided;
  const test_layout layout = {.row_pad = strided ? 1 + which % 3 : 0,
                              .offset = strided ? which : 0,
                              .expand = p->options.expand && (which == X || which == DY)};
  test_tensor_make(&p->t[which], kind, 2, (int64_t[]){rows, columns}, layout);
  p->present[which] = true;
}

static inline void problem_vector(problem *p, int which, tigon_kind kind, int64_t n) {
  test_tensor_make(&p->t[which], kind, 1, &n, (test_layout){.offset = p->options.strided ? which : 0});
  p->present[which] = true;
}

static inline void problem_make(problem *p, linear_shape s, linear_options o, linear_kinds k, uint64_t seed) {
  memset(p, 0, sizeof *p);
  p->shape = s;
  p->options = o;
  problem_matrix(p, X, k.x, s.tokens, s.d);
  problem_matrix(p, WEIGHT, k.weight, s.n, s.d);
  problem_matrix(p, DY, k.y, s.tokens, s.n);
  problem_matrix(p, Y, k.y, s.tokens, s.n);
  if (o.bias) problem_vector(p, BIAS, k.bias, s.n);
  if (o.dx) problem_matrix(p, DX, o.accumulate_dx ? TIGON_F32 : k.dx, s.tokens, s.d);
  if (o.dweight) problem_matrix(p, DWEIGHT, o.accumulate_dweight ? TIGON_F32 : k.dweight, s.n, s.d);
  if (o.dbias) problem_vector(p, DBIAS, o.accumulate_dweight ? TIGON_F32 : k.dbias, s.n);
  test_rng rng = {seed};
  const double scale[INPUTS] = {1, 0.1, 1, 1};
  for (int i = 0; i < INPUTS; i++)
    if (p->present[i]) test_tensor_fill_normal(&p->t[i], &rng, scale[i]);
  if (o.dx && o.accumulate_dx) test_tensor_fill_normal(&p->t[DX], &rng, 1);
  if (o.dweight && o.accumulate_dweight) test_tensor_fill_normal(&p->t[DWEIGHT], &rng, 1);
  if (o.dbias && o.accumulate_dweight) test_tensor_fill_normal(&p->t[DBIAS], &rng, 1);
}

static inline void problem_free(problem *p) {
  for (int i = 0; i < TENSORS; i++)
    if (p->present[i]) {
      test_tensor_check_surroundings(&p->t[i]);
      test_tensor_free(&p->t[i]);
    }
}

static inline DLTensor *problem_dl(problem *p, int which) { return p->present[which] ? &p->t[which].tensor.dl : NULL; }

static inline tigon_linear_args problem_forward_args(problem *p) {
  return (tigon_linear_args){.size = sizeof(tigon_linear_args),
                             .x = problem_dl(p, X),
                             .weight = problem_dl(p, WEIGHT),
                             .bias = problem_dl(p, BIAS),
                             .y = problem_dl(p, Y)};
}

static inline tigon_linear_backward_args problem_backward_args(problem *p) {
  return (tigon_linear_backward_args){.size = sizeof(tigon_linear_backward_args),
                                      .accumulate_dx = p->options.accumulate_dx,
                                      .accumulate_dweight = p->options.accumulate_dweight,
                                      .dy = problem_dl(p, DY),
                                      .x = p->options.dweight ? problem_dl(p, X) : NULL,
                                      .weight = p->options.dx ? problem_dl(p, WEIGHT) : NULL,
                                      .dx = problem_dl(p, DX),
                                      .dweight = problem_dl(p, DWEIGHT),
                                      .dbias = problem_dl(p, DBIAS)};
}

static inline void problem_forward(problem *p, int threads) {
  const tigon_linear_args args = problem_forward_args(p);
  const tigon_exec query = {.size = sizeof query, .num_threads = threads};
  uint64_t bytes = 1;
  test_expect_status(tigon_linear_workspace(&query, &args, &bytes), TIGON_OK, NULL);
  test_workspace w;
  test_workspace_make(&w, bytes, threads);
  if (bytes > 0) {
    w.exec.workspace_bytes--;
    test_expect_status(tigon_linear(&w.exec, &args), TIGON_WORKSPACE, "exec.workspace_bytes");
    w.exec.workspace_bytes++;
  }
  test_expect_status(tigon_linear(&w.exec, &args), TIGON_OK, NULL);
  test_workspace_free(&w);
}

static inline void problem_backward(problem *p, int threads) {
  const tigon_linear_backward_args args = problem_backward_args(p);
  const tigon_exec query = {.size = sizeof query, .num_threads = threads};
  uint64_t bytes = 1;
  test_expect_status(tigon_linear_backward_workspace(&query, &args, &bytes), TIGON_OK, NULL);
  test_workspace w;
  test_workspace_make(&w, bytes, threads);
  if (bytes > 0) {
    w.exec.workspace_bytes--;
    test_expect_status(tigon_linear_backward(&w.exec, &args), TIGON_WORKSPACE, "exec.workspace_bytes");
    w.exec.workspace_bytes++;
  }
  test_expect_status(tigon_linear_backward(&w.exec, &args), TIGON_OK, NULL);
  test_workspace_free(&w);
}

static inline double *problem_values(const problem *p, int which) {
  return p->present[which] ? test_tensor_values(&p->t[which]) : NULL;
}

#endif
