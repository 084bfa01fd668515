#include "base/block_gemm.h"

#include "base/transpose.h"

/* Tile heights that fit 64 and 128 rows nearly without remainder. */
#if defined(__AVX512F__)
enum { MR = 13, NV = 2 }; /* 26 accumulators of 32 registers */
#elif defined(__aarch64__)
enum { MR = 8, NV = 2 }; /* 16 of 32 */
#else
enum { MR = 6, NV = 2 }; /* 12 of 16 */
#endif
enum { NR = NV * VF_LANES };
_Static_assert((int)MR <= (int)TIGON_BLOCK_M && (int)TIGON_BLOCK_N % (int)NR == 0, "tiles stay within the padding");

#define INLINE static inline __attribute__((always_inline))

INLINE void add_product(int rows, vf sum[MR][NV], const float *a, const float *b) {
  vf column[NV];
#pragma GCC unroll 2
  for (int v = 0; v < NV; v++) column[v] = vf_load(b + v * VF_LANES);
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++) {
    const vf row = vf_set(a[r]);
#pragma GCC unroll 2
    for (int v = 0; v < NV; v++) sum[r][v] = vf_fma(row, column[v], sum[r][v]);
  }
}

/* Products of k = 0 .. k, and a prefetch of lines[k / FETCH_EVERY] now and then: spread, since a burst would wait. */
enum { FETCH_EVERY = 2, MAX_LINES = 64 };
INLINE void add_products(int rows, vf sum[MR][NV], const tigon_block_term *term, int64_t k, int64_t i, int64_t j,
                         const char *const *lines, int64_t line_count) {
  if (k == 0) return; /* an absent term has no operands to point into */
  const float *a = term->a + i, *b = term->b + j;
  const int64_t lda = term->lda, ldb = term->ldb;
  int64_t p = 0;
  for (; p < line_count; p++) {
    __builtin_prefetch(lines[p], 0, 2);
#pragma GCC unroll 2
    for (int step = 0; step < FETCH_EVERY; step++, a += lda, b += ldb) add_product(rows, sum, a, b);
  }
  for (p *= FETCH_EVERY; p < k; p++, a += lda, b += ldb) add_product(rows, sum, a, b);
}

/* The next lines of the list, at most most. */
static int64_t take_lines(tigon_block_ahead *ahead, int64_t most, const char **lines) {
  enum { LINE = 64 };
  if (most > MAX_LINES) most = MAX_LINES;
  int64_t n = 0;
  while (n < most && ahead->current < ahead->areas) {
    const int at = ahead->current;
    lines[n++] = ahead->area[at].row + ahead->area[at].column;
    ahead->area[at].column += LINE;
    if (ahead->area[at].column < ahead->area[at].row_bytes) continue;
    ahead->area[at].column = 0;
    ahead->area[at].row += ahead->area[at].stride;
    if (--ahead->area[at].rows <= 0) ahead->current++;
  }
  return n;
}

/* Rows i .. i + rows, columns j .. j + NR of c; the second term's sum ends before k_end. */
INLINE void tile(int rows, const tigon_block_gemm *g, int64_t i, int64_t j, int64_t k_end) {
  vf sum[MR][NV];
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
    for (int v = 0; v < NV; v++) sum[r][v] = vf_set(0.0f);
  const char *lines[MAX_LINES];
  const int64_t line_count = g->ahead ? take_lines(g->ahead, g->first.k / FETCH_EVERY, lines) : 0;
  add_products(rows, sum, &g->first, g->first.k, i, j, lines, line_count);
  if (g->row_scale) {
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
      for (int v = 0; v < NV; v++) sum[r][v] *= vf_set(g->row_scale[i + r]);
  }
  add_products(rows, sum, &g->second, k_end, i, j, lines, 0);
  float *c = g->c + i * g->ldc + j;
  const vf c_scale = vf_set(g->c_scale);
  if (g->accumulate) {
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
      for (int v = 0; v < NV; v++) sum[r][v] = vf_fma(c_scale, vf_load(c + r * g->ldc + v * VF_LANES), sum[r][v]);
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
    for (int v = 0; v < NV; v++) vf_store(c + r * g->ldc + v * VF_LANES, sum[r][v]);
}

static void tile_whole(const tigon_block_gemm *g, int64_t i, int64_t j, int64_t k_end) { tile(MR, g, i, j, k_end); }
static void tile_row(const tigon_block_gemm *g, int64_t i, int64_t j, int64_t k_end) { tile(1, g, i, j, k_end); }

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

void TIGON_ISA_FN(tigon_block_gemm_run)(const tigon_block_gemm *g) {
  for (int64_t j = 0; j < g->n; j += NR) {
    if (g->shape == TIGON_BLOCK_CAUSAL_EXACT) {
      for (int64_t i = 0; i < g->m; i++) tile_row(g, i, j, least(g->second.k, i + 1));
      continue;
    }
    for (int64_t i = 0; i < g->m; i += MR) {
      if (g->shape == TIGON_BLOCK_UPPER && j + NR <= i) break;
      tile_whole(g, i, j, g->shape == TIGON_BLOCK_CAUSAL ? least(g->second.k, i + MR) : g->second.k);
    }
  }
}

/* A square block of at most VF_LANES x VF_LANES elements. */
INLINE void transpose_block(float *to, int64_t to_stride, const char *from, tigon_kind kind, int64_t row_bytes,
                            int64_t rows, int64_t columns) {
  vf v[VF_LANES];
  if (rows == VF_LANES && columns == VF_LANES) {
#pragma GCC unroll 16
    for (int r = 0; r < VF_LANES; r++) v[r] = vf_load_as(from + r * row_bytes, kind, 0);
    vf_transpose(v);
#pragma GCC unroll 16
    for (int c = 0; c < VF_LANES; c++) vf_store(to + c * to_stride, v[c]);
    return;
  }
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < columns; c++) to[c * to_stride + r] = tigon_load(from + r * row_bytes, kind, c);
}

INLINE void transpose_kind(float *to, int64_t to_stride, const char *from, tigon_kind kind, int64_t from_stride,
                           int64_t rows, int64_t columns) {
  const int64_t bytes = tigon_kind_bytes(kind);
  for (int64_t r = 0; r < rows; r += VF_LANES)
    for (int64_t c = 0; c < columns; c += VF_LANES)
      transpose_block(to + c * to_stride + r, to_stride, from + (r * from_stride + c) * bytes, kind,
                      from_stride * bytes, least(rows - r, VF_LANES), least(columns - c, VF_LANES));
}

void TIGON_ISA_FN(tigon_block_transpose)(float *to, int64_t to_stride, const void *from, tigon_kind kind,
                                         int64_t from_stride, int64_t rows, int64_t columns) {
  switch (kind) { /* a constant in each call, so that the loops inside are free of branches */
  case TIGON_BF16:
    transpose_kind(to, to_stride, from, TIGON_BF16, from_stride, rows, columns);
    break;
  case TIGON_F16:
    transpose_kind(to, to_stride, from, TIGON_F16, from_stride, rows, columns);
    break;
  default:
    transpose_kind(to, to_stride, from, TIGON_F32, from_stride, rows, columns);
    break;
  }
}
