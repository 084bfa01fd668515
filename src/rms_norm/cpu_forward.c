/*
 * RMSNorm forward on the CPU: each row is read once for its sum of squares and once more, from the cache, to be scaled.
 * With a residual the first pass stores the rounded sum, which the second reads back. Bound by memory: x in, out out.
 */
#include <math.h>

#include "base/integer.h"
#include "base/pool.h"
#include "rms_norm/rows.h"

typedef struct kinds {
  tigon_kind x, residual, sum, xhat, weight, out; /* xhat: what it is rounded to before the weight */
} kinds;

typedef struct row_data {
  const char *x, *residual, *next; /* next: x's following row */
  char *sum, *out;
} row_data;

/* The elements to normalise, stored on the way where there is a residual. */
INLINE vf take_lanes(row_data row, kinds k, bool residual, int64_t i, int64_t n) {
  const vf x = load_lanes(row.x, k.x, i, n);
  if (!residual) return x;
  const vf sum = vf_round_to(k.sum, x + load_lanes(row.residual, k.residual, i, n));
  store_lanes(row.sum, k.sum, i, n, sum);
  return sum;
}

INLINE double sum_of_squares(row_data row, kinds k, bool residual, int64_t width) {
  double total = 0;
  for (int64_t begin = 0; begin < width; begin += SUM_BLOCK) {
    const int64_t end = width - begin < SUM_BLOCK ? width : begin + SUM_BLOCK;
    vf sum[SUM_VECTORS] = {{0}};
    int64_t i = begin;
    for (; i + SUM_STEP <= end; i += SUM_STEP)
#pragma GCC unroll 4
      for (int u = 0; u < SUM_VECTORS; u++) {
        const vf s = take_lanes(row, k, residual, i + u * VF_LANES, VF_LANES);
        sum[u] = vf_fma(s, s, sum[u]);
      }
    for (; i + VF_LANES <= end; i += VF_LANES) {
      const vf s = take_lanes(row, k, residual, i, VF_LANES);
      sum[0] = vf_fma(s, s, sum[0]);
    }
    if (i < end) {
      const vf s = take_lanes(row, k, residual, i, end - i);
      sum[1] = vf_fma(s, s, sum[1]);
    }
    total += (double)vf_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
  }
  return total;
}

/* out for elements i .. i + n; factor: offset + weight. */
INLINE void scale_lanes(row_data row, kinds k, bool residual, bool stream, factor_data factor, vf rstd, int64_t i,
                        int64_t n) {
  const vf s = residual ? load_lanes(row.sum, k.sum, i, n) : load_lanes(row.x, k.x, i, n);
  const vf out = vf_round_to(k.xhat, s * rstd) * factor_lanes(factor, k.weight, i, n);
  output_lanes(row.out, k.out, stream, i, n, out);
}

INLINE void scale_row(row_data row, kinds k, bool residual, bool stream, factor_data factor, float rstd,
                      int64_t width) {
  int64_t i = 0;
  for (; i + VF_LANES <= width; i += VF_LANES) {
    prefetch_lanes(row.next, k.x, i);
    scale_lanes(row, k, residual, stream, factor, vf_set(rstd), i, VF_LANES);
  }
  if (i < width) scale_lanes(row, k, residual, stream, factor, vf_set(rstd), i, width - i);
}

INLINE void normalize_row(const rms_norm_forward *f, kinds k, bool residual, bool stream, int64_t r) {
  const row_index index = row_at(&f->shape, r);
  const row_index following = row_at(&f->shape, r + 1 < f->shape.rows ? r + 1 : r);
  const row_data row = {.x = row_of(&f->x, index),
                        .next = row_of(&f->x, following),
                        .residual = row_of(&f->residual, index),
                        .sum = row_of(&f->sum, index),
                        .out = row_of(&f->out, index)};
  const factor_data factor = {f->weight.data, vf_set(f->offset)};
  const int64_t width = f->shape.width;
  const double mean = sum_of_squares(row, k, residual, width) / (double)width;
  const float rstd = (float)(1.0 / sqrt(mean + (double)f->eps));
  if (f->rstd.data) memcpy(row_of(&f->rstd, index), &rstd, sizeof rstd);
  if (stream)
    scale_row(row, k, residual, true, factor, rstd, width);
  else
    scale_row(row, k, residual, false, factor, rstd, width);
}

INLINE void normalize_rows(const rms_norm_forward *f, kinds k, int64_t begin, int64_t end) {
  const bool stream = may_stream(&f->out, &f->shape);
  if (f->sum.data)
    for (int64_t r = begin; r < end; r++) normalize_row(f, k, true, stream, r);
  else
    for (int64_t r = begin; r < end; r++) normalize_row(f, k, false, stream, r);
  if (stream) vf_stream_end();
}

/* All tensors of one kind, except that weight and xhat may be fp32: every kind is a constant in the loops. */
INLINE void normalize_uniform(const rms_norm_forward *f, tigon_kind kind, int64_t begin, int64_t end) {
  const tigon_kind f32 = TIGON_F32;
  if (f->weight.kind == kind && f->xhat_kind == kind)
    normalize_rows(f, (kinds){kind, kind, kind, kind, kind, kind}, begin, end);
  else if (f->weight.kind == kind)
    normalize_rows(f, (kinds){kind, kind, kind, f32, kind, kind}, begin, end);
  else if (f->xhat_kind == kind)
    normalize_rows(f, (kinds){kind, kind, kind, kind, f32, kind}, begin, end);
  else
    normalize_rows(f, (kinds){kind, kind, kind, f32, f32, kind}, begin, end);
}

static void bf16_rows(const rms_norm_forward *f, int64_t begin, int64_t end) {
  normalize_uniform(f, TIGON_BF16, begin, end);
}
static void f16_rows(const rms_norm_forward *f, int64_t begin, int64_t end) {
  normalize_uniform(f, TIGON_F16, begin, end);
}
static void f32_rows(const rms_norm_forward *f, int64_t begin, int64_t end) {
  normalize_rows(f, (kinds){TIGON_F32, TIGON_F32, TIGON_F32, TIGON_F32, TIGON_F32, TIGON_F32}, begin, end);
}
static void mixed_rows(const rms_norm_forward *f, int64_t begin, int64_t end) {
  const kinds k = {f->x.kind, f->residual.kind, f->sum.kind, f->xhat_kind, f->weight.kind, f->out.kind};
  normalize_rows(f, k, begin, end);
}

static bool is_or_absent(const rms_norm_tensor *tensor, tigon_kind kind) {
  return !tensor->data || tensor->kind == kind;
}

typedef void (*rows_function)(const rms_norm_forward *f, int64_t begin, int64_t end);

static rows_function choose_rows(const rms_norm_forward *f) {
  const tigon_kind kind = f->x.kind;
  if (f->out.kind != kind || !is_or_absent(&f->residual, kind) || !is_or_absent(&f->sum, kind)) return mixed_rows;
  if (!is_or_absent(&f->weight, kind) && f->weight.kind != TIGON_F32) return mixed_rows;
  return kind == TIGON_BF16 ? bf16_rows : kind == TIGON_F16 ? f16_rows : f32_rows;
}

typedef struct run {
  const rms_norm_forward *f;
  rows_function rows;
  int64_t rows_per_chunk;
} run;

static void run_chunk(void *context, int64_t chunk, int slot) {
  (void)slot;
  const run *r = context;
  const int64_t begin = chunk * r->rows_per_chunk, rest = r->f->shape.rows - begin;
  r->rows(r->f, begin, begin + (rest < r->rows_per_chunk ? rest : r->rows_per_chunk));
}

void TIGON_ISA_FN(tigon_rms_norm_forward)(const rms_norm_forward *forward) {
  /* Small inputs stay on one thread: starting others costs more than CHUNK_ELEMENTS elements. */
  enum { CHUNK_ELEMENTS = 1 << 15 };
  const int64_t width = forward->shape.width;
  run r = {.f = forward, .rows = choose_rows(forward)};
  r.rows_per_chunk = width < CHUNK_ELEMENTS ? CHUNK_ELEMENTS / (width + 1) + 1 : 1;
  const int64_t chunks = tigon_ceil_div(forward->shape.rows, r.rows_per_chunk);
  tigon_parallel(forward->threads, chunks, run_chunk, &r);
}
