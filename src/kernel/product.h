/* What the host passes to kernels built on product.cuh. Plain C, read by both compilers. */
#ifndef TIGON_KERNEL_PRODUCT_H
#define TIGON_KERNEL_PRODUCT_H

#include <stdint.h>

enum {
  PRODUCT_M = 128,
  PRODUCT_N = 256,
  PRODUCT_K = 64,
  PRODUCT_THREADS = 384,
  PRODUCT_SHARED_BYTES = 232448 /* what a block of sm_90 may have */
};

/* Groups of rows; all arrays are device memory. */
typedef struct product_tiles {
  const int32_t *first_row;  /* (groups + 1) multiples of 64 */
  const int32_t *first_tile; /* (groups + 1) tiles of PRODUCT_M rows in the groups before */
  const int32_t *first_pair; /* (groups + 1) whole pairs of these in the groups before */
  int32_t *next;             /* how many tiles, or pairs, were handed out beyond each block's, or pair's, first */
  int32_t groups, columns;   /* columns: tiles of PRODUCT_N beside each other */
} product_tiles;

#endif
