/*
 * Backward, a vocabulary tile at a time: the logits of all kept tokens, saved or computed again, turned into dz (K,
 * tile) as they leave the product; then dX += dz W_tile and dW_tile = dz^T X side by side, and column sums of dz for
 * the bias.
 *
 * dX is summed over tiles in rising order, in fp32, in dx itself or in the workspace; dW and dbias see all tokens at
 * once and are rounded once.
 */
#include "base/integer.h"
#include "base/pool.h"
#include "linear_cross_entropy/cpu_logits.h"

typedef struct backward_tile {
  const tigon_lce_backward_plan *plan;
  int64_t column, n; /* of the vocabulary */
} backward_tile;

static void prepare_rows(const tigon_lce_backward_plan *plan) {
  const tigon_lce_problem *p = &plan->problem;
  const tigon_lce_loss *l = &p->loss;
  for (int64_t i = 0; i < l->kept_count; i++) {
    const int64_t token = l->kept[i], target = tigon_lce_target(l, token);
    const float loss = p->inverse_temperature * tigon_lce_element(&plan->d_loss, token, 0) *
                       tigon_lce_element(&l->token_weight, token, 1);
    const float lse = tigon_lce_element(&plan->lse, token, 0);
    plan->rows[i] =
        (tigon_lce_row){.lse = lse,
                        .entropy = tigon_present(&plan->d_entropy) ? tigon_lce_element(&plan->entropy, token, 0) : 0.0f,
                        .loss = loss * (1 - l->label_smoothing) * tigon_lce_element(&l->class_weight, target, 1),
                        .rest = loss * (2 * l->z_loss * lse + plan->smoothing_sum) +
                                p->inverse_temperature * tigon_lce_element(&plan->d_lse, token, 0),
                        .entropy_scale = p->inverse_temperature * tigon_lce_element(&plan->d_entropy, token, 0),
                        .smoothing = loss * plan->smoothing,
                        .target = target - p->vocab_begin};
  }
}

/* z (n): accumulators in, dz out. At the target p - 1 is formed as expm1, which keeps its digits where p is near 1. */
static void differentiate_row(const tigon_lce_problem *p, const tigon_lce_row *row, float *z, const float *bias,
                              int64_t n, int64_t target) {
  const vf inverse_temperature = vf_set(p->inverse_temperature), lse = vf_set(row->lse);
  const vf slope = vf_set(row->rest + row->loss), scale = vf_set(row->entropy_scale), entropy = vf_set(row->entropy);
  float at_target = 0;
  if (target >= 0 && target < n)
    at_target = tigon_lce_floor(tigon_lce_logit(vf_set(z[target]), vf_set(bias[target]), inverse_temperature) - lse)[0];
  for (int64_t j = 0; j < n; j += VF_LANES) {
    const vf logit = tigon_lce_logit(vf_load(z + j), vf_load(bias + j), inverse_temperature);
    const vf log_p = tigon_lce_floor(logit - lse);
    vf_store(z + j, vf_exp(log_p) * vf_fma(-scale, log_p + entropy, slope));
  }
  if (target >= 0 && target < n)
    z[target] =
        row->loss * expm1f(at_target) + expf(at_target) * (row->rest - row->entropy_scale * (at_target + row->entropy));
}

/* n logits' products of some rows, from `column` of the vocabulary on: accumulators in, dz out. ld as in a GEMM's
 * tile. */
static void differentiate_rows(const tigon_lce_backward_plan *plan, int64_t first_row, int64_t rows, int64_t column,
                               int64_t n, float *tile, int64_t ld) {
  const tigon_lce_problem *p = &plan->problem;
  const bool capped = p->softcap > 0, smoothed = p->loss.label_smoothing > 0;
  float bias[TIGON_GEMM_LD], class_weight[TIGON_GEMM_LD], slope[TIGON_GEMM_LD];
  tigon_lce_load_bias(p, column, n, bias, ld);
  if (smoothed) tigon_lce_load_class_weight(p, column, n, class_weight, ld);
  for (int64_t i = 0; i < rows; i++) {
    const tigon_lce_row *row = &plan->rows[first_row + i];
    float *z = tile + i * ld;
    if (capped) tigon_lce_cap_row(p->softcap, z, bias, slope, n);
    differentiate_row(p, row, z, capped ? tigon_lce_no_bias : bias, n, row->target - column);
    for (int64_t j = 0; smoothed && j < n; j++) z[j] = vf_fma_one(-row->smoothing, class_weight[j], z[j]);
    for (int64_t j = 0; capped && j < n; j++) z[j] *= slope[j];
  }
}

static char *dz_at(const tigon_lce_backward_plan *plan, int64_t row, int64_t column) {
  return plan->dz + (row * plan->tile + column) * tigon_kind_bytes(plan->dz_kind);
}

static void differentiate_tile(void *context, int slot, int64_t m0, int64_t n0, int64_t m, int64_t n, float *tile,
                               int64_t ld) {
  (void)slot;
  const backward_tile *t = context;
  differentiate_rows(t->plan, m0, m, t->column + n0, n, tile, ld);
  for (int64_t i = 0; i < m; i++) tigon_store_row(dz_at(t->plan, m0 + i, n0), t->plan->dz_kind, tile + i * ld, n);
}

enum { SAVED_ROWS = 8 };

/* The same for logits that forward saved. */
static void differentiate_saved(void *context, int64_t chunk, int slot) {
  const backward_tile *t = context;
  const tigon_lce_backward_plan *plan = t->plan;
  const tigon_lce_problem *p = &plan->problem;
  const int64_t first = chunk * SAVED_ROWS, left = p->loss.kept_count - first;
  const int64_t rows = left < SAVED_ROWS ? left : SAVED_ROWS;
  float tile[SAVED_ROWS * TIGON_LCE_TILE];
  for (int64_t i = 0; i < rows; i++)
    memcpy(tile + i * plan->tile, p->saved + (first + i) * p->saved_columns + t->column, (size_t)t->n * sizeof(float));
  differentiate_tile(context, slot, first, 0, rows, t->n, tile, plan->tile);
}

/* dz of the tile's columns */
static void differentiate(backward_tile *tile) {
  const tigon_lce_problem *p = &tile->plan->problem;
  if (tile->column + tile->n <= p->saved_columns) {
    tigon_parallel(p->threads, tigon_ceil_div(p->loss.kept_count, SAVED_ROWS), differentiate_saved, tile);
    return;
  }
  tigon_gemm logits = tigon_lce_logits(p, 0, p->loss.kept_count, tile->column, tile->n);
  logits.epilogue = differentiate_tile;
  logits.context = tile;
  tigon_gemm_run(p->threads, &logits, 1, p->scratch);
}

/* to[j] = (first ? 0 : sum[j]) + from[j], rounded to the kind */
static void add_row(char *to, tigon_kind kind, const float *sum, bool first, const float *from, int64_t n) {
  int64_t j = 0;
  for (; j + VF_LANES <= n; j += VF_LANES)
    vf_store_as(to, kind, j, first ? vf_load(from + j) : vf_load(sum + j) + vf_load(from + j));
  for (; j < n; j++) tigon_store(to, kind, j, first ? from[j] : sum[j] + from[j]);
}

/* Epilogue of dz W_tile: the sums stay in fp32 until the last tile rounds them into dx. */
static void add_dx_tile(void *context, int slot, int64_t m0, int64_t n0, int64_t m, int64_t n, float *tile,
                        int64_t ld) {
  (void)slot;
  const backward_tile *t = context;
  const tigon_lce_backward_plan *plan = t->plan;
  const tigon_lce_problem *p = &plan->problem;
  const bool first = t->column == 0, last = t->column + t->n == p->vocabulary;
  const int64_t element = tigon_kind_bytes(plan->dx.kind);
  for (int64_t i = 0; i < m; i++) {
    char *dx = tigon_at(&plan->dx, p->loss.kept[m0 + i]) + n0 * element;
    float *sum = plan->dx_sum ? plan->dx_sum + (m0 + i) * p->width + n0 : (float *)(void *)dx;
    if (last)
      add_row(dx, plan->dx.kind, sum, first, tile + i * ld, n);
    else
      add_row((char *)sum, TIGON_F32, sum, first, tile + i * ld, n);
  }
}

enum { BIAS_COLUMNS = 4 * VF_LANES, BIAS_ROWS = 128 };

/* Column sums of dz: blocks of rows first, so that rounding errors do not pile up over many tokens. */
static void sum_columns(void *context, int64_t chunk, int slot) {
  (void)slot;
  const backward_tile *t = context;
  const tigon_lce_backward_plan *plan = t->plan;
  const int64_t j0 = chunk * BIAS_COLUMNS, rows = plan->problem.loss.kept_count;
  const int64_t n = t->n - j0 < BIAS_COLUMNS ? t->n - j0 : BIAS_COLUMNS;
  float total[BIAS_COLUMNS] = {0};
  for (int64_t begin = 0; begin < rows; begin += BIAS_ROWS) {
    const int64_t end = begin + BIAS_ROWS < rows ? begin + BIAS_ROWS : rows;
    float part[BIAS_COLUMNS] = {0};
    for (int64_t i = begin; i < end; i++) {
      float dz[BIAS_COLUMNS] = {0};
      tigon_load_row(dz, dz_at(plan, i, j0), plan->dz_kind, n);
      for (int64_t j = 0; j < n; j++) part[j] += dz[j];
    }
    for (int64_t j = 0; j < n; j++) total[j] += part[j];
  }
  char *to = tigon_at(&plan->dbias, t->column + j0);
  for (int64_t j = 0; plan->accumulate && j < n; j++) total[j] += tigon_load(to, plan->dbias.kind, j);
  tigon_store_row(to, plan->dbias.kind, total, n);
}

static tigon_gemm dweight_product(backward_tile *tile, tigon_gemm_store *store) {
  const tigon_lce_backward_plan *plan = tile->plan;
  const tigon_lce_problem *p = &plan->problem;
  *store = (tigon_gemm_store){.data = tigon_at(&plan->dweight, tile->column),
                              .kind = plan->dweight.kind,
                              .stride = plan->dweight.stride[0],
                              .alpha = 1.0f,
                              .accumulate = plan->accumulate};
  tigon_gemm product = {.m = tile->n, .n = p->width, .k = p->loss.kept_count};
  product.a = (tigon_matrix){.data = plan->dz, .kind = plan->dz_kind, .stride = plan->tile, .transposed = true};
  product.b = tigon_lce_operand(&p->x, 0, true);
  product.b.gather = p->loss.kept_count == p->loss.tokens ? NULL : p->loss.kept;
  product.epilogue = TIGON_ISA_FN(tigon_gemm_store_tile);
  product.context = store;
  return product;
}

static tigon_gemm dx_product(backward_tile *tile) {
  const tigon_lce_backward_plan *plan = tile->plan;
  const tigon_lce_problem *p = &plan->problem;
  tigon_gemm product = {.m = p->loss.kept_count, .n = p->width, .k = tile->n};
  product.a = (tigon_matrix){.data = plan->dz, .kind = plan->dz_kind, .stride = plan->tile};
  product.b = tigon_lce_operand(&p->weight, tile->column, true);
  product.epilogue = add_dx_tile;
  product.context = tile;
  return product;
}

static void run_tile(backward_tile *tile) {
  const tigon_lce_backward_plan *plan = tile->plan;
  const tigon_lce_problem *p = &plan->problem;
  differentiate(tile);
  tigon_gemm products[2];
  tigon_gemm_store store;
  int64_t count = 0;
  if (tigon_present(&plan->dweight)) products[count++] = dweight_product(tile, &store);
  if (tigon_present(&plan->dx)) products[count++] = dx_product(tile);
  if (count > 0 && p->width > 0) tigon_gemm_run(p->threads, products, count, p->scratch);
  if (tigon_present(&plan->dbias)) tigon_parallel(p->threads, tigon_ceil_div(tile->n, BIAS_COLUMNS), sum_columns, tile);
}

void TIGON_ISA_FN(tigon_lce_backward)(const tigon_lce_backward_plan *plan) {
  const int64_t vocabulary = plan->problem.vocabulary;
  prepare_rows(plan);
  for (int64_t column = 0; column < vocabulary; column += plan->tile) {
    backward_tile tile = {plan, column, vocabulary - column < plan->tile ? vocabulary - column : plan->tile};
    run_tile(&tile);
  }
}
