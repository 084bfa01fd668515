/*
 * Forward: the logits (K, V) in tiles, each folded at once into a few numbers a row.
 *
 * Work items are (row block, vocabulary split). An item runs over its columns in rising order and keeps one state a
 * row; finish.c merges the states of a row's splits. Splits depend on T and V alone, so a row's results
 * depend on no other row.
 */
#include "base/integer.h"
#include "base/pool.h"
#include "linear_cross_entropy/cpu_logits.h"

typedef struct forward_item {
  const tigon_lce_forward_plan *plan;
  tigon_lce_state *states; /* of the item's rows */
  int64_t row, column;     /* the item's first */
} forward_item;

/* Makes a state relative to a maximum that is higher by -shift. */
static void rescale(tigon_lce_state *state, vf shift) {
  if (shift[0] == 0) return;
  const float factor = vf_exp(shift)[0], sum = state->ties + state->rest;
  state->weighted = factor * (state->weighted + shift[0] * sum);
  state->rest = factor * sum;
  state->ties = 0;
}

/* Adds n logits to a row's state. z holds accumulators, and room for a whole number of vectors. */
static void fold_row(const tigon_lce_problem *p, tigon_lce_state *state, float *z, const float *bias, int64_t n,
                     int64_t target) {
  const vf inverse_temperature = vf_set(p->inverse_temperature);
  for (int64_t j = n; j % VF_LANES; j++) z[j] = -INFINITY;
  vf top = vf_set(-INFINITY);
  for (int64_t j = 0; j < n; j += VF_LANES) {
    const vf logit = tigon_lce_logit(vf_load(z + j), vf_load(bias + j), inverse_temperature);
    vf_store(z + j, logit);
    top = vf_max(logit, top); /* top where the logit is NaN: the sums below carry that */
  }
  const float tile_max = vf_max_lane(top);
  const float max = tile_max > state->max ? tile_max : state->max;
  const float base = max == -INFINITY ? 0.0f : max;
  vf ties = vf_set(0.0f), rest = vf_set(0.0f), weighted = vf_set(0.0f);
  for (int64_t j = 0; j < n; j += VF_LANES) {
    const vf below = tigon_lce_floor(vf_load(z + j) - base);
    const vf e = vf_exp(below);
    const vi tie = below == vf_set(0.0f);
    ties += vf_select(tie, e, vf_set(0.0f));
    rest += vf_select(tie, vf_set(0.0f), e);
    weighted = vf_fma(e, below, weighted);
  }
  rescale(state, tigon_lce_floor(vf_set(state->max) - base));
  state->max = max;
  state->ties += vf_sum(ties);
  state->rest += vf_sum(rest);
  state->weighted += vf_sum(weighted);
  if (target >= 0 && target < n) state->target = z[target];
}

/* Adds the logits z (n) to what only some outputs need; `before` is the state's max without them. */
static void fold_extras(tigon_lce_state *state, float before, const float *z, const float *class_weight, float weights,
                        int64_t n, int64_t first_class) {
  if (state->max > before) {
    int64_t j = 0;
    while (z[j] != state->max) j++;
    state->argmax = (int32_t)(first_class + j);
  }
  const vf base = vf_set(state->max == -INFINITY ? 0.0f : state->max);
  vf smoothed = vf_set(0.0f);
  for (int64_t j = 0; j < n; j += VF_LANES) {
    const vf weight = vf_load(class_weight + j);
    smoothed += vf_select(weight == vf_set(0.0f), weight, weight * (vf_load(z + j) - base));
  }
  if (before != -INFINITY) state->smoothed += (before - state->max) * state->weights;
  state->smoothed += vf_sum(smoothed);
  state->weights += weights;
}

static float sum_of(const float *values, int64_t n) {
  double sum = 0;
  for (int64_t j = 0; j < n; j++) sum += values[j];
  return (float)sum;
}

static void save_row(const tigon_lce_problem *p, int64_t row, int64_t column, const float *z, int64_t n) {
  const int64_t left = p->saved_columns - column;
  if (left <= 0) return;
  memcpy(p->saved + row * p->saved_columns + column, z, (size_t)(left < n ? left : n) * sizeof *z);
}

static void fold_tile(void *context, int slot, int64_t m0, int64_t n0, int64_t m, int64_t n, float *tile, int64_t ld) {
  (void)slot;
  const forward_item *item = context;
  const tigon_lce_problem *p = &item->plan->problem;
  const bool extras = item->plan->extras, capped = p->softcap > 0;
  const int64_t column = item->column + n0, first_class = p->vocab_begin + column;
  float bias[TIGON_GEMM_LD], class_weight[TIGON_GEMM_LD], weights = 0;
  tigon_lce_load_bias(p, column, n, bias, ld);
  if (extras) {
    tigon_lce_load_class_weight(p, column, n, class_weight, ld);
    weights = sum_of(class_weight, n);
  }
  for (int64_t i = 0; i < m; i++) {
    const int64_t target = tigon_lce_target(&p->loss, p->loss.kept[item->row + m0 + i]);
    tigon_lce_state *state = &item->states[m0 + i];
    float *z = tile + i * ld;
    const float before = state->max;
    save_row(p, item->row + m0 + i, column, z, n);
    if (capped) tigon_lce_cap_row(p->softcap, z, bias, NULL, n);
    fold_row(p, state, z, capped ? tigon_lce_no_bias : bias, n, target - first_class);
    if (extras) fold_extras(state, before, z, class_weight, weights, n, first_class);
  }
}

typedef struct forward_run {
  const tigon_lce_forward_plan *plan;
  int64_t block; /* rows of a row block */
} forward_run;

static void run_item(void *context, int64_t chunk, int slot) {
  const forward_run *run = context;
  const tigon_lce_forward_plan *plan = run->plan;
  const tigon_lce_problem *p = &plan->problem;
  const int64_t kept = p->loss.kept_count, blocks = tigon_ceil_div(kept, run->block);
  const int64_t row = chunk % blocks * run->block, split = chunk / blocks;
  const int64_t column = split * plan->split_columns;
  const int64_t rows = kept - row < run->block ? kept - row : run->block;
  const int64_t left = p->vocabulary - column;
  forward_item item = {plan, plan->states + split * kept + row, row, column};
  for (int64_t i = 0; i < rows; i++) item.states[i] = (tigon_lce_state){.max = -INFINITY, .argmax = -1};
  tigon_gemm product = tigon_lce_logits(p, row, rows, column, left < plan->split_columns ? left : plan->split_columns);
  product.epilogue = fold_tile;
  product.context = &item;
  tigon_gemm_serial(&product, slot, (char *)p->scratch + (uint64_t)slot * tigon_gemm_scratch());
}

/* The largest row block that still gives the threads something to share; results do not depend on it. */
static int64_t choose_block(const tigon_lce_forward_plan *plan) {
  enum { ENOUGH = 32 };
  int64_t block = TIGON_GEMM_M;
  while (block > TIGON_GEMM_M / 8 && tigon_ceil_div(plan->problem.loss.kept_count, block) * plan->splits < ENOUGH)
    block /= 2;
  return block;
}

void TIGON_ISA_FN(tigon_lce_forward)(const tigon_lce_forward_plan *plan) {
  const tigon_lce_problem *p = &plan->problem;
  forward_run run = {plan, choose_block(plan)};
  tigon_parallel(p->threads, tigon_ceil_div(p->loss.kept_count, run.block) * plan->splits, run_item, &run);
}
