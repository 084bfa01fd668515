/*
 * From the gradient of the output to that of gate and up, on Hopper (include/tigon/moe.h): da' = dout down with rows of
 * dout gathered by their token, and with g and u, which come by bulk copies while the product runs,
 *
 *     da = s da'     dg, du     s a     the row's part of <da', a>
 *
 * The rows of dout are also stored in sorted order, for the gradient of down.
 *
 * A multiplying warpgroup has two pairs of boxes for g and u, which dg and du replace in place, and one for s a.
 */
#include "moe/kernels/bring.cuh"

enum { PAIRS = 2, WEIGHTED_BOX = 2 * PAIRS, CHUNKS = PRODUCT_N / 64 };
struct shared : product_shared<3, WEIGHTED_BOX + 1, 1> {
  uint64_t box_full[2][PAIRS];
  float row_value[2][HALF_M]; /* s */
};

/* A multiplying warpgroup's part. */
struct activation {
  const moe_activation_params &p;
  shared *s;
  int half, parity; /* parity: bit i of pair i */
  int row; /* where the gathered rows of a tile go in sorted order; -1: nowhere, or another column's tile does */

  __device__ __forceinline__ bool leads() const { return threadIdx.x % WARPGROUP == 0; }

  /* By the leading thread, where nothing reads or writes the pair any more. */
  __device__ __forceinline__ void fetch(const tile &t, int chunk) {
    const int x = t.column * PRODUCT_N + chunk * 64, pair = chunk % PAIRS;
    if (chunk >= CHUNKS || x >= p.width) return;
    uint64_t *full = &s->box_full[half][pair];
    mbarrier_arrive_expect(full, 2 * BOX_BYTES);
    for (int part = 0; part < 2; part++)
      tma_load_3d(s->box[half][2 * pair + part], &p.h, full, x, part, t.row + half * HALF_M);
  }

  __device__ __forceinline__ void arrived(const char *rows, int step) {
    if (row < 0 || !leads()) return;
    tma_store_3d(&p.sorted, rows, step * PRODUCT_K, 0, row);
    tma_store_commit();
  }
  __device__ __forceinline__ void used() {
    if (row >= 0 && leads()) tma_store_wait_read<0>();
  }

  __device__ __forceinline__ void prepare(const tile &t) {
    row = p.sorts && t.column == 0 ? t.row + half * HALF_M : -1;
    if (leads()) {
      tma_store_wait_read<0>();
      fetch(t, 0);
      fetch(t, 1);
    }
    const int thread = (int)threadIdx.x % WARPGROUP;
    if (thread >= HALF_M) return;
    const int at = t.row + half * HALF_M + thread, token = p.row_token[at];
    s->row_value[half][thread] =
        token < 0   ? 0.0f
        : p.weights ? load_element(p.weights + token * p.weight_row_bytes, p.weight_kind, p.row_choice[at])
                    : 1.0f;
  }

  /* The words of g and u become those of dg and du. Returns <da', a>. */
  __device__ __forceinline__ float differentiate(float2 da, float weight, uint32_t &g, uint32_t &u,
                                                 uint32_t &weighted) const {
    const float2 gate = unpack_pair(KIND_BF16, g), up = unpack_pair(KIND_BF16, u);
    const float2 sigma = make_float2(sigmoid(gate.x), sigmoid(gate.y)), silu = pair_mul(gate, sigma);
    const float2 a = round_pair(KIND_BF16, pair_mul(silu, up)), s = pair_set(weight);
    const float2 slope = make_float2(silu.x * (1.0f - sigma.x) + sigma.x, silu.y * (1.0f - sigma.y) + sigma.y);
    const float2 scaled = pair_mul(da, s);
    weighted = pack_pair(KIND_BF16, pair_mul(a, s));
    g = pack_pair(KIND_BF16, pair_mul(pair_mul(scaled, up), slope));
    u = pack_pair(KIND_BF16, pair_mul(scaled, silu));
    return da.x * a.x + da.y * a.y;
  }

  __device__ __forceinline__ void store(const tile &t, const float (&sums)[128]) {
    const int begin = t.row + half * HALF_M;
    float dot[2] = {0.0f, 0.0f};
    const box_place place;
    named_barrier(1 + half, WARPGROUP); /* behind prepare's values */
    const int thread = (int)threadIdx.x % WARPGROUP, first = thread / 32 * 16 + thread % 32 / 4;
    const float weight[2] = {s->row_value[half][first], s->row_value[half][first + 8]};
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
      const int x = t.column * PRODUCT_N + chunk * 64, pair = chunk % PAIRS;
      if (x >= p.width) continue;
      char *gates = s->box[half][2 * pair], *ups = s->box[half][2 * pair + 1];
      uint32_t weighted[16];
      mbarrier_wait(&s->box_full[half][pair], parity >> pair & 1);
      parity ^= 1 << pair;
#pragma unroll
      for (int j = 0; j < 4; j++) { /* a warp reads and writes 16 rows, which are no other warp's */
        if (j == 1 && chunk > 0 && leads()) {
          tma_store_wait_read<0>(); /* of the chunk before, whose pair is the next one's */
          fetch(t, chunk + 1);
        }
        uint32_t g[4], u[4];
        load_matrices(place.address(gates, j), g[0], g[1], g[2], g[3]);
        load_matrices(place.address(ups, j), u[0], u[1], u[2], u[3]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const float2 da = make_float2(sums[chunk * 32 + 8 * j + 2 * i], sums[chunk * 32 + 8 * j + 2 * i + 1]);
          dot[i % 2] += differentiate(da, weight[i % 2], g[i], u[i], weighted[4 * j + i]);
        }
        __syncwarp();
        store_matrices(place.address(gates, j), g[0], g[1], g[2], g[3]);
        store_matrices(place.address(ups, j), u[0], u[1], u[2], u[3]);
      }
      if (leads()) tma_store_wait_read<0>();
      named_barrier(1 + half, WARPGROUP);
      put_box(s->box[half][WEIGHTED_BOX], weighted);
      fence_async_shared();
      named_barrier(1 + half, WARPGROUP);
      if (leads()) {
        tma_store_3d(&p.dh, s->box[half][2 * pair], x, 0, begin);
        tma_store_3d(&p.dh, s->box[half][2 * pair + 1], x, 1, begin);
        tma_store_3d(&p.weighted, s->box[half][WEIGHTED_BOX], x, 0, begin);
        tma_store_commit();
      }
    }
    if (!p.dots) return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      dot[r] += __shfl_xor_sync(0xffffffffu, dot[r], 1);
      dot[r] += __shfl_xor_sync(0xffffffffu, dot[r], 2);
      if (threadIdx.x % 4 == 0) p.dots[(int64_t)t.column * p.rows + begin + first + 8 * r] = dot[r];
    }
  }
};

template <int MAJOR> __device__ __forceinline__ void differentiate(const moe_activation_params &p) {
  shared *s = product_memory<shared>();
  if (threadIdx.x == 0)
    for (int i = 0; i < 2 * PAIRS; i++) mbarrier_init(&s->box_full[i / PAIRS][i % PAIRS], 1);
  product_start(s, WARPGROUP + 1, CONSUMER_WARPS, CONSUMER_WARPS + 3);
  if (threadIdx.x < WARPGROUP) {
    give_registers<56>();
    const gathered_rows rows = {p.dout, p.dout_row_bytes, p.row_token, p.depth};
    gather_tiles(p.tiles, rows, s, [&](int stage, const tile &t, int k) {
      load_columns<MAJOR>(s, stage, t, &p.down, &p.down, k, t.column * PRODUCT_N, PRODUCT_N / 2);
    });
  } else {
    take_registers<224>();
    activation work = {p, s, half_of_block(), 0, -1};
    multiply_tiles<K_MAJOR, MAJOR, true>(s, work);
  }
}

extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 1)
    moe_activation(const __grid_constant__ moe_activation_params p) {
  differentiate<MN_MAJOR>(p);
}

extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 1)
    moe_activation_transposed(const __grid_constant__ moe_activation_params p) {
  differentiate<K_MAJOR>(p);
}
