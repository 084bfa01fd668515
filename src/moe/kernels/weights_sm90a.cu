/*
 * Weight gradients on Hopper: for each expert (and part: gate, up) outer^T inner over its sorted rows, both operands as
 * they lie. A tile is one block's over all its rows, so that sums have one order; padding rows are zeros (with finite
 * weights).
 * Experts have few rows, so that what a tile needs beside its product weighs: the multiplying warpgroups take tiles in
 * turns, and one stores while the other multiplies; a warp of its own finds tiles. A tile is 128 along the outer width
 * and 192 along the inner, which widths of models divide by; a gradient whose rows run along the outer width is stored
 * transposed. Pairs of blocks share the outer operand of neighbouring tiles (kernel/product.h, where the inner tiles of
 * all parts are the rows). An expert's tiles cost the same, and each pair takes every so many.
 */
#include "moe/kernels/bring.cuh"

typedef product_shared<4, 2, 2, false, MOE_WEIGHTS_INNER> weights_shared;
enum { OUTER = MOE_WEIGHTS_OUTER, INNER = MOE_WEIGHTS_INNER };

__device__ __forceinline__ tile weight_tile(const moe_weights_params &p, int number) {
  const product_rows inner = {p.parts * p.inner_tiles, weights_shared::cluster, 0};
  const int each = product_numbers(inner.tiles / 2, inner.tiles % 2, p.outer_tiles);
  tile t = {};
  t.group = number / each;
  if (t.group >= p.groups) return t;
  const product_place place = product_place_of(inner, p.outer_tiles, number - t.group * each, (int)cluster_rank());
  t.shared = place.shared;
  t.part = place.down / p.inner_tiles;
  t.down = place.down - t.part * p.inner_tiles;
  t.column = place.column;
  t.row = p.first_row[t.group];
  t.steps = (p.first_row[t.group + 1] - t.row) / PRODUCT_K;
  t.halves = 2;
  return t;
}

/* A share of an expert's rows to the cache, by a warp. */
__device__ __forceinline__ void prefetch_rows(const moe_weights_params &p, int group) {
  const int end = p.first_row[group + 1];
  for (int row = p.first_row[group] + (int)(blockIdx.x + threadIdx.x % 32 * gridDim.x); row < end;
       row += 32 * gridDim.x) {
    bulk_prefetch(p.outer_rows + row * p.outer_row_bytes, (int)p.outer_row_bytes);
    bulk_prefetch(p.inner_rows + row * p.inner_row_bytes, (int)p.inner_row_bytes);
  }
}

/* By a warp. Where the blocks take an expert's tiles at once, they ask for each of its rows at once: the next expert's
 * are brought to the cache meanwhile. */
__device__ __forceinline__ void deal(const moe_weights_params &p, weights_shared *s) {
  const bool prefetches = p.parts * p.inner_tiles * p.outer_tiles <= 2 * (int)gridDim.x;
  ring_place<TILE_SLOTS> slot;
  int prefetched = 0;
  for (int number = blockIdx.x / 2;; number += gridDim.x / 2) {
    const tile t = weight_tile(p, number);
    if (threadIdx.x % 32 == 0) publish_tile(s, slot, t);
    __syncwarp();
    slot.next();
    if (!t.halves) break;
    if (!prefetches || t.group < prefetched) continue;
    prefetched = t.group + 1;
    if (prefetched < p.groups) prefetch_rows(p, prefetched);
  }
}

/* PRODUCT_K rows of a tile's inner columns, by one copy where the operand's width is whole boxes of 64, else a box at a
 * time. */
template <bool BOTH>
__device__ __forceinline__ void load_inner(const moe_weights_params &p, char *to, uint64_t *full, int column, int row) {
  if (p.inner_whole) return load_box<BOTH>(to, &p.inner, full, 0, row, column / 64);
#pragma unroll
  for (int i = 0; i < INNER / 64; i++) load_box<BOTH>(to + i * BOX_BYTES, &p.inner, full, column + i * 64, row, 0);
}

/* By a warp, of which one thread asks: a stage is used up as fast as a thread can ask for it. */
__device__ __forceinline__ void bring(const moe_weights_params &p, weights_shared *s) {
  const int rank = (int)cluster_rank();
  ring_place<weights_shared::stages> stage;
  ring_place<TILE_SLOTS> slot;
  for (;;) {
    const tile t = read_tile(s, slot);
    slot.next();
    if (!t.halves) break;
    const int outer = t.column * OUTER, inner = t.down * INNER + (p.first_part + t.part) * p.inner_part;
    for (int step = 0; step < t.steps && threadIdx.x == 0; step++) {
      const int row = t.row + step * PRODUCT_K;
      uint64_t *full = &s->full[stage.at];
      char *a = s->a[stage.at], *b = s->b[stage.at];
      mbarrier_wait(&s->empty[stage.at], stage.parity ^ 1);
      mbarrier_arrive_expect(full, (OUTER + INNER) * ROW_BYTES);
      if (t.shared == PRODUCT_COLUMNS_SHARED) {
        load_box<true>(a + rank * BOX_BYTES, &p.outer, full, outer + rank * 64, row, 0);
        load_inner<false>(p, b, full, inner, row);
      } else { /* in turns to both */
        load_box<false>(a, &p.outer, full, outer, row, 0);
        load_box<false>(a + BOX_BYTES, &p.outer, full, outer + 64, row, 0);
        if (step % 2 == rank) load_inner<true>(p, b, full, inner, row);
      }
      stage.next();
    }
    __syncwarp();
  }
}

/* Adds 64 of the outer width to fp32, or stores them, straight from the registers. */
template <bool TRANSPOSED, int N>
__device__ __forceinline__ void store_wide(const moe_weights_params &p, const tile &t, int first_outer,
                                           const float (&sums)[N]) {
  const int thread = (int)threadIdx.x % WARPGROUP, lane = thread % 32;
  float *out = (float *)p.wide[t.part] + t.group * p.wide_group;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int outer = first_outer + thread / 32 * 16 + lane / 4 + 8 * r;
    if (outer >= p.outer_width) continue;
#pragma unroll
    for (int q = 0; q < N / 4; q++) {
      const int inner = t.down * INNER + q * 8 + lane % 4 * 2;
      if (inner >= p.inner_width) continue;
      float2 v = make_float2(sums[4 * q + 2 * r], sums[4 * q + 2 * r + 1]);
      if constexpr (TRANSPOSED) {
        float *at = out + inner * p.wide_row + outer;
        at[0] = p.accumulates ? at[0] + v.x : v.x;
        at[p.wide_row] = p.accumulates ? at[p.wide_row] + v.y : v.y;
      } else {
        float2 *at = (float2 *)(out + outer * p.wide_row + inner);
        if (p.accumulates) v = make_float2(at->x + v.x, at->y + v.y);
        *at = v;
      }
    }
  }
}

/* A multiplying warpgroup: every second tile of the block. */
template <bool TRANSPOSED> __device__ __forceinline__ void multiply(const moe_weights_params &p, weights_shared *s) {
  const int own = half_of_block();
  box_writer<weights_shared> writer = {s, own, 0};
  ring_place<weights_shared::stages> stage;
  ring_place<TILE_SLOTS> slot;
  int turn = 0;
  if (own == 1) pass_turn(own);
  for (;; turn ^= 1) {
    const tile t = read_tile(s, slot);
    slot.next();
    if (!t.halves) break;
    if (turn != own) {
      stage.skip(t.steps);
      continue;
    }
    float sums[OUTER / 64][INNER / 2];
    multiply_alone<MN_MAJOR, MN_MAJOR>(s, stage, own, t.steps, sums);
#pragma unroll
    for (int i = 0; i < OUTER / 64; i++) {
      const int outer = t.column * OUTER + i * 64;
      if (p.wide[0]) {
        if (t.steps > 0 || !p.accumulates) store_wide<TRANSPOSED>(p, t, outer, sums[i]);
        continue;
      }
#pragma unroll
      for (int part = 0; part < INNER / 64; part++) {
        const int inner = t.down * INNER + part * 64;
        if (outer >= p.outer_width || inner >= p.inner_width) continue;
        uint32_t word[16];
        pack_sums(sums[i], part, word);
        writer.write<TRANSPOSED>(word, &p.out[t.part], TRANSPOSED ? outer : inner, TRANSPOSED ? inner : outer, t.group);
      }
    }
  }
  if (turn == own) await_turn(own); /* that nobody takes */
  if (threadIdx.x % WARPGROUP == 0) tma_store_wait_all();
}

template <bool TRANSPOSED> __device__ __forceinline__ void weights(const moe_weights_params &p) {
  weights_shared *s = product_memory<weights_shared>();
  product_start(s, 1, CONSUMER_WARPS / 2, CONSUMER_WARPS + 1);
  if (threadIdx.x < WARPGROUP) {
    give_registers<40>();
    if (threadIdx.x / 32 == 0) bring(p, s);
    if (threadIdx.x / 32 == 1) deal(p, s);
  } else {
    take_registers<232>();
    multiply<TRANSPOSED>(p, s);
  }
  product_end();
}

extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 1)
    moe_weights(const __grid_constant__ moe_weights_params p) {
  weights<false>(p);
}

extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 1)
    moe_weights_transposed(const __grid_constant__ moe_weights_params p) {
  weights<true>(p);
}
