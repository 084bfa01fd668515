#include "base/gemm.h"

#include <string.h>

#include "base/integer.h"
#include "base/pool.h"

/* The tile of C, the packed block of B and the packed rows of A; gemm_kernel.c lays them out. */
uint64_t tigon_gemm_scratch(void) {
  const uint64_t m = TIGON_GEMM_M, n = TIGON_GEMM_N, pad = TIGON_GEMM_PAD, k = TIGON_GEMM_K + pad;
  return (((m + pad) * TIGON_GEMM_LD + (n + TIGON_GEMM_BLOCK_M) * k) * sizeof(float) + 255) / 256 * 256;
}

/* Products with a bfloat16 B run on the matrix unit where there is one. */
static bool on_matrix_unit(const tigon_gemm *g) {
  return tigon_isa_in_use() == TIGON_ISA_AMX && g->b.kind == TIGON_BF16 && g->a.kind != TIGON_F16;
}

typedef struct kernel {
  tigon_gemm_panel panel;
  void (*tile)(const tigon_gemm *g, int slot, int64_t m0, int64_t m, int64_t n0, int64_t n, float *scratch);
} kernel;

/* Products of bfloat16 with bfloat16 run on dot products of pairs where there are such instructions. */
static bool on_pairs(const tigon_gemm *g) {
  return tigon_isa_in_use() == TIGON_ISA_AVX512_BF16 && g->a.kind == TIGON_BF16 && g->b.kind == TIGON_BF16;
}

static kernel kernel_of(const tigon_gemm *g) {
  (void)g; /* where there is one kernel alone */
#if defined(TIGON_HAVE_AMX)
  if (on_matrix_unit(g)) return (kernel){tigon_gemm_panel_of_amx(), tigon_gemm_tile_amx};
#endif
#if defined(TIGON_HAVE_AVX512_BF16)
  if (on_pairs(g)) return (kernel){tigon_gemm_panel_of_avx512(), tigon_gemm_tile_avx512_bf16};
#endif
  return (kernel){TIGON_ISA_CALL(tigon_gemm_panel_of), TIGON_ISA_PICK(tigon_gemm_tile)};
}

typedef struct tiling {
  int64_t m, n;
} tiling;

static int64_t tile_count(const tigon_gemm *g, tiling t) {
  return tigon_ceil_div(g->m, t.m) * tigon_ceil_div(g->n, t.n);
}

/* Cycles of the busiest thread, roughly, for k = 1: a tile costs its products (32 a cycle, 64 as pairs, on the matrix
 * unit 256 or less) and its packing (about two cycles an element, most of them spent on page walks and caches). Of many
 * products a sample stands for all. */
static double tiling_cost(const tigon_gemm *products, int64_t count, int threads, tiling t) {
  enum { SAMPLE = 32 };
  const int64_t step = tigon_ceil_div(count, SAMPLE);
  double cycles = 0;
  int64_t tiles = 0;
  for (int64_t i = 0; i < count; i += step) {
    const tigon_gemm *g = &products[i];
    const int64_t m_tiles = tigon_ceil_div(g->m, t.m), n_tiles = tigon_ceil_div(g->n, t.n);
    tiles += m_tiles * n_tiles;
    const double rate = on_pairs(g) ? 64 : !on_matrix_unit(g) ? 32 : g->a.kind == TIGON_BF16 ? 256 : 96;
    cycles += ((double)g->m * (double)g->n / rate + 2.0 * (double)(g->m * n_tiles + g->n * m_tiles)) * (double)g->k;
  }
  return tiles ? cycles / (double)tiles * (double)tigon_ceil_div(tiles * step, threads) : 0;
}

static tiling choose_tiling(const tigon_gemm *products, int64_t count, int threads) {
  static const int64_t m_sizes[] = {1120, 784, 588, 392, 196, 98, 56},
                       n_sizes[] = {1024, 768, 512, 384, 256, 192, 96, 64};
  tiling best = {m_sizes[0], n_sizes[0]};
  double best_cost = tiling_cost(products, count, threads, best);
  for (size_t i = 0; i < sizeof m_sizes / sizeof *m_sizes; i++)
    for (size_t j = 0; j < sizeof n_sizes / sizeof *n_sizes; j++) {
      const tiling t = {m_sizes[i], n_sizes[j]};
      const double cost = tiling_cost(products, count, threads, t);
      if (cost < best_cost) {
        best = t;
        best_cost = cost;
      }
    }
  return best;
}

/* Where a thread found its last tile: tiles are claimed in rising order, so it looks on from there. */
typedef struct cursor {
  int64_t product, first_tile;
} cursor;

typedef struct run {
  const tigon_gemm *products;
  tiling tile;
  char *scratch;
  cursor cursors[TIGON_MAX_THREADS]; /* one a slot */
} run;

typedef struct span {
  int64_t begin, length;
} span;

/* Part `index` of `parts` of an extent, in near-equal numbers of whole panels: 400 rows are cut as 196 + 204, not 392 +
 * 8. */
static span cut(int64_t extent, int64_t panel, int64_t parts, int64_t index) {
  const int64_t panels = tigon_ceil_div(extent, panel);
  const int64_t begin = panels * index / parts * panel, end = panels * (index + 1) / parts * panel;
  return (span){begin, (end < extent ? end : extent) - begin};
}

static void run_tile(void *context, int64_t chunk, int slot) {
  run *r = context;
  cursor *at = &r->cursors[slot];
  for (int64_t tiles; chunk - at->first_tile >= (tiles = tile_count(&r->products[at->product], r->tile)); at->product++)
    at->first_tile += tiles;
  const tigon_gemm *g = &r->products[at->product];
  const int64_t tile = chunk - at->first_tile;
  const int64_t m_tiles = tigon_ceil_div(g->m, r->tile.m), n_tiles = tigon_ceil_div(g->n, r->tile.n);
  const kernel use = kernel_of(g);
  const span m = cut(g->m, use.panel.m, m_tiles, tile % m_tiles), n = cut(g->n, use.panel.n, n_tiles, tile / m_tiles);
  if (m.length <= 0 || n.length <= 0) return;
  use.tile(g, slot, m.begin, m.length, n.begin, n.length,
           (float *)(void *)(r->scratch + (uint64_t)slot * tigon_gemm_scratch()));
}

void tigon_gemm_run(int threads, const tigon_gemm *products, int64_t count, void *scratch) {
  if (count == 0) return;
  run r;
  r.products = products;
  r.tile = choose_tiling(products, count, threads);
  r.scratch = scratch;
  memset(r.cursors, 0, (size_t)threads * sizeof *r.cursors);
  int64_t tiles = 0;
  for (int64_t i = 0; i < count; i++) tiles += tile_count(&products[i], r.tile);
  tigon_parallel(threads, tiles, run_tile, &r);
}

void tigon_gemm_serial(const tigon_gemm *product, int slot, void *scratch) {
  const kernel use = kernel_of(product);
  for (int64_t n0 = 0; n0 < product->n; n0 += TIGON_GEMM_N)
    for (int64_t m0 = 0; m0 < product->m; m0 += TIGON_GEMM_M) {
      const int64_t m = product->m - m0 < TIGON_GEMM_M ? product->m - m0 : TIGON_GEMM_M;
      const int64_t n = product->n - n0 < TIGON_GEMM_N ? product->n - n0 : TIGON_GEMM_N;
      use.tile(product, slot, m0, m, n0, n, scratch);
    }
}
