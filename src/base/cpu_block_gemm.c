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

INLINE void add_products(int rows, vf sum[MR][NV], const tigon_block_term *term, int64_t k, int64_t i, int64_t j) {
  const float *a = term->a + i, *b = term->b + j;
  const int64_t lda = term->lda, ldb = term->ldb;
  for (int64_t p = 0; p < k; p++, a += lda, b += ldb) {
    vf column[NV];
#pragma GCC unroll 2
    for (int v = 0; v < NV; v++) column[v] = vf_load(b + v * VF_LANES);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
      const vf row = vf_set(a[r]);
#pragma GCC unroll 2
      for (int v = 0; v < NV; v++) sum[r][v] += row * column[v];
    }
  }
}

/* Rows i .. i + rows, columns j .. j + NR of c; the second term's sum ends before k_end. */
INLINE void tile(int rows, const tigon_block_gemm *g, int64_t i, int64_t j, int64_t k_end) {
  vf sum[MR][NV];
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
    for (int v = 0; v < NV; v++) sum[r][v] = vf_set(0.0f);
  add_products(rows, sum, &g->first, g->first.k, i, j);
  if (g->row_scale) {
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
      for (int v = 0; v < NV; v++) sum[r][v] *= vf_set(g->row_scale[i + r]);
  }
  add_products(rows, sum, &g->second, k_end, i, j);
  float *c = g->c + i * g->ldc + j;
  const vf c_scale = vf_set(g->c_scale);
  if (g->accumulate) {
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
      for (int v = 0; v < NV; v++) sum[r][v] += c_scale * vf_load(c + r * g->ldc + v * VF_LANES);
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
    for (int v = 0; v < NV; v++) vf_store(c + r * g->ldc + v * VF_LANES, sum[r][v]);
}

static void tile_whole(const tigon_block_gemm *g, int64_t i, int64_t j, int64_t k_end) { tile(MR, g, i, j, k_end); }
static void tile_row(const tigon_block_gemm *g, int64_t i, int64_t j, int64_t k_end) { tile(1, g, i, j, k_end); }

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* About as many lines as memory delivers during a tile. */
static void fetch_ahead(tigon_block_ahead *ahead) {
  enum { LINES = 32, LINE = 64 };
  for (int64_t lines = 0; lines < LINES && ahead->current < ahead->areas;) {
    const int at = ahead->current;
    if (ahead->area[at].rows-- <= 0) {
      ahead->current++;
      continue;
    }
    const char *row = ahead->area[at].row;
    for (int64_t i = 0; i < ahead->area[at].row_bytes; i += LINE, lines++) __builtin_prefetch(row + i, 0, 2);
    ahead->area[at].row += ahead->area[at].stride;
  }
}

void TIGON_ISA_FN(tigon_block_gemm_run)(const tigon_block_gemm *g) {
  for (int64_t j = 0; j < g->n; j += NR) {
    if (g->shape == TIGON_BLOCK_CAUSAL_EXACT) {
      for (int64_t i = 0; i < g->m; i++) tile_row(g, i, j, least(g->second.k, i + 1));
      continue;
    }
    for (int64_t i = 0; i < g->m; i += MR) {
      if (g->shape == TIGON_BLOCK_UPPER && j + NR <= i) break;
      if (g->ahead) fetch_ahead(g->ahead);
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
