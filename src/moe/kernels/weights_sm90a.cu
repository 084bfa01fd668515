/*
 * Weight gradients on Hopper: for each expert (and part: gate, up) a^T b over its sorted rows, both operands as they lie.
 * A tile is one block's over all its rows, so that sums have one order; padding rows are zeros (with finite weights).
 * Experts have few rows, so that what a tile needs behind its product weighs: the multiplying warpgroups take tiles in
 * turns, and one stores while the other multiplies. A tile is 192 along the inner width, which widths of models divide
 * by, and 128 along the other. An expert's tiles cost the same, and each block takes every grid-th.
 */
#include "moe/kernels/bring.cuh"

__device__ __forceinline__ tile weight_tile(const moe_weights_params &p, int number) {
  tile t = {};
  const int each = p.tiles_m * p.tiles_n, part_tile = number / each, at = number - part_tile * each;
  if (part_tile >= p.parts * p.groups) return t;
  t.group = part_tile / p.parts;
  t.part = part_tile - t.group * p.parts;
  const int strip = at / (PRODUCT_RASTER * p.tiles_n), in_strip = at - strip * PRODUCT_RASTER * p.tiles_n;
  const int height = min(PRODUCT_RASTER, p.tiles_m - strip * PRODUCT_RASTER);
  t.column = in_strip / height;
  t.down = strip * PRODUCT_RASTER + in_strip % height;
  t.row = p.first_row[t.group];
  t.steps = (p.first_row[t.group + 1] - t.row) / PRODUCT_K;
  t.halves = 2;
  return t;
}

/* PRODUCT_K rows of WIDTH columns, by one copy where the operand's width is whole boxes of 64, else a box at a time. */
template <int WIDTH>
__device__ __forceinline__ void load_operand(char *to, const CUtensorMap *map, uint64_t *full, int column, int row,
                                             bool whole) {
  if (whole) return tma_load_3d(to, map, full, 0, row, column / 64);
#pragma unroll
  for (int i = 0; i < WIDTH / 64; i++) tma_load_3d(to + i * BOX_BYTES, map, full, column + i * 64, row, 0);
}

/* By one thread. A stage is used up as fast as a thread can ask for it: there is no time for more than is here. */
template <class SHARED> __device__ __forceinline__ void bring(const moe_weights_params &p, SHARED *s) {
  ring_place<SHARED::stages> stage;
  ring_place<TILE_SLOTS> slot;
  for (int number = blockIdx.x;; number += gridDim.x) {
    const tile t = weight_tile(p, number);
    publish_tile(s, slot, t);
    slot.next();
    if (!t.halves) break;
    const int part = p.first_part + t.part;
    const int column_a = t.down * SHARED::m + part * p.a_part, column_b = t.column * SHARED::n + part * p.b_part;
    int row = t.row;
    for (int step = 0; step < t.steps; step++, row += PRODUCT_K) {
      uint64_t *full = &s->full[stage.at];
      mbarrier_wait(&s->empty[stage.at], stage.parity ^ 1);
      mbarrier_arrive_expect(full, (SHARED::m + SHARED::n) * ROW_BYTES);
      load_operand<SHARED::m>(s->a[stage.at], &p.a, full, column_a, row, p.a_whole);
      load_operand<SHARED::n>(s->b[stage.at], &p.b, full, column_b, row, p.b_whole);
      stage.next();
    }
  }
}

/* Adds 64 rows to fp32, or stores them, straight from the registers. */
template <int N>
__device__ __forceinline__ void store_wide(const moe_weights_params &p, const tile &t, int first_m, int first_n,
                                           const float (&sums)[N]) {
  const int thread = (int)threadIdx.x % WARPGROUP, lane = thread % 32;
  float *out = (float *)p.wide[t.part] + t.group * p.wide_group;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int m = first_m + thread / 32 * 16 + lane / 4 + 8 * r;
    if (m >= p.m) continue;
#pragma unroll
    for (int q = 0; q < N / 4; q++) {
      const int n = first_n + q * 8 + lane % 4 * 2;
      float2 *at = (float2 *)(out + m * p.wide_row + n);
      if (n >= p.n) continue;
      float2 v = make_float2(sums[4 * q + 2 * r], sums[4 * q + 2 * r + 1]);
      if (p.accumulates) {
        const float2 before = *at;
        v.x += before.x;
        v.y += before.y;
      }
      *at = v;
    }
  }
}

/* A multiplying warpgroup: every second tile of the block. */
template <class SHARED> __device__ __forceinline__ void multiply(const moe_weights_params &p, SHARED *s) {
  const int own = half_of_block();
  box_writer<SHARED> writer = {s, own, 0};
  ring_place<SHARED::stages> stage;
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
    float sums[SHARED::m / 64][SHARED::n / 2];
    multiply_alone<MN_MAJOR, MN_MAJOR>(s, stage, own, t.steps, sums);
#pragma unroll
    for (int i = 0; i < SHARED::m / 64; i++) {
      const int m = t.down * SHARED::m + i * 64;
      if (p.wide[0]) {
        if (t.steps > 0 || !p.accumulates) store_wide(p, t, m, t.column * SHARED::n, sums[i]);
        continue;
      }
#pragma unroll
      for (int part = 0; part < SHARED::n / 64; part++) {
        const int n = t.column * SHARED::n + part * 64;
        if (m >= p.m || n >= p.n) continue;
        uint32_t word[16];
        pack_sums(sums[i], part, word);
        writer.write(word, &p.out[t.part], n, m, t.group);
      }
    }
  }
  if (turn == own) await_turn(own); /* that nobody takes */
  if (threadIdx.x % WARPGROUP == 0) tma_store_wait_all();
}

template <int M, int N> __device__ __forceinline__ void weights(const moe_weights_params &p) {
  typedef product_shared<4, 2, 1, false, M, N> shared;
  shared *s = product_memory<shared>();
  product_start(s, 1, CONSUMER_WARPS / 2, CONSUMER_WARPS);
  if (threadIdx.x < WARPGROUP) {
    give_registers<40>();
    if (threadIdx.x == 0) bring(p, s);
  } else {
    take_registers<232>();
    multiply(p, s);
  }
}

extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 1)
    moe_weights_wide(const __grid_constant__ moe_weights_params p) {
  weights<MOE_WEIGHTS_OUTER, MOE_WEIGHTS_INNER>(p);
}

extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 1)
    moe_weights_tall(const __grid_constant__ moe_weights_params p) {
  weights<MOE_WEIGHTS_INNER, MOE_WEIGHTS_OUTER>(p);
}
