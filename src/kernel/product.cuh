/*
 * One main loop for products on the tensor cores, for kernels of 384 threads that stay: a warpgroup that brings tiles of
 * the operands to a ring in shared memory, and two that multiply, 64 of a tile's 128 rows each, and store.
 *
 * Rows come in groups (the experts of a mixture), each with a matrix of its own; a group's rows begin at a multiple of
 * 64. The host knows no row counts: tiles are numbered through the groups, a counter in device memory may hand them out,
 * and a warp of the bringing warpgroup finds the tile to a number and publishes it. A tile with at most 64 rows is
 * multiplied by one warpgroup alone.
 *
 * Blocks may work in pairs, clusters of two, on neighbouring tiles of one group: two tiles of rows with the same columns,
 * or, for a last tile of rows that has no neighbour, the same rows with two tiles of columns. What they have in common
 * each brings half of, or in turns all of, to both, which spares the second-level cache a third of its reads. A stage is
 * empty when both have used it.
 *
 * Warpgroups may also have tiles of their own, in turns (multiply_alone): one multiplies while the other stores.
 *
 * The ring is never drained between tiles. Each stage has a barrier that its copies fill and one that the warps which
 * multiply from it empty: those of both warpgroups, or, where warpgroups have tiles of their own in turns, of one.
 */
#ifndef TIGON_KERNEL_PRODUCT_CUH
#define TIGON_KERNEL_PRODUCT_CUH

#include "kernel/product.h"
#include "kernel/tma.cuh"
#include "kernel/warpgroup.cuh"
#include "kernel/wgmma.cuh"

enum {
  HALF_M = 64,     /* rows of a warpgroup */
  ROW_BYTES = 128, /* of a tile in shared memory: 64 elements under the swizzle */
  TILE_SLOTS = 2,  /* published tiles */
  BOX_BYTES = HALF_M * ROW_BYTES,
  CONSUMER_WARPS = 8,
  MAIL_SLOTS = 8 /* numbers on their way to a pair's second block, which the ring keeps at most 5 tiles behind */
};

struct tile {
  int row;    /* first row, in the sorted rows */
  int halves; /* of 64 rows that belong to the group; 0: no tiles are left */
  int group, column;
  int steps;      /* of PRODUCT_K along the depth */
  int shared;     /* with the other block's tile: PRODUCT_ROWS_SHARED or PRODUCT_COLUMNS_SHARED; 0: nothing */
  int part, down; /* used by products whose groups have several matrices, and rows of their own */
};

/* Tiles of PRODUCT_M by N, for clusters of one block or two. BOXES: of 64 x 64 bf16, for each multiplying warpgroup. WEAVES:
 * product_rows. */
template <int STAGE_COUNT, int BOXES, int CLUSTER, bool WEAVES = false, int N = PRODUCT_N> struct product_shared {
  static constexpr int stages = STAGE_COUNT, boxes = BOXES, cluster = CLUSTER;
  static constexpr bool weaves = WEAVES;
  static constexpr int unrolled = BOXES > 2 ? 1 : 4; /* steps: a long epilogue leaves no registers for more */
  char a[STAGE_COUNT][PRODUCT_M * ROW_BYTES];
  char b[STAGE_COUNT][N * ROW_BYTES];
  char box[2][BOXES][BOX_BYTES];
  uint64_t full[STAGE_COUNT], empty[STAGE_COUNT];         /* by the bringing warpgroup; by each warp that multiplies */
  uint64_t tile_full[TILE_SLOTS], tile_empty[TILE_SLOTS]; /* by the thread that publishes; by each that has read */
  uint64_t mail_full[MAIL_SLOTS]; /* of a pair's second block: the first sends 4 bytes, the second's dealer waits */
  int mail[MAIL_SLOTS];           /* by slots in turn, each read before its next turn (dealer) */
  tile tiles[TILE_SLOTS];
};

template <class SHARED> __device__ __forceinline__ SHARED *product_memory() {
  static_assert(sizeof(SHARED) + 1024 <= PRODUCT_SHARED_BYTES, "alignment takes up to 1024 bytes");
  extern __shared__ char memory[];
  return (SHARED *)(memory + (1024 - shared_address(memory) % 1024) % 1024);
}

/* A place in a ring of N, and the parity of the phase that its barrier is in. */
template <int N> struct ring_place {
  int at = 0, parity = 0;
  __device__ __forceinline__ void next() {
    at = at + 1 == N ? 0 : at + 1;
    parity ^= at == 0;
  }
  /* Past places that others use; who waits there must know that the phase before is over (await_turn). */
  __device__ __forceinline__ void skip(int places) {
    const int to = at + places;
    parity ^= to / N & 1;
    at = to % N;
  }
};

/* By all threads. fillers: arrivals at a full stage; emptiers: warps of a block that use a stage; readers: warps that
 * read published tiles. */
template <class SHARED>
__device__ __forceinline__ void product_start(SHARED *s, int fillers, int emptiers, int readers) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < SHARED::stages; i++) {
      mbarrier_init(&s->full[i], fillers);
      mbarrier_init(&s->empty[i], emptiers * SHARED::cluster);
    }
    for (int i = 0; i < TILE_SLOTS; i++) {
      mbarrier_init(&s->tile_full[i], 1);
      mbarrier_init(&s->tile_empty[i], readers * 32);
    }
    for (int i = 0; i < MAIL_SLOTS; i++) mbarrier_init(&s->mail_full[i], 1);
    mbarrier_fence_init();
  }
  cluster_barrier();
}

/* By all threads: until the other block sends nothing more here. */
__device__ __forceinline__ void product_end() { cluster_barrier(); }

/* --- tiles ------------------------------------------------------------------------------------------------------- */

/* Tiles, or pairs of them, in the groups before. */
template <int CLUSTER> __device__ __forceinline__ int numbers_before(const product_tiles &tiles, int group) {
  if constexpr (CLUSTER == 1) return tiles.first_tile[group] * tiles.columns;
  const int pairs = tiles.first_pair[group], alone = tiles.first_tile[group] - 2 * pairs;
  return product_numbers(pairs, alone, tiles.columns);
}

/* This block's tile of that number, by a warp. group: where the last search ended; numbers rise. */
template <int CLUSTER, bool WEAVES>
__device__ __forceinline__ tile find_tile(const product_tiles &tiles, int number, int &group) {
  const int lane = (int)threadIdx.x % 32;
  tile found = {};
  if (number >= numbers_before<CLUSTER>(tiles, tiles.groups)) return found;
  for (;;) {
    const int after = min(group + lane + 1, tiles.groups);
    const unsigned past = __ballot_sync(0xffffffffu, numbers_before<CLUSTER>(tiles, after) > number);
    if (past) {
      group += __ffs(past) - 1;
      break;
    }
    group += 32;
  }
  const product_rows rows = {tiles.first_tile[group + 1] - tiles.first_tile[group], CLUSTER, WEAVES};
  const product_place place =
      product_place_of(rows, tiles.columns, number - numbers_before<CLUSTER>(tiles, group), (int)cluster_rank());
  found.shared = place.shared;
  found.column = place.column;
  found.row = tiles.first_row[group] + place.down * PRODUCT_M;
  found.halves = min(2, (tiles.first_row[group + 1] - found.row) / HALF_M);
  found.group = group;
  return found;
}

/* By one thread. */
template <class SHARED>
__device__ __forceinline__ void publish_tile(SHARED *s, const ring_place<TILE_SLOTS> &slot, const tile &t) {
  mbarrier_wait(&s->tile_empty[slot.at], slot.parity ^ 1);
  s->tiles[slot.at] = t;
  mbarrier_arrive(&s->tile_full[slot.at]);
}

template <class SHARED> __device__ __forceinline__ tile read_tile(SHARED *s, const ring_place<TILE_SLOTS> &slot) {
  mbarrier_wait(&s->tile_full[slot.at], slot.parity);
  const tile t = s->tiles[slot.at];
  mbarrier_arrive(&s->tile_empty[slot.at]);
  return t;
}

/* --- multiplication ---------------------------------------------------------------------------------------------- */

template <class SHARED> __device__ __forceinline__ void empty_stage(SHARED *s, int stage) {
  const int lane = (int)threadIdx.x % 32;
  if constexpr (SHARED::cluster == 1) {
    if (lane == 0) mbarrier_arrive(&s->empty[stage]);
  } else {
    if (lane < SHARED::cluster) mbarrier_arrive_at(&s->empty[stage], (uint32_t)lane);
  }
}

/* sums = the warpgroup's 64 rows of the tile. GATHERED: a's rows were written by cp.async, which the tensor cores see
 * behind a fence only. arrived(rows, step) may begin to use the warpgroup's rows of a stage, used() ends that. */
template <int A_MAJOR, int B_MAJOR, bool GATHERED, class SHARED, class ARRIVED, class USED>
__device__ __forceinline__ void multiply_tile(SHARED *s, ring_place<SHARED::stages> &stage, int half, int steps,
                                              float (&sums)[128], ARRIVED arrived, USED used) {
  if (steps == 0)
#pragma unroll
    for (int i = 0; i < 128; i++) sums[i] = 0.0f;
#pragma unroll SHARED::unrolled
  for (int step = 0; step < steps; step++) {
    mbarrier_wait(&s->full[stage.at], stage.parity);
    if (GATHERED) fence_async_shared();
    arrived(s->a[stage.at] + half * BOX_BYTES, step);
    const uint64_t a = wgmma_operand<A_MAJOR>(s->a[stage.at] + half * BOX_BYTES);
    const uint64_t b = wgmma_operand<B_MAJOR>(s->b[stage.at]);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < PRODUCT_K / 16; k++)
      wgmma<A_MAJOR, B_MAJOR>(sums, a + k * wgmma_step<A_MAJOR>, b + k * wgmma_step<B_MAJOR>, step > 0 || k > 0);
    wgmma_commit();
    wgmma_wait<0>(); /* the other warpgroup keeps the tensor cores busy meanwhile */
    used();
    empty_stage(s, stage.at);
    stage.next();
  }
  wgmma_pin(sums);
}

/* The turns of multiplying warpgroups that have tiles of their own, one at a time. Who has its turn has seen all stages
 * of the tile before it full: it waits for phases of barriers whose phase before is over, which their parity alone would
 * not tell from the next but one. */
enum { TURN_BARRIER = 3, BOTH_WARPGROUPS = 2 * WARPGROUP };
__device__ __forceinline__ void await_turn(int own) { named_barrier(TURN_BARRIER + own, BOTH_WARPGROUPS); }
__device__ __forceinline__ void pass_turn(int own) { named_barrier_arrive(TURN_BARRIER + (own ^ 1), BOTH_WARPGROUPS); }

/* sums = a whole tile, by one warpgroup, while the other is at its epilogue: BLOCKS of 64 rows. The tensor cores always
 * have the next stage's products, so that a stage is given back one later. */
template <int A_MAJOR, int B_MAJOR, class SHARED, int BLOCKS, int N>
__device__ __forceinline__ void multiply_alone(SHARED *s, ring_place<SHARED::stages> &stage, int own, int steps,
                                               float (&sums)[BLOCKS][N]) {
  await_turn(own);
  if (steps == 0)
#pragma unroll
    for (int i = 0; i < BLOCKS * N; i++) sums[i / N][i % N] = 0.0f;
  int before = 0;
  for (int step = 0; step < steps; step++) {
    mbarrier_wait(&s->full[stage.at], stage.parity);
    const uint64_t a = wgmma_operand<A_MAJOR>(s->a[stage.at]), b = wgmma_operand<B_MAJOR>(s->b[stage.at]);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < PRODUCT_K / 16; k++)
#pragma unroll
      for (int i = 0; i < BLOCKS; i++)
        wgmma<A_MAJOR, B_MAJOR>(sums[i], a + i * (BOX_BYTES / 16) + k * wgmma_step<A_MAJOR>,
                                b + k * wgmma_step<B_MAJOR>, step > 0 || k > 0);
    wgmma_commit();
    wgmma_wait<1>();
    if (step > 0) empty_stage(s, before);
    before = stage.at;
    stage.next();
  }
  pass_turn(own);
  wgmma_wait<0>();
  if (steps > 0) empty_stage(s, before);
#pragma unroll
  for (int i = 0; i < BLOCKS; i++) wgmma_pin(sums[i]);
}

/* Passes over a tile whose rows of this warpgroup belong to nobody. */
template <class SHARED>
__device__ __forceinline__ void skip_tile(SHARED *s, ring_place<SHARED::stages> &stage, int steps) {
  for (int step = 0; step < steps; step++) {
    mbarrier_wait(&s->full[stage.at], stage.parity);
    empty_stage(s, stage.at);
    stage.next();
  }
}

/* --- output ------------------------------------------------------------------------------------------------------ */

/* The place of a thread's part of a box's matrices: store_matrices and load_matrices take rows 16 warp + lane % 16, in
 * turns of 8 columns. word[2 q + r] holds columns 8 q + 2 (lane % 4) + {0, 1} of row 16 warp + lane / 4 + 8 r, as the
 * sums lie. */
struct box_place {
  uint32_t row, turn;
  __device__ __forceinline__ box_place() {
    const uint32_t lane = threadIdx.x % 32, at = threadIdx.x % WARPGROUP / 32 * 16 + lane % 16;
    row = at * ROW_BYTES;
    turn = (lane / 16) ^ (at & 7);
  }
  __device__ __forceinline__ uint32_t address(const char *box, int j) const {
    return shared_address(box) + row + ((uint32_t)(2 * j) ^ turn) * 16;
  }
};

__device__ __forceinline__ void put_box(char *box, const uint32_t (&word)[16]) {
  const box_place place;
#pragma unroll
  for (int j = 0; j < 4; j++)
    store_matrices(place.address(box, j), word[4 * j], word[4 * j + 1], word[4 * j + 2], word[4 * j + 3]);
}

/* The same with rows and columns exchanged: what stands in word[2 q + r] comes to rows 8 q to 8 q + 7 and, from column
 * 16 warp + 8 r on, to 8 columns. */
__device__ __forceinline__ void put_box_transposed(char *box, const uint32_t (&word)[16]) {
  const uint32_t lane = threadIdx.x % 32, column = threadIdx.x % WARPGROUP / 32 * 2 + lane / 8 % 2;
  const uint32_t at = (lane / 16 * 8 + lane % 8) * ROW_BYTES + (column ^ lane % 8) * 16;
#pragma unroll
  for (uint32_t j = 0; j < 4; j++)
    store_matrices_transposed(shared_address(box) + at + j * 16 * ROW_BYTES, word[4 * j], word[4 * j + 1],
                              word[4 * j + 2], word[4 * j + 3]);
}

/* A multiplying warpgroup's stores: boxes of 64 x 64 bf16, as many on their way as it has. Named barrier 1 + half is the
 * warpgroup's: the box is free, then it is full. */
template <class SHARED> struct box_writer {
  SHARED *s;
  int half, turn;

  template <bool TRANSPOSED = false>
  __device__ __forceinline__ void write(const uint32_t (&word)[16], const CUtensorMap *map, int x, int y, int z) {
    char *box = s->box[half][turn];
    const bool leads = threadIdx.x % WARPGROUP == 0;
    if (leads) tma_store_wait_read<SHARED::boxes - 1>();
    named_barrier(1 + half, WARPGROUP);
    if constexpr (TRANSPOSED)
      put_box_transposed(box, word);
    else
      put_box(box, word);
    fence_async_shared();
    named_barrier(1 + half, WARPGROUP);
    if (leads) {
      tma_store_3d(map, box, x, y, z);
      tma_store_commit();
    }
    turn = turn + 1 == SHARED::boxes ? 0 : turn + 1;
  }
};

#endif
