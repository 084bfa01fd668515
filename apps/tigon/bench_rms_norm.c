/* The rows of rms_norm. */
#include <math.h>
#include <stdio.h>

#include "bench_case.h"

BENCH_OPERATION(rms_norm)
BENCH_OPERATION(rms_norm_backward)

typedef struct norm_rows {
  tigon_rms_norm_args forward;
  tigon_rms_norm_backward_args backward;
  const char *dtype;
  int64_t rows, width;
} norm_rows;

static double rstd_of(const norm_rows *r, int64_t row) {
  double squares = 0;
  for (int64_t j = 0; j < r->width; j++) squares += pow(bench_value(r->forward.x, row * r->width + j), 2);
  return 1 / sqrt(squares / (double)r->width + 1e-6);
}

static int64_t sample_row(const norm_rows *r, int sample) { return sample * (r->rows - 1) / 3; }

static bool check_forward(void *context) {
  const norm_rows *r = context;
  bench_judge judge;
  bench_judge_start(&judge);
  for (int sample = 0; sample < 4; sample++) {
    const int64_t row = sample_row(r, sample);
    const double rstd = rstd_of(r, row);
    for (int64_t j = 0; j < r->width; j++) {
      const int64_t at = row * r->width + j;
      bench_judge_add(&judge, bench_value(r->forward.out, at),
                      bench_value(r->forward.x, at) * rstd * bench_value(r->forward.weight, j));
    }
  }
  return bench_judge_accepts(&judge, r->dtype);
}

static bool check_d_weight(const norm_rows *r) {
  bench_judge judge;
  double sums[4] = {0};
  bench_judge_start(&judge);
  for (int64_t row = 0; row < r->rows; row++) {
    const double rstd = rstd_of(r, row);
    for (int i = 0; i < 4; i++) {
      const int64_t at = row * r->width + i * (r->width - 1) / 3;
      sums[i] += bench_value(r->backward.dy, at) * bench_value(r->forward.x, at) * rstd;
    }
  }
  for (int i = 0; i < 4; i++)
    bench_judge_add(&judge, bench_value(r->backward.d_weight, i * (r->width - 1) / 3), sums[i]);
  return bench_judge_accepts(&judge, r->dtype);
}

static bool check_backward(void *context) {
  const norm_rows *r = context;
  bench_judge judge;
  bench_judge_start(&judge);
  for (int sample = 0; sample < 4; sample++) {
    const int64_t row = sample_row(r, sample);
    const double rstd = rstd_of(r, row);
    double mean = 0;
    for (int64_t j = 0; j < r->width; j++) {
      const int64_t at = row * r->width + j;
      mean +=
          bench_value(r->backward.dy, at) * bench_value(r->forward.weight, j) * bench_value(r->forward.x, at) * rstd;
    }
    mean /= (double)r->width;
    for (int64_t j = 0; j < r->width; j++) {
      const int64_t at = row * r->width + j;
      const double m = bench_value(r->backward.dy, at) * bench_value(r->forward.weight, j);
      bench_judge_add(&judge, bench_value(r->backward.dx, at),
                      rstd * (m - bench_value(r->forward.x, at) * rstd * mean));
    }
  }
  return bench_judge_accepts(&judge, r->dtype) && check_d_weight(r);
}

static bool rms_norm_rows(bench *b, const char *dtype, int64_t rows, bool shown, double *seconds) {
  norm_rows r = {.dtype = dtype, .rows = b->quick ? rows / 1024 : rows, .width = b->quick ? 64 : 4096};
  bench_case c = {.family = "rms_norm", .dtype = dtype, .scale = 1};
  const DLDataType type = bench_dtype(dtype);
  snprintf(c.name, sizeof c.name, "%lld x %lld%s", (long long)r.rows, (long long)r.width, shown ? "" : " (growth)");
  r.forward.size = sizeof r.forward;
  r.forward.x = bench_input(&c.tensors, "x", type, SHAPE(r.rows, r.width), 1);
  r.forward.weight = bench_input(&c.tensors, "weight", type, SHAPE(r.width), 1);
  DLTensor *dy = bench_input(&c.tensors, "dy", type, SHAPE(r.rows, r.width), 1);
  bench_case_start(b, &c);
  r.forward.out = bench_output(&c.tensors, "out", type, SHAPE(r.rows, r.width));
  r.forward.rstd = bench_output(&c.tensors, "rstd", tigon_f32(), SHAPE(r.rows));
  const uint64_t matrix = bench_tensor_bytes(dy);
  bench_pass forward = {.name = "forward", BENCH_RUNS(rms_norm), .args = &r.forward, .bytes = 2 * matrix};
  forward.check = check_forward;
  forward.context = &r;
  forward.outputs[0] = "out";
  bool good = bench_case_measure(b, &c, &forward);

  r.backward = (tigon_rms_norm_backward_args){
      .size = sizeof r.backward, .dy = dy, .x = r.forward.x, .weight = r.forward.weight, .rstd = r.forward.rstd};
  r.backward.dx = bench_output(&c.tensors, "dx", type, SHAPE(r.rows, r.width));
  r.backward.d_weight = bench_output(&c.tensors, "d_weight", tigon_f32(), SHAPE(r.width));
  bench_pass backward = {.name = "backward", BENCH_RUNS(rms_norm_backward), .args = &r.backward, .bytes = 3 * matrix};
  backward.check = check_backward;
  backward.context = &r;
  backward.outputs[0] = "dx";
  backward.outputs[1] = "d_weight";
  good = good && bench_case_measure(b, &c, &backward);
  if (good) bench_case_sum(b, &c, &forward, &backward);
  seconds[0] = forward.ours.seconds;
  seconds[1] = backward.ours.seconds;
  bench_case_end(b, &c);
  return good;
}

bool bench_rms_norm(bench *b) {
  double once[2], twice[2];
  if (!rms_norm_rows(b, "float32", 16384, true, once) || !rms_norm_rows(b, "bfloat16", 16384, true, once) ||
      !rms_norm_rows(b, "bfloat16", 32768, false, twice)) /* both beyond the caches */
    return false;
  bench_print_growth("rms_norm", "tokens, forward", once[0], twice[0]);
  bench_print_growth("rms_norm", "tokens, backward", once[1], twice[1]);
  return true;
}
