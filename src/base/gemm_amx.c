/*
 * The packed product's inner part for two bfloat16 operands, on the matrix unit (AMX): gemm_kernel.c's work, 16 x 16 x 32
 * an instruction. Operands are packed as blocks of 16 rows x 32 of k, 1 KiB each: of A a row's 32 numbers side by side, of B
 * pairs of k for 16 rows side by side. A panel is 32 rows: [k / 32][2][block].
 *
 * Products and sums are fp32; the unit takes subnormal numbers as zero.
 */
#include "base/gemm.h"

#if defined(__AMX_BF16__)
#include <immintrin.h>

#include "base/integer.h"
#include "base/transpose.h"

enum { SIDE = 16, DEPTH = 32, PANEL = 2 * SIDE, BLOCK_BYTES = SIDE * DEPTH * 2 };
enum { KC = TIGON_GEMM_AMX_K, BLOCK_M = TIGON_GEMM_BLOCK_M / PANEL * PANEL };

_Static_assert(KC % DEPTH == 0 && (int)TIGON_GEMM_M % PANEL == 0 && (int)TIGON_GEMM_N % PANEL == 0, "whole panels");
_Static_assert(KC * 2 <= (int)TIGON_GEMM_K * 4, "the packed blocks fit in the scratch of fp32 ones");

/* Tiles 0 to 3: the piece of C; 4 and 5: A; 6 and 7: B. */
static void configure(void) {
  struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  } config = {.palette = 1};
  _Static_assert(sizeof config == 64, "the unit reads 64 bytes");
  for (int i = 0; i < 8; i++) {
    config.row_bytes[i] = 64;
    config.rows[i] = SIDE;
  }
  _tile_loadconfig(&config);
}

/* c (32, 32) = or += a panel * b panel, over `blocks` blocks of k */
static void micro(int64_t blocks, const char *a, const char *b, float *c, int64_t ld, bool first) {
  const size_t stride = (size_t)ld * sizeof *c;
  float *const lower = c + SIDE * ld;
  if (first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, c, stride);
    _tile_loadd(1, c + SIDE, stride);
    _tile_loadd(2, lower, stride);
    _tile_loadd(3, lower + SIDE, stride);
  }
  for (int64_t p = 0; p < blocks; p++, a += 2 * BLOCK_BYTES, b += 2 * BLOCK_BYTES) {
    _tile_loadd(6, b, 64);
    _tile_loadd(4, a, 64);
    _tile_loadd(7, b + BLOCK_BYTES, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, a + BLOCK_BYTES, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, stride);
  _tile_stored(1, c + SIDE, stride);
  _tile_stored(2, lower, stride);
  _tile_stored(3, lower + SIDE, stride);
}

static inline const uint16_t *stored_row(const tigon_matrix *x, int64_t row) {
  return (const uint16_t *)x->data + (x->gather ? x->gather[row] : row) * x->stride;
}

static inline __m512i load_part(const uint16_t *from, int64_t n) {
  return n >= DEPTH ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi16(n > 0 ? (__mmask32)((1u << n) - 1) : 0, from);
}

static inline __m512i widen_part(const uint16_t *from, int64_t n) {
  const __m256i half = n >= SIDE ? _mm256_loadu_si256((const __m256i *)(const void *)from)
                                 : _mm256_maskz_loadu_epi16(n > 0 ? (__mmask16)((1u << n) - 1) : 0, from);
  return _mm512_cvtepu16_epi32(half);
}

/* Rows of 32 numbers each, as stored; a block of A. */
static inline __attribute__((always_inline)) void load_rows(vf v[SIDE], const tigon_matrix *x, int64_t row,
                                                            int64_t rows, int64_t k0, int64_t k) {
#pragma GCC unroll 16
  for (int i = 0; i < SIDE; i++) v[i] = i < rows ? (vf)load_part(stored_row(x, row + i) + k0, k) : vf_set(0.0f);
}

/* Pairs of stored rows, interleaved; a block of B. */
static inline __attribute__((always_inline)) void load_pairs(vf v[SIDE], const tigon_matrix *x, int64_t row,
                                                             int64_t rows, int64_t k0, int64_t k) {
#pragma GCC unroll 16
  for (int i = 0; i < SIDE; i++) {
    const __m512i zero = _mm512_setzero_si512();
    const __m512i even = 2 * i < k ? widen_part(stored_row(x, k0 + 2 * i) + row, rows) : zero;
    const __m512i odd = 2 * i + 1 < k ? widen_part(stored_row(x, k0 + 2 * i + 1) + row, rows) : zero;
    v[i] = (vf)_mm512_or_si512(even, _mm512_slli_epi32(odd, 16));
  }
}

static inline __attribute__((always_inline)) void pack_block(char *to, const tigon_matrix *x, int64_t row, int64_t rows,
                                                             int64_t k0, int64_t k, bool pairs) {
  vf v[SIDE];
  if (x->transposed)
    load_pairs(v, x, row, rows, k0, k);
  else
    load_rows(v, x, row, rows, k0, k);
  if (x->transposed != pairs) vf_transpose(v);
#pragma GCC unroll 16
  for (int i = 0; i < SIDE; i++) vf_store((float *)(void *)(to + i * 64), v[i]);
}

/* Panels of rows [row, row + rows), zeros in what they are padded with. */
static inline __attribute__((always_inline)) void pack(char *to, const tigon_matrix *x, int64_t row, int64_t rows,
                                                       int64_t k0, int64_t k, bool pairs) {
  const int64_t panel_bytes = tigon_round_up(k, DEPTH) * PANEL * 2;
  if (x->transposed) { /* each stored row is read from end to end */
    for (int64_t p = 0; p < k; p += DEPTH)
      for (int64_t i = 0; i < tigon_round_up(rows, PANEL); i += SIDE)
        pack_block(to + i / PANEL * panel_bytes + p / DEPTH * 2 * BLOCK_BYTES + i / SIDE % 2 * BLOCK_BYTES, x, row + i,
                   rows - i, k0 + p, k - p, pairs);
    return;
  }
  for (int64_t i = 0; i < tigon_round_up(rows, PANEL); i += SIDE)
    for (int64_t p = 0; p < k; p += DEPTH)
      pack_block(to + i / PANEL * panel_bytes + p / DEPTH * 2 * BLOCK_BYTES + i / SIDE % 2 * BLOCK_BYTES, x, row + i,
                 rows - i, k0 + p, k - p, pairs);
}

static void pack_a(char *to, const tigon_matrix *x, int64_t row, int64_t rows, int64_t k0, int64_t k) {
  pack(to, x, row, rows, k0, k, false);
}
static void pack_b(char *to, const tigon_matrix *x, int64_t row, int64_t rows, int64_t k0, int64_t k) {
  pack(to, x, row, rows, k0, k, true);
}

tigon_gemm_panel tigon_gemm_panel_of_amx(void) { return (tigon_gemm_panel){PANEL, PANEL}; }

void tigon_gemm_tile_amx(const tigon_gemm *g, int slot, int64_t m0, int64_t m, int64_t n0, int64_t n, float *scratch) {
  const int64_t ld = tigon_round_up(n, PANEL) + SIDE; /* rows 4 KiB apart would share their sets of the cache */
  float *tile = scratch;
  char *b = (char *)(tile + TIGON_GEMM_M * TIGON_GEMM_LD);
  char *a = b + (int64_t)TIGON_GEMM_N * KC * 2;
  configure();
  for (int64_t k0 = 0; k0 < g->k || k0 == 0; k0 += KC) {
    const int64_t k = g->k - k0 < KC ? g->k - k0 : KC, blocks = tigon_ceil_div(k, DEPTH);
    const int64_t panel_bytes = blocks * 2 * BLOCK_BYTES;
    pack_b(b, &g->b, n0, n, k0, k);
    for (int64_t i0 = 0; i0 < m; i0 += BLOCK_M) {
      const int64_t rows = m - i0 < BLOCK_M ? m - i0 : BLOCK_M;
      pack_a(a, &g->a, m0 + i0, rows, k0, k);
      for (int64_t j = 0; j < n; j += PANEL)
        for (int64_t i = 0; i < rows; i += PANEL)
          micro(blocks, a + i / PANEL * panel_bytes, b + j / PANEL * panel_bytes, tile + (i0 + i) * ld + j, ld,
                k0 == 0);
    }
  }
  _tile_release();
  g->epilogue(g->context, slot, m0, n0, m, n, tile, ld);
}

#endif
