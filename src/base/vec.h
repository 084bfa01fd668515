/*
 * Vectors of VF_LANES floats in GCC/clang vector extensions, for sources compiled once per instruction set (isa.h).
 * Arithmetic uses the operators; a * b + c contracts to a fused multiply-add where the set has one.
 */
#ifndef TIGON_BASE_VEC_H
#define TIGON_BASE_VEC_H

#include <stdint.h>
#include <string.h>

#include "base/dtype.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define VF_LANES 16
#elif defined(__AVX2__)
#define VF_LANES 8
#else
#define VF_LANES 4
#endif

typedef float vf __attribute__((vector_size(VF_LANES * 4)));
typedef int32_t vi __attribute__((vector_size(VF_LANES * 4)));
typedef uint32_t vu __attribute__((vector_size(VF_LANES * 4)));
typedef uint16_t vh __attribute__((vector_size(VF_LANES * 2)));

/* An initialiser and not 0 + value: the sum is an addition that compilers keep for the sake of -0. */
static inline vf vf_set(float value) {
#if VF_LANES == 16
  return (vf){value, value, value, value, value, value, value, value,
              value, value, value, value, value, value, value, value};
#elif VF_LANES == 8
  return (vf){value, value, value, value, value, value, value, value};
#else
  return (vf){value, value, value, value};
#endif
}

static inline vf vf_load(const float *from) {
  vf v;
  memcpy(&v, from, sizeof v);
  return v;
}

static inline void vf_store(float *to, vf v) { memcpy(to, &v, sizeof v); }

/* mask lanes are all ones or all zeros, as comparisons give them. */
static inline vf vf_select(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }
static inline vf vf_max(vf a, vf b) { return vf_select(a > b, a, b); } /* b where either is NaN */
static inline vf vf_min(vf a, vf b) { return vf_select(a < b, a, b); } /* b where either is NaN */

/* Sum of the lanes in a fixed order (halves, quarters, ...). */
static inline float vf_sum(vf v) {
  float lanes[VF_LANES];
  vf_store(lanes, v);
  for (int width = VF_LANES / 2; width >= 1; width /= 2)
    for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
  return lanes[0];
}

static inline float vf_max_lane(vf v) {
  float lanes[VF_LANES];
  vf_store(lanes, v);
  for (int width = VF_LANES / 2; width >= 1; width /= 2)
    for (int i = 0; i < width; i++) lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
  return lanes[0];
}

static inline vf vf_from_bf16(vh h) { return (vf)(__builtin_convertvector(h, vu) << 16); }

static inline vh vf_to_bf16(vf v) {
  const vu bits = (vu)v;
  const vu rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const vu nan = (vu)((bits & 0x7fffffffu) > 0x7f800000u);
  return __builtin_convertvector((nan & (bits >> 16 | 0x40u)) | (~nan & rounded), vh);
}

#if defined(__AVX512F__)
static inline vf vf_from_f16(vh h) { return (vf)_mm512_cvtph_ps((__m256i)h); }
static inline vh vf_to_f16(vf v) {
  return (vh)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#elif defined(__F16C__)
static inline vf vf_from_f16(vh h) { return (vf)_mm256_cvtph_ps((__m128i)h); }
static inline vh vf_to_f16(vf v) {
  return (vh)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#else
static inline vf vf_from_f16(vh h) {
  float lanes[VF_LANES];
  for (int i = 0; i < VF_LANES; i++) lanes[i] = tigon_from_f16(h[i]);
  return vf_load(lanes);
}
static inline vh vf_to_f16(vf v) {
  vh h = {0};
  for (int i = 0; i < VF_LANES; i++) h[i] = tigon_to_f16(v[i]);
  return h;
}
#endif

/* VF_LANES elements from element i of a float array of any kind. */
static inline vf vf_load_as(const void *data, tigon_kind kind, int64_t i) {
  if (kind == TIGON_F32) return vf_load((const float *)data + i);
  vh h;
  memcpy(&h, (const uint16_t *)data + i, sizeof h);
  return kind == TIGON_BF16 ? vf_from_bf16(h) : vf_from_f16(h);
}

static inline void vf_store_as(void *data, tigon_kind kind, int64_t i, vf v) {
  if (kind == TIGON_F32) {
    vf_store((float *)data + i, v);
    return;
  }
  const vh h = kind == TIGON_BF16 ? vf_to_bf16(v) : vf_to_f16(v);
  memcpy((uint16_t *)data + i, &h, sizeof h);
}

/* The first n < VF_LANES elements; the other lanes are 0. */
static inline vf vf_load_part(const void *data, tigon_kind kind, int64_t i, int64_t n) {
  float lanes[VF_LANES] = {0};
  for (int64_t j = 0; j < n && j < VF_LANES; j++) lanes[j] = tigon_load(data, kind, i + j);
  return vf_load(lanes);
}

static inline void vf_store_part(void *data, tigon_kind kind, int64_t i, int64_t n, vf v) {
  float lanes[VF_LANES];
  vf_store(lanes, v);
  for (int64_t j = 0; j < n && j < VF_LANES; j++) tigon_store(data, kind, i + j, lanes[j]);
}

static inline vf vf_round_to(tigon_kind kind, vf v) {
  if (kind == TIGON_BF16) return vf_from_bf16(vf_to_bf16(v));
  if (kind == TIGON_F16) return vf_from_f16(vf_to_f16(v));
  return v;
}

/* n contiguous elements to and from floats. */
static inline void tigon_load_row(float *to, const void *from, tigon_kind kind, int64_t n) {
  int64_t i = 0;
  for (; i + VF_LANES <= n; i += VF_LANES) vf_store(to + i, vf_load_as(from, kind, i));
  for (; i < n; i++) to[i] = tigon_load(from, kind, i);
}

static inline void tigon_store_row(void *to, tigon_kind kind, const float *from, int64_t n) {
  int64_t i = 0;
  for (; i + VF_LANES <= n; i += VF_LANES) vf_store_as(to, kind, i, vf_load(from + i));
  for (; i < n; i++) tigon_store(to, kind, i, from[i]);
}

/* exp with a relative error below 2e-7; 0 below -103.98, Inf above 88.72, NaN for NaN. */
static inline vf vf_exp(vf x) {
  x = vf_max(vf_set(-104.0f), x);
  x = vf_min(vf_set(89.0f), x);
  /* x = n ln 2 + r, |r| <= ln 2 / 2; adding 1.5 * 2^23 rounds to an integer that stands in the low bits. */
  const vf shifted = x * vf_set(1.44269504088896341f) + vf_set(12582912.0f);
  const vi n = (vi)shifted - (vi)vf_set(12582912.0f);
  const vf whole = shifted - vf_set(12582912.0f);
  const vf r = whole * vf_set(1.42860677e-6f) + (whole * vf_set(-0.693148613f) + x);
  vf p = vf_set(1.37805939e-3f);
  p = p * r + vf_set(8.37312452e-3f);
  p = p * r + vf_set(4.16695364e-2f);
  p = p * r + vf_set(1.66664720e-1f);
  p = p * r + vf_set(4.99999851e-1f);
  p = p * r + vf_set(1.0f);
  p = p * r + vf_set(1.0f);
  /* 2^n in two factors, so that results below 2^-126 come out as subnormals and not as garbage. */
  const vi half = n >> 1;
  return p * (vf)((half + 127) << 23) * (vf)((n - half + 127) << 23);
}

/* 1 / (1 + exp(-x)), without overflow. */
static inline vf vf_sigmoid(vf x) { return vf_set(1.0f) / (vf_set(1.0f) + vf_exp(-x)); }

#endif
