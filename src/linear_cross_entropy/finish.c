#include "linear_cross_entropy/finish.h"

#include <math.h>

#include "base/pool.h"

static tigon_lce_state part(const tigon_lce_parts *parts, int64_t row, int64_t i) {
  tigon_lce_state state;
  memcpy(&state, parts->data + row * parts->row_distance + i * parts->distance, sizeof state);
  return state;
}

static tigon_lce_state merge(const tigon_lce_parts *parts, int64_t row) {
  float max = -INFINITY;
  int32_t argmax = -1;
  for (int64_t i = 0; i < parts->count; i++) {
    const tigon_lce_state s = part(parts, row, i);
    if (s.max > max || (s.max == max && s.argmax < argmax)) argmax = s.argmax;
    if (s.max > max) max = s.max;
  }
  double ties = 0, rest = 0, weighted = 0, target = 0, smoothed = 0, weights = 0;
  for (int64_t i = 0; i < parts->count; i++) {
    const tigon_lce_state s = part(parts, row, i);
    const bool top = s.max == max;
    const double shift = top ? 0 : (double)s.max - (double)max, factor = exp(shift);
    const double sum = (double)s.ties + (double)s.rest;
    ties += top ? s.ties : 0;
    rest += top ? s.rest : factor * sum;
    weighted += factor == 0 ? 0 : factor * (s.weighted + shift * sum);
    target += s.target;
    smoothed += s.smoothed + (top || s.max == -INFINITY ? 0 : shift * s.weights);
    weights += s.weights;
  }
  return (tigon_lce_state){max,           (float)ties,     (float)rest,    (float)weighted,
                           (float)target, (float)smoothed, (float)weights, argmax};
}

/* A factor of 0 removes its term, also where that is not finite. */
static double term(double factor, double value) { return factor == 0 ? 0 : factor * value; }

/* sum_v w_v (lse - z_v) is formed relative to the maximum, like nll: no cancellation where logits are large. */
static double loss_of(const tigon_lce_loss *l, int64_t token, int64_t target, const tigon_lce_state *s, double log_sum,
                      double nll) {
  const double smoothing = l->label_smoothing, lse = s->max + log_sum;
  double loss =
      term((1 - smoothing) * tigon_lce_element(&l->class_weight, target, 1), nll) + term(l->z_loss, lse * lse);
  if (smoothing > 0) loss += smoothing / (double)l->classes * (s->weights * log_sum - s->smoothed);
  return term(tigon_lce_element(&l->token_weight, token, 1), loss);
}

static void put(const tigon_view *vector, int64_t token, double value) {
  if (tigon_present(vector)) *(float *)(void *)tigon_at(vector, token) = (float)value;
}

static void put_index(const tigon_view *vector, int64_t token, int64_t value) {
  if (tigon_present(vector)) tigon_store_index(tigon_at(vector, token), vector->kind, 0, value);
}

static void put_state(const tigon_view *partial, int64_t token, const tigon_lce_state *s) {
  if (tigon_present(partial)) memcpy(tigon_at(partial, token), s, sizeof *s);
}

/* nll is formed without lse: where both are large it has no cancellation, and is never below 0. */
static void finish_token(const tigon_lce_loss *l, const tigon_lce_outputs *outputs, int64_t token,
                         const tigon_lce_state *s) {
  const int64_t target = tigon_lce_target(l, token);
  const double ties = s->ties, rest = s->rest, log_sum = log(ties) + log1p(rest / ties);
  const double nll = (double)s->max - (double)s->target + log_sum;
  put_state(&outputs->partial, token, s);
  put(&outputs->loss, token, loss_of(l, token, target, s, log_sum, nll));
  put(&outputs->nll, token, nll);
  put(&outputs->lse, token, s->max + log_sum);
  put(&outputs->entropy, token, log_sum - s->weighted / (ties + rest));
  put_index(&outputs->argmax, token, s->argmax);
  put(&outputs->correct, token, s->argmax == target);
}

typedef struct finish_run {
  const tigon_lce_loss *loss;
  const tigon_lce_outputs *outputs;
  const tigon_lce_parts *parts;
} finish_run;

enum { FINISH_ROWS = 256 };

static void finish_rows(void *context, int64_t chunk, int slot) {
  (void)slot;
  const finish_run *run = context;
  const tigon_lce_loss *l = run->loss;
  const int64_t begin = chunk * FINISH_ROWS;
  const int64_t end = l->kept_count - begin < FINISH_ROWS ? l->kept_count : begin + FINISH_ROWS;
  for (int64_t i = begin; i < end; i++) {
    const tigon_lce_state s = merge(run->parts, run->parts->by_token ? l->kept[i] : i);
    finish_token(l, run->outputs, l->kept[i], &s);
  }
}

void tigon_lce_finish(const tigon_lce_loss *loss, const tigon_lce_outputs *outputs, const tigon_lce_parts *parts,
                      int threads) {
  finish_run run = {loss, outputs, parts};
  tigon_parallel(threads, (loss->kept_count + FINISH_ROWS - 1) / FINISH_ROWS, finish_rows, &run);
}

void tigon_lce_leave_out(const tigon_lce_loss *loss, const tigon_lce_outputs *outputs) {
  static const tigon_lce_state empty = {.max = -INFINITY, .argmax = -1};
  int64_t next = 0;
  for (int64_t token = 0; token < loss->tokens; token++) {
    if (next < loss->kept_count && loss->kept[next] == token) {
      next++;
      continue;
    }
    put_state(&outputs->partial, token, &empty);
    put(&outputs->loss, token, 0);
    put(&outputs->nll, token, 0);
    put(&outputs->lse, token, 0);
    put(&outputs->entropy, token, 0);
    put_index(&outputs->argmax, token, -1);
    put(&outputs->correct, token, 0);
  }
}
