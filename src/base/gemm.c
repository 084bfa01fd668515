#include "base/gemm.h"

#include "base/pool.h"

/* The tile of C, the packed block of B and half the packed block of A; gemm_kernel.c lays them out. */
uint64_t tigon_gemm_scratch(void) {
  const uint64_t m = TIGON_GEMM_M, n = TIGON_GEMM_N, pad = TIGON_GEMM_PAD, k = TIGON_GEMM_K + pad;
  return (((m + pad) * n + (m / 2 + pad + n) * k) * sizeof(float) + 255) / 256 * 256;
}

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

typedef struct tiling {
  int64_t m, n;
} tiling;

static int64_t tile_count(const tigon_gemm *g, tiling t) { return ceil_div(g->m, t.m) * ceil_div(g->n, t.n); }

/* Cycles of the busiest thread, roughly, for k = 1: a tile costs its products (32 a cycle) and its packing (about one
 * element a cycle). */
static double tiling_cost(const tigon_gemm *products, int64_t count, int threads, tiling t, int64_t *tiles) {
  double cycles = 0;
  *tiles = 0;
  for (int64_t i = 0; i < count; i++) {
    const tigon_gemm *g = &products[i];
    const int64_t m_tiles = ceil_div(g->m, t.m), n_tiles = ceil_div(g->n, t.n);
    *tiles += m_tiles * n_tiles;
    cycles += ((double)g->m * (double)g->n / 32 + (double)(g->m * n_tiles) + (double)(g->n * m_tiles)) * (double)g->k;
  }
  if (*tiles == 0) return 0;
  return cycles / (double)*tiles * (double)ceil_div(*tiles, threads);
}

static tiling choose_tiling(const tigon_gemm *products, int64_t count, int threads, int64_t *tiles) {
  static const int64_t m_sizes[] = {784, 588, 392, 196, 98, 56}, n_sizes[] = {768, 512, 384, 256, 192, 96, 64};
  tiling best = {0, 0};
  double best_cost = 0;
  for (size_t i = 0; i < sizeof m_sizes / sizeof *m_sizes; i++)
    for (size_t j = 0; j < sizeof n_sizes / sizeof *n_sizes; j++) {
      const tiling t = {m_sizes[i], n_sizes[j]};
      int64_t t_tiles;
      const double cost = tiling_cost(products, count, threads, t, &t_tiles);
      if (best.m == 0 || cost < best_cost) {
        best = t;
        best_cost = cost;
        *tiles = t_tiles;
      }
    }
  return best;
}

typedef struct run {
  const tigon_gemm *products;
  tiling tile;
  tigon_gemm_panel panel;
  char *scratch;
} run;

typedef struct span {
  int64_t begin, length;
} span;

/* Part `index` of `parts` of an extent, in near-equal numbers of whole panels: 400 rows are cut as 196 + 204, not 392 + 8. */
static span cut(int64_t extent, int64_t panel, int64_t parts, int64_t index) {
  const int64_t panels = ceil_div(extent, panel);
  const int64_t begin = panels * index / parts * panel, end = panels * (index + 1) / parts * panel;
  return (span){begin, (end < extent ? end : extent) - begin};
}

static void run_tile(void *context, int64_t chunk, int slot) {
  const run *r = context;
  const tigon_gemm *g = r->products;
  for (int64_t tiles; chunk >= (tiles = tile_count(g, r->tile)); g++) chunk -= tiles;
  const int64_t m_tiles = ceil_div(g->m, r->tile.m), n_tiles = ceil_div(g->n, r->tile.n);
  const span m = cut(g->m, r->panel.m, m_tiles, chunk % m_tiles), n = cut(g->n, r->panel.n, n_tiles, chunk / m_tiles);
  if (m.length <= 0 || n.length <= 0) return;
  float *scratch = (float *)(void *)(r->scratch + (uint64_t)slot * tigon_gemm_scratch());
  TIGON_ISA_CALL(tigon_gemm_tile, g, slot, m.begin, m.length, n.begin, n.length, scratch);
}

void tigon_gemm_run(int threads, const tigon_gemm *products, int64_t count, void *scratch) {
  run r = {.products = products, .panel = TIGON_ISA_CALL(tigon_gemm_panel_of), .scratch = scratch};
  int64_t tiles = 0;
  r.tile = choose_tiling(products, count, threads, &tiles);
  tigon_parallel(threads, tiles, run_tile, &r);
}

void tigon_gemm_serial(const tigon_gemm *product, int slot, void *scratch) {
  for (int64_t n0 = 0; n0 < product->n; n0 += TIGON_GEMM_N)
    for (int64_t m0 = 0; m0 < product->m; m0 += TIGON_GEMM_M) {
      const int64_t m = product->m - m0 < TIGON_GEMM_M ? product->m - m0 : TIGON_GEMM_M;
      const int64_t n = product->n - n0 < TIGON_GEMM_N ? product->n - n0 : TIGON_GEMM_N;
      TIGON_ISA_CALL(tigon_gemm_tile, product, slot, m0, m, n0, n, scratch);
    }
}
