/* Logits kept from forward to backward: the bits of a backward that computes them again, for any size of the block. */
#include "tests/linear_cross_entropy/problem.h"

static uint64_t saved_bytes(const lce_tensors *t) {
  uint64_t bytes = 1;
  test_expect_status(tigon_linear_cross_entropy_saved(NULL, &t->forward, &bytes), TIGON_OK, NULL);
  return bytes;
}

/* Forward with a block of so many bytes between guard zones, then backward with it: once with the true weight, whose
 * products it may still need, and again with the same answer. */
static void run_with_block(lce_tensors *t, uint64_t bytes, int threads) {
  test_workspace block;
  test_workspace_make(&block, bytes, threads);
  t->forward.saved = block.exec.workspace;
  t->backward.saved = block.exec.workspace;
  t->forward.saved_bytes = t->backward.saved_bytes = bytes;
  lce_run_forward(t, threads, NULL);
  unsigned char *before = malloc(bytes + 1);
  assert_non_null(before);
  if (bytes) memcpy(before, block.exec.workspace, bytes);
  lce_run_backward(t, threads, NULL);
  if (bytes) assert_memory_equal(before, block.exec.workspace, bytes);
  free(before);
  test_workspace_free(&block);
}

static void check_same(const lce_tensors *got, const lce_tensors *expected) {
  const test_tensor *const pairs[][2] = {{&got->loss, &expected->loss},       {&got->lse, &expected->lse},
                                         {&got->entropy, &expected->entropy}, {&got->dx, &expected->dx},
                                         {&got->dweight, &expected->dweight}, {&got->dbias, &expected->dbias}};
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
    if (pairs[i][0]->block) test_tensor_check_same("output", pairs[i][0], pairs[i][1]);
}

static const lce_case saved_cases[] = {
    {"several tiles", 129, 64, 2400, F32_BIAS, .upstream = ALL},
    {"tiles and a rest, bfloat16", 65, 123, 1600, HALF(TIGON_BF16), BF16_BIAS, .upstream = ALL, .ignored = 30},
    {"less than a tile", 63, 65, 320, HALF(TIGON_F16), .upstream = ALL, .out_of_range = 20},
    {"options", 127, 64, 1700, F32_BIAS, .upstream = ALL, .softcap = 20, .scale = 10, .label_smoothing = 0.1f,
     .class_weight = WITH_ZEROS, .token_weight = true, .inverse_temperature = 1.25f, .z_loss = 1e-3f, .padding = 70,
     .accumulate = true},
    {"strided", 129, 65, 1000, F32_BIAS, .strided = true, .upstream = ALL, .layout = SPACED},
    {"many tokens", 1300, 16, 1030, .upstream = ALL, .ignored = 10},
    {"no width", 7, 0, 65, F32_BIAS, .upstream = ALL},
    {"no token", 0, 64, 320, F32_BIAS, .upstream = ALL},
    {"no class", 5, 8, 0, F32_BIAS, .upstream = ALL},
};

/* From no byte to one tile less than all, all, and more than all. */
static void test_any_block_gives_the_same_bits(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof saved_cases / sizeof *saved_cases; i++) {
    lce_tensors expected, t;
    lce_make(&expected, &saved_cases[i], i);
    lce_run(&expected, 2);
    const uint64_t all = saved_bytes(&expected), row = 4 * (uint64_t)saved_cases[i].tokens;
    const uint64_t sizes[] = {all, all + 4096, all / 2, 768 * row, row > 0 ? 768 * row - 1 : 0, 4, 0};
    for (size_t j = 0; j < sizeof sizes / sizeof *sizes; j++)
      for (int threads = 1; threads <= 7; threads += 3) {
        lce_make(&t, &saved_cases[i], i);
        run_with_block(&t, sizes[j], threads);
        check_same(&t, &expected);
        lce_free(&t);
        test_count_case();
      }
    lce_free(&expected);
  }
}

/* Backward reads the block: with other numbers there it gives others, for the columns that are kept and no more. */
static void test_block_is_read(void **state) {
  (void)state;
  lce_tensors expected, t;
  const lce_case *c = &saved_cases[0];
  lce_make(&expected, c, 1);
  lce_run(&expected, 2);
  lce_make(&t, c, 1);
  test_workspace block;
  test_workspace_make(&block, 768 * 4 * (uint64_t)c->tokens, 2);
  t.forward.saved = block.exec.workspace;
  t.forward.saved_bytes = t.backward.saved_bytes = 768 * 4 * (uint64_t)c->tokens;
  t.backward.saved = block.exec.workspace;
  lce_run_forward(&t, 2, NULL);
  memset(block.exec.workspace, 0, t.forward.saved_bytes);
  lce_run_backward(&t, 2, NULL);
  for (int64_t v = 0; v < c->vocabulary; v++) {
    const int64_t at = v * c->width;
    const bool same = test_tensor_get(&t.dweight, at) == test_tensor_get(&expected.dweight, at);
    assert_int_equal(same, v >= 768);
  }
  test_workspace_free(&block);
  lce_free(&t);
  lce_free(&expected);
  test_count_case();
}

static void test_size_and_refusals(void **state) {
  (void)state;
  lce_tensors t;
  lce_make(&t, &saved_cases[0], 1);
  assert_int_equal(saved_bytes(&t), (4 * 129 * 2400 + 255) / 256 * 256);
  test_expect_status(tigon_linear_cross_entropy_saved(NULL, &t.forward, NULL), TIGON_INVALID_ARGUMENT,
                     "tigon_linear_cross_entropy: bytes: expected a pointer, got NULL");
  _Alignas(64) char block[128];
  t.backward.saved = block + 4;
  t.forward.saved = block + 4;
  t.forward.saved_bytes = t.backward.saved_bytes = 64;
  test_expect_status(tigon_linear_cross_entropy(NULL, &t.forward), TIGON_INVALID_ARGUMENT, "saved: expected 64-byte");
  test_expect_status(tigon_linear_cross_entropy_backward(NULL, &t.backward), TIGON_INVALID_ARGUMENT,
                     "saved: expected 64-byte");
  lce_free(&t);

  /* Sizes are formed in 64 bits, and refused where those do not do. */
  tigon_tensor x, weight, target;
  tigon_linear_cross_entropy_args args = {.size = sizeof args};
  args.x = tigon_tensor_2d(&x, NULL, tigon_f32(), INT32_MAX, 1);
  args.weight = tigon_tensor_2d(&weight, NULL, tigon_f32(), 1 << 20, 1);
  args.target = tigon_tensor_1d(&target, NULL, tigon_i64(), INT32_MAX);
  uint64_t bytes = 0;
  test_expect_status(tigon_linear_cross_entropy_saved(NULL, &args, &bytes), TIGON_OK, NULL);
  assert_int_equal(bytes, ((uint64_t)INT32_MAX * 4 * (1 << 20) + 255) / 256 * 256);
  args.weight = tigon_tensor_2d(&weight, NULL, tigon_f32(), INT64_C(1) << 50, 1);
  test_expect_status(tigon_linear_cross_entropy_saved(NULL, &args, &bytes), TIGON_INVALID_ARGUMENT,
                     "weight: expected fewer than 2^64 bytes of logits");
  test_count_case();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_any_block_gives_the_same_bits),
      cmocka_unit_test(test_block_is_read),
      cmocka_unit_test(test_size_and_refusals),
  };
  return test_gate_report("linear_cross_entropy_saved", cmocka_run_group_tests(tests, NULL, NULL));
}
