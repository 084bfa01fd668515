/*
 * Forward: the logits (K, V) in tiles, each folded at once into a few numbers a row.
 *
 * Work items are (row block, vocabulary split). An item runs over its columns in rising order and keeps one state a row;
 * the states of a row's splits are merged in rising order at the end. Splits depend on T and V alone, so a row's results
 * depend on no other row.
 */
#include "base/pool.h"
#include "linear_cross_entropy/cpu_logits.h"

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

typedef struct forward_item {
  const tigon_lce_problem *problem;
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
    weighted += e * below;
  }
  rescale(state, tigon_lce_floor(vf_set(state->max) - base));
  state->max = max;
  state->ties += vf_sum(ties);
  state->rest += vf_sum(rest);
  state->weighted += vf_sum(weighted);
  if (target >= 0 && target < n) state->target = z[target];
}

static void fold_tile(void *context, int slot, int64_t m0, int64_t n0, int64_t m, int64_t n, float *tile, int64_t ld) {
  (void)slot;
  const forward_item *item = context;
  const tigon_lce_problem *p = item->problem;
  float bias[TIGON_GEMM_LD];
  tigon_lce_load_bias(p, item->column + n0, n, bias, ld);
  for (int64_t i = 0; i < m; i++) {
    const int64_t target = tigon_lce_target(p, p->kept[item->row + m0 + i]);
    fold_row(p, &item->states[m0 + i], tile + i * ld, bias, n, target - item->column - n0);
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
  const int64_t blocks = ceil_div(p->kept_count, run->block);
  const int64_t row = chunk % blocks * run->block, split = chunk / blocks;
  const int64_t column = split * plan->split_columns;
  const int64_t rows = p->kept_count - row < run->block ? p->kept_count - row : run->block;
  const int64_t left = p->vocabulary - column;
  forward_item item = {p, plan->states + split * p->kept_count + row, row, column};
  for (int64_t i = 0; i < rows; i++) item.states[i] = (tigon_lce_state){.max = -INFINITY};
  tigon_gemm product = tigon_lce_logits(p, row, rows, column, left < plan->split_columns ? left : plan->split_columns);
  product.epilogue = fold_tile;
  product.context = &item;
  tigon_gemm_serial(&product, slot, (char *)p->scratch + (uint64_t)slot * tigon_gemm_scratch());
}

static void put(const tigon_view *vector, int64_t token, double value) {
  if (tigon_present(vector)) *(float *)(void *)tigon_at(vector, token) = (float)value;
}

/* nll is formed without lse: where both are large it has no cancellation, and is never below 0. */
static void finish_row(const tigon_lce_forward_plan *plan, int64_t row) {
  const tigon_lce_problem *p = &plan->problem;
  const tigon_lce_state *states = plan->states + row;
  const int64_t step = p->kept_count, token = p->kept[row];
  double max = -INFINITY, ties = 0, rest = 0, weighted = 0, target = 0;
  for (int64_t i = 0; i < plan->splits; i++)
    if (states[i * step].max > max) max = states[i * step].max;
  for (int64_t i = 0; i < plan->splits; i++) {
    const tigon_lce_state *s = &states[i * step];
    const double sum = (double)s->ties + s->rest;
    target += s->target;
    if (sum == 0) continue; /* every column is -inf */
    const bool top = s->max == max;
    const double shift = top ? 0 : (double)s->max - max, factor = exp(shift);
    ties += top ? s->ties : 0;
    rest += top ? s->rest : factor * sum;
    weighted += factor == 0 ? 0 : factor * (s->weighted + shift * sum);
  }
  const double log_sum = log(ties) + log1p(rest / ties), lse = max + log_sum, nll = max - target + log_sum;
  put(&plan->loss, token, nll + (double)p->z_loss * lse * lse);
  put(&plan->nll, token, nll);
  put(&plan->lse, token, lse);
  put(&plan->entropy, token, log_sum - weighted / (ties + rest));
}

enum { FINISH_ROWS = 256 };

static void finish_rows(void *context, int64_t chunk, int slot) {
  (void)slot;
  const tigon_lce_forward_plan *plan = context;
  const int64_t end =
      (chunk + 1) * FINISH_ROWS < plan->problem.kept_count ? (chunk + 1) * FINISH_ROWS : plan->problem.kept_count;
  for (int64_t row = chunk * FINISH_ROWS; row < end; row++) finish_row(plan, row);
}

/* The largest row block that still gives the threads something to share; results do not depend on it. */
static int64_t choose_block(const tigon_lce_forward_plan *plan) {
  enum { ENOUGH = 32 };
  int64_t block = TIGON_GEMM_M;
  while (block > TIGON_GEMM_M / 8 && ceil_div(plan->problem.kept_count, block) * plan->splits < ENOUGH) block /= 2;
  return block;
}

void TIGON_ISA_FN(tigon_lce_forward)(const tigon_lce_forward_plan *plan) {
  const tigon_lce_problem *p = &plan->problem;
  forward_run run = {plan, choose_block(plan)};
  tigon_parallel(p->threads, ceil_div(p->kept_count, run.block) * plan->splits, run_item, &run);
  tigon_parallel(p->threads, ceil_div(p->kept_count, FINISH_ROWS), finish_rows, (void *)(uintptr_t)plan);
}
