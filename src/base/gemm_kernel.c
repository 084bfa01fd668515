/*
 * The packed product's inner part, compiled once per instruction set. For each block of k: A and B are packed to fp32
 * panels, A as [m / MR][k][MR], B as [n / NR][k][NR], zero-filled past their rows; the micro-kernel multiplies one
 * panel of each into an MR x NR piece of the C tile, held in registers over the block.
 *
 * With TIGON_GEMM_PAIRS both operands are bfloat16, and a panel holds pairs of k in the place of floats, for the dot
 * products of AVX512_BF16, which take subnormal numbers as zero.
 */
#include "base/gemm.h"
#include "base/integer.h"
#include "base/transpose.h"
#include "base/vec.h"

#if defined(__AVX512F__)
enum { MR = 14, NV = 2 }; /* 28 accumulators of 32 registers */
#elif defined(__AVX2__)
enum { MR = 6, NV = 2 }; /* 12 of 16 */
#elif defined(__aarch64__)
enum { MR = 8, NV = 2 }; /* 16 of 32 */
#else
enum { MR = 6, NV = 2 };
#endif
enum { NR = NV * VF_LANES };

/* STEP numbers of k stand in 32 bits, the first one lowest, and are multiplied at once. */
#if defined(TIGON_GEMM_PAIRS)
enum { STEP = 2 };
static inline vf multiply_add(vf a, vf b, vf c) { return (vf)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b); }
#else
enum { STEP = 1 };
static inline vf multiply_add(vf a, vf b, vf c) { return vf_fma(a, b, c); }
#endif
enum { KC = STEP * TIGON_GEMM_K, BLOCK_K = STEP * VF_LANES };

/* c (MR, NR) = or += a panel (steps, MR) * b panel (steps, NR) */
static inline __attribute__((always_inline)) void micro(int64_t steps, const float *a, const float *b, float *c,
                                                        int64_t ld, bool first) {
  vf sum[MR][NV];
#pragma GCC unroll 16
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 2
    for (int j = 0; j < NV; j++) sum[i][j] = vf_set(0.0f);
  for (int i = 0; i < MR; i++) /* the tile of C is larger than the cache that A and B live in */
    for (int j = 0; j < NV; j++) __builtin_prefetch(c + i * ld + j * VF_LANES, 1, 3);
#pragma GCC unroll 2
  for (int64_t p = 0; p < steps; p++) {
    vf column[NV];
#pragma GCC unroll 2
    for (int j = 0; j < NV; j++) column[j] = vf_load(b + p * NR + j * VF_LANES);
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++) {
      const vf row = vf_set(a[p * MR + i]);
#pragma GCC unroll 2
      for (int j = 0; j < NV; j++) sum[i][j] = multiply_add(row, column[j], sum[i][j]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 2
    for (int j = 0; j < NV; j++) {
      float *to = c + i * ld + j * VF_LANES;
      vf_store(to, first ? sum[i][j] : vf_load(to) + sum[i][j]);
    }
}

static void micro_first(int64_t steps, const float *a, const float *b, float *c, int64_t ld) {
  micro(steps, a, b, c, ld, true);
}
static void micro_next(int64_t steps, const float *a, const float *b, float *c, int64_t ld) {
  micro(steps, a, b, c, ld, false);
}

/* Floats from one panel to the next: packing stores whole vectors, so that a panel's last one may run over its end. */
static inline int64_t panel_stride(int64_t width, int64_t steps) { return steps * width + VF_LANES; }

static inline const char *stored_row(const tigon_matrix *x, int64_t row) {
  return (const char *)x->data + (x->gather ? x->gather[row] : row) * x->stride * tigon_kind_bytes(x->kind);
}

/* The steps of a stored row from element k0 on; k elements are left, at most BLOCK_K, and then come zeros. */
static inline __attribute__((always_inline)) vf load_steps(const char *from, tigon_kind kind, int64_t k0, int64_t k) {
#if defined(TIGON_GEMM_PAIRS)
  from += k0 * tigon_kind_bytes(kind);
  vf pairs = vf_set(0.0f);
  if (k == BLOCK_K)
    memcpy(&pairs, from, sizeof pairs);
  else
    memcpy(&pairs, from, (size_t)(k * tigon_kind_bytes(kind)));
  return pairs;
#else
  return k == BLOCK_K ? vf_load_as(from, kind, k0) : vf_load_part(from, kind, k0, k);
#endif
}

/* VF_LANES rows x VF_LANES steps: rows from[0 .. rows) at column k0, into to[step * width]. rows past the end are
 * zeros. Stores whole vectors: what runs over the panel's width is written again by the next step's first block, or
 * lands behind the panel. */
static inline __attribute__((always_inline)) void pack_block(float *to, int64_t width, const char *const *from,
                                                             int64_t rows, tigon_kind kind, int64_t k0, int64_t k) {
  vf v[VF_LANES];
#pragma GCC unroll 16
  for (int i = 0; i < VF_LANES; i++) v[i] = i < rows ? load_steps(from[i], kind, k0, k) : vf_set(0.0f);
  vf_transpose(v);
  if (k == BLOCK_K) {
#pragma GCC unroll 16
    for (int p = 0; p < VF_LANES; p++) vf_store(to + p * width, v[p]);
  } else {
    for (int p = 0; p < tigon_ceil_div(k, STEP); p++) vf_store(to + p * width, v[p]);
  }
}

/* One panel (steps, width) from an operand with k contiguous: rows [row, row + rows), rows <= width. */
static inline __attribute__((always_inline)) void pack_rows(float *to, int width, const tigon_matrix *x,
                                                            tigon_kind kind, int64_t row, int64_t rows, int64_t k0,
                                                            int64_t k) {
  const char *from[NR + VF_LANES];
  for (int64_t i = 0; i < rows; i++) from[i] = stored_row(x, row + i);
  for (int64_t p = 0; p < k; p += BLOCK_K) {
    const int64_t part = k - p < BLOCK_K ? k - p : BLOCK_K;
    for (int i = (width - 1) / VF_LANES * VF_LANES; i >= 0; i -= VF_LANES) /* right to left: see pack_block */
      pack_block(to + p / STEP * width + i, width, from + i, rows - i, kind, k0 + p, part);
  }
}

/* One step of `rows` rows, from row `row` on, of an operand with rows contiguous; odd: the stored row after an even
 * one, or NULL. */
static inline __attribute__((always_inline)) vf load_column(const char *even, const char *odd, tigon_kind kind,
                                                            int64_t row, int64_t rows) {
  const vf first = rows >= VF_LANES ? vf_load_as(even, kind, row) : vf_load_part(even, kind, row, rows);
#if defined(TIGON_GEMM_PAIRS)
  vf second = vf_set(0.0f);
  if (odd) second = rows >= VF_LANES ? vf_load_as(odd, kind, row) : vf_load_part(odd, kind, row, rows);
  return (vf)((vu)first >> 16 | (vu)second);
#else
  (void)odd;
  return first;
#endif
}

/* All panels from an operand with rows contiguous: each stored row is read once, from end to end. */
static inline __attribute__((always_inline)) void pack_columns(float *to, int width, const tigon_matrix *x,
                                                               tigon_kind kind, int64_t row, int64_t rows, int64_t k0,
                                                               int64_t k) {
  for (int64_t p = 0; p < k; p += STEP) {
    const char *even = stored_row(x, k0 + p), *odd = STEP == 2 && p + 1 < k ? stored_row(x, k0 + p + 1) : NULL;
    float *panel = to + p / STEP * width;
    for (int64_t i = 0; i < rows; i += width, panel += panel_stride(width, tigon_ceil_div(k, STEP)))
      for (int j = 0; j < width; j += VF_LANES) {
        const int64_t part = rows - i - j;
        vf_store(panel + j, load_column(even, odd, kind, row + i + j, part > 0 ? part : 0));
      }
  }
}

static inline __attribute__((always_inline)) void pack_kind(float *to, int width, const tigon_matrix *x,
                                                            tigon_kind kind, int64_t row, int64_t rows, int64_t k0,
                                                            int64_t k) {
  if (x->transposed) {
    pack_columns(to, width, x, kind, row, rows, k0, k);
    return;
  }
  for (int64_t i = 0; i < rows; i += width, to += panel_stride(width, tigon_ceil_div(k, STEP)))
    pack_rows(to, width, x, kind, row + i, rows - i < width ? rows - i : width, k0, k);
}

/* The kind is a constant in each call, so that the loops inside are free of branches. */
static inline __attribute__((always_inline)) void pack(float *to, int width, const tigon_matrix *x, int64_t row,
                                                       int64_t rows, int64_t k0, int64_t k) {
  switch (x->kind) {
  case TIGON_BF16:
    pack_kind(to, width, x, TIGON_BF16, row, rows, k0, k);
    break;
#if !defined(TIGON_GEMM_PAIRS)
  case TIGON_F16:
    pack_kind(to, width, x, TIGON_F16, row, rows, k0, k);
    break;
  default:
    pack_kind(to, width, x, TIGON_F32, row, rows, k0, k);
    break;
#else
  default:
    break;
#endif
  }
}

static void pack_a(float *to, const tigon_matrix *x, int64_t row, int64_t rows, int64_t k0, int64_t k) {
  pack(to, MR, x, row, rows, k0, k);
}
static void pack_b(float *to, const tigon_matrix *x, int64_t row, int64_t rows, int64_t k0, int64_t k) {
  pack(to, NR, x, row, rows, k0, k);
}

_Static_assert((int)TIGON_GEMM_N % (int)NR == 0, "a tile of B is whole panels");
_Static_assert((int)MR <= (int)TIGON_GEMM_PAD && (int)MR <= (int)NR, "a tile of A may be padded to whole panels");

/* Rows of A that are packed at a time. The packed block stays in a second-level cache; the tile of C and the block of B
 * stream through it. */
enum { BLOCK_M = TIGON_GEMM_BLOCK_M / MR * MR };

/* tile (m, n) = or += A block * packed B block */
static void multiply_block(const tigon_gemm *g, int64_t m0, int64_t m, int64_t n, int64_t k0, int64_t k, float *a,
                           const float *b, float *tile, int64_t ld) {
  const int64_t steps = tigon_ceil_div(k, STEP);
  pack_a(a, &g->a, m0, m, k0, k);
  for (int64_t i = 0; i < m; i += MR) /* a panel of A fits in the first-level cache beside the stream of B */
    for (int64_t j = 0; j < n; j += NR)
      (k0 == 0 ? micro_first : micro_next)(steps, a + i / MR * panel_stride(MR, steps),
                                           b + j / NR * panel_stride(NR, steps), tile + i * ld + j, ld);
}

void TIGON_ISA_FN(tigon_gemm_tile)(const tigon_gemm *g, int slot, int64_t m0, int64_t m, int64_t n0, int64_t n,
                                   float *scratch) {
  const int64_t ld = tigon_round_up(n, NR) + VF_LANES; /* rows 4 KiB apart would share their sets of the cache */
  float *tile = scratch;
  float *b = tile + (TIGON_GEMM_M + TIGON_GEMM_PAD) * TIGON_GEMM_LD;
  float *a = b + TIGON_GEMM_N * (TIGON_GEMM_K + TIGON_GEMM_PAD);
  for (int64_t k0 = 0; k0 < g->k || k0 == 0; k0 += KC) {
    const int64_t k = g->k - k0 < KC ? g->k - k0 : KC;
    pack_b(b, &g->b, n0, n, k0, k);
    for (int64_t i = 0; i < m; i += BLOCK_M)
      multiply_block(g, m0 + i, m - i < BLOCK_M ? m - i : BLOCK_M, n, k0, k, a, b, tile + i * ld, ld);
  }
  g->epilogue(g->context, slot, m0, n0, m, n, tile, ld);
}

#if !defined(TIGON_GEMM_PAIRS)
tigon_gemm_panel TIGON_ISA_FN(tigon_gemm_panel_of)(void) { return (tigon_gemm_panel){MR, NR}; }

static void store_row(const tigon_gemm_store *s, int64_t row, int64_t n0, int64_t n, float *from) {
  char *to = (char *)s->data + (row * s->stride + n0) * tigon_kind_bytes(s->kind);
  const vf alpha = vf_set(s->alpha);
  int64_t j = 0;
  for (; j + VF_LANES <= n; j += VF_LANES) {
    vf v = alpha * vf_load(from + j);
    if (tigon_present(&s->bias)) v += vf_load_as(s->bias.data, s->bias.kind, n0 + j);
    if (s->accumulate) v += vf_load_as(to, s->kind, j);
    vf_store_as(to, s->kind, j, v);
  }
  if (j < n) {
    vf v = alpha * vf_load(from + j);
    if (tigon_present(&s->bias)) v += vf_load_part(s->bias.data, s->bias.kind, n0 + j, n - j);
    if (s->accumulate) v += vf_load_part(to, s->kind, j, n - j);
    vf_store_part(to, s->kind, j, n - j, v);
  }
}

void TIGON_ISA_FN(tigon_gemm_store_tile)(void *store, int slot, int64_t m0, int64_t n0, int64_t m, int64_t n,
                                         float *tile, int64_t ld) {
  (void)slot;
  for (int64_t i = 0; i < m; i++) store_row(store, m0 + i, n0, n, tile + i * ld);
}
#endif
