/*
 * The router forward (the formulas: include/tigon/moe.h). logits (T, E), topk_ids and topk_weights (T, k) with rows of
 * any stride. A block works on a chunk of tokens, each token by a warp or by the whole block, and leaves the chunk's
 * counts and sums in the workspace, (chunks, E); a second kernel adds the chunks up in order. The logits are read once:
 * 8192 x 128 in float32 are 4 MiB, about 1 us of an H200's memory, so latency decides.
 */
#include "kernel/launch.cuh"
#include "moe/kernels/route_row.cuh"

/* --- groups of experts --------------------------------------------------------------------------------------------- */

/* A group's score as a key: the sum of its group_top largest keys' values from the largest on. `lanes` neighbouring
 * lanes work on a group, lane `part` on the experts part, part + lanes, ... */
__device__ __forceinline__ int group_score(const moe_route_params &p, const int *keys, int part) {
  unsigned long long before = ~0ull;
  float sum = 0;
  int taken = 0;
  for (int i = 0; i < p.group_top; i++) {
    unsigned long long best = 0; /* key, and of equal ones the lowest expert, below `before` */
    for (int e = part; keys && e < p.group_size; e += p.group_lanes) {
      if (keys[e] == UNUSABLE) continue;
      const unsigned long long packed =
          (unsigned long long)((unsigned)keys[e] ^ 0x80000000u) << 32 | (0xffffffffu - (unsigned)e);
      if (packed < before && packed > best) best = packed;
    }
    for (int step = p.group_lanes / 2; step > 0; step /= 2) {
      const unsigned long long other = __shfl_xor_sync(ALL_LANES, best, step);
      best = other > best ? other : best;
    }
    if (best && sum < INFINITY) {
      const float value = value_of((int)((unsigned)(best >> 32) ^ 0x80000000u));
      sum = taken++ ? sum + value : value;
    }
    before = best;
  }
  return taken ? key_of(sum) : (int)UNUSABLE;
}

/* Whether fewer than open_groups groups are better than g; true past the last group. */
__device__ __forceinline__ bool is_open(const moe_route_params &p, const int *scores, int g, int part) {
  int better = 0;
  for (int other = part; g < p.groups && other < p.groups; other += p.group_lanes)
    better += scores[other] > scores[g] || (scores[other] == scores[g] && other < g);
  for (int step = p.group_lanes / 2; step > 0; step /= 2) better += __shfl_xor_sync(ALL_LANES, better, step);
  return better < p.open_groups;
}

/* Makes the keys of experts outside the best groups unusable. memory: (E) keys that score the groups, each written by
 * the thread that has the expert, and behind them (groups) scores. */
template <int N, bool WIDE>
__device__ __forceinline__ void close_groups(const moe_route_params &p, int *memory, int (&key)[N]) {
  const int thread = token_thread<WIDE>(), side_by_side = token_threads<WIDE>() / p.group_lanes;
  const int part = thread % p.group_lanes;
  int *scores = memory + p.rows.experts;
  token_barrier<WIDE>();
  for (int first = 0; first < p.groups; first += side_by_side) {
    const int g = first + thread / p.group_lanes;
    const int found = group_score(p, g < p.groups ? memory + g * p.group_size : NULL, part);
    if (part == 0 && g < p.groups) scores[g] = found;
  }
  token_barrier<WIDE>();
  for (int first = 0; first < p.groups; first += side_by_side) {
    const int g = first + thread / p.group_lanes;
    if (is_open(p, scores, g, part)) continue;
    for (int e = part; e < p.group_size; e += p.group_lanes) memory[g * p.group_size + e] = UNUSABLE;
  }
  token_barrier<WIDE>();
#pragma unroll
  for (int n = 0; n < N; n++) {
    const int e = thread + n * token_threads<WIDE>();
    if (e < p.rows.experts && memory[e] == UNUSABLE) key[n] = UNUSABLE;
  }
}

/* --- a token ------------------------------------------------------------------------------------------------------- */

/* What the experts are chosen by: the logits, or p + bias; outside open groups unusable. */
template <int N, bool WIDE>
__device__ __forceinline__ void selection_keys(const moe_route_params &p, int *memory, const float (&x)[N],
                                               const float (&scores)[N], int (&key)[N]) {
#pragma unroll
  for (int n = 0; n < N; n++) {
    const int e = token_thread<WIDE>() + n * token_threads<WIDE>(), by_logit = key_of(x[n]);
    const float biased = p.bias && e < p.rows.experts ? scores[n] + p.bias[e] : scores[n];
    const int by_score = x[n] == x[n] ? key_of(biased) : (int)UNUSABLE;
    if (p.groups > 1 && e < p.rows.experts) memory[e] = p.scored ? by_score : by_logit;
    key[n] = p.bias ? by_score : by_logit;
  }
  if (p.groups > 1) close_groups<N, WIDE>(p, memory, key);
}

/* The first of a thread's own largest keys. */
template <int N, bool WIDE> __device__ __forceinline__ best_key own_best(const int (&key)[N]) {
  best_key best = {key[0], token_thread<WIDE>()};
#pragma unroll
  for (int n = 1; n < N; n++)
    if (key[n] > best.key) best = {key[n], token_thread<WIDE>() + n * token_threads<WIDE>()};
  return best;
}

/* Lane j of each warp gets choice j, or -1. */
template <int N, bool WIDE> __device__ __forceinline__ int choose(token_room &room, int choices, int (&key)[N]) {
  const int lane = (int)threadIdx.x % WARP;
  best_key own = own_best<N, WIDE>(key);
  int chosen = -1;
  for (int j = 0; j < choices; j++) {
    const best_key best = token_best<WIDE>(room, own);
    if (best.key == UNUSABLE) break;
    if (lane == j) chosen = best.expert;
    if (own.expert != best.expert) continue;
#pragma unroll
    for (int n = 0; n < N; n++)
      if (best.expert == token_thread<WIDE>() + n * token_threads<WIDE>()) key[n] = UNUSABLE;
    own = own_best<N, WIDE>(key);
  }
  return chosen;
}

/* By lanes: the weight of each choice from its logit, which is read again. */
__device__ __forceinline__ void store_choice(const moe_route_params &p, const softmax_sums &sums, const char *row,
                                             int64_t token, int expert) {
  const int lane = (int)threadIdx.x % WARP;
  float weight = expert >= 0 ? score(p.rows, sums, load_element(row, p.rows.logit_kind, expert)) : 0.0f;
  if (p.rows.renormalize) {
    const float sum = sum_over_lanes(weight, WARP);
    weight = sum > 0.0f ? weight / sum : 0.0f;
  }
  if (lane >= p.rows.choices) return;
  p.weights[token * p.weight_stride + lane] = weight * p.rows.scale;
  const int64_t at = token * p.id_stride + lane;
  if (p.rows.wide_ids)
    ((int64_t *)p.ids)[at] = expert;
  else
    ((int32_t *)p.ids)[at] = expert;
}

/* --- a chunk of tokens --------------------------------------------------------------------------------------------- */

/* The warps' sums of p, added up in order through memory (warps, E). A wide token's threads have whole sums. */
template <int N, bool WIDE>
__device__ __forceinline__ void store_p_sum(const moe_route_params &p, float *memory, const float (&sum)[N]) {
  const int experts = p.rows.experts;
  float *to = p.p_sum + (int64_t)blockIdx.x * experts;
  float *mine = WIDE ? to : memory + (int)threadIdx.x / WARP * experts;
#pragma unroll
  for (int n = 0; n < N; n++) {
    const int e = token_thread<WIDE>() + n * token_threads<WIDE>();
    if (e < experts) mine[e] = sum[n];
  }
  if (WIDE) return;
  __syncthreads();
  for (int e = (int)threadIdx.x; e < experts; e += MOE_ROUTE_THREADS) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < MOE_ROUTE_WARPS; w++) total += memory[w * experts + e];
    to[e] = total;
  }
}

/* Shared memory: (E) counts where they are wanted; then what groups take, and the sums of p in its place. */
template <int N, bool WIDE> __device__ __forceinline__ void route_chunk(const moe_route_params &p) {
  extern __shared__ int route_memory[];
  __shared__ token_words words;
  __shared__ double z_sums[MOE_ROUTE_WARPS];
  const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, experts = p.rows.experts;
  const int step = WIDE ? 1 : (int)MOE_ROUTE_WARPS;
  const int64_t begin = blockIdx.x * p.chunk, end = min(begin + p.chunk, p.rows.tokens);
  const bool needs_scores = p.scored || p.p_sum;
  int *counts = route_memory, *memory = route_memory + (p.count_sum ? experts : 0);
  token_room room = {&words, 0};
  float p_sum[N];
  double z_sum = 0;
#pragma unroll
  for (int n = 0; n < N; n++) p_sum[n] = 0.0f;
  if (p.finished && blockIdx.x == 0 && threadIdx.x == 0) *p.finished = 0;
  for (int e = (int)threadIdx.x; p.count_sum && e < experts; e += MOE_ROUTE_THREADS) counts[e] = 0;
  __syncthreads();
  for (int64_t t = begin + (WIDE ? 0 : warp); t < end; t += step) {
    const char *row = p.rows.logits + t * p.rows.logit_row_bytes;
    float x[N], scores[N];
    int key[N];
    load_logits<N, WIDE>(p.rows, row, x);
    softmax_sums sums = {0, 0};
    if (!p.rows.sigmoid || p.z_sum) sums = softmax_of<N, WIDE>(room, x);
#pragma unroll
    for (int n = 0; n < N; n++) scores[n] = needs_scores ? score(p.rows, sums, x[n]) : 0.0f;
    if (p.p_sum) {
      float scale = 1.0f;
      if (p.rows.sigmoid) {
        float total = 0;
#pragma unroll
        for (int n = 0; n < N; n++) total += scores[n];
        total = token_sum<WIDE>(room, total);
        scale = total > 0.0f ? 1.0f / total : 1.0f;
      }
#pragma unroll
      for (int n = 0; n < N; n++) p_sum[n] = __fmaf_rn(scores[n], scale, p_sum[n]);
    }
    if (p.z_sum) {
      const double z = log_sum(sums);
      if (isfinite(z)) z_sum += z * z;
    }
    selection_keys<N, WIDE>(p, memory + (WIDE ? 0 : warp * (experts + p.groups)), x, scores, key);
    const int expert = choose<N, WIDE>(room, p.rows.choices, key);
    if (WIDE && warp > 0) continue;
    store_choice(p, sums, row, t, expert);
    if (p.count_sum && expert >= 0) atomicAdd(&counts[expert], 1);
  }
  if (lane == 0) z_sums[warp] = z_sum;
  __syncthreads(); /* the memory of groups is free, counts and z_sums are whole */
  if (p.p_sum) store_p_sum<N, WIDE>(p, (float *)memory, p_sum);
  for (int e = (int)threadIdx.x; p.count_sum && e < experts; e += MOE_ROUTE_THREADS)
    p.count_sum[(int64_t)blockIdx.x * experts + e] = counts[e];
  if (!p.z_sum || threadIdx.x > 0) return;
  for (int w = 1; !WIDE && w < MOE_ROUTE_WARPS; w++) z_sum += z_sums[w];
  p.z_sum[blockIdx.x] = z_sum;
}

/* resident: blocks on a multiprocessor, which bound the registers of a thread. */
#define ROUTE(name, n, wide, resident)                                      \
  extern "C" __global__ void __launch_bounds__(MOE_ROUTE_THREADS, resident) \
      name(const __grid_constant__ moe_route_params p) {                    \
    route_chunk<n, wide>(p);                                                \
  }
ROUTE(moe_route_4, 4, false, 4)
ROUTE(moe_route_8, 8, false, 3)
ROUTE(moe_route_16, 16, false, 2)
ROUTE(moe_route_32, 32, false, 1)
ROUTE(moe_route_wide, 16, true, 2)

/* --- all chunks ---------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ double sum_over_lanes(double value) {
#pragma unroll
  for (int step = WARP / 2; step > 0; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
  return value;
}

/* By a warp of each block; the last one adds the blocks' parts up. */
__device__ __forceinline__ void finish_losses(const moe_route_finish_params &p, double loss_part) {
  const int lane = (int)threadIdx.x, blocks = (int)gridDim.x;
  int before = 0;
  loss_part = sum_over_lanes(loss_part);
  if (lane == 0) {
    p.loss_parts[blockIdx.x] = loss_part;
    __threadfence();
    before = atomicAdd(p.finished, 1);
  }
  if (__shfl_sync(ALL_LANES, before, 0) + 1 < blocks) return;
  __threadfence();
  double loss = 0, z = 0;
  for (int b = lane; b < blocks; b += WARP) loss += __ldcg(&p.loss_parts[b]);
  for (int c = lane; p.z_sum && c < p.chunks; c += WARP) z += p.z_sum[c];
  loss = sum_over_lanes(loss);
  z = sum_over_lanes(z);
  const double tokens = (double)p.tokens;
  if (lane > 0) return;
  if (p.loss) *p.loss = p.tokens > 0 ? (float)(p.experts * loss / (tokens * p.choices * tokens)) : 0.0f;
  if (p.z_loss) *p.z_loss = p.tokens > 0 ? (float)(z / tokens) : 0.0f;
}

/* A block for 32 experts. Thread (part, lane) adds up the chunks part, part + PARTS, ... of an expert. */
extern "C" __global__ void __launch_bounds__(MOE_ROUTE_FINISH_THREADS)
    moe_route_finish(const __grid_constant__ moe_route_finish_params p) {
  enum { PARTS = MOE_ROUTE_FINISH_THREADS / WARP };
  static_assert(MOE_ROUTE_FINISH_EXPERTS == WARP, "a lane has an expert");
  __shared__ int64_t counts[PARTS][WARP];
  __shared__ double p_sums[PARTS][WARP];
  const int lane = (int)threadIdx.x % WARP, part = (int)threadIdx.x / WARP, e = (int)blockIdx.x * WARP + lane;
  const bool counted = p.count_sum && e < p.experts;
  int64_t count = 0;
  double p_sum = 0;
  wait_for_previous_kernel();
#pragma unroll 4
  for (int c = part; counted && c < p.chunks; c += PARTS) {
    count += p.count_sum[(int64_t)c * p.experts + e];
    if (p.p_sum) p_sum += p.p_sum[(int64_t)c * p.experts + e];
  }
  counts[part][lane] = count;
  p_sums[part][lane] = p_sum;
  __syncthreads();
  if (part > 0) return;
  for (int other = 1; other < PARTS; other++) {
    count += counts[other][lane];
    p_sum += p_sums[other][lane];
  }
  if (p.counts && counted) {
    if (p.wide_counts)
      ((int64_t *)p.counts)[e * p.count_stride] = count;
    else
      ((int32_t *)p.counts)[e * p.count_stride] = (int32_t)count;
  }
  if (p.loss || p.z_loss) finish_losses(p, (double)count * p_sum);
}
