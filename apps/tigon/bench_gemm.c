/* The rows of gemm: y = x weight^T, with n^3 multiply-adds. */
#include <stdio.h>

#include "bench_case.h"
#include "bench_receipt.h"

BENCH_OPERATION(linear)

typedef struct gemm_rows {
  tigon_linear_args args;
  const char *dtype;
  int64_t n;
} gemm_rows;

static bool check(void *context) {
  const gemm_rows *r = context;
  bench_judge judge;
  bench_judge_start(&judge);
  for (int64_t sample = 0; sample < 64; sample++) {
    const int64_t i = sample * 37 % r->n, j = (r->n - 1 + sample * 91) % r->n;
    double sum = 0;
    for (int64_t k = 0; k < r->n; k++)
      sum += bench_value(r->args.x, i * r->n + k) * bench_value(r->args.weight, j * r->n + k);
    bench_judge_add(&judge, bench_value(r->args.y, i * r->n + j), sum);
  }
  return bench_judge_accepts(&judge, r->dtype);
}

static void compare_with_openblas(bench *b, const bench_case *c, gemm_rows *r, bench_pass *pass) {
  double ours, theirs;
  const char *type = bench_openblas(b, r->n, &r->args, &ours, &theirs);
  if (!type) {
    printf("%-21s OpenBLAS is not installed: no comparison\n", c->family);
    return;
  }
  const bench_figures figures = {.seconds = theirs, .fastest = theirs, .peak = -1, .correct = check(r)};
  printf("%-21s in turns with OpenBLAS at its best OPENBLAS_CORETYPE, %s: %.1f GFLOP/s, tigon %.1f: %.2fx%s\n",
         c->family, type, pass->flop / theirs * 1e-9, pass->flop / ours * 1e-9, theirs / ours,
         figures.correct ? "" : "  WRONG RESULT");
  bench_receipt_add(b->receipt, c, pass, "OpenBLAS", type, &figures);
  b->compared++;
  b->slower += theirs < ours;
}

static bool gemm_rows_of(bench *b, const char *dtype) {
  gemm_rows r = {.dtype = dtype, .n = b->quick ? 64 : 2048};
  bench_case c = {.family = "gemm", .dtype = dtype, .scale = 1};
  snprintf(c.name, sizeof c.name, "%lld x %lld x %lld", (long long)r.n, (long long)r.n, (long long)r.n);
  r.args.size = sizeof r.args;
  r.args.x = bench_input(&c.tensors, "x", bench_dtype(dtype), SHAPE(r.n, r.n), 1);
  r.args.weight = bench_input(&c.tensors, "weight", bench_dtype(dtype), SHAPE(r.n, r.n), 1);
  bench_case_start(b, &c);
  r.args.y = bench_output(&c.tensors, "y", tigon_f32(), SHAPE(r.n, r.n));
  bench_pass pass = {.name = "forward", BENCH_RUNS(linear), .args = &r.args, .check = check, .context = &r};
  pass.flop = 2.0 * (double)r.n * (double)r.n * (double)r.n;
  pass.outputs[0] = "y";
  const bool good = bench_case_measure(b, &c, &pass);
  if (good && bench_dtype(dtype).bits == 32) compare_with_openblas(b, &c, &r, &pass);
  bench_case_end(b, &c);
  return good;
}

bool bench_gemm(bench *b) { return gemm_rows_of(b, "bfloat16") && gemm_rows_of(b, "float32"); }
