/* The rows of `tigon bench`: one function a family. FLOP are those that are executed. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "bench_tensors.h"

static const char *const dtypes[] = {"float32", "bfloat16"};

/* A row's run function that calls one operation with the args that are its context, and the query for its workspace. */
#define OPERATION(op)                                                                               \
  static tigon_status run_##op(const bench *b, void *args) {                                        \
    return tigon_##op(&b->exec, (const tigon_##op##_args *)args);                                   \
  }                                                                                                 \
  static double measure_##op(bench *b, bench_row *row, tigon_##op##_args *args) {                   \
    uint64_t bytes = 0;                                                                             \
    if (tigon_##op##_workspace(&b->exec, args, &bytes) == TIGON_OK) bench_need_workspace(b, bytes); \
    row->run = run_##op;                                                                            \
    row->context = args;                                                                            \
    return bench_measure(b, row);                                                                   \
  }

OPERATION(linear)
OPERATION(rms_norm)
OPERATION(rms_norm_backward)
OPERATION(lightning_attention)
OPERATION(lightning_attention_backward)
OPERATION(linear_cross_entropy)
OPERATION(linear_cross_entropy_backward)
OPERATION(moe)
OPERATION(moe_backward)

static void compare_with_openblas(const bench *b, int64_t n, tigon_linear_args *args) {
  const double flop = 2.0 * (double)n * (double)n * (double)n;
  double ours, theirs;
  const char *type = bench_openblas(b, n, args, &ours, &theirs);
  if (type)
    printf("%-21s in turns with OpenBLAS in fp32 at its best OPENBLAS_CORETYPE, %s: %.1f GFLOP/s, tigon %.1f: %.2f "
           "times\n",
           "gemm", type, flop / theirs * 1e-9, flop / ours * 1e-9, theirs / ours);
  else
    printf("%-21s OpenBLAS is not installed: no comparison\n", "gemm");
}

bool bench_gemm(bench *b) {
  enum { N = 2048 };
  for (int i = 1; i >= 0; i--) {
    bench_tensors all = {.count = 0};
    tigon_linear_args args = {.size = sizeof args};
    args.x = bench_tensor(&all, bench_dtype(dtypes[i]), SHAPE(N, N), 1);
    args.weight = bench_tensor(&all, bench_dtype(dtypes[i]), SHAPE(N, N), 1);
    args.y = bench_tensor(&all, tigon_f32(), SHAPE(N, N), 0);
    bench_row row = {.family = "gemm", .name = "2048 x 2048 x 2048", .pass = "y=xW'", .dtype = dtypes[i]};
    row.flop = 2.0 * N * N * N;
    const double time = measure_linear(b, &row, &args);
    if (time > 0 && i == 0) compare_with_openblas(b, N, &args);
    bench_tensors_free(&all);
    if (time < 0) return false;
  }
  return true;
}

static bool rms_norm_rows(bench *b, const char *dtype, int64_t rows, bool shown, double *forward, double *backward) {
  enum { H = 4096 };
  bench_tensors all = {.count = 0};
  const DLDataType type = bench_dtype(dtype);
  tigon_rms_norm_args args = {.size = sizeof args};
  args.x = bench_tensor(&all, type, SHAPE(rows, H), 1);
  args.weight = bench_tensor(&all, type, SHAPE(H), 1);
  args.out = bench_tensor(&all, type, SHAPE(rows, H), 0);
  args.rstd = bench_tensor(&all, tigon_f32(), SHAPE(rows), 0);
  tigon_rms_norm_backward_args back = {.size = sizeof back, .x = args.x, .weight = args.weight, .rstd = args.rstd};
  back.dy = bench_tensor(&all, type, SHAPE(rows, H), 1);
  back.dx = bench_tensor(&all, type, SHAPE(rows, H), 0);
  back.d_weight = bench_tensor(&all, tigon_f32(), SHAPE(H), 0);
  const uint64_t matrix = (uint64_t)rows * H * type.bits / 8;
  char name[32];
  snprintf(name, sizeof name, "%lld x %d%s", (long long)rows, H, shown ? "" : " (growth)");
  bench_row row = {.family = "rms_norm", .name = name, .pass = "forward", .dtype = dtype, .bytes = 2 * matrix};
  *forward = measure_rms_norm(b, &row, &args);
  row.pass = "backward";
  row.bytes = 3 * matrix;
  *backward = measure_rms_norm_backward(b, &row, &back);
  bench_tensors_free(&all);
  return *forward > 0 && *backward > 0;
}

bool bench_rms_norm(bench *b) {
  double half[2] = {0}, whole[2];
  for (int i = 0; i < 2; i++)
    if (!rms_norm_rows(b, dtypes[i], 16384, true, &half[0], &half[1])) return false;
  if (!rms_norm_rows(b, "bfloat16", 32768, false, &whole[0], &whole[1])) return false; /* both beyond the caches */
  bench_print_growth("rms_norm", "tokens, forward", half[0], whole[0]);
  bench_print_growth("rms_norm", "tokens, backward", half[1], whole[1]);
  return true;
}

static bool lightning_rows(bench *b, const char *dtype, int64_t t, double *forward, double *backward) {
  enum { H = 8, D = 128, CHUNK = 64 };
  bench_tensors all = {.count = 0};
  const DLDataType type = bench_dtype(dtype);
  tigon_lightning_attention_args args = {.size = sizeof args, .scale = 0.0884f};
  args.q = bench_tensor(&all, type, SHAPE(1, t, H, D), 1);
  args.k = bench_tensor(&all, type, SHAPE(1, t, H, D), 1);
  args.v = bench_tensor(&all, type, SHAPE(1, t, H, D), 1);
  DLTensor *decay = bench_tensor(&all, tigon_f32(), SHAPE(H), 0);
  for (int h = 0; h < H; h++) ((float *)decay->data)[h] = 1.0f / (float)(2 << h); /* ALiBi slopes */
  args.decay = decay;
  args.out = bench_tensor(&all, type, SHAPE(1, t, H, D), 0);
  tigon_lightning_attention_backward_args back = {
      .size = sizeof back, .scale = args.scale, .q = args.q, .k = args.k, .v = args.v, .decay = decay};
  back.dout = bench_tensor(&all, type, SHAPE(1, t, H, D), 1);
  back.dq = bench_tensor(&all, type, SHAPE(1, t, H, D), 0);
  back.dk = bench_tensor(&all, type, SHAPE(1, t, H, D), 0);
  back.dv = bench_tensor(&all, type, SHAPE(1, t, H, D), 0);
  /* A chunk of a head: q k', p v, q S, v' k forward; backward is three such scans, for dq, dk and dv. Squares count
   * whole, though the parts above the diagonal are skipped, as is usual for causal attention of this kind. */
  const double square = 2.0 * CHUNK * CHUNK * D, state = 2.0 * CHUNK * D * D, chunks = (double)(t / CHUNK) * H;
  char name[32];
  snprintf(name, sizeof name, "T %lld, 8 heads of 128", (long long)t);
  bench_row row = {.family = "lightning_attention", .name = name, .pass = "forward", .dtype = dtype};
  row.flop = chunks * (2 * square + 2 * state);
  *forward = measure_lightning_attention(b, &row, &args);
  row.pass = "backward";
  row.flop *= 3;
  *backward = measure_lightning_attention_backward(b, &row, &back);
  bench_tensors_free(&all);
  return *forward > 0 && *backward > 0;
}

bool bench_lightning_attention(bench *b) {
  double once[2], twice[2];
  for (int i = 0; i < 2; i++)
    if (!lightning_rows(b, dtypes[i], 4096, &once[0], &once[1])) return false;
  if (!lightning_rows(b, "bfloat16", 8192, &twice[0], &twice[1])) return false;
  bench_print_growth("lightning_attention", "sequence length, forward", once[0], twice[0]);
  bench_print_growth("lightning_attention", "sequence length, backward", once[1], twice[1]);
  return true;
}

static bool cross_entropy_rows(bench *b, const char *dtype, int64_t t, double *forward, double *backward) {
  enum { D = 1024, V = 32000 };
  bench_tensors all = {.count = 0};
  const DLDataType type = bench_dtype(dtype);
  tigon_linear_cross_entropy_args args = {.size = sizeof args};
  args.x = bench_tensor(&all, type, SHAPE(t, D), 1);
  args.weight = bench_tensor(&all, type, SHAPE(V, D), 0.03f);
  DLTensor *target = bench_tensor(&all, tigon_i64(), SHAPE(t), 0);
  for (int64_t i = 0; i < t; i++) ((int64_t *)target->data)[i] = i * 7919 % V;
  args.target = target;
  args.loss = bench_tensor(&all, tigon_f32(), SHAPE(t), 0);
  args.lse = bench_tensor(&all, tigon_f32(), SHAPE(t), 0);
  tigon_linear_cross_entropy_backward_args back = {
      .size = sizeof back, .x = args.x, .weight = args.weight, .target = target, .lse = args.lse};
  back.d_loss = bench_tensor(&all, tigon_f32(), SHAPE(t), 1);
  back.dx = bench_tensor(&all, type, SHAPE(t, D), 0);
  back.dweight = bench_tensor(&all, type, SHAPE(V, D), 0);
  const double g = 2.0 * (double)t * D * V;
  char name[32];
  snprintf(name, sizeof name, "%lld x %d x %d", (long long)t, D, V);
  bench_row row = {.family = "linear_cross_entropy", .name = name, .pass = "forward", .dtype = dtype, .flop = g};
  *forward = measure_linear_cross_entropy(b, &row, &args);
  row.pass = "backward";
  row.flop = 3 * g;
  *backward = measure_linear_cross_entropy_backward(b, &row, &back);
  bench_tensors_free(&all);
  return *forward > 0 && *backward > 0;
}

bool bench_linear_cross_entropy(bench *b) {
  double once[2], twice[2];
  for (int i = 0; i < 2; i++)
    if (!cross_entropy_rows(b, dtypes[i], 2048, &once[0], &once[1])) return false;
  if (!cross_entropy_rows(b, "bfloat16", 4096, &twice[0], &twice[1])) return false;
  bench_print_growth("linear_cross_entropy", "tokens, forward", once[0], twice[0]);
  bench_print_growth("linear_cross_entropy", "tokens, backward", once[1], twice[1]);
  return true;
}

static bool moe_rows(bench *b, const char *dtype, int64_t t, double *forward, double *backward) {
  enum { D = 1024, I = 1024, E = 8, K = 2 };
  bench_tensors all = {.count = 0};
  const DLDataType type = bench_dtype(dtype);
  tigon_moe_args args = {.size = sizeof args};
  args.x = bench_tensor(&all, type, SHAPE(t, D), 1);
  args.gate = bench_tensor(&all, type, SHAPE(E, I, D), 0.03f);
  args.up = bench_tensor(&all, type, SHAPE(E, I, D), 0.03f);
  args.down = bench_tensor(&all, type, SHAPE(E, D, I), 0.03f);
  DLTensor *ids = bench_tensor(&all, tigon_i32(), SHAPE(t, K), 0);
  DLTensor *weights = bench_tensor(&all, tigon_f32(), SHAPE(t, K), 1);
  for (int64_t i = 0; i < t; i++) { /* two different experts, all pairs equally often */
    ((int32_t *)ids->data)[2 * i] = (int32_t)(i % E);
    ((int32_t *)ids->data)[2 * i + 1] = (int32_t)((i + 1 + i / E % (E - 1)) % E);
  }
  args.topk_ids = ids;
  args.topk_weights = weights;
  args.out = bench_tensor(&all, type, SHAPE(t, D), 0);
  if (tigon_moe_saved(&b->exec, &args, &args.saved_bytes) != TIGON_OK) args.saved_bytes = 0;
  args.saved = bench_alloc(args.saved_bytes);
  tigon_moe_backward_args back = {.size = sizeof back,
                                  .x = args.x,
                                  .topk_ids = ids,
                                  .topk_weights = weights,
                                  .gate = args.gate,
                                  .up = args.up,
                                  .down = args.down,
                                  .saved = args.saved,
                                  .saved_bytes = args.saved_bytes};
  back.dout = bench_tensor(&all, type, SHAPE(t, D), 1);
  back.dx = bench_tensor(&all, type, SHAPE(t, D), 0);
  back.d_topk_weights = bench_tensor(&all, tigon_f32(), SHAPE(t, K), 0);
  back.d_gate = bench_tensor(&all, type, SHAPE(E, I, D), 0);
  back.d_up = bench_tensor(&all, type, SHAPE(E, I, D), 0);
  back.d_down = bench_tensor(&all, type, SHAPE(E, D, I), 0);
  const double u = (double)t * K * D * I;
  char name[40];
  snprintf(name, sizeof name, "T %lld D 1024 I 1024 E 8 k 2", (long long)t);
  bench_row row = {.family = "moe", .name = name, .pass = "forward", .dtype = dtype, .flop = 6 * u};
  *forward = measure_moe(b, &row, &args);
  row.pass = "backward";
  row.flop = 12 * u;
  *backward = measure_moe_backward(b, &row, &back);
  bench_free(args.saved);
  bench_tensors_free(&all);
  return *forward > 0 && *backward > 0;
}

bool bench_moe(bench *b) {
  double once[2], twice[2];
  for (int i = 0; i < 2; i++)
    if (!moe_rows(b, dtypes[i], 2048, &once[0], &once[1])) return false;
  if (!moe_rows(b, "bfloat16", 4096, &twice[0], &twice[1])) return false;
  bench_print_growth("moe", "tokens, forward", once[0], twice[0]);
  bench_print_growth("moe", "tokens, backward", once[1], twice[1]);
  return true;
}
