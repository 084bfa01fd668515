/*
 * The plan of a mixture of experts on the device: rows for routes, sorted by expert and within it by route, as plan.h
 * says, with no look at the data from the host. The routes are cut into chunks, each a warp's work: chunks are counted,
 * the counts become places, and chunks are placed. Nothing depends on the order in which they run.
 */
#include "kernel/reduce.cuh"
#include "moe/kernels/params.h"
#include "moe/kernels/record.cuh"
#include "moe/plan.h"

enum { SEGMENT_THREADS = MOE_PLAN_THREADS, PREFIX_PARTS = 32, BATCH = 8, BAD_ID = -2 };
static_assert(PREFIX_PARTS * WARP == MOE_PLAN_THREADS, "a warp for each part of the chunks");
static_assert(MOE_MOST_CHUNKS % PREFIX_PARTS == 0, "parts have equal shares");
static_assert(TIGON_MOE_MAX_EXPERTS <= 4 * SEGMENT_THREADS, "a thread has four experts");

__device__ __forceinline__ int64_t id_of(const moe_plan_params &p, int route) {
  const int64_t at = (int64_t)(route / p.choices) * p.id_stride + route % p.choices;
  return p.wide ? ((const int64_t *)p.ids)[at] : ((const int32_t *)p.ids)[at];
}

/* The expert of a route before `end`; less than 0 where it is skipped, BAD_ID for an id past the experts. */
__device__ __forceinline__ int expert_of(const moe_plan_params &p, int route, int end) {
  const int64_t id = route < end ? id_of(p, route) : -1;
  return id < 0 ? -1 : id < p.experts ? (int)id : BAD_ID;
}

/* Adds up over the block; every thread gets the sum over the threads before it, and all have the total. */
__device__ __forceinline__ int sum_before(int value, int &total) {
  __shared__ int warps[SEGMENT_THREADS / WARP];
  const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
  int sum = value;
#pragma unroll
  for (int step = 1; step < WARP; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads(); /* the last call's readers are done */
  if (lane == WARP - 1) warps[warp] = sum;
  __syncthreads();
  int before = 0;
  total = 0;
  for (int w = 0; w < SEGMENT_THREADS / WARP; w++) {
    if (w == warp) before = total;
    total += warps[w];
  }
  return before + sum - value;
}

/* One block. Finds where the limit of rows cuts the routes. */
extern "C" __global__ void __launch_bounds__(SEGMENT_THREADS) moe_limit(const __grid_constant__ moe_plan_params p) {
  const int share = (p.routes + SEGMENT_THREADS - 1) / SEGMENT_THREADS, begin = min((int)threadIdx.x * share, p.routes);
  const int end = min(begin + share, p.routes);
  int valid = 0, total;
  for (int r = begin; r < end; r++) valid += expert_of(p, r, p.routes) >= 0;
  int before = sum_before(valid, total);
  if (threadIdx.x == 0) {
    if (total <= p.limit) p.end[0] = p.routes;
    p.end[1] = total;
  }
  for (int r = begin; r < end && before <= p.limit; r++)
    if (expert_of(p, r, p.routes) >= 0 && before++ == p.limit) p.end[0] = r;
}

/* The experts of BATCH routes a lane, from `first` + lane on, 32 apart. */
__device__ __forceinline__ void load_experts(const moe_plan_params &p, int first, int end, int (&experts)[BATCH]) {
#pragma unroll
  for (int i = 0; i < BATCH; i++) experts[i] = expert_of(p, first + i * WARP + (int)threadIdx.x, end);
}

/* A chunk's routes to each expert. */
extern "C" __global__ void __launch_bounds__(WARP) moe_count(const __grid_constant__ moe_plan_params p) {
  extern __shared__ int counts[];
  const int routes_end = p.end ? p.end[0] : p.routes;
  const int begin = (int)blockIdx.x * p.chunk, end = min(begin + p.chunk, p.routes);
  for (int e = (int)threadIdx.x; e < p.experts; e += WARP) counts[e] = 0;
  __syncwarp();
  int bad = p.routes;
  for (int first = begin; first < end; first += BATCH * WARP) {
    int experts[BATCH];
    load_experts(p, first, min(end, routes_end), experts);
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
      const int r = first + i * WARP + (int)threadIdx.x;
      if (experts[i] >= 0) atomicAdd(&counts[experts[i]], 1);
      if (experts[i] == BAD_ID) bad = min(bad, r);
    }
  }
  bad = __reduce_min_sync(0xffffffffu, bad);
  if (threadIdx.x == 0) p.first_bad[blockIdx.x] = bad;
  __syncwarp();
  for (int e = (int)threadIdx.x; e < p.experts; e += WARP) p.counts[(int64_t)blockIdx.x * p.experts + e] = counts[e];
}

/* The first bad value: an id past the experts, or a route past the limit. */
__device__ __forceinline__ void note_first(const moe_plan_params &p) {
  int bad = p.routes;
  for (int c = 0; c < p.chunks; c++) bad = min(bad, p.first_bad[c]);
  const int end = p.end ? p.end[0] : p.routes;
  if (bad < end)
    note(p.record, p.bad, bad, id_of(p, bad));
  else if (end < p.routes)
    note(p.record, p.full, end, p.end[1]);
}

/* Blocks of 32 experts: the chunks' counts become the routes of the chunks before, and the experts' totals appear.
 * Threads stand as (part of the chunks, expert). */
extern "C" __global__ void __launch_bounds__(PREFIX_PARTS *WARP) moe_prefix(const __grid_constant__ moe_plan_params p) {
  enum { SHARE = MOE_MOST_CHUNKS / PREFIX_PARTS };
  __shared__ int sums[PREFIX_PARTS][WARP];
  const int lane = (int)threadIdx.x % WARP, part = (int)threadIdx.x / WARP, e = (int)blockIdx.x * WARP + lane;
  int32_t *counts = p.counts + (int64_t)part * SHARE * p.experts + e;
  const int mine = e < p.experts ? min(SHARE, p.chunks - part * SHARE) : 0;
  int count[SHARE], sum = 0, before = 0, total = 0;
#pragma unroll
  for (int c = 0; c < SHARE; c++) count[c] = c < mine ? counts[(int64_t)c * p.experts] : 0;
#pragma unroll
  for (int c = 0; c < SHARE; c++) sum += count[c];
  sums[part][lane] = sum;
  __syncthreads();
#pragma unroll
  for (int other = 0; other < PREFIX_PARTS; other++) {
    if (other == part) before = total;
    total += sums[other][lane];
  }
#pragma unroll
  for (int c = 0; c < SHARE; c++) {
    if (c < mine) counts[(int64_t)c * p.experts] = before;
    before += count[c];
  }
  if (part == 0 && e < p.experts) p.totals[e] = total;
}

/* One block: the experts get their segments and tiles, four experts a thread. */
extern "C" __global__ void __launch_bounds__(SEGMENT_THREADS, 1)
    moe_segments(const __grid_constant__ moe_plan_params p) {
  int rows = 0, tiles = 0, pairs = 0, all_rows, all_tiles, all_pairs;
  const int mine = (int)threadIdx.x * 4;
  for (int e = mine; e < min(mine + 4, p.experts); e++) {
    const int blocks = (p.totals[e] + MOE_ALIGN - 1) / MOE_ALIGN;
    rows += blocks * MOE_ALIGN;
    tiles += (blocks + 1) / 2;
    pairs += (blocks + 1) / 4;
  }
  rows = sum_before(rows, all_rows);
  tiles = sum_before(tiles, all_tiles);
  pairs = sum_before(pairs, all_pairs);
  for (int e = mine; e < min(mine + 4, p.experts); e++) {
    const int blocks = (p.totals[e] + MOE_ALIGN - 1) / MOE_ALIGN;
    p.first_row[e] = rows;
    p.first_tile[e] = tiles;
    p.first_pair[e] = pairs;
    rows += blocks * MOE_ALIGN;
    tiles += (blocks + 1) / 2;
    pairs += (blocks + 1) / 4;
  }
  if (threadIdx.x != 0) return;
  p.first_row[p.experts] = all_rows;
  p.first_tile[p.experts] = all_tiles;
  p.first_pair[p.experts] = all_pairs;
  for (int i = 0; i < MOE_COUNTERS; i++) p.next[i] = 0;
  if (p.record) note_first(p);
}

/* Gives a chunk's routes their rows, and marks the padding of some experts. */
extern "C" __global__ void __launch_bounds__(WARP) moe_place(const __grid_constant__ moe_plan_params p) {
  extern __shared__ int next[];
  const int routes_end = p.end ? p.end[0] : p.routes, lane = (int)threadIdx.x;
  const int begin = (int)blockIdx.x * p.chunk, end = min(begin + p.chunk, p.routes);
  for (int e = lane; e < p.experts; e += WARP) next[e] = p.first_row[e] + p.counts[(int64_t)blockIdx.x * p.experts + e];
  __syncwarp();
  for (int first = begin; first < end; first += BATCH * WARP) {
    int experts[BATCH];
    load_experts(p, first, min(end, routes_end), experts);
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
      const int r = first + i * WARP + lane, e = experts[i];
      const unsigned same = __match_any_sync(0xffffffffu, e), before = same & ((1u << lane) - 1);
      const int row = e >= 0 ? next[e] + __popc(before) : -1;
      __syncwarp();
      if (e >= 0 && before == 0) next[e] += __popc(same);
      __syncwarp();
      if (r >= end) continue;
      p.row_of[r] = row;
      if (row < 0) continue;
      p.row_token[row] = r / p.choices;
      p.row_choice[row] = (uint8_t)(r % p.choices);
    }
  }
  for (int e = (int)blockIdx.x; e < p.experts; e += p.chunks)
    for (int row = p.first_row[e] + p.totals[e] + lane; row < p.first_row[e + 1]; row += WARP) {
      p.row_token[row] = -1;
      p.row_choice[row] = 0;
    }
}
