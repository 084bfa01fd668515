/* The expert MLP on a device against the oracle, in bfloat16: random shapes, routings and mixes of all options, larger
 * cases, equal bits, records, and what is refused. Linked with wrappers that carry the tensors there (wrap_moe.c). */
#include "tests/gpu/mirror.h"
#include "tests/moe/check.h"
#include "tests/moe/compare.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* A multiple of 8, small ones mostly. */
static int64_t width(test_rng *rng, int64_t most) {
  return 8 * test_random_range(rng, 1, (test_random(rng) % 4 ? 12 : most / 8));
}

static unsigned random_options(test_rng *rng) {
  static const unsigned all[] = {MOE_PACKED,     MOE_IDS64,    MOE_STRIDED, MOE_ACCUMULATE,
                                 MOE_TRANSPOSED, MOE_ON_INPUT, MOE_LIMITED};
  unsigned options = test_random(rng) % 16 ? 0 : MOE_EXPAND;
  for (int i = 0; i < COUNT(all); i++)
    if (test_random(rng) % 5 < 2) options |= all[i];
  return options;
}

/* TIGON_TEST_PART: "2/8" is every eighth random case from the third on, so that processes may share them. */
static bool is_of_this_part(int i) {
  const char *part = getenv("TIGON_TEST_PART");
  int mine, parts;
  return !part || sscanf(part, "%d/%d", &mine, &parts) != 2 || i % parts == mine;
}

static void test_random_shapes(void **state) {
  (void)state;
  test_rng rng = {2029};
  const int cases = gpu_cases(500);
  for (int i = 0; i < cases; i++) {
    moe_case c = {.tokens = test_random_range(&rng, 1, test_random(&rng) % 4 ? 40 : 400),
                  .choices = test_random_range(&rng, 1, test_random(&rng) % 3 ? 4 : 32),
                  .width = width(&rng, 600),
                  .inner = width(&rng, 600),
                  .experts = test_random_range(&rng, 1, test_random(&rng) % 4 ? 16 : 600),
                  .routing = (moe_routing)(test_random(&rng) % (ROUTE_NONE + 1)),
                  .options = random_options(&rng)};
    while (c.tokens * c.choices * c.width * c.inner > 4000000)
      c.tokens = (c.tokens + 1) / 2, c.choices = (c.choices + 1) / 2;
    while (c.experts * c.width * c.inner > 1000000) c.experts = (c.experts + 1) / 2;
    const bool saves = test_random(&rng) % 2;
    const uint64_t seed = test_random(&rng);
    if (is_of_this_part(i)) moe_check_small_case(&c, TIGON_BF16, saves, 1, seed);
  }
}

/* Several tiles of rows, columns and depth; the widest have ragged ends everywhere, the last has two strips of tiles and a
 * lone one. */
static const moe_case large[] = {
    {.tokens = 700, .choices = 2, .width = 256, .inner = 384, .experts = 4},
    {.tokens = 900, .choices = 4, .width = 328, .inner = 200, .experts = 12, .routing = ROUTE_SKEWED},
    {.tokens = 513, .choices = 1, .width = 1032, .inner = 136, .experts = 3, .options = MOE_TRANSPOSED},
    {.tokens = 300, .choices = 8, .width = 64, .inner = 520, .experts = 128, .options = MOE_PACKED},
    {.tokens = 640, .choices = 2, .width = 192, .inner = 264, .experts = 2, .routing = ROUTE_ONE},
    {.tokens = 500, .choices = 2, .width = 320, .inner = 192, .experts = 7, .options = MOE_ON_INPUT | MOE_STRIDED},
    {.tokens = 400, .choices = 3, .width = 200, .inner = 392, .experts = 9, .options = MOE_ACCUMULATE | MOE_LIMITED},
    {.tokens = 64, .choices = 1, .width = 128, .inner = 128, .experts = 4096},
    {.tokens = 2400, .choices = 1, .width = 136, .inner = 600, .experts = 1},
    {.tokens = 350, .choices = 2, .width = 320, .inner = 576, .experts = 3},
    {.tokens = 350, .choices = 2, .width = 320, .inner = 576, .experts = 3, .options = MOE_TRANSPOSED | MOE_ACCUMULATE},
};

static void test_large_cases(void **state) {
  (void)state;
  for (int i = 0; i < gpu_cases(COUNT(large)); i++) moe_check_case(&large[i], TIGON_BF16, i % 2, 1, 100 + (uint64_t)i);
}

static void test_same_bits_every_time(void **state) {
  (void)state;
  for (int i = 0; i < gpu_cases(3); i++) {
    moe_problem first, again;
    moe_make(&first, &large[i], TIGON_BF16, i % 2, 7);
    moe_run_both(&first, 1);
    for (int turn = 0; turn < gpu_cases(50); turn++) {
      moe_make(&again, &large[i], TIGON_BF16, i % 2, 7);
      moe_run_both(&again, 1);
      moe_run_backward(&again, 1, NULL); /* the saved block serves more than once */
      moe_check_same_outputs("again", &first, &again);
      moe_free(&again);
    }
    moe_free(&first);
  }
}

/* The first of a bad id and a route past the limit, as on the CPU. */
static void test_records(void **state) {
  (void)state;
  const moe_case c = {.tokens = 50, .choices = 2, .width = 64, .inner = 64, .experts = 5, .options = MOE_IDS64};
  const struct {
    int64_t bad, limit;
    tigon_status code;
    const char *argument;
    int64_t index, value;
  } all[] = {{-1, 0, TIGON_OK, "", 0, 0},
             {37, 0, TIGON_INVALID_ARGUMENT, "topk_ids", 37, 9},
             {37, 20, TIGON_WORKSPACE, "row_limit", 20, 99},
             {7, 20, TIGON_INVALID_ARGUMENT, "topk_ids", 7, 9},
             {-1, 99, TIGON_WORKSPACE, "row_limit", 99, 100}};
  for (int i = 0; i < 2 * COUNT(all); i++) { /* without the saved block, then with it */
    const int64_t bad = all[i / 2].bad;
    const tigon_status code = all[i / 2].code;
    tigon_context *context;
    tigon_record record = {0};
    moe_problem p;
    test_expect_status(tigon_context_create(mirror_device(), &context), TIGON_OK, NULL);
    moe_make(&p, &c, TIGON_BF16, i % 2, 3);
    p.row_limit = all[i / 2].limit;
    if (bad >= 0) {
      test_tensor_set(&p.ids, bad, 9);
      test_tensor_set(&p.ids, 60, 11); /* later: not the one that is kept */
    }
    moe_run_forward(&p, 1, context);
    assert_int_equal(tigon_check(context, &record), code);
    if (code != TIGON_OK) {
      assert_string_equal(record.op, "tigon_moe");
      assert_string_equal(record.argument, all[i / 2].argument);
      assert_int_equal(record.index, all[i / 2].index);
      assert_int_equal(record.value, all[i / 2].value - (code == TIGON_WORKSPACE && bad >= 0 ? 1 : 0));
      moe_run_backward(&p, 1, context); /* the first event stays */
      tigon_record kept;
      tigon_check(context, &kept);
      assert_string_equal(kept.op, "tigon_moe");
      tigon_clear(context);
      assert_int_equal(tigon_check(context, &kept), TIGON_OK);
      moe_run_backward(&p, 1, context);
      assert_int_equal(tigon_check(context, &kept), code);
      assert_string_equal(kept.op, "tigon_moe_backward");
      assert_int_equal(kept.index, record.index);
    }
    moe_free(&p);
    tigon_context_destroy(context);
  }
}

static void expect_refusal(const moe_case *c, tigon_kind kind, const char *text) {
  moe_problem p;
  moe_make(&p, c, kind, false, 5);
  const tigon_moe_args args = moe_forward_args(&p);
  const tigon_moe_backward_args back = moe_backward_args(&p);
  uint64_t bytes;
  test_expect_status(tigon_moe_workspace(NULL, &args, &bytes), TIGON_UNSUPPORTED, text);
  test_expect_status(tigon_moe(NULL, &args), TIGON_UNSUPPORTED, text);
  test_expect_status(tigon_moe_backward(NULL, &back), TIGON_UNSUPPORTED, text);
  moe_free(&p);
}

static void test_refusals(void **state) {
  (void)state;
  moe_case c = {.tokens = 4, .choices = 1, .width = 64, .inner = 64, .experts = 2};
  expect_refusal(&c, TIGON_F32, "x: expected dtype bfloat16 on a CUDA device");
  expect_refusal(&c, TIGON_F16, "x: expected dtype bfloat16 on a CUDA device");
  c.width = 60;
  expect_refusal(&c, TIGON_BF16, "x: expected a width (D) that is a multiple of 8 up to 2^30 on a CUDA device, got 60");
  c.width = 64, c.inner = 36;
  expect_refusal(&c, TIGON_BF16,
                 "gate: expected an inner width (I) that is a multiple of 8 up to 2^30 on a CUDA device, got 36");
  c.inner = 64;
  moe_problem p;
  moe_make(&p, &c, TIGON_BF16, false, 5);
  p.x.tensor.dl.byte_offset += 2;
  const tigon_moe_args args = moe_forward_args(&p);
  uint64_t bytes;
  test_expect_status(tigon_moe_workspace(NULL, &args, &bytes), TIGON_OK, NULL);
  test_workspace w;
  test_workspace_make(&w, bytes, 1);
  test_expect_status(tigon_moe(&w.exec, &args), TIGON_UNSUPPORTED, "x: expected 16-byte alignment on a CUDA device");
  test_workspace_free(&w);
  p.x.tensor.dl.byte_offset -= 2;
  moe_free(&p);
}

/* Backward with some outputs absent: bit i of `wanted` for the i-th of those that moe_gradient_names lists. */
static void run_wanted(moe_problem *p, unsigned wanted) {
  tigon_moe_backward_args args = moe_backward_args(p);
  DLTensor **const outputs[] = {&args.dx, &args.d_topk_weights, &args.d_gate, &args.d_up, &args.d_down};
  for (int i = 0; i < MOE_GRADIENTS; i++)
    if (!(wanted & 1u << i)) *outputs[i] = NULL;
  uint64_t bytes;
  test_expect_status(tigon_moe_backward_workspace(NULL, &args, &bytes), TIGON_OK, NULL);
  test_workspace w;
  test_workspace_make(&w, bytes, 1);
  test_expect_status(tigon_moe_backward(&w.exec, &args), TIGON_OK, NULL);
  test_workspace_free(&w);
}

static void test_absent_gradients(void **state) {
  (void)state;
  for (int variant = 0; variant < gpu_cases(4); variant++) {
    const moe_case c = {.tokens = 90,
                        .choices = 3,
                        .width = variant & 2 ? 128 : 136,
                        .inner = variant & 2 ? 192 : 72,
                        .experts = 5,
                        .options = variant & 1 ? MOE_ON_INPUT : 0};
    moe_problem all, some;
    moe_make(&all, &c, TIGON_BF16, variant & 2, 11);
    moe_run_both(&all, 1);
    const test_tensor *const whole[] = {&all.dx, &all.d_weights, &all.d_gate, &all.d_up, &all.d_down};
    for (unsigned wanted = 0; wanted < (unsigned)gpu_cases(1 << MOE_GRADIENTS); wanted++) {
      moe_make(&some, &c, TIGON_BF16, variant & 2, 11);
      moe_run_forward(&some, 1, NULL);
      run_wanted(&some, wanted);
      const test_tensor *const got[] = {&some.dx, &some.d_weights, &some.d_gate, &some.d_up, &some.d_down};
      for (int i = 0; i < MOE_GRADIENTS; i++)
        if (wanted & 1u << i) moe_check_same_values(moe_gradient_names[i], got[i], whole[i]);
      moe_free(&some);
    }
    moe_free(&all);
  }
}

/* d_gate in float32 beside d_up in bfloat16: products of their own. */
static void test_gradients_of_two_dtypes(void **state) {
  (void)state;
  const moe_case c = {.tokens = 90, .choices = 3, .width = 136, .inner = 72, .experts = 5};
  moe_problem narrow, wide;
  moe_make(&narrow, &c, TIGON_BF16, true, 12);
  moe_make(&wide, &c, TIGON_BF16, true, 12);
  test_tensor_free(&wide.d_gate);
  moe_make_weight(&wide.d_gate, TIGON_F32, &c, c.inner, c.width);
  moe_run_both(&narrow, 1);
  moe_run_both(&wide, 1);
  moe_check_same_values("d_up", &wide.d_up, &narrow.d_up);
  for (int64_t i = 0; i < narrow.d_gate.count; i++)
    assert_true(tigon_round_to(TIGON_BF16, (float)test_tensor_get(&wide.d_gate, i)) ==
                (float)test_tensor_get(&narrow.d_gate, i));
  moe_free(&narrow);
  moe_free(&wide);
}

/* Without tokens, or without width: outputs are zeros. */
static void test_nothing_to_compute(void **state) {
  (void)state;
  const moe_case cases[] = {{.tokens = 0, .choices = 2, .width = 64, .inner = 64, .experts = 3},
                            {.tokens = 9, .choices = 2, .width = 64, .inner = 0, .experts = 3},
                            {.tokens = 9, .choices = 2, .width = 0, .inner = 64, .experts = 3}};
  for (int i = 0; i < COUNT(cases); i++) {
    moe_problem p;
    moe_make(&p, &cases[i], TIGON_BF16, i % 2, 4);
    moe_run_both(&p, 1);
    test_tensor *all[MOE_OUTPUTS];
    moe_outputs_of(&p, all);
    for (int o = 0; o < MOE_OUTPUTS; o++)
      for (int64_t e = 0; all[o]->block && e < all[o]->count; e++) assert_true(test_tensor_get(all[o], e) == 0);
    moe_free(&p);
  }
}

static void test_context_of_another_device(void **state) {
  (void)state;
  const moe_case c = {.tokens = 4, .choices = 1, .width = 64, .inner = 64, .experts = 2};
  tigon_context *context;
  moe_problem p;
  test_expect_status(tigon_context_create((DLDevice){0}, &context), TIGON_OK, NULL);
  moe_make(&p, &c, TIGON_BF16, false, 6);
  const tigon_moe_args args = moe_forward_args(&p);
  const tigon_exec exec = {.size = sizeof exec, .context = context};
  test_expect_status(tigon_moe(&exec, &args), TIGON_INVALID_ARGUMENT,
                     "exec.context: expected a context of exec.device (type 2), got one of device type 1");
  moe_free(&p);
  tigon_context_destroy(context);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_records),
      cmocka_unit_test(test_context_of_another_device),
      cmocka_unit_test(test_nothing_to_compute),
      cmocka_unit_test(test_absent_gradients),
      cmocka_unit_test(test_gradients_of_two_dtypes),
      cmocka_unit_test(test_large_cases),
      cmocka_unit_test(test_same_bits_every_time),
      cmocka_unit_test(test_random_shapes),
  };
  gpu_skip_without_device();
  return test_gate_report("moe", cmocka_run_group_tests(tests, NULL, NULL));
}
