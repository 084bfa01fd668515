/* Element kinds on the device: conversions, vectors of N elements, single elements. The numbers of the kinds are those
 * of base/dtype.h. Conversions to 16 bits round to nearest even and keep NaN a NaN. */
#ifndef TIGON_KERNEL_NUMBER_CUH
#define TIGON_KERNEL_NUMBER_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "kernel/pair.cuh"
#include "kernel/policy.cuh"

enum { KIND_F32 = 1, KIND_F16 = 2, KIND_BF16 = 4 };

__device__ __forceinline__ int kind_bytes(int kind) { return kind == KIND_F32 ? 4 : 2; }

__device__ __forceinline__ float2 unpack_pair(int kind, uint32_t bits) {
  if (kind == KIND_BF16) return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
  __half2 half;
  memcpy(&half, &bits, sizeof half);
  return __half22float2(half);
}

__device__ __forceinline__ uint32_t pack_pair(int kind, float2 v) {
  uint32_t bits;
  if (kind == KIND_BF16) {
    const __nv_bfloat162 packed = __float22bfloat162_rn(v);
    memcpy(&bits, &packed, sizeof bits);
  } else {
    const __half2 packed = __float22half2_rn(v);
    memcpy(&bits, &packed, sizeof bits);
  }
  return bits;
}

/* The values after rounding to the kind. */
__device__ __forceinline__ float2 round_pair(int kind, float2 v) {
  return kind == KIND_F32 ? v : unpack_pair(kind, pack_pair(kind, v));
}

/* N elements as pairs of fp32. */
template <int N> struct lanes { float2 pair[N / 2]; };

/* N elements of a kind of 16 bits, two a word. */
template <int N> struct words { uint32_t word[N / 2]; };

/* Vector `i` (of N elements) of a row whose start is aligned to the vector. */
template <int N> __device__ __forceinline__ words<N> load_words(const char *row, int i) {
  words<N> w;
  if (N == 8) {
    const uint4 raw = ((const uint4 *)row)[i];
    w.word[0] = raw.x, w.word[1] = raw.y, w.word[N / 2 - 2] = raw.z, w.word[N / 2 - 1] = raw.w;
  } else {
    const uint2 raw = ((const uint2 *)row)[i];
    w.word[0] = raw.x, w.word[1] = raw.y;
  }
  return w;
}

/* The same under a policy (policy.cuh). */
template <int N> __device__ __forceinline__ words<N> load_words(const char *row, int i, uint64_t policy) {
  words<N> w;
  if (N == 8) {
    const uint4 raw = load_16_bytes((const uint4 *)row + i, policy);
    w.word[0] = raw.x, w.word[1] = raw.y, w.word[N / 2 - 2] = raw.z, w.word[N / 2 - 1] = raw.w;
  } else {
    const uint2 raw = load_8_bytes((const uint2 *)row + i, policy);
    w.word[0] = raw.x, w.word[1] = raw.y;
  }
  return w;
}

template <int N> __device__ __forceinline__ void store_words(char *row, int i, words<N> w) {
  if (N == 8)
    ((uint4 *)row)[i] = make_uint4(w.word[0], w.word[1], w.word[N / 2 - 2], w.word[N / 2 - 1]);
  else
    ((uint2 *)row)[i] = make_uint2(w.word[0], w.word[1]);
}

template <int N> __device__ __forceinline__ lanes<N> unpack(int kind, words<N> w) {
  lanes<N> v;
#pragma unroll
  for (int q = 0; q < N / 2; q++) v.pair[q] = unpack_pair(kind, w.word[q]);
  return v;
}

template <int N> __device__ __forceinline__ words<N> pack(int kind, lanes<N> v) {
  words<N> w;
#pragma unroll
  for (int q = 0; q < N / 2; q++) w.word[q] = pack_pair(kind, v.pair[q]);
  return w;
}

/* The products of two pairs of one kind, rounded to it: as in fp32, where such products are exact, and one rounding. */
__device__ __forceinline__ uint32_t multiply_words(int kind, uint32_t a, uint32_t b) {
  uint32_t product;
  if (kind == KIND_BF16) {
    __nv_bfloat162 x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    x = __hmul2(x, y);
    memcpy(&product, &x, sizeof product);
  } else {
    __half2 x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    x = __hmul2(x, y);
    memcpy(&product, &x, sizeof product);
  }
  return product;
}

/* The same of any kind, as fp32. The start of an fp32 row is aligned to 16 bytes. */
template <int N> __device__ __forceinline__ lanes<N> load_lanes(const char *row, int kind, int i) {
  if (kind != KIND_F32) return unpack<N>(kind, load_words<N>(row, i));
  lanes<N> v;
#pragma unroll
  for (int q = 0; q < N / 4; q++) {
    const float4 four = ((const float4 *)row)[(size_t)i * (N / 4) + q];
    v.pair[2 * q] = make_float2(four.x, four.y);
    v.pair[2 * q + 1] = make_float2(four.z, four.w);
  }
  return v;
}

template <int N> __device__ __forceinline__ lanes<N> load_lanes(const char *row, int kind, int i, uint64_t policy) {
  if (kind != KIND_F32) return unpack<N>(kind, load_words<N>(row, i, policy));
  lanes<N> v;
#pragma unroll
  for (int q = 0; q < N / 4; q++) {
    const uint4 raw = load_16_bytes((const uint4 *)row + (size_t)i * (N / 4) + q, policy);
    v.pair[2 * q] = make_float2(__uint_as_float(raw.x), __uint_as_float(raw.y));
    v.pair[2 * q + 1] = make_float2(__uint_as_float(raw.z), __uint_as_float(raw.w));
  }
  return v;
}

template <int N> __device__ __forceinline__ void store_lanes(char *row, int kind, int i, lanes<N> v) {
  if (kind != KIND_F32) return store_words<N>(row, i, pack<N>(kind, v));
#pragma unroll
  for (int q = 0; q < N / 4; q++)
    ((float4 *)row)[(size_t)i * (N / 4) + q] =
        make_float4(v.pair[2 * q].x, v.pair[2 * q].y, v.pair[2 * q + 1].x, v.pair[2 * q + 1].y);
}

/* N elements kept in registers: as they are in memory where all are of one kind of 16 bits, else as fp32. */
template <int KIND, int N> struct held {
  lanes<N> v;
  __device__ __forceinline__ lanes<N> get() const { return v; }
  __device__ __forceinline__ void set(lanes<N> of) { v = of; }
  __device__ __forceinline__ void load(const char *row, int kind, int i) { v = load_lanes<N>(row, kind, i); }
  __device__ __forceinline__ void load(const char *row, int kind, int i, uint64_t policy) {
    v = load_lanes<N>(row, kind, i, policy);
  }
};

template <int KIND, int N> struct held_words {
  words<N> w;
  __device__ __forceinline__ lanes<N> get() const { return unpack<N>(KIND, w); }
  __device__ __forceinline__ void set(lanes<N> of) { w = pack<N>(KIND, of); }
  __device__ __forceinline__ void load(const char *row, int, int i) { w = load_words<N>(row, i); }
  __device__ __forceinline__ void load(const char *row, int, int i, uint64_t policy) {
    w = load_words<N>(row, i, policy);
  }
};
template <int N> struct held<KIND_BF16, N> : held_words<KIND_BF16, N> {};
template <int N> struct held<KIND_F16, N> : held_words<KIND_F16, N> {};

__device__ __forceinline__ float load_element(const char *row, int kind, int64_t i) {
  if (kind == KIND_F32) return ((const float *)row)[i];
  const uint16_t bits = ((const uint16_t *)row)[i];
  return unpack_pair(kind, bits).x;
}

__device__ __forceinline__ float round_element(int kind, float value) {
  return round_pair(kind, make_float2(value, 0)).x;
}

__device__ __forceinline__ void store_element(char *row, int kind, int64_t i, float value) {
  if (kind == KIND_F32)
    ((float *)row)[i] = value;
  else
    ((uint16_t *)row)[i] = (uint16_t)pack_pair(kind, make_float2(value, 0));
}

#endif
