/*
 * A token's row of logits in the registers of the threads that work on it: of a warp, or (WIDE) of a block. Thread i of
 * them has the experts i, i + their number, ... Sums are in an order that depends on the number of experts alone.
 */
#ifndef TIGON_MOE_KERNELS_ROUTE_ROW_CUH
#define TIGON_MOE_KERNELS_ROUTE_ROW_CUH

#include <limits.h>
#include <math.h>

#include "kernel/number.cuh"
#include "kernel/reduce.cuh"
#include "moe/kernels/route_params.h"

enum { UNUSABLE = INT_MIN }; /* the key of what may not be chosen */
static const unsigned ALL_LANES = 0xffffffffu;
static_assert(MOE_ROUTE_WARPS * WARP == MOE_ROUTE_THREADS, "whole warps");

template <bool WIDE> __device__ __forceinline__ constexpr int token_threads() {
  return WIDE ? (int)MOE_ROUTE_THREADS : (int)WARP;
}

template <bool WIDE> __device__ __forceinline__ int token_thread() { return (int)threadIdx.x % token_threads<WIDE>(); }

template <bool WIDE> __device__ __forceinline__ void token_barrier() {
  if (WIDE)
    __syncthreads();
  else
    __syncwarp();
}

/* What the warps of a wide token tell each other, in two halves by turns: who writes a half again has passed the
 * barrier that its last readers came to later. */
typedef unsigned long long token_words[2][MOE_ROUTE_WARPS];

struct token_room {
  token_words *words; /* shared */
  int turn;
};

/* Each warp's word to all warps of the token. */
__device__ __forceinline__ const unsigned long long *tell_warps(token_room &room, unsigned long long word) {
  unsigned long long *half = (*room.words)[room.turn++ & 1];
  if (threadIdx.x % WARP == 0) half[threadIdx.x / WARP] = word;
  __syncthreads();
  return half;
}

template <bool WIDE> __device__ __forceinline__ float token_sum(token_room &room, float value) {
  value = sum_over_lanes(value, WARP);
  if (!WIDE) return value;
  const unsigned long long *words = tell_warps(room, __float_as_uint(value));
  value = 0;
#pragma unroll
  for (int w = 0; w < MOE_ROUTE_WARPS; w++) value += __uint_as_float((unsigned)words[w]);
  return value;
}

/* The largest key, and the lowest of the experts that have it. */
struct best_key {
  int key, expert;
};

template <bool WIDE> __device__ __forceinline__ best_key token_best(token_room &room, best_key mine) {
  best_key best;
  best.key = __reduce_max_sync(ALL_LANES, mine.key);
  best.expert = __reduce_min_sync(ALL_LANES, mine.key == best.key ? mine.expert : INT_MAX);
  if (!WIDE) return best;
  const unsigned long long packed =
      (unsigned long long)((unsigned)best.key ^ 0x80000000u) << 32 | (0xffffffffu - (unsigned)best.expert);
  const unsigned long long *words = tell_warps(room, packed);
  unsigned long long most = 0;
#pragma unroll
  for (int w = 0; w < MOE_ROUTE_WARPS; w++) most = words[w] > most ? words[w] : most;
  best.key = (int)((unsigned)(most >> 32) ^ 0x80000000u);
  best.expert = (int)(0xffffffffu - (unsigned)most);
  return best;
}

/* Integers in the order of the values, with -0 equal to 0. */
__device__ __forceinline__ int key_of(float value) {
  const int bits = __float_as_int(value + 0.0f);
  return value == value ? bits ^ (bits >> 31 & 0x7fffffff) : (int)UNUSABLE;
}

__device__ __forceinline__ float value_of(int key) { return __int_as_float(key ^ (key >> 31 & 0x7fffffff)); }

/* NaN past the end. */
template <int N, bool WIDE>
__device__ __forceinline__ void load_logits(const moe_route_rows &r, const char *row, float (&x)[N]) {
#pragma unroll
  for (int n = 0; n < N; n++) x[n] = __int_as_float(0x7fffffff);
  if (r.logit_kind == KIND_F32) {
#pragma unroll
    for (int n = 0; n < N; n++) {
      const int e = token_thread<WIDE>() + n * token_threads<WIDE>();
      if (e < r.experts) x[n] = ((const float *)row)[e];
    }
  } else {
#pragma unroll
    for (int n = 0; n < N; n++) {
      const int e = token_thread<WIDE>() + n * token_threads<WIDE>();
      if (e < r.experts) x[n] = unpack_pair(r.logit_kind, ((const uint16_t *)row)[e]).x;
    }
  }
}

/* e^x as on the CPU (base/vec.h), x not NaN: within one unit in the last place, subnormal results included. */
__device__ __forceinline__ float route_exp(float x) {
  x = fminf(fmaxf(x, -104.0f), 89.0f);
  const float shifted = __fmaf_rn(x, 1.44269504088896341f, 12582912.0f);
  const int n = __float_as_int(shifted) - __float_as_int(12582912.0f), half = n >> 1;
  const float whole = __fsub_rn(shifted, 12582912.0f);
  const float r = __fmaf_rn(whole, 2.12194442e-4f, __fmaf_rn(whole, -0.693359375f, x));
  float q = 1.39336882e-3f;
  q = __fmaf_rn(q, r, 8.36320501e-3f);
  q = __fmaf_rn(q, r, 4.16664630e-2f);
  q = __fmaf_rn(q, r, 1.66665763e-1f);
  q = __fmaf_rn(q, r, 0.5f);
  const float p = __fadd_rn(1.0f, __fmaf_rn(__fmul_rn(r, r), q, r));
  return p * __int_as_float((half + 127) << 23) * __int_as_float((n - half + 127) << 23);
}

/* Scores below the smallest normal number count as 0. */
__device__ __forceinline__ float flushed(float p) { return p >= 0x1p-126f ? p : 0.0f; }

/* The softmax of what is not NaN. */
struct softmax_sums {
  float most, total; /* of logits, 0 where nothing is above -Inf; of exp(logit - most) */
};

__device__ __forceinline__ float softmax_share(float most, float x) {
  if (x != x) return 0.0f;
  return x == most ? 1.0f : route_exp(x - most); /* +Inf less itself is NaN */
}

template <int N, bool WIDE> __device__ __forceinline__ softmax_sums softmax_of(token_room &room, const float (&x)[N]) {
  int key = UNUSABLE;
#pragma unroll
  for (int n = 0; n < N; n++) key = max(key, key_of(x[n]));
  key = token_best<WIDE>(room, {key, 0}).key;
  softmax_sums s = {key > key_of(-INFINITY) ? value_of(key) : 0.0f, 0.0f};
#pragma unroll
  for (int n = 0; n < N; n++) s.total += softmax_share(s.most, x[n]);
  s.total = token_sum<WIDE>(room, s.total);
  return s;
}

__device__ __forceinline__ float softmax(const softmax_sums &s, float x) {
  return flushed(softmax_share(s.most, x) / (s.total > 0.0f ? s.total : 1.0f));
}

/* The sigmoid of x, or of -x, which is 1 less it without cancellation; 0 for NaN. */
__device__ __forceinline__ float sigmoid(float x, bool of_minus) {
  if (x != x) return 0.0f;
  const float small = route_exp(-fabsf(x));
  return ((x > 0.0f) != of_minus ? 1.0f : small) / (1.0f + small);
}

__device__ __forceinline__ float score(const moe_route_rows &r, const softmax_sums &s, float x) {
  return r.sigmoid ? flushed(sigmoid(x, false)) : softmax(s, x);
}

__device__ __forceinline__ double log_sum(const softmax_sums &s) { return (double)s.most + log((double)s.total); }

#endif
