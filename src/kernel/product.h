/* What the host passes to kernels built on product.cuh. Plain C, read by both compilers. */
#ifndef TIGON_KERNEL_PRODUCT_H
#define TIGON_KERNEL_PRODUCT_H

#include <stdint.h>

#if defined(__CUDACC__)
#define PRODUCT_FN static __host__ __device__ __forceinline__
#else
#define PRODUCT_FN static inline
#endif

enum {
  PRODUCT_M = 128,
  PRODUCT_N = 256,
  PRODUCT_K = 64,
  PRODUCT_THREADS = 384,
  PRODUCT_SHARED_BYTES = 232448, /* what a block of sm_90 may have */
  PRODUCT_RASTER = 16 /* tiles of rows that take turns on one column, so that their operands meet in the cache */
};

/* Groups of rows; all arrays are device memory. */
typedef struct product_tiles {
  const int32_t *first_row;  /* (groups + 1) multiples of 64 */
  const int32_t *first_tile; /* (groups + 1) tiles of PRODUCT_M rows in the groups before */
  const int32_t *first_pair; /* (groups + 1) whole pairs of these in the groups before */
  int32_t *next;             /* how many tiles, or pairs, were handed out beyond each block's, or pair's, first */
  int32_t groups, columns;   /* columns: tiles of PRODUCT_N beside each other */
} product_tiles;

/* A group's tiles of rows, as clusters of one block or two take them. weaves: a last tile of rows without a neighbour
 * comes behind the pairs of its columns, whose weights are in the cache then, and not behind all pairs of the group. */
typedef struct product_rows {
  int tiles, cluster, weaves;
} product_rows;

enum { PRODUCT_ROWS_SHARED = 1, PRODUCT_COLUMNS_SHARED };

/* A block's tile: its place along the rows and the columns, and what the other block of a pair has in common with it. */
typedef struct product_place {
  int down, column, shared;
} product_place;

/* How many numbers clusters of two have for pairs of tiles of rows, and tiles without a neighbour. */
PRODUCT_FN int product_numbers(int pairs, int alone, int columns) {
  return pairs * columns + alone * ((columns + 1) / 2);
}

/* The tile of the block `rank` in its cluster, where `number` of the group's numbers came before. */
PRODUCT_FN product_place product_place_of(product_rows rows, int columns, int number, int rank) {
  const int count = rows.tiles / rows.cluster, lone = rows.tiles - count * rows.cluster;
  const int turns = PRODUCT_RASTER / rows.cluster, last_strip = count > 0 ? (count - 1) / turns : 0;
  const int strip_of = number / (turns * columns), strip = strip_of < last_strip ? strip_of : last_strip;
  const int left = count - strip * turns, height = left < turns ? left : turns;
  const int in_strip = number - strip * turns * columns;
  const int woven = rows.weaves && lone && strip == last_strip;
  const int each = 2 * height + woven; /* numbers of two columns */
  const int two = woven ? in_strip / each : 0, in_two = in_strip - two * each;
  const int two_columns = columns - 2 * two < 2 ? columns - 2 * two : 2;
  if (woven ? in_two == two_columns * height : number >= count * columns) {
    const int behind = woven ? two : number - count * columns;
    const product_place place = {2 * count, 2 * behind + rank, PRODUCT_ROWS_SHARED}; /* a column past the last: zeros */
    return place;
  }
  const int down = rows.cluster * (strip * turns + in_two % height) + rank;
  const product_place place = {down, 2 * two + in_two / height, rows.cluster == 1 ? 0 : PRODUCT_COLUMNS_SHARED};
  return place;
}

#endif
