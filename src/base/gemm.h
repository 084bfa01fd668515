/*
 * Packed matrix products on the CPU: C (m, n) = A (m, k) B (n, k)^T in fp32, from float32, float16 or bfloat16 operands
 * in either orientation, with gathered rows and an epilogue that receives each finished tile of C.
 *
 * The sum over k runs in blocks in rising order, whatever the tile shape and the number of threads, so an element of C
 * has the same bits in every run. Rows of A only touch rows of C, rows of B only columns of C.
 */
#ifndef TIGON_BASE_GEMM_H
#define TIGON_BASE_GEMM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/check.h"
#include "base/dtype.h"
#include "base/isa.h"

/* An operand: logically (rows, k). */
typedef struct tigon_matrix {
  const void *data;
  tigon_kind kind;
  int64_t stride;        /* elements between stored rows */
  bool transposed;       /* false: one stored row per logical row; true: one stored row per k */
  const int32_t *gather; /* NULL, or stored row i stands at data row gather[i] (for transposed: along k) */
} tigon_matrix;

/* Called once per tile of C by the thread `slot`: tile[i * ld + j] is C[m0 + i, n0 + j], i < m, j < n. The tile is
 * scratch that the epilogue may overwrite; ld is a multiple of the vector width and columns up to it exist, at most
 * TIGON_GEMM_LD. */
typedef void (*tigon_gemm_epilogue)(void *context, int slot, int64_t m0, int64_t n0, int64_t m, int64_t n, float *tile,
                                    int64_t ld);

typedef struct tigon_gemm {
  int64_t m, n, k; /* k = 0 gives zeros */
  tigon_matrix a, b;
  tigon_gemm_epilogue epilogue;
  void *context;
} tigon_gemm;

/* Largest tile that an epilogue sees, the block of k (for bfloat16 there are others), how many rows packing may add to
 * a tile, and the most rows of A that are packed at a time. The shape of the tiles depends on the threads too, so an
 * epilogue must not make sums whose order follows tile borders; where it has to, use tigon_gemm_serial. */
enum { TIGON_GEMM_M = 1120, TIGON_GEMM_N = 1024, TIGON_GEMM_K = 256, TIGON_GEMM_PAD = 16, TIGON_GEMM_BLOCK_M = 392 };

/* The largest distance between a tile's rows. */
enum { TIGON_GEMM_LD = TIGON_GEMM_N + 16 };

/* Scratch bytes of one thread (a multiple of 256). tigon_gemm_run needs threads times as many. */
uint64_t tigon_gemm_scratch(void);

/* Runs `count` products side by side on the thread pool. Epilogues of different tiles run concurrently. */
void tigon_gemm_run(int threads, const tigon_gemm *products, int64_t count, void *scratch);

/* Runs one product on the calling thread, for use inside a task: tiles of TIGON_GEMM_M x TIGON_GEMM_N, the rest at the
 * end. scratch: tigon_gemm_scratch() bytes. */
void tigon_gemm_serial(const tigon_gemm *product, int slot, void *scratch);

/* The epilogue that stores C: out = alpha * C + bias (over n), rounded once to out's kind, or added to it. */
typedef struct tigon_gemm_store {
  void *data;
  tigon_kind kind;
  int64_t stride; /* elements between rows */
  float alpha;
  bool accumulate; /* out += ... */
  tigon_view bias; /* absent, or (n) */
} tigon_gemm_store;

TIGON_ISA_DECLARE(void, tigon_gemm_store_tile,
                  (void *store, int slot, int64_t m0, int64_t n0, int64_t m, int64_t n, float *tile, int64_t ld));

/* A view's matrix (two trailing dimensions at `data`), as an operand. */
static inline tigon_matrix tigon_matrix_of(const tigon_view *view, bool transposed) {
  const tigon_matrix matrix = {
      .data = view->data, .kind = view->kind, .stride = view->stride[view->ndim - 2], .transposed = transposed};
  return matrix;
}

/* Implementation, per instruction set (gemm_kernel.c, gemm_amx.c): rows of A and of B in a register tile;
 * and the tile C[m0 .. m0 + m, n0 .. n0 + n] over all of k. */
typedef struct tigon_gemm_panel {
  int64_t m, n;
} tigon_gemm_panel;
TIGON_ISA_DECLARE(tigon_gemm_panel, tigon_gemm_panel_of, (void));
TIGON_ISA_DECLARE(void, tigon_gemm_tile,
                  (const tigon_gemm *product, int slot, int64_t m0, int64_t m, int64_t n0, int64_t n, float *scratch));

/* The same for a bfloat16 A and B, on AVX-512's dot products of pairs. */
void tigon_gemm_tile_avx512_bf16(const tigon_gemm *product, int slot, int64_t m0, int64_t m, int64_t n0, int64_t n,
                                 float *scratch);

/* The same on the matrix unit, for a bfloat16 B and an A of bfloat16 or float32. */
tigon_gemm_panel tigon_gemm_panel_of_amx(void);
void tigon_gemm_tile_amx(const tigon_gemm *product, int slot, int64_t m0, int64_t m, int64_t n0, int64_t n,
                         float *scratch);

#endif
