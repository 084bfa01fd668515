/*
 * Products of blocks that already lie in cache as fp32, on the calling thread. gemm.h packs its operands for every
 * product; where a block takes part in several products (attention within a chunk of tokens), its caller lays it out
 * once and calls these.
 *
 * The left operand is stored with the summed index outermost, a (k, m), the right one as b (k, n), the result as c (m,
 * n). Sums run in rising k, so a result's bits depend neither on m, n nor on its place in the block.
 *
 * Whole register tiles are computed: rows of a and c are read and written up to TIGON_BLOCK_M past m, columns of b and
 * c up to n rounded up to TIGON_BLOCK_N. What stands there may be anything and only reaches results that stand there
 * too.
 */
#ifndef TIGON_BASE_BLOCK_GEMM_H
#define TIGON_BASE_BLOCK_GEMM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/integer.h"
#include "base/isa.h"

enum { TIGON_BLOCK_M = 16, TIGON_BLOCK_N = 32 };

/* A row stride for n columns: room for whole tiles, and an odd number of cache lines, so that a column of rows spreads
 * over all sets of the cache. */
static inline int64_t tigon_block_stride(int64_t n) { return tigon_round_up(n, TIGON_BLOCK_N) + 16; }

typedef struct tigon_block_term {
  const float *a; /* (k, m) */
  const float *b; /* (k, n) */
  int64_t lda, ldb;
  int64_t k; /* 0: no such term */
} tigon_block_term;

typedef enum tigon_block_shape {
  TIGON_BLOCK_FULL,
  TIGON_BLOCK_UPPER,       /* only c[i][j] with j >= i are wanted; others may keep what they have */
  TIGON_BLOCK_CAUSAL,      /* the second term's a is 0 where its k is above m, so those products may be left out */
  TIGON_BLOCK_CAUSAL_EXACT /* the same, and they must be left out: b may hold NaN there */
} tigon_block_shape;

/* Memory that will be needed soon: rows of it are brought to the cache between register tiles. Rows of a strided tensor
 * stand in pages of their own, which hardware does not prefetch across. The product moves the counters on; one list
 * serves several products in a row. */
enum { TIGON_BLOCK_AREAS = 4 };
typedef struct tigon_block_ahead {
  struct {
    const char *row;
    int64_t stride, row_bytes; /* bytes */
    int64_t rows, column;      /* rows left; bytes of the first one that are done */
  } area[TIGON_BLOCK_AREAS];
  int areas, current;
} tigon_block_ahead;

/* c = c_scale * c + row_scale * (first) + (second) */
typedef struct tigon_block_gemm {
  int64_t m, n;
  tigon_block_term first;
  const float *row_scale; /* (m), NULL = 1; readable up to TIGON_BLOCK_M past m */
  tigon_block_term second;
  tigon_block_shape shape;
  bool accumulate; /* false: c is not read */
  float c_scale;
  float *c;
  int64_t ldc;
  tigon_block_ahead *ahead; /* NULL, or what to prefetch meanwhile */
} tigon_block_gemm;

TIGON_ISA_DECLARE(void, tigon_block_gemm_run, (const tigon_block_gemm *g));

/* to[c * to_stride + r] = from[r * from_stride + c] for r < rows, c < columns; nothing else is written. Strides in
 * elements, of any sign. */
TIGON_ISA_DECLARE(void, tigon_block_transpose,
                  (float *to, int64_t to_stride, const void *from, tigon_kind kind, int64_t from_stride, int64_t rows,
                   int64_t columns));

#endif
