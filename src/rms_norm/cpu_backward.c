/*
 * RMSNorm backward on the CPU. Each row is read once for mean(m xhat), with d_weight summed on the way, and once more,
 * from the cache, for ds. d_weight: every chunk of rows sums into its own fp32 row of the workspace; the rows are then
 * added in order, so that the bits do not depend on threads. Bound by memory: x and dy in, dx out.
 */
#include "base/integer.h"
#include "base/pool.h"
#include "rms_norm/rows.h"

typedef struct kinds {
  tigon_kind dy, d_sum, x, xhat, weight, dx, d_residual;
} kinds;

typedef struct row_data {
  const char *dy, *d_sum, *x, *next_dy, *next_x;
  char *dx, *d_residual;
  float *d_weight; /* this chunk's sum */
  factor_data factor;
  float rstd;
} row_data;

/* dy (offset + weight) xhat; adds to d_weight. */
INLINE vf reduce_lanes(row_data row, kinds k, int64_t i, int64_t n) {
  const vf dy = load_lanes(row.dy, k.dy, i, n);
  const vf xhat = load_lanes(row.x, k.x, i, n) * vf_set(row.rstd);
  if (row.d_weight) {
    char *d_weight = (char *)row.d_weight;
    const vf sum = vf_fma(dy, vf_round_to(k.xhat, xhat), load_lanes(d_weight, TIGON_F32, i, n));
    store_lanes(d_weight, TIGON_F32, i, n, sum);
  }
  return dy * xhat * factor_lanes(row.factor, k.weight, i, n);
}

INLINE double reduce_row(row_data row, kinds k, int64_t width) {
  double total = 0;
  for (int64_t begin = 0; begin < width; begin += SUM_BLOCK) {
    const int64_t end = width - begin < SUM_BLOCK ? width : begin + SUM_BLOCK;
    vf sum[SUM_VECTORS] = {{0}};
    int64_t i = begin;
    for (; i + SUM_STEP <= end; i += SUM_STEP)
#pragma GCC unroll 4
      for (int u = 0; u < SUM_VECTORS; u++) sum[u] += reduce_lanes(row, k, i + u * VF_LANES, VF_LANES);
    for (; i + VF_LANES <= end; i += VF_LANES) sum[0] += reduce_lanes(row, k, i, VF_LANES);
    if (i < end) sum[1] += reduce_lanes(row, k, i, end - i);
    total += (double)vf_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
  }
  return total;
}

/* ds = rstd m - x rstd (rstd mean) + d_sum */
INLINE void gradient_lanes(row_data row, kinds k, bool stream, float mean, int64_t i, int64_t n) {
  vf ds = vf_set(0.0f);
  if (row.dy) {
    const vf m = load_lanes(row.dy, k.dy, i, n) * factor_lanes(row.factor, k.weight, i, n);
    ds = vf_fma(load_lanes(row.x, k.x, i, n), vf_set(-(row.rstd * (row.rstd * mean))), vf_set(row.rstd) * m);
  }
  if (row.d_sum) ds += load_lanes(row.d_sum, k.d_sum, i, n);
  if (row.dx) output_lanes(row.dx, k.dx, stream, i, n, ds);
  if (row.d_residual) store_lanes(row.d_residual, k.d_residual, i, n, ds);
}

INLINE void gradient_row(row_data row, kinds k, bool stream, float mean, int64_t width) {
  int64_t i = 0;
  for (; i + VF_LANES <= width; i += VF_LANES) {
    prefetch_lanes(row.next_x, k.x, i);
    if (row.dy) prefetch_lanes(row.next_dy, k.dy, i);
    gradient_lanes(row, k, stream, mean, i, VF_LANES);
  }
  if (i < width) gradient_lanes(row, k, stream, mean, i, width - i);
}

INLINE void differentiate_row(const rms_norm_backward *b, kinds k, bool stream, int64_t r, float *d_weight) {
  const row_index index = row_at(&b->shape, r);
  const row_index following = row_at(&b->shape, r + 1 < b->shape.rows ? r + 1 : r);
  row_data row = {.dy = row_of(&b->dy, index),
                  .next_dy = row_of(&b->dy, following),
                  .next_x = row_of(&b->x, following),
                  .d_sum = row_of(&b->d_sum, index),
                  .x = row_of(&b->x, index),
                  .dx = row_of(&b->dx, index),
                  .d_residual = row_of(&b->d_residual, index),
                  .d_weight = d_weight,
                  .factor = {b->weight.data, vf_set(b->offset)}};
  memcpy(&row.rstd, row_of(&b->rstd, index), sizeof row.rstd);
  const int64_t width = b->shape.width;
  const float mean = row.dy ? (float)(reduce_row(row, k, width) / (double)width) : 0.0f;
  if (!row.dx && !row.d_residual) return;
  if (stream)
    gradient_row(row, k, true, mean, width);
  else
    gradient_row(row, k, false, mean, width);
}

INLINE void differentiate_rows(const rms_norm_backward *b, kinds k, int64_t begin, int64_t end, float *d_weight) {
  const bool stream = b->dx.data && may_stream(&b->dx, &b->shape);
  for (int64_t r = begin; r < end; r++) differentiate_row(b, k, stream, r, d_weight);
  if (stream) vf_stream_end();
}

/* All tensors of one kind, except that weight and xhat may be fp32: every kind is a constant in the loops. */
INLINE void differentiate_uniform(const rms_norm_backward *b, tigon_kind kind, int64_t begin, int64_t end,
                                  float *d_weight) {
  const tigon_kind f32 = TIGON_F32;
  if (b->weight.kind == kind && b->xhat_kind == kind)
    differentiate_rows(b, (kinds){kind, kind, kind, kind, kind, kind, kind}, begin, end, d_weight);
  else if (b->weight.kind == kind)
    differentiate_rows(b, (kinds){kind, kind, kind, f32, kind, kind, kind}, begin, end, d_weight);
  else if (b->xhat_kind == kind)
    differentiate_rows(b, (kinds){kind, kind, kind, kind, f32, kind, kind}, begin, end, d_weight);
  else
    differentiate_rows(b, (kinds){kind, kind, kind, f32, f32, kind, kind}, begin, end, d_weight);
}

static void bf16_rows(const rms_norm_backward *b, int64_t begin, int64_t end, float *d_weight) {
  differentiate_uniform(b, TIGON_BF16, begin, end, d_weight);
}
static void f16_rows(const rms_norm_backward *b, int64_t begin, int64_t end, float *d_weight) {
  differentiate_uniform(b, TIGON_F16, begin, end, d_weight);
}
static void f32_rows(const rms_norm_backward *b, int64_t begin, int64_t end, float *d_weight) {
  const tigon_kind f32 = TIGON_F32;
  differentiate_rows(b, (kinds){f32, f32, f32, f32, f32, f32, f32}, begin, end, d_weight);
}
static void mixed_rows(const rms_norm_backward *b, int64_t begin, int64_t end, float *d_weight) {
  const kinds k = {b->dy.kind, b->d_sum.kind, b->x.kind, b->xhat_kind, b->weight.kind, b->dx.kind, b->d_residual.kind};
  differentiate_rows(b, k, begin, end, d_weight);
}

static bool is_or_absent(const rms_norm_tensor *tensor, tigon_kind kind) {
  return !tensor->data || tensor->kind == kind;
}

typedef void (*rows_function)(const rms_norm_backward *b, int64_t begin, int64_t end, float *d_weight);

static rows_function choose_rows(const rms_norm_backward *b) {
  const tigon_kind kind = b->x.kind;
  if (!is_or_absent(&b->dy, kind) || !is_or_absent(&b->d_sum, kind)) return mixed_rows;
  if (!is_or_absent(&b->dx, kind) || !is_or_absent(&b->d_residual, kind)) return mixed_rows;
  if (!is_or_absent(&b->weight, kind) && b->weight.kind != TIGON_F32) return mixed_rows;
  if (b->xhat_kind != kind && b->xhat_kind != TIGON_F32) return mixed_rows;
  return kind == TIGON_BF16 ? bf16_rows : kind == TIGON_F16 ? f16_rows : f32_rows;
}

typedef struct run {
  const rms_norm_backward *b;
  rows_function rows;
} run;

static void run_chunk(void *context, int64_t chunk, int slot) {
  (void)slot;
  const run *r = context;
  const rms_norm_backward *b = r->b;
  const int64_t each = b->shape.rows / b->chunks, more = b->shape.rows % b->chunks, width = b->shape.width;
  const int64_t begin = chunk * each + (chunk < more ? chunk : more);
  float *d_weight = b->partials ? b->partials + chunk * width : NULL;
  if (d_weight) memset(d_weight, 0, (size_t)width * sizeof *d_weight);
  r->rows(b, begin, begin + each + (chunk < more), d_weight);
}

enum { COLUMNS = 1024 };

/* COLUMNS elements of d_weight, summed over the chunks. */
static void finish_columns(void *context, int64_t chunk, int slot) {
  (void)slot;
  const rms_norm_backward *b = context;
  const int64_t width = b->shape.width, end = (chunk + 1) * COLUMNS < width ? (chunk + 1) * COLUMNS : width;
  char *to = b->d_weight.data;
  const tigon_kind kind = b->d_weight.kind;
  for (int64_t i = chunk * COLUMNS; i < end; i += VF_LANES) {
    const int64_t n = end - i < VF_LANES ? end - i : VF_LANES;
    vf sum = vf_set(0.0f);
    for (int64_t c = 0; b->partials && c < b->chunks; c++)
      sum += load_lanes((const char *)(b->partials + c * width), TIGON_F32, i, n);
    if (b->accumulate_d_weight) sum += load_lanes(to, kind, i, n);
    store_lanes(to, kind, i, n, sum);
  }
}

void TIGON_ISA_FN(tigon_rms_norm_backward)(const rms_norm_backward *backward) {
  run r = {.b = backward, .rows = choose_rows(backward)};
  rms_norm_backward columns = *backward;
  tigon_parallel(backward->threads, backward->chunks, run_chunk, &r);
  if (backward->d_weight.data)
    tigon_parallel(backward->threads, tigon_ceil_div(backward->shape.width, COLUMNS), finish_columns, &columns);
}
