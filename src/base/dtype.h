/* Element kinds and scalar conversions. Conversions to 16 bits round to nearest even and keep NaN a NaN. */
#ifndef TIGON_BASE_DTYPE_H
#define TIGON_BASE_DTYPE_H

#include <stdint.h>
#include <string.h>

typedef enum tigon_kind {
  TIGON_F32 = 1,
  TIGON_F16 = 2,
  TIGON_BF16 = 4,
  TIGON_I32 = 8,
  TIGON_I64 = 16,
  TIGON_U8 = 32, /* uint8, or bool: one byte, of which any value but 0 is true */
} tigon_kind;
#define TIGON_FLOATS  (TIGON_F32 | TIGON_F16 | TIGON_BF16)
#define TIGON_INDICES (TIGON_I32 | TIGON_I64)
#define TIGON_FLAGS   (TIGON_U8 | TIGON_INDICES)

static inline int64_t tigon_kind_bytes(tigon_kind kind) {
  switch (kind) {
  case TIGON_F16:
  case TIGON_BF16:
    return 2;
  case TIGON_I64:
    return 8;
  case TIGON_U8:
    return 1;
  default:
    return 4;
  }
}

static inline float tigon_bits_to_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint32_t tigon_float_to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float tigon_from_bf16(uint16_t half) { return tigon_bits_to_float((uint32_t)half << 16); }

static inline uint16_t tigon_to_bf16(float value) {
  const uint32_t bits = tigon_float_to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline float tigon_from_f16(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
  const uint32_t rest = (uint32_t)(half & 0x7fffu) << 13;
  if (rest >= 0x0f800000u) return tigon_bits_to_float(sign | 0x70000000u | rest); /* Inf and NaN: exponent to 255 */
  /* 2^112 moves the exponent bias from 15 to 127 and is exact, for subnormals too. */
  return tigon_bits_to_float(sign | tigon_float_to_bits(tigon_bits_to_float(rest) * 0x1p112f));
}

static inline uint16_t tigon_to_f16(float value) {
  const uint32_t bits = tigon_float_to_bits(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and more round to Inf */
  if (magnitude < 0x38800000u) /* below 2^-14: adding 1/2 rounds at the subnormal's last bit, 2^-24 */
    return (uint16_t)(sign | (tigon_float_to_bits(tigon_bits_to_float(magnitude) + 0.5f) - 0x3f000000u));
  return (uint16_t)(sign | ((magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13));
}

/* Element i of a float array of the given kind. */
static inline float tigon_load(const void *data, tigon_kind kind, int64_t i) {
  if (kind == TIGON_F32) return ((const float *)data)[i];
  const uint16_t half = ((const uint16_t *)data)[i];
  return kind == TIGON_BF16 ? tigon_from_bf16(half) : tigon_from_f16(half);
}

static inline void tigon_store(void *data, tigon_kind kind, int64_t i, float value) {
  if (kind == TIGON_F32)
    ((float *)data)[i] = value;
  else
    ((uint16_t *)data)[i] = kind == TIGON_BF16 ? tigon_to_bf16(value) : tigon_to_f16(value);
}

/* The value after rounding to the kind. */
static inline float tigon_round_to(tigon_kind kind, float value) {
  if (kind == TIGON_BF16) return tigon_from_bf16(tigon_to_bf16(value));
  if (kind == TIGON_F16) return tigon_from_f16(tigon_to_f16(value));
  return value;
}

static inline int64_t tigon_load_index(const void *data, tigon_kind kind, int64_t i) {
  return kind == TIGON_I32 ? ((const int32_t *)data)[i] : ((const int64_t *)data)[i];
}

/* Element i of an array of one of TIGON_FLAGS. */
static inline int tigon_load_flag(const void *data, tigon_kind kind, int64_t i) {
  return kind == TIGON_U8 ? ((const uint8_t *)data)[i] != 0 : tigon_load_index(data, kind, i) != 0;
}

static inline void tigon_store_index(void *data, tigon_kind kind, int64_t i, int64_t value) {
  if (kind == TIGON_I32)
    ((int32_t *)data)[i] = (int32_t)value;
  else
    ((int64_t *)data)[i] = value;
}

#endif
