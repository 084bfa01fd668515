/* Scalar conversions: every 16-bit value, and roundings checked against the neighbours on both sides. */
#include "tests/support/support.h"

/* A 16-bit format as IEEE 754 describes it. */
typedef struct format {
  tigon_kind kind;
  int exponent_bits, mantissa_bits;
} format;

static const format formats[] = {{TIGON_F16, 5, 10}, {TIGON_BF16, 8, 7}};

static double decode(const format *f, unsigned half) {
  const unsigned mantissa = half & ((1u << f->mantissa_bits) - 1), top = (1u << f->exponent_bits) - 1;
  const unsigned exponent = half >> f->mantissa_bits & top;
  const int bias = (int)(top >> 1);
  double value;
  if (exponent == top)
    value = mantissa ? NAN : INFINITY;
  else if (exponent == 0)
    value = ldexp((double)mantissa, 1 - bias - f->mantissa_bits);
  else
    value = ldexp((double)(mantissa | 1u << f->mantissa_bits), (int)exponent - bias - f->mantissa_bits);
  return half >> 15 ? -value : value;
}

static float load(const format *f, unsigned half) {
  const uint16_t stored[2] = {(uint16_t)half, 0};
  return tigon_load(stored, f->kind, 0);
}

static unsigned store(const format *f, float value) {
  uint16_t stored[2] = {0};
  tigon_store(stored, f->kind, 0, value);
  return stored[0];
}

static void test_every_half(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++)
    for (unsigned half = 0; half < 65536; half++) {
      const double expected = decode(&formats[i], half);
      const float got = load(&formats[i], half);
      if (isnan(expected)) {
        assert_true(isnan(got));
        assert_true(isnan(load(&formats[i], store(&formats[i], got))));
        continue;
      }
      assert_true((double)got == expected && !signbit(got) == !signbit(expected));
      assert_int_equal(store(&formats[i], got), half); /* exact values come back */
    }
}

#ifdef __FLT16_MAX__
static void test_f16_against_the_compiler(void **state) {
  (void)state;
  test_rng rng = {5};
  for (int i = 0; i < 2000000; i++) {
    const float value = tigon_bits_to_float((uint32_t)test_random(&rng));
    const _Float16 half = (_Float16)value;
    uint16_t bits;
    memcpy(&bits, &half, sizeof bits);
    if (isnan(value))
      assert_true(isnan(tigon_from_f16(tigon_to_f16(value))));
    else
      assert_int_equal(tigon_to_f16(value), bits);
  }
}
#endif

/* The magnitude that a finite encoding, or infinity taken as the next step after the largest, stands for. */
static double step_value(const format *f, unsigned magnitude) {
  const unsigned infinity = ((1u << f->exponent_bits) - 1) << f->mantissa_bits;
  if (magnitude < infinity) return decode(f, magnitude);
  return 2 * decode(f, infinity - 1) - decode(f, infinity - 2);
}

/* The result is the nearest encoding; halfway the even one. */
static void check_rounding(const format *f, float value) {
  const unsigned infinity = ((1u << f->exponent_bits) - 1) << f->mantissa_bits;
  const unsigned got = store(f, value), magnitude = got & 0x7fffu;
  assert_int_equal(got >> 15, (unsigned)signbit(value) ? 1 : 0);
  assert_true(magnitude <= infinity);
  if (isinf(value)) {
    assert_int_equal(magnitude, infinity);
    return;
  }
  const double x = fabs((double)value);
  if (magnitude < infinity) {
    const double up = step_value(f, magnitude + 1) - x, here = fabs(step_value(f, magnitude) - x);
    assert_true(here < up || (here == up && !(magnitude & 1u)));
  }
  if (magnitude > 0) {
    const double down = x - step_value(f, magnitude - 1), here = step_value(f, magnitude) - x;
    assert_true(fabs(here) < down || here < 0 || (fabs(here) == down && !(magnitude & 1u)));
  }
}

static void test_rounding_to_nearest_even(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    const format *f = &formats[i];
    const unsigned infinity = ((1u << f->exponent_bits) - 1) << f->mantissa_bits;
    for (unsigned m = 0; m < infinity; m++) {
      const float middle = (float)((step_value(f, m) + step_value(f, m + 1)) / 2);
      const float around[] = {middle, nextafterf(middle, 0), nextafterf(middle, INFINITY)};
      for (int j = 0; j < 3; j++) {
        check_rounding(f, around[j]);
        check_rounding(f, -around[j]);
      }
    }
    check_rounding(f, INFINITY);
    check_rounding(f, -INFINITY);
    test_rng rng = {(uint64_t)i};
    for (int j = 0; j < 500000; j++) {
      const float value = tigon_bits_to_float((uint32_t)test_random(&rng));
      if (!isnan(value)) check_rounding(f, value);
    }
  }
}

static void test_nan_stays_nan(void **state) {
  (void)state;
  const uint32_t bits[] = {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu, 0x7fc00000u, 0x7f80ffffu, 0x7fffe000u};
  for (size_t i = 0; i < sizeof bits / sizeof *bits; i++)
    for (int f = 0; f < 2; f++) {
      const float value = tigon_bits_to_float(bits[i]);
      assert_true(isnan(load(&formats[f], store(&formats[f], value))));
      assert_true(isnan(tigon_round_to(formats[f].kind, value)));
    }
}

static void test_indices(void **state) {
  (void)state;
  int32_t narrow[2] = {0, 0};
  int64_t wide[2] = {0, 0};
  tigon_store_index(narrow, TIGON_I32, 1, INT32_MIN);
  tigon_store_index(wide, TIGON_I64, 1, INT64_MIN);
  assert_true(tigon_load_index(narrow, TIGON_I32, 1) == INT32_MIN && narrow[0] == 0);
  assert_true(tigon_load_index(wide, TIGON_I64, 1) == INT64_MIN && wide[0] == 0);
  assert_int_equal(tigon_kind_bytes(TIGON_F32), 4);
  assert_int_equal(tigon_kind_bytes(TIGON_F16), 2);
  assert_int_equal(tigon_kind_bytes(TIGON_BF16), 2);
  assert_int_equal(tigon_kind_bytes(TIGON_I32), 4);
  assert_int_equal(tigon_kind_bytes(TIGON_I64), 8);
}

static void test_flags(void **state) {
  (void)state;
  const uint8_t bytes[3] = {0, 1, 255};
  const int32_t narrow[3] = {0, 256, INT32_MIN};
  const int64_t wide[3] = {0, INT64_C(1) << 32, -1};
  for (int64_t i = 0; i < 3; i++) {
    assert_int_equal(tigon_load_flag(bytes, TIGON_U8, i), i > 0);
    assert_int_equal(tigon_load_flag(narrow, TIGON_I32, i), i > 0);
    assert_int_equal(tigon_load_flag(wide, TIGON_I64, i), i > 0);
  }
  assert_int_equal(tigon_kind_bytes(TIGON_U8), 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_half),
#ifdef __FLT16_MAX__
      cmocka_unit_test(test_f16_against_the_compiler),
#endif
      cmocka_unit_test(test_rounding_to_nearest_even),
      cmocka_unit_test(test_nan_stays_nan),
      cmocka_unit_test(test_indices),
      cmocka_unit_test(test_flags),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
