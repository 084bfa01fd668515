#include "base/gemm.h"

#include "base/pool.h"

enum { SLACK = 64 }; /* packing A stores whole vectors and may run past the last panel's end */

uint64_t tigon_gemm_scratch(void) {
  const uint64_t floats = (uint64_t)(TIGON_GEMM_M + TIGON_GEMM_PAD + TIGON_GEMM_N) * TIGON_GEMM_K + SLACK +
                          (uint64_t)(TIGON_GEMM_M + TIGON_GEMM_PAD) * TIGON_GEMM_N;
  return (floats * sizeof(float) + 255) / 256 * 256;
}

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* The tile shape of a call: the largest that still gives the threads of a large machine something to share. It depends
 * on shapes alone. */
typedef struct tiling {
  int64_t m, n;
} tiling;

static int64_t tile_count(const tigon_gemm *g, tiling t) { return ceil_div(g->m, t.m) * ceil_div(g->n, t.n); }

static int64_t total_tiles(const tigon_gemm *products, int64_t count, tiling t) {
  int64_t total = 0;
  for (int64_t i = 0; i < count; i++) total += tile_count(&products[i], t);
  return total;
}

static tiling choose_tiling(const tigon_gemm *products, int64_t count) {
  static const tiling candidates[] = {{392, 384}, {196, 384}, {196, 192}, {98, 192}, {98, 96}, {56, 64}};
  enum { LAST = sizeof candidates / sizeof *candidates - 1, ENOUGH = 24 };
  for (int i = 0; i < LAST; i++)
    if (total_tiles(products, count, candidates[i]) >= ENOUGH) return candidates[i];
  return candidates[LAST];
}

typedef struct run {
  const tigon_gemm *products;
  int64_t count;
  tiling tile;
  char *scratch;
} run;

/* Tiles of one product have near-equal sizes: 400 rows are cut as 200 + 200, not 392 + 8. */
static void cut(int64_t extent, int64_t tile, int64_t index, int64_t *begin, int64_t *length) {
  const int64_t tiles = ceil_div(extent, tile);
  *begin = extent / tiles * index + (extent % tiles < index ? extent % tiles : index);
  *length = extent / tiles + (index < extent % tiles);
}

static void run_tile(void *context, int64_t chunk, int slot) {
  const run *r = context;
  const tigon_gemm *g = r->products;
  for (int64_t tiles; chunk >= (tiles = tile_count(g, r->tile)); g++) chunk -= tiles;
  const int64_t m_tiles = ceil_div(g->m, r->tile.m);
  int64_t m0, m, n0, n;
  cut(g->m, r->tile.m, chunk % m_tiles, &m0, &m);
  cut(g->n, r->tile.n, chunk / m_tiles, &n0, &n);
  float *scratch = (float *)(void *)(r->scratch + (uint64_t)slot * tigon_gemm_scratch());
  TIGON_ISA_CALL(tigon_gemm_tile, g, slot, m0, m, n0, n, scratch);
}

void tigon_gemm_run(int threads, const tigon_gemm *products, int64_t count, void *scratch) {
  run r = {.products = products, .count = count, .tile = choose_tiling(products, count), .scratch = scratch};
  tigon_parallel(threads, total_tiles(products, count, r.tile), run_tile, &r);
}

void tigon_gemm_serial(const tigon_gemm *product, int slot, void *scratch) {
  const tiling largest = {TIGON_GEMM_M, TIGON_GEMM_N};
  const int64_t m_tiles = ceil_div(product->m, largest.m), n_tiles = ceil_div(product->n, largest.n);
  for (int64_t j = 0; j < n_tiles; j++)
    for (int64_t i = 0; i < m_tiles; i++) {
      int64_t m0, m, n0, n;
      cut(product->m, largest.m, i, &m0, &m);
      cut(product->n, largest.n, j, &n0, &n);
      TIGON_ISA_CALL(tigon_gemm_tile, product, slot, m0, m, n0, n, (float *)scratch);
    }
}
