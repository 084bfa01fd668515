/* Checks of base/vec.h, for whatever vector width the including test is compiled for. */
#ifndef TIGON_TESTS_BASE_VEC_CHECKS_H
#define TIGON_TESTS_BASE_VEC_CHECKS_H

#include "base/vec.h"

/* Memory that any kind may be stored to and loaded from. */
static void *memory_of(size_t bytes) {
  void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
  assert_non_null(memory);
  memset(memory, 0xff, bytes);
  return memory;
}

static void test_loads_widen_every_half(void **state) {
  (void)state;
  const tigon_kind kinds[] = {TIGON_F16, TIGON_BF16};
  for (int k = 0; k < 2; k++)
    for (unsigned first = 0; first < 65536; first += VF_LANES) {
      uint16_t halves[2 * VF_LANES] = {0};
      float lanes[VF_LANES];
      for (unsigned i = 0; i < VF_LANES; i++) halves[i] = (uint16_t)(first + i);
      vf_store(lanes, vf_load_as(halves, kinds[k], 0));
      for (int i = 0; i < VF_LANES; i++) {
        const float expected = tigon_load(halves, kinds[k], i);
        if (isnan(expected))
          assert_true(isnan(lanes[i]));
        else
          assert_int_equal(tigon_float_to_bits(lanes[i]), tigon_float_to_bits(expected));
      }
    }
}

static void check_store(const float *values, void *stored) {
  const tigon_kind kinds[] = {TIGON_F16, TIGON_BF16, TIGON_F32};
  for (int k = 0; k < 3; k++) {
    float rounded[VF_LANES];
    unsigned char streamed[4 * VF_LANES];
    const size_t bytes = (size_t)(VF_LANES * tigon_kind_bytes(kinds[k]));
    vf_stream_as(stored, kinds[k], 0, vf_load(values));
    vf_stream_end();
    memcpy(streamed, stored, bytes);
    vf_store_as(stored, kinds[k], 0, vf_load(values));
    assert_memory_equal(streamed, stored, bytes);
    vf_store(rounded, vf_round_to(kinds[k], vf_load(values)));
    for (int i = 0; i < VF_LANES; i++) {
      const float expected = tigon_round_to(kinds[k], values[i]), got = tigon_load(stored, kinds[k], i);
      if (isnan(expected)) {
        assert_true(isnan(got) && isnan(rounded[i]));
        continue;
      }
      assert_int_equal(tigon_float_to_bits(got), tigon_float_to_bits(expected));
      assert_int_equal(tigon_float_to_bits(rounded[i]), tigon_float_to_bits(expected));
    }
  }
}

/* Every half and what lies next to the middle between it and the following one, and random bits. */
static void test_stores_round_as_scalars_do(void **state) {
  (void)state;
  test_rng rng = {1};
  float values[VF_LANES];
  void *stored = memory_of(sizeof values);
  for (uint32_t half = 0; half < 65536; half += VF_LANES) {
    const uint32_t offsets[] = {0, 0x7fff, 0x8000, 0x8001, 0xffff};
    for (int o = 0; o < 5; o++) {
      for (uint32_t i = 0; i < VF_LANES; i++) values[i] = tigon_bits_to_float((half + i) << 16 | offsets[o]);
      check_store(values, stored);
      for (uint32_t i = 0; i < VF_LANES; i++) {
        const float from_f16 = tigon_from_f16((uint16_t)(half + i));
        values[i] = tigon_bits_to_float(tigon_float_to_bits(from_f16) + (offsets[o] >> 3));
      }
      check_store(values, stored);
    }
  }
  for (int n = 0; n < 100000; n++) {
    for (int i = 0; i < VF_LANES; i++) values[i] = tigon_bits_to_float((uint32_t)test_random(&rng));
    check_store(values, stored);
  }
  free(stored);
}

static void test_parts_touch_nothing_else(void **state) {
  (void)state;
  const tigon_kind kinds[] = {TIGON_F16, TIGON_BF16, TIGON_F32};
  for (int k = 0; k < 3; k++)
    for (int64_t n = 0; n < VF_LANES; n++) {
      const int64_t size = 4 * VF_LANES + 8;
      unsigned char *bytes = memory_of((size_t)size);
      float lanes[VF_LANES];
      vf_store_part(bytes, kinds[k], 1, n, vf_set(2.5f));
      const int64_t width = tigon_kind_bytes(kinds[k]);
      for (int64_t i = 0; i < size; i++)
        if (i < width || i >= (n + 1) * width) assert_int_equal(bytes[i], 0xff);
      vf_store(lanes, vf_load_part(bytes, kinds[k], 1, n));
      for (int i = 0; i < VF_LANES; i++) assert_true(lanes[i] == (i < n ? 2.5f : 0.0f));
      free(bytes);
    }
}

static void test_rows(void **state) {
  (void)state;
  const tigon_kind kinds[] = {TIGON_F16, TIGON_BF16, TIGON_F32};
  for (int k = 0; k < 3; k++)
    for (int64_t n = 0; n < 70; n++) {
      float from[72], back[72] = {0};
      void *stored = memory_of(sizeof from);
      for (int i = 0; i < 72; i++) from[i] = (float)i * 0.25f - 5;
      tigon_store_row(stored, kinds[k], from, n);
      tigon_load_row(back, stored, kinds[k], n);
      for (int64_t i = 0; i < 70; i++) assert_true(back[i] == (i < n ? from[i] : 0));
      const unsigned char *after = (const unsigned char *)stored + n * tigon_kind_bytes(kinds[k]);
      for (int i = 0; i < 8; i++) assert_int_equal(after[i], 0xff);
      free(stored);
    }
}

static void test_lane_sums(void **state) {
  (void)state;
  test_rng rng = {3};
  for (int n = 0; n < 1000; n++) {
    float lanes[VF_LANES], expected[VF_LANES], largest = -INFINITY;
    for (int i = 0; i < VF_LANES; i++) {
      lanes[i] = expected[i] = (float)test_random_normal(&rng);
      largest = lanes[i] > largest ? lanes[i] : largest;
    }
    for (int width = VF_LANES / 2; width; width /= 2)
      for (int i = 0; i < width; i++) expected[i] += expected[i + width];
    assert_true(vf_sum(vf_load(lanes)) == expected[0]);
    assert_true(vf_max_lane(vf_load(lanes)) == largest);
  }
}

static float exp_of(float x) { return vf_exp(vf_set(x))[VF_LANES - 1]; }

static void test_exp(void **state) {
  (void)state;
  double worst = 0;
  for (float x = -87.3f; x < 88.7f; x += 0.00037f) {
    const double error = fabs((double)exp_of(x) / exp((double)x) - 1);
    if (error > worst) worst = error;
  }
  for (int i = -30; i <= 30; i++) {
    const double error = fabs((double)exp_of(ldexpf(1, i % 5)) / exp(ldexp(1, i % 5)) - 1);
    if (error > worst) worst = error;
  }
  printf("vf_exp: %d lanes, worst relative error %.3g\n", VF_LANES, worst);
  assert_true(worst < 9e-8);
  for (float x = -103.9f; x < -87.3f; x += 0.0037f) /* subnormal results: to within one step of them */
    assert_true(fabs((double)exp_of(x) - exp((double)x)) < 0x1p-148);
  assert_true(exp_of(0) == 1.0f && exp_of(-0.0f) == 1.0f);
  assert_true(exp_of(-105) == 0 && exp_of(-1e30f) == 0 && exp_of(-INFINITY) == 0);
  assert_true(isinf(exp_of(88.73f)) && isinf(exp_of(1e30f)) && isinf(exp_of(INFINITY)));
  assert_true(isnan(exp_of(NAN)) && isnan(exp_of(-NAN)));
}

static void test_sigmoid(void **state) {
  (void)state;
  for (float x = -80; x < 80; x += 0.01f) {
    const double expected = 1 / (1 + exp(-(double)x)), got = (double)vf_sigmoid(vf_set(x))[0];
    assert_true(fabs(got / expected - 1) < 4e-7);
  }
  assert_true(vf_sigmoid(vf_set(-INFINITY))[0] == 0 && vf_sigmoid(vf_set(INFINITY))[0] == 1);
  assert_true(isnan(vf_sigmoid(vf_set(NAN))[0]));
}

static void test_select(void **state) {
  (void)state;
  assert_true(vf_max(vf_set(1), vf_set(2))[0] == 2 && vf_min(vf_set(1), vf_set(2))[0] == 1);
  assert_true(vf_max(vf_set(NAN), vf_set(2))[0] == 2 && isnan(vf_max(vf_set(2), vf_set(NAN))[0]));
  assert_true(vf_min(vf_set(NAN), vf_set(2))[0] == 2 && isnan(vf_min(vf_set(2), vf_set(NAN))[0]));
}

static int run_vec_checks(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_loads_widen_every_half),
      cmocka_unit_test(test_stores_round_as_scalars_do),
      cmocka_unit_test(test_parts_touch_nothing_else),
      cmocka_unit_test(test_rows),
      cmocka_unit_test(test_lane_sums),
      cmocka_unit_test(test_exp),
      cmocka_unit_test(test_sigmoid),
      cmocka_unit_test(test_select),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
