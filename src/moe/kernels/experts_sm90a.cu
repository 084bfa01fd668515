/*
 * The expert MLP's products on Hopper (include/tigon/moe.h). Both kernels read weights in place, in either layout.
 *
 * moe_gate_up: a tile is 128 rows by 128 columns of gate and the same of up, side by side in one 256-wide product, so
 * that a thread has g and u of the same elements. Rows of x are gathered by their token on the way to shared memory.
 * moe_down: 128 rows by 256 columns.
 */
#include "kernel/async.cuh"
#include "kernel/number.cuh"
#include "kernel/product.cuh"
#include "moe/kernels/params.h"

/* Both halves of a stage's weights: 128 columns of the product each. */
template <int MAJOR>
__device__ __forceinline__ void load_weights(const moe_product_params &p, product_shared *s, int stage, const tile &t,
                                             int k, int first, int second) {
  const int columns[2] = {first, second};
#pragma unroll
  for (int half = 0; half < 2; half++) {
    char *to = s->b[stage] + half * PRODUCT_N / 2 * ROW_BYTES;
    if (MAJOR == K_MAJOR) {
      tma_load_3d(to, &p.b[half], &s->full[stage], k, columns[half], t.group);
    } else {
#pragma unroll
      for (int block = 0; block < 2; block++)
        tma_load_3d(to + block * BOX_BYTES, &p.b[half], &s->full[stage], columns[half] + block * 64, k, t.group);
    }
  }
}

/* Hands tiles to the block's other warps: what the first warp of the bringing warpgroup does beside bringing. */
struct dealer {
  int number = blockIdx.x, group = 0, following = 0;

  __device__ __forceinline__ tile deal(const product_tiles &tiles, product_shared *s,
                                       const ring_place<TILE_SLOTS> &slot) {
    const tile t = find_tile(tiles, number, group);
    publish_tile(s, slot, t);
    if (t.halves && threadIdx.x % 32 == 0) following = atomicAdd(tiles.next, 1) + (int)gridDim.x;
    return t;
  }
  __device__ __forceinline__ void next() { number = __shfl_sync(0xffffffffu, following, 0); }
};

/* The multiplying warpgroups' loop. store(half, tile, sums, writer) takes a finished half tile. */
template <int MAJOR, bool GATHERED, class STORE>
__device__ __forceinline__ void multiply_tiles(const moe_product_params &p, product_shared *s, STORE store) {
  const int half = (int)threadIdx.x / WARPGROUP - 1, steps = (p.depth + PRODUCT_K - 1) / PRODUCT_K;
  ring_place<STAGES> stage;
  ring_place<TILE_SLOTS> slot;
  box_writer writer = {s, half, 0};
  for (;;) {
    const tile t = read_tile(s, slot);
    slot.next();
    if (!t.halves) break;
    if (half >= t.halves) {
      skip_tile(s, stage, steps);
      continue;
    }
    float sums[128];
    multiply_tile<MAJOR, GATHERED>(s, stage, half, steps, sums);
    store(t.row + half * HALF_M, t.column, sums, writer);
  }
  writer.finish();
}

__device__ __forceinline__ float sigmoid(float v) { return __fdividef(1.0f, 1.0f + __expf(-v)); }

/* silu(g) u of two neighbours, from their rounded values */
__device__ __forceinline__ uint32_t swiglu_pair(uint32_t g, uint32_t u) {
  const float2 gate = unpack_pair(KIND_BF16, g), up = unpack_pair(KIND_BF16, u);
  return pack_pair(KIND_BF16, make_float2(gate.x * sigmoid(gate.x) * up.x, gate.y * sigmoid(gate.y) * up.y));
}

/* The rows of a tile of x, or of x', to the stages of the ring. A thread brings 16 bytes of each of 8 rows. */
template <int MAJOR> __device__ __forceinline__ void gather_tiles(const moe_product_params &p, product_shared *s) {
  enum { ROWS = PRODUCT_M / 8, BARRIER = 3 };
  const int chunk = (int)threadIdx.x % 8, first = (int)threadIdx.x / 8;
  const uint32_t to = (uint32_t)(first * ROW_BYTES + (chunk ^ (first & 7)) * 16);
  const bool leads = threadIdx.x < 32;
  ring_place<STAGES> stage;
  ring_place<TILE_SLOTS> slot;
  dealer deals;
  for (;;) {
    const tile t = leads ? deals.deal(p.tiles, s, slot) : read_tile(s, slot);
    slot.next();
    if (!t.halves) break;
    int source[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int row = first + i * ROWS;
      source[i] = row >= t.halves * HALF_M ? -1 : p.row_token ? p.row_token[t.row + row] : t.row + row;
    }
    for (int k = 0; k < p.depth; k += PRODUCT_K) {
      mbarrier_wait(&s->empty[stage.at], stage.parity ^ 1);
      if (threadIdx.x == 0) {
        mbarrier_arrive_expect(&s->full[stage.at], PRODUCT_N * ROW_BYTES);
        load_weights<MAJOR>(p, s, stage.at, t, k, t.column * PRODUCT_N / 2, t.column * PRODUCT_N / 2);
      }
      const int at = k + chunk * 8;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const bool real = source[i] >= 0 && at < p.depth;
        const char *from = p.x + (real ? source[i] * p.x_row_bytes + at * 2 : 0);
        async_copy_or_zero(s->a[stage.at] + to + i * ROWS * ROW_BYTES, from, real);
      }
      mbarrier_arrive_async(&s->full[stage.at]);
      stage.next();
    }
    if (leads) deals.next();
  }
  async_wait_all();
}

template <int MAJOR> __device__ __forceinline__ void gate_up(const moe_product_params &p) {
  extern __shared__ char memory[];
  product_shared *s = product_memory(memory);
  product_start(s, WARPGROUP + 1, CONSUMER_WARPS + 3);
  if (threadIdx.x < WARPGROUP) {
    give_registers<56>();
    gather_tiles<MAJOR>(p, s);
  } else {
    take_registers<224>();
    multiply_tiles<MAJOR, true>(p, s, [&](int row, int column, const float(&sums)[128], box_writer &writer) {
#pragma unroll
      for (int part = 0; part < 2; part++) {
        const int x = column * PRODUCT_N / 2 + part * 64;
        uint32_t gate[16], up[16];
#pragma unroll
        for (int i = 0; i < 16; i++) {
          gate[i] = pack_pair(KIND_BF16, make_float2(sums[part * 32 + 2 * i], sums[part * 32 + 2 * i + 1]));
          up[i] = pack_pair(KIND_BF16, make_float2(sums[64 + part * 32 + 2 * i], sums[64 + part * 32 + 2 * i + 1]));
        }
        if (x >= p.width) continue;
        if (p.keeps_h) {
          writer.write(gate, &p.h, x, 0, row);
          writer.write(up, &p.h, x, 1, row);
        }
#pragma unroll
        for (int i = 0; i < 16; i++) gate[i] = swiglu_pair(gate[i], up[i]);
        writer.write(gate, &p.out, x, 0, row);
      }
    });
  }
}

template <int MAJOR> __device__ __forceinline__ void down(const moe_product_params &p) {
  extern __shared__ char memory[];
  product_shared *s = product_memory(memory);
  product_start(s, 1, CONSUMER_WARPS);
  if (threadIdx.x < WARPGROUP) {
    give_registers<40>();
    if (threadIdx.x >= 32) return;
    ring_place<STAGES> stage;
    ring_place<TILE_SLOTS> slot;
    dealer deals;
    for (;;) {
      const tile t = deals.deal(p.tiles, s, slot);
      slot.next();
      if (!t.halves) break;
      for (int k = 0; k < p.depth; k += PRODUCT_K) {
        if (threadIdx.x == 0) {
          mbarrier_wait(&s->empty[stage.at], stage.parity ^ 1);
          mbarrier_arrive_expect(&s->full[stage.at], (PRODUCT_M + PRODUCT_N) * ROW_BYTES);
          tma_load_3d(s->a[stage.at], &p.a, &s->full[stage.at], k, 0, t.row);
          load_weights<MAJOR>(p, s, stage.at, t, k, t.column * PRODUCT_N, t.column * PRODUCT_N + PRODUCT_N / 2);
        }
        stage.next();
      }
      __syncwarp();
      deals.next();
    }
  } else {
    take_registers<232>();
    multiply_tiles<MAJOR, false>(p, s, [&](int row, int column, const float(&sums)[128], box_writer &writer) {
#pragma unroll
      for (int part = 0; part < 4; part++) {
        const int x = column * PRODUCT_N + part * 64;
        uint32_t word[16];
#pragma unroll
        for (int i = 0; i < 16; i++)
          word[i] = pack_pair(KIND_BF16, make_float2(sums[part * 32 + 2 * i], sums[part * 32 + 2 * i + 1]));
        if (x < p.width) writer.write(word, &p.out, x, 0, row);
      }
    });
  }
}

#define KERNEL(name, function, major)                              \
  extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 1) \
      moe_##name(const __grid_constant__ moe_product_params p) {   \
    function<major>(p);                                            \
  }

KERNEL(gate_up, gate_up, K_MAJOR)
KERNEL(gate_up_transposed, gate_up, MN_MAJOR)
KERNEL(down, down, K_MAJOR)
KERNEL(down_transposed, down, MN_MAJOR)
