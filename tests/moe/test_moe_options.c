/* The expert MLP's options, each by what it promises: layouts, weights on inputs, the row limit. */
#include "tests/moe/check.h"
#include "tests/moe/compare.h"

static const tigon_kind x_kinds[] = {TIGON_F32, TIGON_BF16, TIGON_F16};

static void check_record(tigon_context *context, tigon_status code, const char *op, const char *argument, int64_t index,
                         int64_t value) {
  tigon_record record;
  assert_int_equal(tigon_check(context, &record), code);
  if (code != TIGON_OK) {
    assert_string_equal(record.op, op);
    assert_string_equal(record.argument, argument);
    assert_int_equal(record.index, index);
    assert_int_equal(record.value, value);
  }
  tigon_clear(context);
}

/* --- layouts ------------------------------------------------------------------------------------------------------ */

/* Gate or up of a tensor whose rows hold them in turns, (E, 2I, D), as the header says: twice the row stride. */
static DLTensor *in_turns(tigon_tensor *view, test_tensor *both, int up) {
  *view = both->tensor;
  view->dl.shape = view->shape;
  view->dl.strides = view->strides;
  view->shape[1] /= 2;
  view->strides[1] *= 2;
  view->dl.byte_offset += (uint64_t)(up * both->tensor.strides[1] * tigon_kind_bytes(both->kind));
  return &view->dl;
}

/* Moves gate rows and up rows one after the other. */
static void interleave(test_tensor *to, const test_tensor *packed) {
  const int64_t inner = packed->tensor.shape[1] / 2, width = packed->tensor.shape[2];
  for (int64_t i = 0; i < packed->count; i++) {
    const int64_t e = i / (2 * inner * width), row = i / width % (2 * inner), d = i % width;
    test_tensor_set(to, (e * 2 * inner + row % inner * 2 + row / inner) * width + d, test_tensor_get(packed, i));
  }
}

static void test_interleaved_rows(void **state) {
  (void)state;
  for (int kind = 0; kind < 3; kind++) {
    const moe_case c = {50, 2, 33, 31, 4, ROUTE_RANDOM, MOE_PACKED};
    moe_problem packed, p;
    moe_make(&packed, &c, x_kinds[kind], true, 3);
    moe_make(&p, &c, x_kinds[kind], true, 3);
    interleave(&p.gate_up, &packed.gate_up);
    moe_run_both(&packed, 2);
    tigon_tensor gate, up, d_gate, d_up;
    tigon_moe_args forward = moe_forward_args(&p);
    tigon_moe_backward_args backward = moe_backward_args(&p);
    forward.weight_layout = TIGON_MOE_LAYOUT_INTERLEAVED;
    uint64_t bytes;
    test_expect_status(tigon_moe_workspace(NULL, &forward, &bytes), TIGON_UNSUPPORTED, "twice the row stride");
    forward.weight_layout = TIGON_MOE_LAYOUT_ROWS;
    forward.gate_up = backward.gate_up = NULL;
    forward.gate = backward.gate = in_turns(&gate, &p.gate_up, 0);
    forward.up = backward.up = in_turns(&up, &p.gate_up, 1);
    backward.d_gate_up = NULL;
    backward.d_gate = in_turns(&d_gate, &p.d_gate_up, 0);
    backward.d_up = in_turns(&d_up, &p.d_gate_up, 1);
    test_workspace w;
    test_workspace_make(&w, 1 << 26, 2);
    test_expect_status(tigon_moe(&w.exec, &forward), TIGON_OK, NULL);
    test_expect_status(tigon_moe_backward(&w.exec, &backward), TIGON_OK, NULL);
    test_workspace_free(&w);
    test_tensor_check_same("out", &packed.out, &p.out);
    test_tensor_check_same("dx", &packed.dx, &p.dx);
    test_tensor expected;
    test_tensor_make(&expected, p.d_gate_up.kind, 3, p.d_gate_up.tensor.shape, (test_layout){0});
    interleave(&expected, &packed.d_gate_up);
    test_tensor_check_same("d_gate and d_up in turns", &expected, &p.d_gate_up);
    test_tensor_free(&expected);
    moe_free(&packed), moe_free(&p);
    test_count_case();
  }
}

/* --- weights on inputs -------------------------------------------------------------------------------------------- */

/* A weight of 0 leaves nothing of the route's output, and its own gradient is finite: no division by s. */
static void test_zero_weights(void **state) {
  (void)state;
  for (int kind = 0; kind < 3; kind++)
    for (int with_saved = 0; with_saved < 2; with_saved++) {
      const moe_case c = {20, 2, 33, 17, 4, ROUTE_RANDOM, MOE_ON_INPUT};
      moe_problem p;
      moe_make(&p, &c, x_kinds[kind], with_saved, 3);
      for (int64_t i = 0; i < p.weights.count; i += 3) test_tensor_set(&p.weights, i, 0);
      for (int64_t j = 0; j < c.choices; j++) test_tensor_set(&p.weights, 5 * c.choices + j, 0);
      moe_check_problem(&p, 2);
      for (int64_t i = 0; i < c.width; i++) assert_true(test_tensor_get(&p.out, 5 * c.width + i) == 0);
      for (int64_t i = 0; i < c.width; i++) assert_true(test_tensor_get(&p.dx, 5 * c.width + i) == 0);
      for (int64_t i = 0; i < p.d_weights.count; i++) assert_true(isfinite(test_tensor_get(&p.d_weights, i)));
      moe_free(&p);
    }
}

/* With one choice and weights that are powers of two, scaling x is exact: the same bits as x scaled by the caller and
 * weights of 1, and dx is the caller's times s. */
static void test_scaled_by_caller(void **state) {
  (void)state;
  for (int kind = 0; kind < 3; kind++) {
    const moe_case c = {40, 1, 33, 17, 4, ROUTE_RANDOM, 0};
    moe_case on_input = c;
    on_input.options = MOE_ON_INPUT;
    moe_problem caller, p;
    moe_make(&caller, &c, x_kinds[kind], true, 3);
    moe_make(&p, &on_input, x_kinds[kind], true, 3);
    for (int64_t t = 0; t < c.tokens; t++) {
      const double s = ldexp(t % 3 ? 1 : -1, (int)(t % 4) - 2);
      test_tensor_set(&p.weights, t, s);
      test_tensor_set(&caller.weights, t, 1);
      for (int64_t i = t * c.width; i < (t + 1) * c.width; i++)
        test_tensor_set(&caller.x, i, s * test_tensor_get(&p.x, i));
    }
    moe_run_both(&caller, 2);
    moe_run_both(&p, 2);
    test_tensor_check_same("out", &caller.out, &p.out);
    test_tensor_check_same("d_gate", &caller.d_gate, &p.d_gate);
    test_tensor_check_same("d_down", &caller.d_down, &p.d_down);
    for (int64_t i = 0; i < p.dx.count; i++)
      assert_true(test_tensor_get(&p.dx, i) ==
                  test_tensor_get(&p.weights, i / c.width) * test_tensor_get(&caller.dx, i));
    moe_free(&caller), moe_free(&p);
    test_count_case();
  }
}

/* --- the row limit ------------------------------------------------------------------------------------------------ */

/* Makes ids after the first `limit` valid ones -1; returns the first such route, or -1. */
static int64_t skip_after(moe_problem *p, int64_t limit) {
  int64_t rows = 0, first = -1;
  for (int64_t i = 0; i < p->ids.count; i++) {
    const double id = test_tensor_get(&p->ids, i);
    if (id < 0 || id >= (double)p->c.experts || rows++ < limit) continue;
    test_tensor_set(&p->ids, i, -1);
    if (first < 0) first = i;
  }
  return first;
}

static int64_t valid_routes(const moe_problem *p) {
  int64_t valid = 0;
  for (int64_t i = 0; i < p->ids.count; i++) {
    const double id = test_tensor_get(&p->ids, i);
    valid += id >= 0 && id < (double)p->c.experts;
  }
  return valid;
}

/* Limited by row_limit, and by ids of -1: the same bits, and a record of the first route past the limit. */
static void check_limit(const moe_case *c, int64_t limit, bool with_saved, tigon_context *context) {
  moe_problem p, skipped;
  moe_make(&p, c, TIGON_BF16, false, 3);
  moe_make(&skipped, c, TIGON_BF16, with_saved, 3);
  for (int64_t i = 0; i < p.ids.count; i++) /* bad ids have records of their own */
    if (test_tensor_get(&p.ids, i) >= (double)c->experts) {
      test_tensor_set(&p.ids, i, -1);
      test_tensor_set(&skipped.ids, i, -1);
    }
  const int64_t needed = valid_routes(&p), first = skip_after(&skipped, limit);
  p.row_limit = limit;
  if (with_saved) {
    const tigon_moe_args args = moe_forward_args(&p);
    test_expect_status(tigon_moe_saved(NULL, &args, &p.saved_bytes), TIGON_OK, NULL);
    p.saved = aligned_alloc(64, p.saved_bytes + 256);
    memset(p.saved, 0xff, p.saved_bytes + 256);
  }
  const tigon_status code = first < 0 ? TIGON_OK : TIGON_WORKSPACE;
  moe_run_forward(&p, 2, context);
  check_record(context, code, "tigon_moe", "row_limit", first, needed);
  moe_run_backward(&p, 2, context);
  check_record(context, code, "tigon_moe_backward", "row_limit", first, needed);
  moe_run_both(&skipped, 2);
  moe_check_same_outputs("row limit", &p, &skipped);
  moe_free(&p), moe_free(&skipped);
  test_count_case();
}

static void test_row_limit(void **state) {
  (void)state;
  tigon_context *context;
  test_expect_status(tigon_context_create((DLDevice){kDLCPU, 0}, &context), TIGON_OK, NULL);
  static const unsigned options[] = {0, MOE_PACKED | MOE_TRANSPOSED, MOE_ON_INPUT | MOE_STRIDED | MOE_IDS64,
                                     MOE_ACCUMULATE | MOE_ON_INPUT};
  static const moe_routing routings[] = {ROUTE_RANDOM, ROUTE_INVALID, ROUTE_DUPLICATES, ROUTE_ONE, ROUTE_NONE};
  static const int64_t limits[] = {1, 2, 20, 59, 60, 61, 119, 120, 121, INT64_MAX};
  for (int o = 0; o < 4; o++)
    for (int r = 0; r < 5; r++)
      for (int l = 0; l < 10; l++)
        check_limit(&(moe_case){40, 3, 17, 9, 6, routings[r], options[o]}, limits[l], (o + r + l) % 2, context);
  tigon_context_destroy(context);
}

/* Of a bad id and the limit the one at the lower index is noted. */
static void test_first_event(void **state) {
  (void)state;
  tigon_context *context;
  test_expect_status(tigon_context_create((DLDevice){kDLCPU, 0}, &context), TIGON_OK, NULL);
  const moe_case c = {10, 2, 8, 8, 4, ROUTE_RANDOM, 0};
  moe_problem p;
  moe_make(&p, &c, TIGON_F32, false, 3);
  p.row_limit = 9;
  test_tensor_set(&p.ids, 15, 4);
  moe_run_forward(&p, 1, context);
  check_record(context, TIGON_WORKSPACE, "tigon_moe", "row_limit", 9, 19);
  test_tensor_set(&p.ids, 3, 77);
  moe_run_forward(&p, 1, context);
  check_record(context, TIGON_INVALID_ARGUMENT, "tigon_moe", "topk_ids", 3, 77);
  moe_run_backward(&p, 1, context);
  check_record(context, TIGON_INVALID_ARGUMENT, "tigon_moe_backward", "topk_ids", 3, 77);
  test_tensor_set(&p.ids, 3, -1); /* skipped routes take no row */
  moe_run_forward(&p, 1, context);
  check_record(context, TIGON_WORKSPACE, "tigon_moe", "row_limit", 10, 18);
  moe_free(&p);
  tigon_context_destroy(context);
}

/* Sizes grow with the limit up to T * k, and with the tokens under any limit; a limit of an eighth saves most. */
static void sizes_of(int64_t tokens, int64_t limit, uint64_t bytes[3]) {
  tigon_tensor x, ids, weights, gate_up, down, out, d_gate_up, d_down;
  tigon_moe_args a = {.size = sizeof a, .row_limit = limit, .weights_on_input = 1};
  a.x = tigon_tensor_2d(&x, NULL, tigon_bf16(), tokens, 512);
  a.topk_ids = tigon_tensor_2d(&ids, NULL, tigon_i32(), tokens, 8);
  a.topk_weights = tigon_tensor_2d(&weights, NULL, tigon_f32(), tokens, 8);
  a.gate_up = tigon_tensor_3d(&gate_up, NULL, tigon_bf16(), 16, 512, 512);
  a.down = tigon_tensor_3d(&down, NULL, tigon_bf16(), 16, 512, 256);
  a.out = tigon_tensor_2d(&out, NULL, tigon_bf16(), tokens, 512);
  tigon_moe_backward_args b = {.size = sizeof b, .row_limit = limit, .x = a.x, .topk_ids = a.topk_ids};
  b.topk_weights = a.topk_weights;
  b.gate_up = a.gate_up;
  b.down = a.down;
  b.dout = a.out;
  b.d_gate_up = tigon_tensor_3d(&d_gate_up, NULL, tigon_bf16(), 16, 512, 512);
  b.d_down = tigon_tensor_3d(&d_down, NULL, tigon_bf16(), 16, 512, 256);
  const tigon_exec one = {.size = sizeof one, .num_threads = 1};
  test_expect_status(tigon_moe_workspace(&one, &a, &bytes[0]), TIGON_OK, NULL);
  test_expect_status(tigon_moe_saved(&one, &a, &bytes[1]), TIGON_OK, NULL);
  test_expect_status(tigon_moe_backward_workspace(&one, &b, &bytes[2]), TIGON_OK, NULL);
}

static void test_limited_sizes(void **state) {
  (void)state;
  uint64_t bytes[3], before[3], whole[3], scratch[3];
  for (int64_t limit = 1; limit < 1 << 16; limit *= 3) {
    memset(before, 0, sizeof before);
    for (int64_t tokens = 0; tokens < 5000; tokens += 1 + tokens / 3) {
      sizes_of(tokens, limit, bytes);
      for (int i = 0; i < 3; i++) assert_true(bytes[i] >= before[i] && bytes[i] % 256 == 0);
      memcpy(before, bytes, sizeof before);
      sizes_of(tokens, 3 * limit, whole);
      for (int i = 0; i < 3; i++) assert_true(whole[i] >= bytes[i]);
    }
  }
  sizes_of(4096, 0, whole);
  sizes_of(4096, 4096 * 8, bytes);
  assert_memory_equal(whole, bytes, sizeof whole);
  sizes_of(4096, 4096, bytes);
  sizes_of(1, 1, scratch);
  for (int i = 0; i < 3; i++)
    assert_true(bytes[i] - scratch[i] < (whole[i] - scratch[i]) / 6 && (i != 1 || bytes[i] == whole[i] / 8));
}

/* One byte less than a limited call needs is refused, and what it needs is enough for any ids. */
static void test_limited_workspace(void **state) {
  (void)state;
  const moe_case c = {40, 2, 33, 31, 4, ROUTE_RANDOM, MOE_LIMITED | MOE_ON_INPUT};
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
  test_workspace_free(&w);
  backward.row_limit = 0; /* a saved block of fewer routes */
  test_workspace_make(&w, 1 << 26, 2);
  test_expect_status(tigon_moe_backward(&w.exec, &backward), TIGON_INVALID_ARGUMENT, "saved_bytes");
  test_workspace_free(&w);
  moe_free(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_interleaved_rows), cmocka_unit_test(test_zero_weights),
                                     cmocka_unit_test(test_scaled_by_caller), cmocka_unit_test(test_row_limit),
                                     cmocka_unit_test(test_first_event),      cmocka_unit_test(test_limited_sizes),
                                     cmocka_unit_test(test_limited_workspace)};
  return test_gate_report("moe_options", cmocka_run_group_tests(tests, NULL, NULL));
}
