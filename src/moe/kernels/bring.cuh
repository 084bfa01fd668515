/* What the products of the expert MLP share beside the main loop: bringing weights and gathered rows, handing out tiles,
 * and the multiplying warpgroups' loop. */
#ifndef TIGON_MOE_KERNELS_BRING_CUH
#define TIGON_MOE_KERNELS_BRING_CUH

#include "kernel/async.cuh"
#include "kernel/math.cuh"
#include "kernel/number.cuh"
#include "kernel/product.cuh"
#include "moe/kernels/params.h"

static_assert(MOE_ALIGN == HALF_M, "experts begin at half tiles");

template <bool BOTH>
__device__ __forceinline__ void load_box(void *to, const CUtensorMap *map, uint64_t *full, int x, int y, int z) {
  if constexpr (BOTH)
    tma_load_3d_to_both(to, map, full, x, y, z);
  else
    tma_load_3d(to, map, full, x, y, z);
}

/* 128 of a stage's 256 columns, from depth k on, of an expert's matrix. */
template <int MAJOR, bool BOTH, class SHARED>
__device__ __forceinline__ void load_half(SHARED *s, int stage, int half, const CUtensorMap *map, int group, int k,
                                          int column) {
  char *to = s->b[stage] + half * PRODUCT_N / 2 * ROW_BYTES;
  if constexpr (MAJOR == K_MAJOR) {
    load_box<BOTH>(to, map, &s->full[stage], k, column, group);
  } else {
#pragma unroll
    for (int block = 0; block < 2; block++)
      load_box<BOTH>(to + block * BOX_BYTES, map, &s->full[stage], column + block * 64, k, group);
  }
}

/* A stage's columns: half h from maps[h], column column + h * apart on. */
template <int MAJOR, class SHARED>
__device__ __forceinline__ void load_columns(SHARED *s, int stage, const tile &t, const CUtensorMap *first,
                                             const CUtensorMap *second, int k, int column, int apart) {
  if (SHARED::cluster == 2 && t.shared == PRODUCT_COLUMNS_SHARED) {
    const int half = (int)cluster_rank();
    load_half<MAJOR, true>(s, stage, half, half ? second : first, t.group, k, column + half * apart);
  } else {
    load_half<MAJOR, false>(s, stage, 0, first, t.group, k, column);
    load_half<MAJOR, false>(s, stage, 1, second, t.group, k, column + apart);
  }
}

/* Hands tiles to the block's other warps: what the first warp of the bringing warpgroup does beside bringing. */
template <class SHARED> struct dealer {
  enum { CLUSTER = SHARED::cluster };
  static_assert(CLUSTER == 1 || SHARED::stages + 1 <= MAIL_SLOTS,
                "a tile has a stage at least, which both blocks empty");
  SHARED *s;
  int number = (int)blockIdx.x / CLUSTER, group = 0, following = 0;
  ring_place<MAIL_SLOTS> mail;

  __device__ __forceinline__ explicit dealer(SHARED *s) : s(s) {}

  __device__ __forceinline__ tile deal(const product_tiles &tiles, const ring_place<TILE_SLOTS> &slot, int steps) {
    tile t = find_tile<CLUSTER, SHARED::weaves>(tiles, number, group);
    t.steps = steps;
    if (threadIdx.x % 32 == 0) {
      publish_tile(s, slot, t);
      if (t.halves && (CLUSTER == 1 || cluster_rank() == 0))
        following = atomicAdd(tiles.next, 1) + (int)gridDim.x / CLUSTER;
    }
    __syncwarp();
    return t;
  }
  /* A pair's first block sends the number to the second. */
  __device__ __forceinline__ void next() {
    if (CLUSTER == 2 && threadIdx.x % 32 == 0) {
      if (cluster_rank() == 0) {
        mbarrier_send(&s->mail[mail.at], &s->mail_full[mail.at], 1, following);
      } else {
        mbarrier_arrive_expect(&s->mail_full[mail.at], sizeof(int));
        mbarrier_wait(&s->mail_full[mail.at], mail.parity);
        following = s->mail[mail.at];
      }
      mail.next();
    }
    number = __shfl_sync(0xffffffffu, following, 0);
  }
};

/* Rows of a matrix by their tokens. */
struct gathered_rows {
  const char *data;
  int64_t row_bytes;
  const int32_t *token; /* of a sorted row; NULL: the matrix has sorted rows */
  int depth;            /* elements of a row, a multiple of 8 */
};

/* By the bringing warpgroup: rows of tiles to the stages of the ring. A thread brings 16 bytes of each of 8 rows.
 * columns(stage, tile, k) brings the other operand. */
template <class SHARED, class COLUMNS>
__device__ __forceinline__ void gather_tiles(const product_tiles &tiles, const gathered_rows &rows, SHARED *s,
                                             COLUMNS columns) {
  enum { ROWS = PRODUCT_M / 8 };
  const int chunk = (int)threadIdx.x % 8, first = (int)threadIdx.x / 8;
  const uint32_t to = (uint32_t)(first * ROW_BYTES + (chunk ^ (first & 7)) * 16);
  const bool leads = threadIdx.x < 32;
  ring_place<SHARED::stages> stage;
  ring_place<TILE_SLOTS> slot;
  dealer<SHARED> deals(s);
  for (;;) {
    const tile t = leads ? deals.deal(tiles, slot, (rows.depth + PRODUCT_K - 1) / PRODUCT_K) : read_tile(s, slot);
    slot.next();
    if (!t.halves) break;
    const char *from[8]; /* addresses are made once a tile: the loop below has no time for products */
    int real = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int row = first + i * ROWS;
      const int source = row >= t.halves * HALF_M ? -1 : rows.token ? rows.token[t.row + row] : t.row + row;
      from[i] = rows.data + max(source, 0) * rows.row_bytes + chunk * 16;
      real |= (source >= 0) << i;
    }
    for (int k = 0; k < rows.depth; k += PRODUCT_K) {
      mbarrier_wait(&s->empty[stage.at], stage.parity ^ 1);
      if (threadIdx.x == 0) {
        mbarrier_arrive_expect(&s->full[stage.at], PRODUCT_N * ROW_BYTES);
        columns(stage.at, t, k);
      }
      if (k + chunk * 8 >= rows.depth) real = 0; /* beyond the last element, whose address need not be readable */
#pragma unroll
      for (int i = 0; i < 8; i++) {
        async_copy_or_zero(s->a[stage.at] + to + i * ROWS * ROW_BYTES, from[i], real >> i & 1);
        from[i] += ROW_BYTES;
      }
      mbarrier_arrive_async(&s->full[stage.at]);
      stage.next();
    }
    if (leads) deals.next();
  }
  async_wait_all();
}

/* Which of the multiplying warpgroups the thread is in: the half of a tile that it has, or its turn. */
__device__ __forceinline__ int half_of_block() { return (int)threadIdx.x / WARPGROUP - 1; }

/* What a kernel does besides multiplying: before a tile's product, with each stage, and behind the product. */
struct plain_work {
  __device__ __forceinline__ void prepare(const tile &) {}
  __device__ __forceinline__ void arrived(const char *, int) {}
  __device__ __forceinline__ void used() {}
};

/* The multiplying warpgroups' loop. work.store(tile, sums) takes a finished half tile. */
template <int A_MAJOR, int B_MAJOR, bool GATHERED, class SHARED, class WORK>
__device__ __forceinline__ void multiply_tiles(SHARED *s, WORK &work) {
  const int half = half_of_block();
  ring_place<SHARED::stages> stage;
  ring_place<TILE_SLOTS> slot;
  for (;;) {
    const tile t = read_tile(s, slot);
    slot.next();
    if (!t.halves) break;
    if (half >= t.halves) {
      skip_tile(s, stage, t.steps);
      continue;
    }
    work.prepare(t);
    float sums[128];
    multiply_tile<A_MAJOR, B_MAJOR, GATHERED>(
        s, stage, half, t.steps, sums, [&](const char *rows, int step) { work.arrived(rows, step); },
        [&]() { work.used(); });
    work.store(t, sums);
  }
  if (threadIdx.x % WARPGROUP == 0) tma_store_wait_all();
}

/* 64 columns of the sums, from 64 part on, as bf16. */
template <int N> __device__ __forceinline__ void pack_sums(const float (&sums)[N], int part, uint32_t (&word)[16]) {
#pragma unroll
  for (int i = 0; i < 16; i++)
    word[i] = pack_pair(KIND_BF16, make_float2(sums[part * 32 + 2 * i], sums[part * 32 + 2 * i + 1]));
}

#endif
