/*
 * Weight gradients on Hopper: for each expert (and part: gate, up) a^T b over its sorted rows, both operands as they lie.
 * A tile, 128 by 256 of an expert's matrix, is one block's over all its rows, so that sums have one order; padding rows
 * are zeros (with finite weights). Tiles cost about the same, so each block takes every grid-th.
 */
#include "moe/kernels/bring.cuh"

typedef product_shared<4, 2> shared;

__device__ __forceinline__ tile weight_tile(const moe_weights_params &p, int number) {
  tile t = {};
  const int each = p.tiles_m * p.tiles_n, part_tile = number / each, at = number - part_tile * each;
  if (part_tile >= p.parts * p.groups) return t;
  t.group = part_tile / p.parts;
  t.part = part_tile % p.parts;
  t.column = at / p.tiles_m;
  t.down = at % p.tiles_m;
  t.row = p.first_row[t.group];
  t.steps = (p.first_row[t.group + 1] - t.row) / PRODUCT_K;
  t.halves = min(2, (p.m - t.down * PRODUCT_M + HALF_M - 1) / HALF_M);
  return t;
}

__device__ __forceinline__ void bring(const moe_weights_params &p, shared *s) {
  ring_place<shared::stages> stage;
  ring_place<TILE_SLOTS> slot;
  for (int number = blockIdx.x;; number += gridDim.x) {
    const tile t = weight_tile(p, number);
    publish_tile(s, slot, t);
    slot.next();
    if (!t.halves) break;
    for (int step = 0; step < t.steps; step++) {
      if (threadIdx.x == 0) {
        uint64_t *full = &s->full[stage.at];
        const int row = t.row + step * PRODUCT_K;
        mbarrier_wait(&s->empty[stage.at], stage.parity ^ 1);
        mbarrier_arrive_expect(full, (PRODUCT_M + PRODUCT_N) * ROW_BYTES);
        for (int i = 0; i < PRODUCT_M / 64; i++)
          tma_load_3d(s->a[stage.at] + i * BOX_BYTES, &p.a, full, t.down * PRODUCT_M + i * 64, t.part * p.a_parts, row);
        for (int i = 0; i < PRODUCT_N / 64; i++)
          tma_load_3d(s->b[stage.at] + i * BOX_BYTES, &p.b, full, t.column * PRODUCT_N + i * 64, t.part * p.b_parts,
                      row);
      }
      stage.next();
    }
    __syncwarp();
  }
}

/* Adds to fp32, or stores it, straight from the registers. */
__device__ __forceinline__ void store_wide(const moe_weights_params &p, const tile &t, int half,
                                           const float (&sums)[128]) {
  const int thread = (int)threadIdx.x % WARPGROUP, lane = thread % 32;
  float *out = (float *)p.wide[t.part] + t.group * p.wide_group;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int m = t.down * PRODUCT_M + half * HALF_M + thread / 32 * 16 + lane / 4 + 8 * r;
    if (m >= p.m) continue;
#pragma unroll
    for (int q = 0; q < 32; q++) {
      const int n = t.column * PRODUCT_N + q * 8 + lane % 4 * 2;
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

struct weights_work : plain_work {
  const moe_weights_params &p;
  box_writer<shared> writer;
  __device__ __forceinline__ weights_work(const moe_weights_params &p, shared *s)
      : p(p), writer({s, half_of_block(), 0}) {}

  __device__ __forceinline__ void store(const tile &t, const float (&sums)[128]) {
    if (p.wide[0]) {
      if (t.steps > 0 || !p.accumulates) store_wide(p, t, writer.half, sums);
      return;
    }
#pragma unroll
    for (int part = 0; part < 4; part++) {
      const int x = t.column * PRODUCT_N + part * 64;
      if (x >= p.n) continue;
      uint32_t word[16];
      pack_sums(sums, part, word);
      writer.write(word, &p.out[t.part], x, t.down * PRODUCT_M + writer.half * HALF_M, t.group);
    }
  }
};

extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 1)
    moe_weights(const __grid_constant__ moe_weights_params p) {
  shared *s = product_memory<shared>();
  product_start(s, 1, CONSUMER_WARPS);
  if (threadIdx.x < WARPGROUP) {
    give_registers<40>();
    if (threadIdx.x < 32) bring(p, s);
  } else {
    take_registers<232>();
    weights_work work(p, s);
    multiply_tiles<MN_MAJOR, MN_MAJOR, false>(s, work);
  }
}
