#include "tests/reference/moe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"

/* The routes that are computed, as a token's expert or -1: ids outside [0, E) and routes past the limit are not. */
static int64_t *live_experts(const reference_moe_input *in) {
  const int64_t routes = in->tokens * in->choices;
  int64_t *experts = malloc(((size_t)routes + 1) * sizeof *experts), rows = 0;
  for (int64_t route = 0; route < routes; route++) {
    const int64_t id = in->ids[route];
    const int valid = id >= 0 && id < in->experts;
    rows += valid;
    experts[route] = valid && (in->row_limit == 0 || rows <= in->row_limit) ? id : -1;
  }
  return experts;
}

#define REAL           double
#define NAME(name)     name##_double
#define EXP            exp
#define LOG            log
#define ROUND(kind, v) ((void)(kind), (v))
#include "tests/reference/moe.inc"
#include "tests/reference/moe_route.inc"
#undef REAL
#undef NAME
#undef EXP
#undef LOG
#undef ROUND

#define REAL           float
#define NAME(name)     name##_float
#define EXP            expf
#define LOG            logf
#define ROUND(kind, v) tigon_round_to((tigon_kind)(kind), v)
#include "tests/reference/moe.inc"
#include "tests/reference/moe_route.inc"

static const reference_moe_kinds no_kinds;

void reference_moe(const reference_moe_input *in, double *out) { forward_double(in, &no_kinds, out); }

void reference_moe_plain(const reference_moe_input *in, const reference_moe_kinds *kinds, double *out) {
  forward_float(in, kinds, out);
}

void reference_moe_backward(const reference_moe_input *in, const double *dout, int accumulate,
                            const reference_moe_gradients *to) {
  backward_double(in, &no_kinds, dout, accumulate, to);
}

void reference_moe_backward_plain(const reference_moe_input *in, const double *dout, int accumulate,
                                  const reference_moe_kinds *kinds, const reference_moe_gradients *to) {
  backward_float(in, kinds, dout, accumulate, to);
}

/* --- which experts a token chooses, in float64 alone -------------------------------------------------------------- */

/* The largest value that is not NaN and not taken yet, the first of equal ones, or -1. */
static int64_t next_best(int64_t count, const double *values, const int64_t *taken, int64_t takes) {
  int64_t best = -1;
  for (int64_t i = 0; i < count; i++) {
    int usable = !isnan(values[i]);
    for (int64_t j = 0; j < takes; j++) usable = usable && taken[j] != i;
    if (usable && (best < 0 || values[i] > values[best])) best = i;
  }
  return best;
}

/* Sum of the largest `top` of n values from the largest on; NaN without any. */
static double best_sum(int64_t n, const double *values, int64_t top) {
  int64_t *taken = malloc((size_t)top * sizeof *taken);
  double sum = NAN;
  for (int64_t i = 0; i < top; i++) {
    taken[i] = next_best(n, values, taken, i);
    if (taken[i] < 0) break;
    sum = i == 0 ? values[taken[i]] : sum == INFINITY ? sum : sum + values[taken[i]];
  }
  free(taken);
  return sum;
}

void reference_moe_route_scores(const reference_moe_route_input *in, int64_t token, double *scores) {
  scores_double(in, token, scores);
  for (int64_t e = 0; e < in->experts; e++) {
    if (in->bias) scores[e] += in->bias[e];
    if (isnan(in->logits[token * in->experts + e])) scores[e] = NAN;
  }
}

void reference_moe_route_groups(const reference_moe_route_input *in, int64_t token, double *groups) {
  const int64_t size = in->experts / in->n_group;
  const int64_t top = in->group_top ? in->group_top : in->bias && size > 1 ? 2 : 1;
  double *scores = malloc((size_t)in->experts * sizeof *scores);
  reference_moe_route_scores(in, token, scores);
  for (int64_t e = 0; e < in->experts; e++) /* equal scores of different logits must not tie */
    if (!in->bias && top == 1) scores[e] = in->logits[token * in->experts + e];
  for (int64_t g = 0; g < in->n_group; g++) groups[g] = best_sum(size, scores + g * size, top);
  free(scores);
}

/* Experts outside the best groups become NaN in `values`. */
static void keep_groups(const reference_moe_route_input *in, int64_t token, double *values) {
  const int64_t groups = in->n_group, size = in->experts / groups;
  double *sums = malloc((size_t)groups * sizeof *sums);
  int64_t *kept = malloc((size_t)groups * sizeof *kept);
  reference_moe_route_groups(in, token, sums);
  for (int64_t i = 0; i < in->topk_group; i++) kept[i] = next_best(groups, sums, kept, i);
  for (int64_t e = 0; e < in->experts; e++) {
    int open = 0;
    for (int64_t i = 0; i < in->topk_group; i++) open = open || kept[i] == e / size;
    if (!open) values[e] = NAN;
  }
  free(sums), free(kept);
}

void reference_moe_route_select(const reference_moe_route_input *in, int64_t *ids) {
  double *values = malloc((size_t)in->experts * sizeof *values);
  for (int64_t t = 0; t < in->tokens; t++) {
    if (in->bias)
      reference_moe_route_scores(in, t, values);
    else
      memcpy(values, in->logits + t * in->experts, (size_t)in->experts * sizeof *values);
    if (in->n_group > 1) keep_groups(in, t, values);
    for (int64_t j = 0; j < in->choices; j++)
      ids[t * in->choices + j] = next_best(in->experts, values, ids + t * in->choices, j);
  }
  free(values);
}

void reference_moe_route(const reference_moe_route_input *in, const int64_t *ids, double *weights, int64_t *counts,
                         double *loss, double *z_loss) {
  route_double(in, ids, weights, counts, loss, z_loss);
}

void reference_moe_route_plain(const reference_moe_route_input *in, const int64_t *ids, double *weights,
                               int64_t *counts, double *loss, double *z_loss) {
  route_float(in, ids, weights, counts, loss, z_loss);
}

void reference_moe_route_backward(const reference_moe_route_input *in, const int64_t *ids, const double *d_weights,
                                  double d_loss, double d_z_loss, double *d_logits) {
  route_backward_double(in, ids, d_weights, d_loss, d_z_loss, 0, d_logits);
}

void reference_moe_route_backward_plain(const reference_moe_route_input *in, const int64_t *ids,
                                        const double *d_weights, double d_loss, double d_z_loss, int d_kind,
                                        double *d_logits) {
  route_backward_float(in, ids, d_weights, d_loss, d_z_loss, d_kind, d_logits);
}
