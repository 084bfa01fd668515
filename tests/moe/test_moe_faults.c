/* Faults that users of other mixture-of-experts libraries met, each as a test: shapes past a fixed size, few or many
 * rows, ids out of range, blocks of several forwards, alignment, offsets past 2^31. */
#include <sys/mman.h>

#include "tests/moe/check.h"
#include "tests/moe/compare.h"

static const tigon_kind x_kinds[] = {TIGON_F32, TIGON_BF16, TIGON_F16};
static const unsigned mixes[] = {0, MOE_PACKED | MOE_TRANSPOSED, MOE_ON_INPUT | MOE_PACKED,
                                 MOE_ON_INPUT | MOE_TRANSPOSED | MOE_LIMITED};

static void check_shape(int64_t tokens, int64_t choices, int64_t width, int64_t inner, int64_t experts,
                        moe_routing routing) {
  static uint64_t seed = 1000;
  for (int mix = 0; mix < 4; mix++, seed++)
    moe_check_small_case(&(moe_case){tokens, choices, width, inner, experts, routing, mixes[mix]}, x_kinds[seed % 3],
                         mix % 2, 2, seed);
}

/* --- shapes ------------------------------------------------------------------------------------------------------- */

/* Where scratch was sized for 8 choices, 9 and more overran it. */
static void test_nine_to_32_choices(void **state) {
  (void)state;
  for (int64_t k = 9; k <= 32; k++) check_shape(5, k, 24, 9, 64, k % 2 ? ROUTE_DISTINCT : ROUTE_RANDOM);
}

/* Where a row was cut in chunks of 256, the columns left over were not written. */
static void test_widths_between_multiples_of_256(void **state) {
  (void)state;
  static const int64_t widths[] = {8, 130, 255, 257, 320, 384, 511, 520};
  for (int i = 0; i < 8; i++) {
    check_shape(9, 2, widths[i], 12, 4, ROUTE_DISTINCT);
    check_shape(9, 2, 12, widths[i], 4, ROUTE_DISTINCT);
  }
}

/* Where one block of threads counted the experts, 385 and more broke the sort. */
static void test_many_experts(void **state) {
  (void)state;
  static const int64_t experts[] = {384, 385, 512, 513, 1024};
  for (int i = 0; i < 5; i++) {
    check_shape(30, 10, 8, 7, experts[i], ROUTE_DISTINCT);
    check_shape(30, 10, 8, 7, experts[i], ROUTE_ONE);
  }
}

/* Fewer routes than experts, single tokens, and numbers of tokens that no tile divides. */
static void test_few_and_odd_tokens(void **state) {
  (void)state;
  check_shape(1, 1, 33, 17, 128, ROUTE_RANDOM);
  check_shape(1, 8, 33, 17, 128, ROUTE_DISTINCT);
  for (int64_t rank = 0; rank < 8; rank++) check_shape(1 + 7 * rank, 8, 16, 12, 128, ROUTE_DISTINCT);
  check_shape(45, 2, 64, 48, 16, ROUTE_DISTINCT);
  check_shape(129, 1, 33, 8, 3, ROUTE_ONE);
}

/* All tokens to the first two of 16 experts, T = 129. */
static void test_two_busy_experts(void **state) {
  (void)state;
  for (int mix = 0; mix < 4; mix++) {
    const moe_case c = {129, 2, 32, 24, 16, ROUTE_NONE, mixes[mix]};
    moe_problem p;
    moe_make(&p, &c, TIGON_BF16, false, 3);
    for (int64_t i = 0; i < p.ids.count; i++) test_tensor_set(&p.ids, i, (double)(i % 2));
    if (c.options & MOE_LIMITED) p.row_limit = moe_limit(&p);
    moe_check_problem(&p, 2);
    moe_free(&p);
  }
}

/* No token, no width, no inner width, with any options: a call that returns, zeros where anything is to be written. */
static void test_nothing_to_do(void **state) {
  (void)state;
  for (unsigned mix = 0; mix < 32; mix++) {
    const unsigned options = (mix & 1 ? MOE_PACKED : 0) | (mix & 2 ? MOE_TRANSPOSED : 0) |
                             (mix & 4 ? MOE_ON_INPUT : 0) | (mix & 8 ? MOE_LIMITED : 0) |
                             (mix & 16 ? MOE_ACCUMULATE : 0);
    for (int saved = 0; saved < 2; saved++) {
      moe_check_case(&(moe_case){0, 2, 9, 8, 4, ROUTE_RANDOM, options}, TIGON_BF16, saved, 2, 5);
      moe_check_case(&(moe_case){7, 2, 0, 8, 4, ROUTE_RANDOM, options}, TIGON_BF16, saved, 2, 5);
      moe_check_case(&(moe_case){7, 2, 9, 0, 4, ROUTE_RANDOM, options}, TIGON_BF16, saved, 2, 5);
      moe_check_case(&(moe_case){7, 2, 0, 0, 4, ROUTE_NONE, options}, TIGON_BF16, saved, 2, 5);
    }
  }
}

/* --- ids ---------------------------------------------------------------------------------------------------------- */

/* Ids at the ends of their type, and ones whose low half is valid, are skipped like -1 and not read as something
 * else. */
static void test_extreme_ids(void **state) {
  (void)state;
  static const int64_t extremes[] = {
      INT64_MIN,           INT64_MAX, INT32_MIN, INT32_MAX, (int64_t)1 << 32, ((int64_t)1 << 32) + 1,
      -((int64_t)1 << 32), 4,         5,         -2};
  for (int mix = 0; mix < 4; mix++)
    for (int wide = 0; wide < 2; wide++) {
      const moe_case c = {20, 2, 17, 9, 4, ROUTE_RANDOM, mixes[mix] | (wide ? MOE_IDS64 : 0)};
      moe_problem p, skipped;
      moe_make(&p, &c, TIGON_BF16, true, 3);
      moe_make(&skipped, &c, TIGON_BF16, true, 3);
      p.row_limit = skipped.row_limit = c.options & MOE_LIMITED ? 13 : 0;
      for (int i = 0; i < 10; i++) {
        if (!wide && (extremes[i] > INT32_MAX || extremes[i] < INT32_MIN)) continue;
        tigon_store_index(p.ids.tensor.dl.data, p.ids.kind, 3 * i, extremes[i]);
        test_tensor_set(&skipped.ids, 3 * i, -1);
      }
      moe_run_both(&p, 2);
      moe_run_both(&skipped, 2);
      moe_check_same_outputs("extreme ids", &p, &skipped);
      moe_free(&p), moe_free(&skipped);
      test_count_case();
    }
}

/* Tokens that pad a batch, with ids of -1, change no bit of the others. */
static void test_padded_tokens(void **state) {
  (void)state;
  for (int mix = 0; mix < 4; mix++) {
    const unsigned options = mixes[mix] & ~(unsigned)MOE_LIMITED;
    const moe_case c = {45, 2, 33, 17, 6, ROUTE_RANDOM, options}, longer = {64, 2, 33, 17, 6, ROUTE_NONE, options};
    moe_problem p, padded;
    moe_make(&p, &c, TIGON_BF16, true, 3);
    moe_make(&padded, &longer, TIGON_BF16, true, 4);
    test_tensor *const from[] = {&p.x, &p.dout, &p.ids, &p.weights, &p.gate, &p.up, &p.gate_up, &p.down};
    test_tensor *const to[] = {&padded.x,    &padded.dout, &padded.ids,     &padded.weights,
                               &padded.gate, &padded.up,   &padded.gate_up, &padded.down};
    for (int64_t i = 0; i < padded.ids.count; i++) test_tensor_set(&padded.ids, i, -1);
    for (int n = 0; n < 8; n++)
      for (int64_t i = 0; i < from[n]->count; i++) test_tensor_set(to[n], i, test_tensor_get(from[n], i));
    moe_run_both(&p, 2);
    moe_run_both(&padded, 2);
    for (int64_t i = 0; i < padded.out.count; i++) {
      assert_true(test_tensor_get(&padded.out, i) == (i < p.out.count ? test_tensor_get(&p.out, i) : 0));
      assert_true(test_tensor_get(&padded.dx, i) == (i < p.dx.count ? test_tensor_get(&p.dx, i) : 0));
    }
    test_tensor a[MOE_WEIGHTS], b[MOE_WEIGHTS];
    moe_weight_views(&p, true, a);
    moe_weight_views(&padded, true, b);
    for (int n = 0; n < MOE_WEIGHTS; n++) moe_check_same_values("a weight gradient", &a[n], &b[n]);
    moe_free(&p), moe_free(&padded);
    test_count_case();
  }
}

/* Experts of 0, 1, 63, 0, 200 and 7 rows: each as if it were alone. */
static void test_uneven_experts(void **state) {
  (void)state;
  static const int64_t rows[] = {0, 1, 63, 0, 200, 7};
  for (int mix = 0; mix < 3; mix++) {
    const moe_case c = {271, 1, 40, 24, 6, ROUTE_NONE, mixes[mix]};
    moe_problem all, alone;
    moe_make(&all, &c, TIGON_BF16, false, 3);
    for (int64_t e = 0, t = 0; e < 6; e++)
      for (int64_t i = 0; i < rows[e]; i++) test_tensor_set(&all.ids, t++ * 7 % 271, (double)e);
    moe_run_both(&all, 2);
    test_tensor of_all[MOE_WEIGHTS], of_one[MOE_WEIGHTS];
    moe_weight_views(&all, true, of_all);
    for (int64_t e = 0; e < 6; e++) {
      moe_make(&alone, &c, TIGON_BF16, true, 3);
      for (int64_t t = 0; t < c.tokens; t++)
        test_tensor_set(&alone.ids, t, test_tensor_get(&all.ids, t) == (double)e ? (double)e : -1);
      moe_run_both(&alone, 1);
      for (int64_t i = 0; i < all.out.count; i++) {
        const bool own = test_tensor_get(&all.ids, i / c.width) == (double)e;
        assert_true(test_tensor_get(&alone.out, i) == (own ? test_tensor_get(&all.out, i) : 0));
        assert_true(test_tensor_get(&alone.dx, i) == (own ? test_tensor_get(&all.dx, i) : 0));
      }
      moe_weight_views(&alone, true, of_one);
      const int64_t matrix = c.inner * c.width;
      for (int n = 0; n < MOE_WEIGHTS; n++)
        for (int64_t i = e * matrix; i < (e + 1) * matrix; i++)
          assert_true(test_tensor_get(&of_one[n], i) == test_tensor_get(&of_all[n], i));
      moe_free(&alone);
      test_count_case();
    }
    moe_free(&all);
  }
}

/* --- calls one after another -------------------------------------------------------------------------------------- */

static void run_in(tigon_exec *exec, moe_problem *p, bool backward) {
  const tigon_moe_args forward_args = moe_forward_args(p);
  const tigon_moe_backward_args backward_args = moe_backward_args(p);
  test_expect_status(backward ? tigon_moe_backward(exec, &backward_args) : tigon_moe(exec, &forward_args), TIGON_OK,
                     NULL);
}

/* Four forwards outstanding, then backward in another order, and again in a third: all in one workspace. */
static void test_stacked_forwards(void **state) {
  (void)state;
  static const int orders[2][4] = {{2, 0, 3, 1}, {1, 3, 2, 0}};
  moe_problem stacked[4], alone;
  test_workspace w;
  test_workspace_make(&w, 1 << 26, 2);
  for (int i = 0; i < 4; i++) {
    moe_make(&stacked[i], &(moe_case){30 - 7 * i, 2, 33, 17, 6, ROUTE_RANDOM, mixes[i]}, TIGON_BF16, true, (uint64_t)i);
    run_in(&w.exec, &stacked[i], false);
  }
  for (int order = 0; order < 2; order++)
    for (int i = 0; i < 4; i++) {
      moe_problem *p = &stacked[orders[order][i]];
      run_in(&w.exec, p, true);
      moe_make(&alone, &p->c, TIGON_BF16, false, (uint64_t)orders[order][i]);
      moe_run_both(&alone, 2);
      moe_check_same_outputs("stacked", p, &alone);
      moe_free(&alone);
      test_count_case();
    }
  test_workspace_free(&w);
  for (int i = 0; i < 4; i++) moe_free(&stacked[i]);
}

/* 200 calls of random sizes in one workspace, which keeps what the last call left. */
static void test_reused_workspace(void **state) {
  (void)state;
  test_rng rng = {31};
  test_workspace w;
  test_workspace_make(&w, 1 << 26, 2);
  for (int i = 0; i < 200; i++) {
    const moe_case c = {
        test_random_range(&rng, 0, 20),       test_random_range(&rng, 1, 4), 17, test_random_range(&rng, 1, 20), 5,
        i % 3 ? ROUTE_RANDOM : ROUTE_INVALID, mixes[test_random(&rng) % 4]};
    moe_problem p, fresh;
    moe_make(&p, &c, TIGON_BF16, i % 2, (uint64_t)i);
    moe_make(&fresh, &c, TIGON_BF16, true, (uint64_t)i);
    run_in(&w.exec, &p, false);
    run_in(&w.exec, &p, true);
    moe_run_both(&fresh, 1);
    moe_check_same_outputs("a reused workspace", &p, &fresh);
    moe_free(&p), moe_free(&fresh);
    test_count_case();
  }
  test_workspace_free(&w);
}

/* Added gradients are exactly the sum of what was there and the gradient, at each call. */
static void test_accumulated_gradients(void **state) {
  (void)state;
  for (int mix = 0; mix < 4; mix++) {
    const moe_case c = {33, 2, 33, 17, 6, ROUTE_SKEWED, mixes[mix]};
    moe_case adding = c;
    adding.options |= MOE_ACCUMULATE;
    moe_problem once, p;
    moe_make(&once, &c, TIGON_F32, true, 3);
    moe_make(&p, &adding, TIGON_F32, true, 3);
    moe_run_both(&once, 2);
    moe_run_forward(&p, 2, NULL);
    test_tensor added[MOE_WEIGHTS], gradient[MOE_WEIGHTS];
    moe_weight_views(&p, true, added);
    moe_weight_views(&once, true, gradient);
    for (int call = 0; call < 3; call++) {
      double *before[MOE_WEIGHTS];
      for (int n = 0; n < MOE_WEIGHTS; n++) before[n] = test_tensor_values(&added[n]);
      moe_run_backward(&p, 2, NULL);
      for (int n = 0; n < MOE_WEIGHTS; n++) {
        for (int64_t i = 0; i < added[n].count; i++)
          assert_true((float)test_tensor_get(&added[n], i) ==
                      (float)before[n][i] + (float)test_tensor_get(&gradient[n], i));
        free(before[n]);
      }
    }
    moe_free(&once), moe_free(&p);
    test_count_case();
  }
}

/* --- addresses ---------------------------------------------------------------------------------------------------- */

/* The same tensor `offset` elements past a 64-byte border. */
static void shift(test_tensor *t, int64_t offset) {
  if (!t->block) return;
  test_tensor moved;
  test_tensor_make(&moved, t->kind, t->tensor.dl.ndim, t->tensor.shape, (test_layout){.offset = offset});
  for (int64_t i = 0; i < t->count; i++) test_tensor_set(&moved, i, test_tensor_get(t, i));
  test_tensor_free(t);
  *t = moved;
  t->tensor.dl.shape = t->tensor.shape;
  t->tensor.dl.strides = t->tensor.strides;
}

/* Data need the alignment of their elements and no more. */
static void test_odd_addresses(void **state) {
  (void)state;
  for (int kind = 0; kind < 3; kind++)
    for (int mix = 0; mix < 4; mix++)
      for (int64_t offset = 1; offset < 8; offset += 2) {
        const moe_case c = {30, 2, 40, 24, 6, ROUTE_RANDOM, mixes[mix]};
        moe_problem p, odd;
        moe_make(&p, &c, x_kinds[kind], true, 3);
        moe_make(&odd, &c, x_kinds[kind], true, 3);
        test_tensor *const all[] = {&odd.x,    &odd.ids,    &odd.weights, &odd.dout,      &odd.gate,
                                    &odd.up,   &odd.down,   &odd.out,     &odd.gate_up,   &odd.dx,
                                    &odd.d_up, &odd.d_gate, &odd.d_down,  &odd.d_gate_up, &odd.d_weights};
        for (int n = 0; n < 15; n++) shift(all[n], offset + n % 3);
        moe_run_both(&p, 2);
        moe_run_both(&odd, 2);
        moe_check_same_values("out", &p.out, &odd.out);
        moe_check_same_values("dx", &p.dx, &odd.dx);
        moe_check_same_values("d_topk_weights", &p.d_weights, &odd.d_weights);
        test_tensor a[MOE_WEIGHTS], b[MOE_WEIGHTS];
        moe_weight_views(&p, true, a);
        moe_weight_views(&odd, true, b);
        for (int n = 0; n < MOE_WEIGHTS; n++) moe_check_same_values("a weight gradient", &a[n], &b[n]);
        moe_free(&p), moe_free(&odd);
        test_count_case();
      }
}

/* A weight or gradient whose experts stand more than 2^31 elements apart, in memory that is only reserved. */
enum { FAR_EXPERTS = 2 };
static const int64_t far_stride = ((int64_t)1 << 31) + 64;

static void move_far(test_tensor *t) {
  const size_t bytes = (size_t)((FAR_EXPERTS - 1) * far_stride + t->count) * (size_t)tigon_kind_bytes(t->kind);
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) skip(); /* no address space: a machine of 32 bits, or a limit */
  test_tensor near = *t;
  t->tensor.dl.data = memory;
  t->tensor.dl.byte_offset = 0;
  t->tensor.strides[0] = far_stride;
  for (int64_t i = 0; i < t->count; i++) test_tensor_set(t, i, test_tensor_get(&near, i));
}

static void unmap_far(test_tensor *t) {
  const size_t bytes = (size_t)((FAR_EXPERTS - 1) * far_stride + t->count) * (size_t)tigon_kind_bytes(t->kind);
  munmap(t->tensor.dl.data, bytes);
  test_tensor_free(t);
}

static void test_far_experts(void **state) {
  (void)state;
  for (int mix = 0; mix < 4; mix++) {
    const moe_case c = {20, 2, 17, 9, FAR_EXPERTS, ROUTE_RANDOM, mixes[mix] | MOE_PACKED};
    moe_problem p, far;
    moe_make(&p, &c, TIGON_BF16, true, 3);
    moe_make(&far, &c, TIGON_BF16, true, 3);
    test_tensor *const moved[] = {&far.gate_up, &far.down, &far.d_gate_up, &far.d_down};
    const test_tensor *const kept[] = {&p.gate_up, &p.down, &p.d_gate_up, &p.d_down};
    for (int n = 0; n < 4; n++) move_far(moved[n]);
    moe_run_both(&p, 2);
    moe_run_both(&far, 2);
    test_tensor_check_same("out", &p.out, &far.out);
    test_tensor_check_same("dx", &p.dx, &far.dx);
    test_tensor_check_same("d_topk_weights", &p.d_weights, &far.d_weights);
    for (int n = 0; n < 4; n++) moe_check_same_values("a far tensor", kept[n], moved[n]);
    for (int n = 0; n < 4; n++) unmap_far(moved[n]);
    moe_free(&p), moe_free(&far);
    test_count_case();
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_nine_to_32_choices), cmocka_unit_test(test_widths_between_multiples_of_256),
      cmocka_unit_test(test_many_experts),       cmocka_unit_test(test_few_and_odd_tokens),
      cmocka_unit_test(test_two_busy_experts),   cmocka_unit_test(test_nothing_to_do),
      cmocka_unit_test(test_extreme_ids),        cmocka_unit_test(test_padded_tokens),
      cmocka_unit_test(test_uneven_experts),     cmocka_unit_test(test_stacked_forwards),
      cmocka_unit_test(test_reused_workspace),   cmocka_unit_test(test_accumulated_gradients),
      cmocka_unit_test(test_odd_addresses),      cmocka_unit_test(test_far_experts)};
  return test_gate_report("moe_faults", cmocka_run_group_tests(tests, NULL, NULL));
}
