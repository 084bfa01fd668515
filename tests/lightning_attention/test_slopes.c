/* Slopes: published values, slices of ranks, layers, and what is refused. */
#include <stdlib.h>

#include "tests/support/support.h"

enum { ALIBI = TIGON_LIGHTNING_ATTENTION_ALIBI, LINEAR = TIGON_LIGHTNING_ATTENTION_LINEAR };

static void check_values(int32_t kind, int64_t layer, int64_t layers, int64_t heads, const double *expected) {
  float slopes[130];
  for (int64_t i = 0; i < heads + 2; i++) slopes[i] = -7;
  test_expect_status(tigon_lightning_attention_slopes(kind, layer, layers, heads, 0, heads, slopes), TIGON_OK, NULL);
  for (int64_t i = 0; i < heads; i++)
    if (fabs((double)slopes[i] - expected[i]) > 1e-7 * expected[i])
      fail_msg("head %lld of %lld: %.9g, expected %.9g", (long long)i, (long long)heads, (double)slopes[i],
               expected[i]);
  assert_true(slopes[heads] == -7);
  test_count_case();
}

/* As the ALiBi paper prints them (8 and 16 heads), and what its reference function gives for 1, 2, 3, 6 and 12
 * heads. */
static void test_alibi(void **unused) {
  (void)unused;
  const double eight[] = {1 / 2.0, 1 / 4.0, 1 / 8.0, 1 / 16.0, 1 / 32.0, 1 / 64.0, 1 / 128.0, 1 / 256.0};
  check_values(ALIBI, 0, 0, 8, eight);
  const double root = sqrt(0.5); /* 16 heads: 1/2^0.5, 1/2^1, 1/2^1.5, ..., 1/2^8 */
  double sixteen[16];
  for (int i = 0; i < 16; i++) sixteen[i] = i % 2 ? eight[i / 2] : 2 * root * eight[i / 2];
  check_values(ALIBI, 0, 0, 16, sixteen);
  check_values(ALIBI, 0, 0, 1, (double[]){1 / 256.0});
  check_values(ALIBI, 0, 0, 2, (double[]){1 / 16.0, 1 / 256.0});
  check_values(ALIBI, 0, 0, 3, (double[]){1 / 16.0, 1 / 256.0, 1 / 4.0});
  check_values(ALIBI, 0, 0, 6, (double[]){1 / 4.0, 1 / 16.0, 1 / 64.0, 1 / 256.0, 1 / 2.0, 1 / 8.0});
  double twelve[12];
  memcpy(twelve, eight, sizeof eight);
  for (int i = 0; i < 4; i++) twelve[8 + i] = sixteen[2 * i];
  check_values(ALIBI, 0, 0, 12, twelve);
  float large[64]; /* the largest slope of 64 heads: 0.917 */
  test_expect_status(tigon_lightning_attention_slopes(ALIBI, 0, 80, 64, 0, 64, large), TIGON_OK, NULL);
  assert_true(fabs((double)large[0] - 0.917004) < 2e-5 && fabs((double)large[63] - 0.00390625 * 1.00001) < 1e-9);
}

static void test_layers(void **unused) {
  (void)unused;
  check_values(ALIBI, 0, 80, 2, (double[]){1.00001 / 16, 1.00001 / 256});
  check_values(ALIBI, 79, 80, 2, (double[]){1e-5 / 16, 1e-5 / 256});
  check_values(ALIBI, 20, 41, 2, (double[]){0.50001 / 16, 0.50001 / 256});
  check_values(ALIBI, 0, 1, 2, (double[]){1.00001 / 16, 1.00001 / 256});
  check_values(LINEAR, 0, 0, 4, (double[]){0, 2, 4, 6});
  check_values(LINEAR, 12, 24, 4, (double[]){0, 1, 2, 3});
  check_values(LINEAR, 23, 24, 4, (double[]){0, 2 / 24.0, 4 / 24.0, 6 / 24.0});
  double bench[64]; /* layer 12 of 24, 64 heads: 0.0625 h */
  for (int h = 0; h < 64; h++) bench[h] = 0.0625 * h;
  check_values(LINEAR, 12, 24, 64, bench);
}

/* The slopes of ranks, laid side by side, have the bits of the whole. */
static void test_slices(void **unused) {
  (void)unused;
  for (int32_t kind = ALIBI; kind <= LINEAR; kind++)
    for (int64_t heads = 1; heads <= 96; heads++) {
      float whole[96], parts[96];
      test_expect_status(tigon_lightning_attention_slopes(kind, 3, 9, heads, 0, heads, whole), TIGON_OK, NULL);
      for (int64_t ranks = 1; ranks <= heads; ranks *= 2) {
        for (int64_t r = 0; r < ranks; r++) {
          const int64_t begin = r * heads / ranks, end = (r + 1) * heads / ranks;
          test_expect_status(tigon_lightning_attention_slopes(kind, 3, 9, heads, begin, end - begin, parts + begin),
                             TIGON_OK, NULL);
        }
        assert_memory_equal(whole, parts, sizeof *whole * (size_t)heads);
      }
    }
  test_expect_status(tigon_lightning_attention_slopes(ALIBI, 0, 0, 8, 8, 0, NULL), TIGON_OK, NULL);
}

static void test_arguments(void **unused) {
  (void)unused;
  const struct {
    int32_t kind;
    int64_t layer, layers, total, begin, heads;
    const char *name;
  } cases[] = {
      {2, 0, 0, 8, 0, 8, "kind"},
      {-1, 0, 0, 8, 0, 8, "kind"},
      {ALIBI, 0, -1, 8, 0, 8, "layers"},
      {ALIBI, 4, 4, 8, 0, 8, "layer:"},
      {ALIBI, -1, 4, 8, 0, 8, "layer:"},
      {LINEAR, 1, 0, 8, 0, 8, "layer:"},
      {LINEAR, INT64_MAX, 24, 8, 0, 8, "layer:"},
      {ALIBI, 0, 0, 0, 0, 0, "heads_total"},
      {ALIBI, 0, 0, INT64_MAX, 0, 8, "heads_total"},
      {ALIBI, 0, 0, 8, -1, 8, "head_begin"},
      {ALIBI, 0, 0, 8, 9, 0, "head_begin"},
      {LINEAR, 0, 0, 8, INT64_MIN, 1, "head_begin"},
      {ALIBI, 0, 0, 8, 0, 9, "heads:"},
      {ALIBI, 0, 0, 8, 4, 5, "heads:"},
      {ALIBI, 0, 0, 8, 4, INT64_MAX, "heads:"},
      {LINEAR, 0, 0, 8, 0, -1, "heads:"},
  };
  float slopes[16];
  memset(slopes, 0xff, sizeof slopes);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    test_expect_status(tigon_lightning_attention_slopes(cases[i].kind, cases[i].layer, cases[i].layers, cases[i].total,
                                                        cases[i].begin, cases[i].heads, slopes),
                       TIGON_INVALID_ARGUMENT, cases[i].name);
    for (size_t byte = 0; byte < sizeof slopes; byte++) assert_int_equal(((unsigned char *)slopes)[byte], 0xff);
    test_count_case();
  }
  test_expect_status(tigon_lightning_attention_slopes(ALIBI, 0, 0, 8, 0, 8, NULL), TIGON_INVALID_ARGUMENT, "slopes");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_alibi),
      cmocka_unit_test(test_layers),
      cmocka_unit_test(test_slices),
      cmocka_unit_test(test_arguments),
  };
  return test_gate_report("lightning_attention_slopes", cmocka_run_group_tests(tests, NULL, NULL));
}
