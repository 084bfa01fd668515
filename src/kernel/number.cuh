/* Element kinds on the device: conversions, vectors of N elements, single elements. The numbers of the kinds are those of
 * base/dtype.h. Conversions to 16 bits round to nearest even and keep NaN a NaN. */
#ifndef TIGON_KERNEL_NUMBER_CUH
#define TIGON_KERNEL_NUMBER_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "kernel/pair.cuh"

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
template <int N>
struct lanes {
  float2 pair[N / 2];
};

/* ONCE: nobody reads it again soon, so the caches need not keep it. */
template <bool ONCE, typename T>
__device__ __forceinline__ T load_vector(const T *from) {
  return ONCE ? __ldcs(from) : *from;
}

/* Element vector `i` (of N elements) of a row whose start is aligned to the vector, or to 16 bytes where it is longer. */
template <int N, bool ONCE>
__device__ __forceinline__ lanes<N> load_lanes(const char *row, int kind, int i) {
  lanes<N> v;
  if (kind == KIND_F32) {
#pragma unroll
    for (int q = 0; q < N / 4; q++) {
      const float4 four = load_vector<ONCE>((const float4 *)row + (size_t)i * (N / 4) + q);
      v.pair[2 * q] = make_float2(four.x, four.y);
      v.pair[2 * q + 1] = make_float2(four.z, four.w);
    }
  } else if (N == 8) {
    const uint4 raw = load_vector<ONCE>((const uint4 *)row + i);
    const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int q = 0; q < N / 2; q++) v.pair[q] = unpack_pair(kind, word[q & 3]);
  } else {
    const uint2 raw = load_vector<ONCE>((const uint2 *)row + i);
    v.pair[0] = unpack_pair(kind, raw.x);
    v.pair[1] = unpack_pair(kind, raw.y);
  }
  return v;
}

template <int N>
__device__ __forceinline__ void store_lanes(char *row, int kind, int i, lanes<N> v) {
  if (kind == KIND_F32) {
#pragma unroll
    for (int q = 0; q < N / 4; q++)
      ((float4 *)row)[(size_t)i * (N / 4) + q] =
          make_float4(v.pair[2 * q].x, v.pair[2 * q].y, v.pair[2 * q + 1].x, v.pair[2 * q + 1].y);
  } else if (N == 8) {
    uint32_t word[4];
#pragma unroll
    for (int q = 0; q < N / 2; q++) word[q & 3] = pack_pair(kind, v.pair[q]);
    ((uint4 *)row)[i] = make_uint4(word[0], word[1], word[2], word[3]);
  } else {
    ((uint2 *)row)[i] = make_uint2(pack_pair(kind, v.pair[0]), pack_pair(kind, v.pair[1]));
  }
}

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
