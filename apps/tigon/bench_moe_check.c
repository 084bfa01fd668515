#include "bench_moe_check.h"

#include <math.h>

#include "bench_tensors.h"

enum { SAMPLES = 3, MOST_WIDTH = 1024 };

typedef struct activation {
  double gate, up, value, to_gate, to_up; /* silu(gate) * up, and its derivatives */
} activation;

/* Unit i of the expert for a token. */
static activation activate(const moe_rows *r, int64_t expert, int64_t token, int64_t i) {
  activation a = {0};
  const int64_t row = (expert * r->inner + i) * r->width;
  for (int64_t d = 0; d < r->width; d++) {
    const double x = bench_value(r->forward.x, token * r->width + d);
    a.gate += bench_value(r->forward.gate, row + d) * x;
    a.up += bench_value(r->forward.up, row + d) * x;
  }
  const double sigma = 1 / (1 + exp(-a.gate));
  a.value = a.gate * sigma * a.up;
  a.to_up = a.gate * sigma;
  a.to_gate = a.up * sigma * (1 + a.gate * (1 - sigma));
  return a;
}

/* Gradient of unit i's activation, before the route's weight. */
static double from_down(const moe_rows *r, int64_t expert, int64_t token, int64_t i) {
  double sum = 0;
  for (int64_t d = 0; d < r->width; d++)
    sum += bench_value(r->forward.down, (expert * r->width + d) * r->inner + i) *
           bench_value(r->backward.dout, token * r->width + d);
  return sum;
}

static int64_t expert_of(const moe_rows *r, int64_t token, int j) {
  return (int64_t)bench_value(r->forward.topk_ids, token * MOE_CHOICES + j);
}

static double weight_of(const moe_rows *r, int64_t token, int j) {
  return bench_value(r->forward.topk_weights, token * MOE_CHOICES + j);
}

static int64_t sample_token(const moe_rows *r, int sample) { return sample * (r->tokens - 1) / (SAMPLES - 1); }

bool check_moe_forward(void *context) {
  const moe_rows *r = context;
  bench_judge judge;
  bench_judge_start(&judge);
  for (int s = 0; s < SAMPLES; s++) {
    const int64_t token = sample_token(r, s);
    double out[MOST_WIDTH] = {0};
    for (int j = 0; j < MOE_CHOICES; j++) {
      const int64_t expert = expert_of(r, token, j);
      for (int64_t i = 0; i < r->inner; i++) {
        const double value = weight_of(r, token, j) * activate(r, expert, token, i).value;
        for (int64_t d = 0; d < r->width; d++)
          out[d] += value * bench_value(r->forward.down, (expert * r->width + d) * r->inner + i);
      }
    }
    for (int64_t d = 0; d < r->width; d++)
      bench_judge_add(&judge, bench_value(r->forward.out, token * r->width + d), out[d]);
  }
  return bench_judge_accepts(&judge, r->dtype);
}

/* Gradients of a token and of its routes' weights. */
static bool check_tokens(const moe_rows *r) {
  bench_judge of_x, of_weights;
  bench_judge_start(&of_x);
  bench_judge_start(&of_weights);
  for (int s = 0; s < SAMPLES; s++) {
    const int64_t token = sample_token(r, s);
    double dx[MOST_WIDTH] = {0};
    for (int j = 0; j < MOE_CHOICES; j++) {
      const int64_t expert = expert_of(r, token, j);
      double d_weight = 0;
      for (int64_t i = 0; i < r->inner; i++) {
        const activation a = activate(r, expert, token, i);
        const double upstream = from_down(r, expert, token, i), da = weight_of(r, token, j) * upstream;
        const int64_t row = (expert * r->inner + i) * r->width;
        d_weight += upstream * a.value;
        for (int64_t d = 0; d < r->width; d++)
          dx[d] +=
              da * (a.to_gate * bench_value(r->forward.gate, row + d) + a.to_up * bench_value(r->forward.up, row + d));
      }
      bench_judge_add(&of_weights, bench_value(r->backward.d_topk_weights, token * MOE_CHOICES + j), d_weight);
    }
    for (int64_t d = 0; d < r->width; d++)
      bench_judge_add(&of_x, bench_value(r->backward.dx, token * r->width + d), dx[d]);
  }
  return bench_judge_accepts(&of_x, r->dtype) && bench_judge_accepts(&of_weights, r->dtype);
}

typedef struct unit_gradients {
  double gate[MOST_WIDTH], up[MOST_WIDTH], down[MOST_WIDTH];
} unit_gradients;

static void add_route(const moe_rows *r, int64_t token, int j, int64_t i, unit_gradients *sum) {
  const int64_t expert = expert_of(r, token, j);
  const activation a = activate(r, expert, token, i);
  const double da = weight_of(r, token, j) * from_down(r, expert, token, i);
  for (int64_t d = 0; d < r->width; d++) {
    const double x = bench_value(r->forward.x, token * r->width + d);
    sum->gate[d] += da * a.to_gate * x;
    sum->up[d] += da * a.to_up * x;
    sum->down[d] += weight_of(r, token, j) * a.value * bench_value(r->backward.dout, token * r->width + d);
  }
}

/* Gradients of the weights of one unit of some experts. */
static bool check_units(const moe_rows *r) {
  bench_judge of_gate, of_up, of_down;
  bench_judge_start(&of_gate);
  bench_judge_start(&of_up);
  bench_judge_start(&of_down);
  for (int s = 0; s < SAMPLES; s++) {
    const int64_t expert = s * (r->experts - 1) / (SAMPLES - 1), i = (r->inner - 1) * (SAMPLES - 1 - s) / (SAMPLES - 1);
    unit_gradients sum = {0};
    for (int64_t token = 0; token < r->tokens; token++)
      for (int j = 0; j < MOE_CHOICES; j++)
        if (expert_of(r, token, j) == expert) add_route(r, token, j, i, &sum);
    for (int64_t d = 0; d < r->width; d++) {
      const int64_t at = (expert * r->inner + i) * r->width + d;
      bench_judge_add(&of_gate, bench_value(r->backward.d_gate, at), sum.gate[d]);
      bench_judge_add(&of_up, bench_value(r->backward.d_up, at), sum.up[d]);
      bench_judge_add(&of_down, bench_value(r->backward.d_down, (expert * r->width + d) * r->inner + i), sum.down[d]);
    }
  }
  return bench_judge_accepts(&of_gate, r->dtype) && bench_judge_accepts(&of_up, r->dtype) &&
         bench_judge_accepts(&of_down, r->dtype);
}

bool check_moe_backward(void *context) { return check_tokens(context) && check_units(context); }
