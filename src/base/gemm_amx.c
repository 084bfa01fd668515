/*
 * The packed product's inner part for a bfloat16 B, on the matrix unit (AMX): gemm_kernel.c's work, 16 x 16 x 32 an
 * instruction. Operands are packed as blocks of 16 rows x 32 of k, 1 KiB each: of A a row's 32 numbers side by side, of
 * B pairs of k for 16 rows side by side. A panel is 32 rows: [k / 32][parts][2][block].
 *
 * A float32 A is the sum of three bfloat16 parts, which hold all of its 24 bits and are multiplied one after the other.
 * Products and sums are fp32; the unit takes subnormal numbers as zero.
 */
#include "base/gemm.h"

#if defined(TIGON_HAVE_AMX)
#include <immintrin.h>
#include <string.h>

#include "base/integer.h"
#include "base/transpose.h"

enum { SIDE = 16, DEPTH = 32, PANEL = 2 * SIDE, BLOCK_BYTES = SIDE * DEPTH * 2 };
enum { KC = 2 * TIGON_GEMM_K, BLOCK_M = TIGON_GEMM_BLOCK_M / PANEL * PANEL };

_Static_assert((int)TIGON_GEMM_M % PANEL == 0 && (int)TIGON_GEMM_N % PANEL == 0, "whole panels");

static int parts_of(const tigon_gemm *g) { return g->a.kind == TIGON_BF16 ? 1 : 3; }

/* The block of k: with all its parts it fits where fp32 operands of TIGON_GEMM_K do. */
static int64_t depth_of(int parts) { return KC / parts / DEPTH * DEPTH; }

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
static void micro(int64_t blocks, int parts, const char *a, const char *b, float *c, int64_t ld, bool first) {
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
  for (int64_t p = 0; p < blocks; p++, b += 2 * BLOCK_BYTES) {
    _tile_loadd(6, b, 64);
    _tile_loadd(7, b + BLOCK_BYTES, 64);
    for (int q = 0; q < parts; q++, a += 2 * BLOCK_BYTES) {
      _tile_loadd(4, a, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(5, a + BLOCK_BYTES, 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, stride);
  _tile_stored(1, c + SIDE, stride);
  _tile_stored(2, lower, stride);
  _tile_stored(3, lower + SIDE, stride);
}

static inline const char *stored_at(const tigon_matrix *x, int64_t row, int64_t column) {
  const int64_t at = (x->gather ? x->gather[row] : row) * x->stride + column;
  return (const char *)x->data + at * tigon_kind_bytes(x->kind);
}

/* What one block takes of an operand; rows and k past the ends are zeros. */
typedef struct source {
  const tigon_matrix *x;
  int64_t row, rows, k0, k;
  int part;
} source;

static inline __mmask16 lanes(int64_t n) { return n >= SIDE ? 0xffff : n > 0 ? (__mmask16)((1u << n) - 1) : 0; }

/* The upper halves of the lanes hold a part of x: what the parts before have left, cut to bfloat16. Inf leaves
 * nothing. */
static inline __attribute__((always_inline)) __m512i part_of(__m512 x, int part) {
  const __m512i upper = _mm512_set1_epi32((int)0xffff0000u);
  for (int i = 0; i < part; i++) {
    const __m512 taken = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), upper));
    x = _mm512_maskz_sub_ps(_mm512_cmp_ps_mask(x, taken, _CMP_NEQ_UQ), x, taken);
  }
  return _mm512_and_si512(_mm512_castps_si512(x), upper);
}

/* n numbers side by side, as the upper halves of 16 lanes. */
static inline __attribute__((always_inline)) __m512i load_upper(const source *s, const char *from, int64_t n) {
  if (s->x->kind == TIGON_F32) return part_of(_mm512_maskz_loadu_ps(lanes(n), from), s->part);
  return _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes(n), from)), 16);
}

static inline __m256i upper_words(__m512i lanes) { return _mm512_cvtepi32_epi16(_mm512_srli_epi32(lanes, 16)); }

/* Up to 32 numbers of a stored row. */
static inline __attribute__((always_inline)) __m512i load_row(const source *s, const char *from) {
  if (s->x->kind == TIGON_F32) {
    const __m256i low = upper_words(load_upper(s, from, s->k));
    if (s->k <= SIDE) return _mm512_zextsi256_si512(low);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low),
                              upper_words(load_upper(s, from + SIDE * sizeof(float), s->k - SIDE)), 1);
  }
  return s->k >= DEPTH ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi16((1u << s->k) - 1, from);
}

/* Rows as stored; a block of A. */
static inline __attribute__((always_inline)) void load_rows(vf v[SIDE], const source *s) {
#pragma GCC unroll 16
  for (int i = 0; i < SIDE; i++)
    v[i] = i < s->rows ? (vf)load_row(s, stored_at(s->x, s->row + i, s->k0)) : vf_set(0.0f);
}

/* Pairs of stored rows, interleaved; a block of B. */
static inline __attribute__((always_inline)) void load_pairs(vf v[SIDE], const source *s) {
  const __m512i zero = _mm512_setzero_si512();
#pragma GCC unroll 16
  for (int i = 0; i < SIDE; i++) {
    const __m512i even = 2 * i < s->k ? load_upper(s, stored_at(s->x, s->k0 + 2 * i, s->row), s->rows) : zero;
    const __m512i odd = 2 * i + 1 < s->k ? load_upper(s, stored_at(s->x, s->k0 + 2 * i + 1, s->row), s->rows) : zero;
    v[i] = (vf)_mm512_or_si512(_mm512_srli_epi32(even, 16), odd);
  }
}

static inline __attribute__((always_inline)) void pack_block(char *to, const source *s, bool pairs) {
  vf v[SIDE];
  if (s->x->transposed)
    load_pairs(v, s);
  else
    load_rows(v, s);
  if (s->x->transposed != pairs) vf_transpose(v);
#pragma GCC unroll 16
  for (int i = 0; i < SIDE; i++) vf_store((float *)(void *)(to + i * 64), v[i]);
}

/* Panels of rows [row, row + rows). Of an operand with rows contiguous each stored row is read from end to end. */
static inline __attribute__((always_inline)) void pack(char *to, const tigon_matrix *x, int64_t row, int64_t rows,
                                                       int64_t k0, int64_t k, int parts, bool pairs) {
  const int64_t sides = tigon_ceil_div(rows, SIDE), depths = tigon_ceil_div(k, DEPTH);
  const int64_t step = (int64_t)parts * 2 * BLOCK_BYTES, panel_bytes = depths * step;
  if (sides % 2) memset(to + sides / 2 * panel_bytes, 0, (size_t)panel_bytes); /* half of the last panel has no rows */
  for (int64_t at = 0; at < sides * depths; at++) {
    const int64_t i = x->transposed ? at % sides : at / depths, p = x->transposed ? at / sides : at % depths;
    source s = {x, row + i * SIDE, rows - i * SIDE, k0 + p * DEPTH, k - p * DEPTH, 0};
    char *block = to + i / 2 * panel_bytes + p * step + i % 2 * BLOCK_BYTES;
    for (; s.part < parts; s.part++) pack_block(block + s.part * 2 * BLOCK_BYTES, &s, pairs);
  }
}

/* The kind is a constant in each call, so that the loops inside are free of branches. */
static void pack_a(char *to, const tigon_matrix *x, int64_t row, int64_t rows, int64_t k0, int64_t k, int parts) {
  tigon_matrix a = *x;
  if (parts == 1) {
    a.kind = TIGON_BF16;
    pack(to, &a, row, rows, k0, k, 1, false);
  } else {
    a.kind = TIGON_F32;
    pack(to, &a, row, rows, k0, k, 3, false);
  }
}
static void pack_b(char *to, const tigon_matrix *x, int64_t row, int64_t rows, int64_t k0, int64_t k) {
  tigon_matrix b = *x;
  b.kind = TIGON_BF16;
  pack(to, &b, row, rows, k0, k, 1, true);
}

tigon_gemm_panel tigon_gemm_panel_of_amx(void) { return (tigon_gemm_panel){PANEL, PANEL}; }

void tigon_gemm_tile_amx(const tigon_gemm *g, int slot, int64_t m0, int64_t m, int64_t n0, int64_t n, float *scratch) {
  const int64_t ld = tigon_round_up(n, PANEL) + SIDE; /* rows 4 KiB apart would share their sets of the cache */
  const int parts = parts_of(g);
  const int64_t depth = depth_of(parts);
  float *tile = scratch;
  char *b = (char *)(tile + TIGON_GEMM_M * TIGON_GEMM_LD);
  char *a = b + (int64_t)TIGON_GEMM_N * KC * 2;
  configure();
  for (int64_t k0 = 0; k0 < g->k || k0 == 0; k0 += depth) {
    const int64_t k = g->k - k0 < depth ? g->k - k0 : depth, blocks = tigon_ceil_div(k, DEPTH);
    const int64_t panel_bytes = blocks * 2 * BLOCK_BYTES;
    pack_b(b, &g->b, n0, n, k0, k);
    for (int64_t i0 = 0; i0 < m; i0 += BLOCK_M) {
      const int64_t rows = m - i0 < BLOCK_M ? m - i0 : BLOCK_M;
      pack_a(a, &g->a, m0 + i0, rows, k0, k, parts);
      for (int64_t j = 0; j < n; j += PANEL)
        for (int64_t i = 0; i < rows; i += PANEL)
          micro(blocks, parts, a + i / PANEL * parts * panel_bytes, b + j / PANEL * panel_bytes,
                tile + (i0 + i) * ld + j, ld, k0 == 0);
    }
  }
  _tile_release();
  g->epilogue(g->context, slot, m0, n0, m, n, tile, ld);
}

#endif
