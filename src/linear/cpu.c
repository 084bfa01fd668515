/* Projection of a few tokens without packing the weight (bound by reading it), and the bias gradient. */
#include "base/integer.h"
#include "base/pool.h"
#include "base/vec.h"
#include "linear/backend.h"

#define INLINE static inline __attribute__((always_inline))

enum { ROWS = 4, SUMS = 2, STEP = SUMS * VF_LANES };

/* sums[r] = dot of x with weight row r. */
INLINE void dot_rows(int rows, const char *x, tigon_kind x_kind, const char *const *weight, tigon_kind kind, int64_t d,
                     float *sums) {
  vf sum[ROWS][SUMS] = {{{0}}};
  int64_t k = 0;
  for (; k + STEP <= d; k += STEP)
#pragma GCC unroll 2
    for (int u = 0; u < SUMS; u++) {
      const vf column = vf_load_as(x, x_kind, k + u * VF_LANES);
#pragma GCC unroll 4
      for (int r = 0; r < rows; r++)
        sum[r][u] = vf_fma(column, vf_load_as(weight[r], kind, k + u * VF_LANES), sum[r][u]);
    }
  for (; k < d; k += VF_LANES) {
    const int64_t n = d - k;
    const vf column = n >= VF_LANES ? vf_load_as(x, x_kind, k) : vf_load_part(x, x_kind, k, n);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
      const vf w = n >= VF_LANES ? vf_load_as(weight[r], kind, k) : vf_load_part(weight[r], kind, k, n);
      sum[r][0] = vf_fma(column, w, sum[r][0]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < rows; r++) sums[r] = vf_sum(sum[r][0] + sum[r][1]);
}

INLINE void project(const linear_rows *p, int rows, int64_t n, tigon_kind x_kind, tigon_kind kind) {
  const char *weight[ROWS];
  for (int r = 0; r < rows; r++) weight[r] = tigon_at(&p->weight, n + r);
  for (int64_t t = 0; t < p->x.shape[0]; t++) {
    float sums[ROWS];
    dot_rows(rows, tigon_at(&p->x, t), x_kind, weight, kind, p->x.shape[1], sums);
    for (int r = 0; r < rows; r++) {
      if (tigon_present(&p->bias)) sums[r] += tigon_load(p->bias.data, p->bias.kind, n + r);
      tigon_store(tigon_at(&p->y, t), p->y.kind, n + r, sums[r]);
    }
  }
}

INLINE void project_range(const linear_rows *p, int64_t begin, int64_t end, tigon_kind x_kind, tigon_kind kind) {
  int64_t n = begin;
  for (; n + ROWS <= end; n += ROWS) project(p, ROWS, n, x_kind, kind);
  for (; n < end; n++) project(p, 1, n, x_kind, kind);
}

static void project_f32(const linear_rows *p, int64_t begin, int64_t end) {
  project_range(p, begin, end, TIGON_F32, TIGON_F32);
}
static void project_bf16(const linear_rows *p, int64_t begin, int64_t end) {
  project_range(p, begin, end, TIGON_BF16, TIGON_BF16);
}
static void project_f16(const linear_rows *p, int64_t begin, int64_t end) {
  project_range(p, begin, end, TIGON_F16, TIGON_F16);
}
static void project_mixed(const linear_rows *p, int64_t begin, int64_t end) {
  project_range(p, begin, end, p->x.kind, p->weight.kind);
}

typedef struct run {
  const linear_rows *p;
  int64_t rows_per_chunk;
} run;

static void project_chunk(void *context, int64_t chunk, int slot) {
  (void)slot;
  const run *r = context;
  const linear_rows *p = r->p;
  const int64_t begin = chunk * r->rows_per_chunk, n = p->weight.shape[0];
  const int64_t end = n - begin < r->rows_per_chunk ? n : begin + r->rows_per_chunk;
  if (p->x.kind != p->weight.kind)
    project_mixed(p, begin, end);
  else if (p->x.kind == TIGON_F32)
    project_f32(p, begin, end);
  else if (p->x.kind == TIGON_BF16)
    project_bf16(p, begin, end);
  else
    project_f16(p, begin, end);
}

void TIGON_ISA_FN(tigon_linear_rows)(const linear_rows *rows) {
  /* Small weights stay on one thread: starting others costs more than CHUNK_ELEMENTS elements. */
  enum { CHUNK_ELEMENTS = 1 << 16 };
  const int64_t d = rows->weight.shape[1], n = rows->weight.shape[0];
  run r = {.p = rows, .rows_per_chunk = ROWS};
  if (d < CHUNK_ELEMENTS / ROWS) r.rows_per_chunk = CHUNK_ELEMENTS / (d + 1) / ROWS * ROWS + ROWS;
  tigon_parallel(rows->threads, n / r.rows_per_chunk + (n % r.rows_per_chunk != 0), project_chunk, &r);
}

enum { COLUMNS = 64, COLUMN_VECTORS = COLUMNS / VF_LANES, TOKEN_BLOCK = 32 };

/* sum += dy[t][n .. n + count) over a block of tokens */
static void sum_tokens(const tigon_view *dy, int64_t n, int64_t count, int64_t begin, int64_t end, vf *sum) {
  for (int64_t t = begin; t < end; t++) {
    const char *row = tigon_at(dy, t);
    for (int v = 0; v < COLUMN_VECTORS && v * VF_LANES < count; v++) {
      const int64_t rest = count - v * VF_LANES;
      sum[v] += rest >= VF_LANES ? vf_load_as(row, dy->kind, n + v * VF_LANES)
                                 : vf_load_part(row, dy->kind, n + v * VF_LANES, rest);
    }
  }
}

static void sum_columns(void *context, int64_t chunk, int slot) {
  (void)slot;
  const linear_bias_gradient *g = context;
  const int64_t n = chunk * COLUMNS, rest = g->dbias.shape[0] - n, tokens = g->dy.shape[0];
  const int64_t count = rest < COLUMNS ? rest : COLUMNS;
  vf total[COLUMN_VECTORS] = {{0}};
  for (int64_t t = 0; t < tokens; t += TOKEN_BLOCK) {
    vf sum[COLUMN_VECTORS] = {{0}};
    sum_tokens(&g->dy, n, count, t, tokens - t < TOKEN_BLOCK ? tokens : t + TOKEN_BLOCK, sum);
    for (int v = 0; v < COLUMN_VECTORS; v++) total[v] += sum[v];
  }
  for (int v = 0; v < COLUMN_VECTORS && v * VF_LANES < count; v++) {
    const int64_t i = n + v * VF_LANES, part = count - v * VF_LANES;
    if (g->accumulate) total[v] += vf_load_part(g->dbias.data, g->dbias.kind, i, part);
    vf_store_part(g->dbias.data, g->dbias.kind, i, part, total[v]);
  }
}

void TIGON_ISA_FN(tigon_linear_bias_gradient)(const linear_bias_gradient *gradient) {
  linear_bias_gradient g = *gradient;
  tigon_parallel(g.threads, tigon_ceil_div(g.dbias.shape[0], COLUMNS), sum_columns, &g);
}
