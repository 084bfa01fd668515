/*
 * Vectors of VF_LANES floats in GCC/clang vector extensions, for sources compiled once per instruction set (isa.h).
 * Arithmetic uses the operators and vf_fma; compilers fuse nothing by themselves (-ffp-contract=off), so that a
 * result's bits depend neither on the compiler nor on where an expression stands.
 */
#ifndef TIGON_BASE_VEC_H
#define TIGON_BASE_VEC_H

#include <stdint.h>
#include <string.h>

#include "base/dtype.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
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

/* a * b + c, rounded once where the set has a fused multiply-add, and after the product too where it has none. */
static inline vf vf_fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

/* The same for one float. */
static inline float vf_fma_one(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

/* mask lanes are all ones or all zeros, as comparisons give them. */
static inline vf vf_select(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }
static inline vf vf_max(vf a, vf b) { return vf_select(a > b, a, b); } /* b where either is NaN */
static inline vf vf_min(vf a, vf b) { return vf_select(a < b, a, b); } /* b where either is NaN */

/* Lane i takes lane i ^ width; width is a literal. */
#if VF_LANES == 16
#define VF_SWAP(v, w)                                                                                                 \
  __builtin_shufflevector(v, v, 0 ^ w, 1 ^ w, 2 ^ w, 3 ^ w, 4 ^ w, 5 ^ w, 6 ^ w, 7 ^ w, 8 ^ w, 9 ^ w, 10 ^ w, 11 ^ w, \
                          12 ^ w, 13 ^ w, 14 ^ w, 15 ^ w)
#elif VF_LANES == 8
#define VF_SWAP(v, w) __builtin_shufflevector(v, v, 0 ^ w, 1 ^ w, 2 ^ w, 3 ^ w, 4 ^ w, 5 ^ w, 6 ^ w, 7 ^ w)
#else
#define VF_SWAP(v, w) __builtin_shufflevector(v, v, 0 ^ w, 1 ^ w, 2 ^ w, 3 ^ w)
#endif

/* Sum of the lanes in a fixed order (halves, quarters, ...). */
static inline float vf_sum(vf v) {
#if VF_LANES >= 16
  v += VF_SWAP(v, 8);
#endif
#if VF_LANES >= 8
  v += VF_SWAP(v, 4);
#endif
  v += VF_SWAP(v, 2);
  v += VF_SWAP(v, 1);
  return v[0];
}

static inline float vf_max_lane(vf v) {
#if VF_LANES >= 16
  v = vf_max(v, VF_SWAP(v, 8));
#endif
#if VF_LANES >= 8
  v = vf_max(v, VF_SWAP(v, 4));
#endif
  v = vf_max(v, VF_SWAP(v, 2));
  v = vf_max(v, VF_SWAP(v, 1));
  return v[0];
}

/* 16-bit integers to and from 32 bits; gcc 12 splits __builtin_convertvector into pieces. */
#if defined(__AVX512F__)
static inline vu vu_widen(vh h) { return (vu)_mm512_cvtepu16_epi32((__m256i)h); }
static inline vh vu_narrow(vu v) { return (vh)_mm512_cvtepi32_epi16((__m512i)v); }
#elif defined(__AVX2__)
static inline vu vu_widen(vh h) { return (vu)_mm256_cvtepu16_epi32((__m128i)h); }
static inline vh vu_narrow(vu v) { /* v < 2^16 */
  const __m256i packed = _mm256_packus_epi32((__m256i)v, (__m256i)v);
  return (vh)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}
#else
static inline vu vu_widen(vh h) { return __builtin_convertvector(h, vu); }
static inline vh vu_narrow(vu v) { return __builtin_convertvector(v, vh); }
#endif

static inline vf vf_from_bf16(vh h) { return (vf)(vu_widen(h) << 16); }

/* The bf16 that v rounds to, in the upper half of each lane. */
static inline vu vf_bf16_bits(vf v) {
#if defined(__AVX512F__)
  /* Masks save a third of the instructions that compilers make of the portable form. */
  const __m512i bits = (__m512i)v;
  const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  const __mmask16 nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
  __m512i rounded = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
  rounded = _mm512_mask_sub_epi32(rounded, odd, rounded, _mm512_set1_epi32(-1));
  return (vu)_mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
#else
  const vu bits = (vu)v;
  const vu rounded = bits + 0x7fffu + (bits >> 16 & 1u);
  return (vu)vf_select(v != v, (vf)(bits | 0x400000u), (vf)rounded);
#endif
}

static inline vh vf_to_bf16(vf v) { return vu_narrow(vf_bf16_bits(v) >> 16); }

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
#elif defined(__aarch64__)
static inline vf vf_from_f16(vh h) { return (vf)vcvt_f32_f16(vreinterpret_f16_u16((uint16x4_t)h)); }
static inline vh vf_to_f16(vf v) { return (vh)vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)v)); }
#else /* long code, and only old processors run it: not inline */
static __attribute__((noinline, unused)) vf vf_from_f16(vh h) {
  float lanes[VF_LANES];
  for (int i = 0; i < VF_LANES; i++) lanes[i] = tigon_from_f16(h[i]);
  return vf_load(lanes);
}
static __attribute__((noinline, unused)) vh vf_to_f16(vf v) {
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

/* As vf_store_as, past the caches, for large outputs: a plain store would read each line first. The address is a
 * multiple of what is written; vf_stream_end comes before other threads may read. */
static inline void vf_stream_as(void *data, tigon_kind kind, int64_t i, vf v) {
#if defined(__AVX512F__)
  if (kind == TIGON_F32)
    _mm512_stream_ps((float *)data + i, (__m512)v);
  else
    _mm256_stream_si256((__m256i *)(void *)((uint16_t *)data + i),
                        (__m256i)(kind == TIGON_BF16 ? vf_to_bf16(v) : vf_to_f16(v)));
#elif defined(__AVX2__)
  if (kind == TIGON_F32)
    _mm256_stream_ps((float *)data + i, (__m256)v);
  else
    _mm_stream_si128((__m128i *)(void *)((uint16_t *)data + i),
                     (__m128i)(kind == TIGON_BF16 ? vf_to_bf16(v) : vf_to_f16(v)));
#else
  vf_store_as(data, kind, i, v);
#endif
}

static inline void vf_stream_end(void) {
#if defined(__AVX2__)
  _mm_sfence();
#endif
}

/* The first n < VF_LANES elements; the other lanes are 0. Not inline: the ends of rows are rare, and loops that meet
 * them many. */
static __attribute__((noinline, unused)) vf vf_load_part(const void *data, tigon_kind kind, int64_t i, int64_t n) {
  float lanes[VF_LANES] = {0};
  for (int64_t j = 0; j < n && j < VF_LANES; j++) lanes[j] = tigon_load(data, kind, i + j);
  return vf_load(lanes);
}

static __attribute__((noinline, unused)) void vf_store_part(void *data, tigon_kind kind, int64_t i, int64_t n, vf v) {
  float lanes[VF_LANES];
  vf_store(lanes, v);
  for (int64_t j = 0; j < n && j < VF_LANES; j++) tigon_store(data, kind, i + j, lanes[j]);
}

static inline vf vf_round_to(tigon_kind kind, vf v) {
  if (kind == TIGON_BF16) return (vf)(vf_bf16_bits(v) & 0xffff0000u);
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

/* exp with a relative error below 9e-8, with and without fused multiply-adds; 0 below -103.98, Inf above 88.72, NaN for
 * NaN. */
static inline vf vf_exp(vf x) {
  x = vf_max(vf_set(-104.0f), x);
  x = vf_min(vf_set(89.0f), x);
  /* x = n ln 2 + r, |r| <= ln 2 / 2; adding 1.5 * 2^23 rounds to an integer that stands in the low bits. */
  const vf shifted = vf_fma(x, vf_set(1.44269504088896341f), vf_set(12582912.0f));
  const vi n = (vi)shifted - (vi)vf_set(12582912.0f);
  const vf whole = shifted - vf_set(12582912.0f);
  const vf reduced = vf_fma(whole, vf_set(-0.693359375f), x); /* the product is exact */
  const vf r = vf_fma(whole, vf_set(2.12194442e-4f), reduced);
  vf q = vf_set(1.39336882e-3f);
  q = vf_fma(q, r, vf_set(8.36320501e-3f));
  q = vf_fma(q, r, vf_set(4.16664630e-2f));
  q = vf_fma(q, r, vf_set(1.66665763e-1f));
  q = vf_fma(q, r, vf_set(0.5f));
  const vf p = vf_set(1.0f) + vf_fma(r * r, q, r); /* in this order the last addition alone rounds at the size of 1 */
  /* 2^n in two factors, so that results below 2^-126 come out as subnormals and not as garbage. */
  const vi half = n >> 1;
  return p * (vf)((half + 127) << 23) * (vf)((n - half + 127) << 23);
}

/* 1 / (1 + exp(-x)), without overflow. */
static inline vf vf_sigmoid(vf x) { return vf_set(1.0f) / (vf_set(1.0f) + vf_exp(-x)); }

#endif
