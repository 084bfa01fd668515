/* What moe.h and base.h promise beside values: equal bits, inputs left alone, workspaces, special values, records. */
#include "tests/moe/compare.h"

static const tigon_kind x_kinds[] = {TIGON_F32, TIGON_BF16, TIGON_F16};

/* 1, 2 and 7 threads, the saved block and recomputing: the same bits. */
static void test_threads_and_recompute(void **state) {
  (void)state;
  static const int threads[] = {1, 2, 7};
  for (int i = 0; i < MOE_CASES; i++)
    for (int with_saved = 0; with_saved < 2; with_saved++) {
      const tigon_kind kind = x_kinds[i % 3];
      moe_problem first, p;
      moe_make(&first, &moe_cases[i], kind, true, 5);
      moe_run_both(&first, 1);
      for (int n = 0; n < 3; n++) {
        moe_make(&p, &moe_cases[i], kind, with_saved, 5);
        moe_run_both(&p, threads[n]);
        moe_check_same_outputs("threads or recompute", &first, &p);
        moe_free(&p);
        test_count_case();
      }
      moe_free(&first);
    }
}

/* Enough rows and columns that products are cut in many tiles. */
static void test_threads_large(void **state) {
  (void)state;
  const moe_case c = {600, 2, 300, 260, 3, ROUTE_SKEWED, 0};
  moe_problem one, seven;
  moe_make(&one, &c, TIGON_BF16, true, 5);
  moe_make(&seven, &c, TIGON_BF16, false, 5);
  moe_run_both(&one, 1);
  moe_run_both(&seven, 7);
  moe_check_same_outputs("threads", &one, &seven);
  moe_free(&one);
  moe_free(&seven);
}

static void test_backward_twice(void **state) {
  (void)state;
  for (int i = 0; i < MOE_CASES; i++) {
    if (moe_cases[i].options & MOE_ACCUMULATE) continue;
    moe_problem p, copy;
    moe_make(&p, &moe_cases[i], TIGON_BF16, true, 9);
    moe_make(&copy, &moe_cases[i], TIGON_BF16, true, 9);
    moe_run_both(&p, 2);
    unsigned char *saved = malloc(p.saved_bytes + 1);
    memcpy(saved, p.saved, p.saved_bytes);
    moe_run_both(&copy, 2);
    moe_run_backward(&p, 2, NULL);
    moe_check_same_outputs("backward twice", &p, &copy);
    assert_memory_equal(saved, p.saved, p.saved_bytes);
    /* Inputs are as a fresh problem has them. */
    moe_problem fresh;
    moe_make(&fresh, &moe_cases[i], TIGON_BF16, false, 9);
    const test_tensor *const used[] = {&p.x, &p.ids, &p.weights, &p.dout, &p.gate, &p.up, &p.gate_up, &p.down};
    const test_tensor *const new[] = {&fresh.x,    &fresh.ids, &fresh.weights, &fresh.dout,
                                      &fresh.gate, &fresh.up,  &fresh.gate_up, &fresh.down};
    for (int n = 0; n < 8; n++)
      if (used[n]->block) test_tensor_check_same("input", used[n], new[n]);
    free(saved);
    moe_free(&p), moe_free(&copy), moe_free(&fresh);
  }
}

/* Pair or packed, rows or transposed: the same numbers give the same bits. */
static void test_layouts(void **state) {
  (void)state;
  static const int64_t sizes[] = {1, 7, 63, 64, 129};
  static const unsigned layouts[] = {MOE_PACKED, MOE_TRANSPOSED, MOE_TRANSPOSED | MOE_PACKED};
  static const unsigned others[] = {0, MOE_ON_INPUT, MOE_LIMITED, MOE_ACCUMULATE | MOE_ON_INPUT | MOE_LIMITED};
  for (int i = 0; i < 5; i++)
    for (int kind = 0; kind < 3; kind++)
      for (int layout = 0; layout < 3; layout++)
        for (int other = 0; other < 4; other++) {
          const moe_case pair = {50, 2, sizes[i], sizes[4 - i], 8, ROUTE_SKEWED, MOE_STRIDED | others[other]};
          moe_case c = pair;
          c.options |= layouts[layout];
          moe_problem a, b;
          moe_make(&a, &pair, x_kinds[kind], true, 3);
          moe_make(&b, &c, x_kinds[kind], layout % 2, 3);
          moe_run_both(&a, 2);
          moe_run_both(&b, 2);
          moe_check_same_values("out", &a.out, &b.out);
          moe_check_same_values("dx", &a.dx, &b.dx);
          moe_check_same_values("d_topk_weights", &a.d_weights, &b.d_weights);
          test_tensor of_a[MOE_WEIGHTS], of_b[MOE_WEIGHTS];
          moe_weight_views(&a, true, of_a);
          moe_weight_views(&b, true, of_b);
          for (int n = 0; n < MOE_WEIGHTS; n++) moe_check_same_values("a weight gradient", &of_a[n], &of_b[n]);
          moe_free(&a), moe_free(&b);
          test_count_case();
        }
}

/* Each gradient asked for alone has the bits that it has among all. */
static void check_single_gradients(const moe_case *c, bool with_saved) {
  moe_problem all, one;
  moe_make(&all, c, TIGON_BF16, true, 4);
  moe_run_both(&all, 2);
  for (int wanted = 1; wanted < MOE_OUTPUTS; wanted++) {
    moe_make(&one, c, TIGON_BF16, with_saved, 4);
    moe_run_forward(&one, 2, NULL);
    test_tensor *of_one[MOE_OUTPUTS], *of_all[MOE_OUTPUTS];
    moe_outputs_of(&one, of_one);
    moe_outputs_of(&all, of_all);
    for (int n = 1; n < MOE_OUTPUTS; n++)
      if (n != wanted) test_tensor_free(of_one[n]);
    moe_run_backward(&one, 2, NULL);
    if (of_one[wanted]->block) test_tensor_check_same("a gradient alone", of_one[wanted], of_all[wanted]);
    moe_free(&one);
    test_count_case();
  }
  moe_free(&all);
}

static void test_single_gradients(void **state) {
  (void)state;
  for (unsigned mix = 0; mix < 32; mix++) {
    const unsigned options = (mix & 1 ? MOE_PACKED : 0) | (mix & 2 ? MOE_TRANSPOSED : 0) |
                             (mix & 4 ? MOE_ON_INPUT : 0) | (mix & 8 ? MOE_LIMITED : 0);
    check_single_gradients(&(moe_case){33, 3, 65, 31, 4, ROUTE_INVALID, options}, mix & 16);
  }
}

/* NaN and infinities of one token stay in its rows of out, dx and d_topk_weights. */
static void check_special_rows(unsigned options) {
  static const double specials[] = {NAN, INFINITY, -INFINITY};
  for (int which = 0; which < 3; which++)
    for (int kind = 0; kind < 3; kind++)
      for (int place = 0; place < 3; place++) { /* x, dout, weights */
        const moe_case c = {40, 2, 33, 31, 4, ROUTE_RANDOM, options};
        moe_problem clean, p;
        moe_make(&clean, &c, x_kinds[kind], true, 6);
        moe_make(&p, &c, x_kinds[kind], true, 6);
        const int64_t token = 17;
        if (place == 0) test_tensor_set(&p.x, token * c.width + 5, specials[which]);
        if (place == 1) test_tensor_set(&p.dout, token * c.width + 5, specials[which]);
        if (place == 2) test_tensor_set(&p.weights, token * c.choices, specials[which]);
        moe_run_both(&clean, 2);
        moe_run_both(&p, 2);
        bool special = false;
        for (int64_t i = 0; i < p.out.count; i++) {
          const bool own = i / c.width == token;
          if (!own) assert_true(test_tensor_get(&p.out, i) == test_tensor_get(&clean.out, i));
          if (!own) assert_true(test_tensor_get(&p.dx, i) == test_tensor_get(&clean.dx, i));
          if (own) special = special || !isfinite(test_tensor_get(&p.out, i)) || !isfinite(test_tensor_get(&p.dx, i));
        }
        assert_true(special);
        for (int64_t i = 0; i < p.d_weights.count; i++)
          if (i / c.choices != token)
            assert_true(test_tensor_get(&p.d_weights, i) == test_tensor_get(&clean.d_weights, i));
        moe_free(&clean), moe_free(&p);
        test_count_case();
      }
}

static void test_special_rows(void **state) {
  (void)state;
  check_special_rows(0);
  check_special_rows(MOE_TRANSPOSED | MOE_PACKED);
  check_special_rows(MOE_ON_INPUT);
  check_special_rows(MOE_ON_INPUT | MOE_TRANSPOSED);
}

/* Nobody's weights reach tokens that do not use them. */
static void test_unused_expert(void **state) {
  (void)state;
  const moe_case c = {40, 2, 33, 31, 4, ROUTE_RANDOM, 0};
  moe_problem clean, p;
  moe_make(&clean, &c, TIGON_BF16, true, 8);
  moe_make(&p, &c, TIGON_BF16, true, 8);
  for (int64_t i = 0; i < c.tokens * c.choices; i++)
    if (test_tensor_get(&p.ids, i) == 2) test_tensor_set(&p.ids, i, 1), test_tensor_set(&clean.ids, i, 1);
  const int64_t matrix = c.inner * c.width;
  for (int64_t i = 2 * matrix; i < 3 * matrix; i++) {
    test_tensor_set(&p.gate, i, NAN);
    test_tensor_set(&p.up, i, NAN);
    test_tensor_set(&p.down, i, NAN);
  }
  moe_run_both(&clean, 2);
  moe_run_both(&p, 2);
  moe_check_same_outputs("an unused expert", &clean, &p);
  for (int64_t i = 2 * matrix; i < 3 * matrix; i++) {
    assert_true(test_tensor_get(&p.d_gate, i) == 0 && !signbit(test_tensor_get(&p.d_gate, i)));
    assert_true(test_tensor_get(&p.d_down, i) == 0 && !signbit(test_tensor_get(&p.d_down, i)));
  }
  moe_free(&clean), moe_free(&p);
}

static void test_one_byte_less(void **state) {
  (void)state;
  const moe_case c = {40, 2, 33, 31, 4, ROUTE_RANDOM, 0};
  moe_problem p;
  moe_make(&p, &c, TIGON_BF16, true, 8);
  tigon_moe_args forward = moe_forward_args(&p);
  tigon_moe_backward_args backward = moe_backward_args(&p);
  test_workspace w;
  uint64_t bytes;
  const tigon_exec two = {.size = sizeof two, .num_threads = 2};
  test_expect_status(tigon_moe_workspace(&two, &forward, &bytes), TIGON_OK, NULL);
  test_workspace_make(&w, bytes - 1, 2);
  test_expect_status(tigon_moe(&w.exec, &forward), TIGON_WORKSPACE, "workspace_bytes");
  test_workspace_free(&w);
  test_expect_status(tigon_moe_backward_workspace(&two, &backward, &bytes), TIGON_OK, NULL);
  test_workspace_make(&w, bytes - 1, 2);
  test_expect_status(tigon_moe_backward(&w.exec, &backward), TIGON_WORKSPACE, "workspace_bytes");
  forward.saved_bytes = backward.saved_bytes = p.saved_bytes - 1;
  test_expect_status(tigon_moe(&w.exec, &forward), TIGON_INVALID_ARGUMENT, "saved_bytes");
  test_expect_status(tigon_moe_backward(&w.exec, &backward), TIGON_INVALID_ARGUMENT, "saved_bytes");
  test_workspace_free(&w);
  for (size_t i = 0; i < p.out.bytes; i++) assert_int_equal(p.out.block[i], 0xff);
  for (size_t i = 0; i < p.dx.bytes; i++) assert_int_equal(p.dx.block[i], 0xff);
  for (uint64_t i = 0; i < p.saved_bytes; i++) assert_int_equal(p.saved[i], 0xff);
  moe_free(&p);
}

/* Queries look at no data, and grow with the tokens. */
static void test_queries(void **state) {
  (void)state;
  uint64_t before[3] = {0};
  for (int64_t tokens = 0; tokens < 3000; tokens += 1 + tokens / 3) {
    tigon_tensor x, ids, weights, gate_up, down, out, grad, d_weights, d_gate_up, d_down;
    tigon_moe_args a = {.size = sizeof a};
    a.x = tigon_tensor_2d(&x, NULL, tigon_bf16(), tokens, 96);
    a.topk_ids = tigon_tensor_2d(&ids, NULL, tigon_i32(), tokens, 3);
    a.topk_weights = tigon_tensor_2d(&weights, NULL, tigon_f32(), tokens, 3);
    a.gate_up = tigon_tensor_3d(&gate_up, NULL, tigon_bf16(), 200, 48, 96);
    a.down = tigon_tensor_3d(&down, NULL, tigon_bf16(), 200, 96, 24);
    a.out = tigon_tensor_2d(&out, NULL, tigon_bf16(), tokens, 96);
    tigon_moe_backward_args b = {.size = sizeof b, .x = a.x, .topk_ids = a.topk_ids, .topk_weights = a.topk_weights};
    b.gate_up = a.gate_up;
    b.down = a.down;
    b.dout = a.out;
    b.dx = tigon_tensor_2d(&grad, NULL, tigon_bf16(), tokens, 96);
    b.d_topk_weights = tigon_tensor_2d(&d_weights, NULL, tigon_f32(), tokens, 3);
    b.d_gate_up = tigon_tensor_3d(&d_gate_up, NULL, tigon_bf16(), 200, 48, 96);
    b.d_down = tigon_tensor_3d(&d_down, NULL, tigon_bf16(), 200, 96, 24);
    uint64_t bytes[3];
    test_expect_status(tigon_moe_workspace(NULL, &a, &bytes[0]), TIGON_OK, NULL);
    test_expect_status(tigon_moe_saved(NULL, &a, &bytes[1]), TIGON_OK, NULL);
    test_expect_status(tigon_moe_backward_workspace(NULL, &b, &bytes[2]), TIGON_OK, NULL);
    for (int i = 0; i < 3; i++) {
      assert_true(bytes[i] >= before[i] && bytes[i] % 256 == 0);
      before[i] = bytes[i];
    }
    assert_true(bytes[1] <= (uint64_t)(2 * 24 * tokens * 3 * 2 + 255));
  }
}

/* The first id >= E is noted, and negative ids are not. */
static void test_record(void **state) {
  (void)state;
  const moe_case c = {20, 3, 8, 8, 4, ROUTE_RANDOM, MOE_STRIDED};
  tigon_context *context;
  test_expect_status(tigon_context_create((DLDevice){kDLCPU, 0}, &context), TIGON_OK, NULL);
  moe_problem p;
  moe_make(&p, &c, TIGON_F32, true, 8);
  tigon_record record;
  test_tensor_set(&p.ids, 5, -7);
  moe_run_forward(&p, 2, context);
  moe_run_backward(&p, 2, context);
  assert_int_equal(tigon_check(context, &record), TIGON_OK);
  test_tensor_set(&p.ids, 41, 1000);
  test_tensor_set(&p.ids, 22, 4);
  moe_run_forward(&p, 2, context);
  assert_int_equal(tigon_check(context, &record), TIGON_INVALID_ARGUMENT);
  assert_string_equal(record.op, "tigon_moe");
  assert_string_equal(record.argument, "topk_ids");
  assert_int_equal(record.index, 22);
  assert_int_equal(record.value, 4);
  tigon_clear(context);
  moe_run_backward(&p, 2, context);
  assert_int_equal(tigon_check(context, &record), TIGON_INVALID_ARGUMENT);
  assert_string_equal(record.op, "tigon_moe_backward");
  assert_int_equal(record.index, 22);
  moe_free(&p);
  tigon_context_destroy(context);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_threads_and_recompute),
                                     cmocka_unit_test(test_threads_large),
                                     cmocka_unit_test(test_backward_twice),
                                     cmocka_unit_test(test_layouts),
                                     cmocka_unit_test(test_single_gradients),
                                     cmocka_unit_test(test_special_rows),
                                     cmocka_unit_test(test_unused_expert),
                                     cmocka_unit_test(test_one_byte_less),
                                     cmocka_unit_test(test_queries),
                                     cmocka_unit_test(test_record)};
  return test_gate_report("moe_contract", cmocka_run_group_tests(tests, NULL, NULL));
}
