/*
 * The expert MLP's products on Hopper whose depth is a width (include/tigon/moe.h). Weights are read in place, in either
 * layout.
 *
 * moe_gate_up: a tile is 128 rows by 128 columns of gate and the same of up, side by side in one 256-wide product, so
 * that a thread has g and u of the same elements. Rows of x are gathered by their token on the way to shared memory.
 * moe_rows: sorted rows by weights, 128 by 256: down in forward, and the rows of dx, whose depth has the two parts gate
 * and up.
 */
#include "moe/kernels/bring.cuh"

/* Woven, down and dx were slower by 2 to 4 % (docs/lab/gpu_moe.md). */
typedef product_shared<4, 2, 2, true> gate_up_shared;
typedef product_shared<4, 2, 2, false> rows_shared;

/* silu(g) u of two neighbours, from their rounded values */
__device__ __forceinline__ uint32_t swiglu_pair(uint32_t g, uint32_t u) {
  const float2 gate = unpack_pair(KIND_BF16, g), up = unpack_pair(KIND_BF16, u);
  return pack_pair(KIND_BF16, make_float2(gate.x * sigmoid(gate.x) * up.x, gate.y * sigmoid(gate.y) * up.y));
}

struct gate_up_work : plain_work {
  const moe_product_params &p;
  box_writer<gate_up_shared> writer;
  __device__ __forceinline__ gate_up_work(const moe_product_params &p, gate_up_shared *s)
      : p(p), writer({s, half_of_block(), 0}) {}

  __device__ __forceinline__ void store(const tile &t, const float (&sums)[128]) {
    const int row = t.row + writer.half * HALF_M;
#pragma unroll
    for (int part = 0; part < 2; part++) {
      const int x = t.column * PRODUCT_N / 2 + part * 64;
      if (x >= p.width) continue;
      uint32_t gate[16], up[16];
      pack_sums(sums, part, gate);
      pack_sums(sums, part + 2, up);
      if (p.keeps_h) {
        writer.write(gate, &p.h, x, 0, row);
        writer.write(up, &p.h, x, 1, row);
      }
#pragma unroll
      for (int i = 0; i < 16; i++) gate[i] = swiglu_pair(gate[i], up[i]);
      writer.write(gate, &p.out, x, 0, row);
    }
  }
};

template <int MAJOR> __device__ __forceinline__ void gate_up(const moe_product_params &p) {
  gate_up_shared *s = product_memory<gate_up_shared>();
  product_start(s, WARPGROUP + 1, CONSUMER_WARPS, CONSUMER_WARPS + 3);
  if (threadIdx.x < WARPGROUP) {
    give_registers<72>();
    const gathered_rows rows = {p.x, p.x_row_bytes, p.row_token, p.depth};
    gather_tiles(p.tiles, rows, s, [&](int stage, const tile &t, int k) {
      load_columns<MAJOR>(s, stage, t, &p.b[0], &p.b[1], k, t.column * PRODUCT_N / 2, 0);
    });
  } else {
    take_registers<216>();
    gate_up_work work(p, s);
    multiply_tiles<K_MAJOR, MAJOR, true>(s, work);
  }
  product_end();
}

struct rows_work : plain_work {
  const moe_product_params &p;
  box_writer<rows_shared> writer;
  __device__ __forceinline__ rows_work(const moe_product_params &p, rows_shared *s)
      : p(p), writer({s, half_of_block(), 0}) {}

  __device__ __forceinline__ void store(const tile &t, const float (&sums)[128]) {
#pragma unroll
    for (int part = 0; part < 4; part++) {
      const int x = t.column * PRODUCT_N + part * 64;
      if (x >= p.width) continue;
      uint32_t word[16];
      pack_sums(sums, part, word);
      writer.write(word, &p.out, x, 0, t.row + writer.half * HALF_M);
    }
  }
};

__device__ __forceinline__ void load_rows(rows_shared *s, int stage, const tile &t, const CUtensorMap *map, int k,
                                          int part) {
  char *to = s->a[stage];
  uint64_t *full = &s->full[stage];
  if (t.shared == PRODUCT_ROWS_SHARED) {
    const int half = (int)cluster_rank();
    tma_load_3d_to_both(to + half * BOX_BYTES, map, full, k, part, t.row + half * HALF_M);
  } else {
#pragma unroll
    for (int half = 0; half < 2; half++) tma_load_3d(to + half * BOX_BYTES, map, full, k, part, t.row + half * HALF_M);
  }
}

template <int MAJOR> __device__ __forceinline__ void bring_rows(const moe_product_params &p, rows_shared *s) {
  ring_place<rows_shared::stages> stage;
  ring_place<TILE_SLOTS> slot;
  dealer<rows_shared> deals(s);
  for (;;) {
    const tile t = deals.deal(p.tiles, slot, (p.depth + PRODUCT_K - 1) / PRODUCT_K * p.parts);
    slot.next();
    if (!t.halves) break;
    if (threadIdx.x == 0)
      for (int part = 0; part < p.parts; part++)
        for (int k = 0; k < p.depth; k += PRODUCT_K) {
          mbarrier_wait(&s->empty[stage.at], stage.parity ^ 1);
          mbarrier_arrive_expect(&s->full[stage.at], (PRODUCT_M + PRODUCT_N) * ROW_BYTES);
          load_rows(s, stage.at, t, &p.a, k, part);
          load_columns<MAJOR>(s, stage.at, t, &p.b[part], &p.b[part], k, t.column * PRODUCT_N, PRODUCT_N / 2);
          stage.next();
        }
    __syncwarp();
    deals.next();
  }
}

template <int MAJOR> __device__ __forceinline__ void rows(const moe_product_params &p) {
  rows_shared *s = product_memory<rows_shared>();
  product_start(s, 1, CONSUMER_WARPS, CONSUMER_WARPS);
  if (threadIdx.x < WARPGROUP) {
    give_registers<40>();
    if (threadIdx.x < 32) bring_rows<MAJOR>(p, s);
  } else {
    take_registers<232>();
    rows_work work(p, s);
    multiply_tiles<K_MAJOR, MAJOR, false>(s, work);
  }
  product_end();
}

#define KERNEL(name, function, major)                              \
  extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 1) \
      moe_##name(const __grid_constant__ moe_product_params p) {   \
    function<major>(p);                                            \
  }

KERNEL(gate_up, gate_up, K_MAJOR)
KERNEL(gate_up_transposed, gate_up, MN_MAJOR)
KERNEL(rows, rows, K_MAJOR)
KERNEL(rows_transposed, rows, MN_MAJOR)
