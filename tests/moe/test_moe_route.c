/* The router against the oracle, forward and backward; and the oracle against differences of its own forward. */
#include "tests/moe/route_check.h"
#if defined(TIGON_TEST_ON_GPU)
#include "tests/gpu/mirror.h"
#endif

static const tigon_kind kinds[] = {TIGON_F32, TIGON_BF16, TIGON_F16};

static void test_cases(void **state) {
  (void)state;
  for (int i = 0; i < ROUTE_CASES; i++)
    for (int kind = 0; kind < 3; kind++)
      for (int mode = 0; mode < 4; mode++) {
        route_problem p;
        route_make(&p, &route_cases[i], kinds[kind], mode / 2, mode % 2, 40 + (uint64_t)i);
        route_check_problem(&p, 2);
        route_free(&p);
      }
}

#if defined(TIGON_TEST_ON_GPU)
/* More tokens than the blocks of a device take at once, and every number of experts a lane. */
static void test_many_tokens(void **state) {
  (void)state;
  static const route_case many[] = {
      {8192, 8, 128, LOGITS_NORMAL, ROUTE_Z, BIAS_NONE, 0, 0, 0},
      {4100, 8, 256, LOGITS_NORMAL, ROUTE_Z | ROUTE_STRIDED, BIAS_NORMAL, 8, 4, 0},
      {2500, 6, 511, LOGITS_NORMAL, ROUTE_IDS64, BIAS_NONE, 7, 3, 2},
      {1300, 32, 1000, LOGITS_NORMAL, ROUTE_Z, BIAS_NORMAL, 0, 0, 0},
      {1301, 4, 1024, LOGITS_TIES, ROUTE_STRIDED, BIAS_NONE, 1024, 40, 0},
      {600, 32, 4096, LOGITS_NORMAL, ROUTE_Z, BIAS_NONE, 0, 0, 0},
      {520, 8, 1025, LOGITS_NORMAL, ROUTE_Z, BIAS_NORMAL, 5, 2, 0},
  };
  for (size_t i = 0; i < sizeof many / sizeof *many; i++)
    for (int mode = 0; mode < 4; mode++) {
      route_problem p;
      route_make(&p, &many[i], kinds[(i + (size_t)mode) % 3], mode / 2, mode % 2, 60 + i);
      route_check_problem(&p, 1);
      route_free(&p);
    }
}
#endif

/* --- the oracle's gradient against differences of its own forward ------------------------------------------------- */

static const double d_loss = 2.5, d_z_loss = 0.7;

/* sum of d_weights * weights + d_loss * (E sum f P) + d_z_loss * z_loss, with ids and f held at their first values. */
static double objective(const reference_moe_route_input *in, const double *d_weights) {
  int64_t ids[64], counts[16];
  double weights[64], loss, z_loss, sum = 0;
  reference_moe_route_select(in, ids);
  reference_moe_route(in, ids, weights, counts, &loss, &z_loss);
  for (int64_t i = 0; i < in->tokens * in->choices; i++) sum += d_weights[i] * weights[i];
  return sum + d_loss * loss + d_z_loss * z_loss;
}

static void check_differences(const route_case *c, int score, int renormalize) {
  route_problem p;
  route_make(&p, c, TIGON_F32, score, renormalize, 3);
  route_dense dense = route_dense_of(&p);
  double *logits = dense.logits, *d_weights = test_tensor_values(&p.d_weights), *d = route_doubles(p.logits.count);
  int64_t ids[64];
  reference_moe_route_select(&dense.in, ids);
  reference_moe_route_backward(&dense.in, ids, d_weights, d_loss, d_z_loss, d);
  for (int64_t i = 0; i < p.logits.count; i++) {
    const double kept = logits[i], h = 1e-6;
    logits[i] = kept + h;
    const double above = objective(&dense.in, d_weights);
    logits[i] = kept - h;
    const double below = objective(&dense.in, d_weights);
    logits[i] = kept;
    const double difference = (above - below) / (2 * h);
    if (!(fabs(difference - d[i]) <= 1e-8))
      fail_msg("d_logits[%lld]: gradient %.12g, difference %.12g", (long long)i, d[i], difference);
  }
  free(d_weights), free(d);
  route_dense_free(&dense);
  route_free(&p);
}

/* Steps are small enough that no choice changes. */
static void test_oracle_differences(void **state) {
  (void)state;
  for (int mode = 0; mode < 4; mode++) {
    check_differences(&(route_case){7, 3, 6, LOGITS_NORMAL, 0, BIAS_NONE, 0, 0, 0}, mode / 2, mode % 2);
    check_differences(&(route_case){7, 3, 12, LOGITS_NORMAL, ROUTE_SCALE, BIAS_NORMAL, 4, 2, 0}, mode / 2, mode % 2);
  }
}

/* --- the contract
 * ---------------------------------------------------------------------------------------------------- */

static void test_threads(void **state) {
  (void)state;
  static const int threads[] = {2, 7, 1};
  for (int i = 0; i < ROUTE_CASES; i++)
    for (int n = 0; n < 3; n++) {
      route_problem one, p;
      route_make(&one, &route_cases[i], kinds[i % 3], n % 2, i % 2, 11);
      route_make(&p, &route_cases[i], kinds[i % 3], n % 2, i % 2, 11);
      const tigon_moe_route_args a = route_args(&one), b = route_args(&p);
      const tigon_moe_route_backward_args c = route_backward_args(&one), d = route_backward_args(&p);
      route_run(&a, 1);
      route_run(&b, threads[n]);
      route_run_backward(&c, 1, NULL);
      route_run_backward(&d, threads[n], NULL);
      test_tensor_check_same("logits", &one.logits, &p.logits);
      test_tensor_check_same("topk_ids", &one.ids, &p.ids);
      test_tensor_check_same("topk_weights", &one.weights, &p.weights);
      test_tensor_check_same("counts", &one.counts, &p.counts);
      test_tensor_check_same("balance_loss", &one.loss, &p.loss);
      if (p.z_loss.block) test_tensor_check_same("z_loss", &one.z_loss, &p.z_loss);
      test_tensor_check_same("d_logits", &one.d_logits, &p.d_logits);
      route_free(&one), route_free(&p);
    }
}

/* Absent outputs change nothing in the others; absent gradients count as 0. */
static void test_absent_tensors(void **state) {
  (void)state;
  const route_case c = {33, 2, 17, LOGITS_NORMAL, 0, BIAS_NONE, 0, 0, 0};
  for (int mode = 0; mode < 4; mode++) {
    route_problem all, p;
    route_make(&all, &c, TIGON_F32, mode / 2, mode % 2, 5);
    route_make(&p, &c, TIGON_F32, mode / 2, mode % 2, 5);
    const tigon_moe_route_args full = route_args(&all);
    tigon_moe_route_args part = route_args(&p);
    route_run(&full, 2);
    part.counts = NULL;
    part.balance_loss = NULL;
    uint64_t bytes;
    test_expect_status(tigon_moe_route_workspace(NULL, &part, &bytes), TIGON_OK, NULL);
    assert_int_equal(bytes, 0);
    route_run(&part, 2);
    test_tensor_check_same("topk_ids", &all.ids, &p.ids);
    test_tensor_check_same("topk_weights", &all.weights, &p.weights);
    for (int which = 0; which < 3; which++) {
      tigon_moe_route_backward_args zeros = route_backward_args(&all), absent = route_backward_args(&p);
      if (which != 1) test_tensor_fill_value(&all.d_weights, 0), absent.d_topk_weights = NULL;
      if (which != 0) test_tensor_fill_value(&all.d_loss, 0), absent.d_balance_loss = NULL;
      route_run_backward(&zeros, 2, NULL);
      route_run_backward(&absent, 2, NULL);
      for (int64_t i = 0; i < p.d_logits.count; i++)
        assert_true(test_tensor_get(&all.d_logits, i) == test_tensor_get(&p.d_logits, i));
      for (int64_t i = 0; i < p.d_weights.count; i++)
        test_tensor_set(&all.d_weights, i, test_tensor_get(&p.d_weights, i));
      test_tensor_set(&all.d_loss, 0, test_tensor_get(&p.d_loss, 0));
    }
    route_free(&all), route_free(&p);
  }
}

/* Ties go to the lowest id, whatever the sign of 0; -Inf comes last, NaN never. */
static void test_order(void **state) {
  (void)state;
  static const double logits[3][6] = {{-0.0, 0.0, NAN, 0.0, -INFINITY, -0.0},
                                      {-INFINITY, NAN, -INFINITY, NAN, 1, NAN},
                                      {INFINITY, 3, INFINITY, NAN, -INFINITY, 3}};
  static const int64_t ids[3][5] = {{0, 1, 3, 5, 4}, {4, 0, 2, -1, -1}, {0, 2, 1, 5, 4}};
  static const double weights[3][5] = {{0.25, 0.25, 0.25, 0.25, 0}, {1, 0, 0, 0, 0}, {0.5, 0.5, 0, 0, 0}};
  const route_case c = {3, 5, 6, LOGITS_NORMAL, 0, BIAS_NONE, 0, 0, 0};
  route_problem p;
  route_make(&p, &c, TIGON_F32, TIGON_MOE_SOFTMAX, 0, 5);
  for (int64_t i = 0; i < 18; i++) test_tensor_set(&p.logits, i, logits[i / 6][i % 6]);
  const tigon_moe_route_args a = route_args(&p);
  route_run(&a, 1);
  for (int64_t i = 0; i < 15; i++) {
    assert_int_equal((int64_t)test_tensor_get(&p.ids, i), ids[i / 5][i % 5]);
    assert_true(test_tensor_get(&p.weights, i) == weights[i / 5][i % 5]);
  }
  route_free(&p);
}

/* An id >= E given to backward is noted and has no gradient; forward's -1 is silent. */
static void test_record(void **state) {
  (void)state;
  const route_case c = {8, 2, 5, LOGITS_NORMAL, ROUTE_STRIDED, BIAS_NONE, 0, 0, 0};
  tigon_context *context;
#if defined(TIGON_TEST_ON_GPU)
  const DLDevice device = mirror_device();
#else
  const DLDevice device = {kDLCPU, 0};
#endif
  test_expect_status(tigon_context_create(device, &context), TIGON_OK, NULL);
  route_problem p;
  route_make(&p, &c, TIGON_F32, TIGON_MOE_SOFTMAX, 1, 5);
  const tigon_moe_route_args a = route_args(&p);
  route_run(&a, 1);
  test_tensor_set(&p.ids, 3, -1);
  const tigon_moe_route_backward_args b = route_backward_args(&p);
  tigon_record record;
  route_run_backward(&b, 2, context);
  assert_int_equal(tigon_check(context, &record), TIGON_OK);
  double *before = test_tensor_values(&p.d_logits);
  test_tensor_set(&p.ids, 3, 5);
  route_run_backward(&b, 2, context);
  assert_int_equal(tigon_check(context, &record), TIGON_INVALID_ARGUMENT);
  assert_string_equal(record.op, "tigon_moe_route_backward");
  assert_int_equal(record.index, 3);
  assert_int_equal(record.value, 5);
  for (int64_t i = 0; i < p.d_logits.count; i++) assert_true(before[i] == test_tensor_get(&p.d_logits, i));
  free(before);
  route_free(&p);
  tigon_context_destroy(context);
}

/* Queries are monotonic in the tokens, and one byte less is refused. */
static void test_workspaces(void **state) {
  (void)state;
  uint64_t before = 0;
  for (int64_t tokens = 0; tokens < 40000; tokens += 1 + tokens / 5) {
    tigon_tensor logits, ids, weights, counts, loss;
    tigon_moe_route_args a = {.size = sizeof a};
    a.logits = tigon_tensor_2d(&logits, NULL, tigon_f32(), tokens, 300);
    a.topk_ids = tigon_tensor_2d(&ids, NULL, tigon_i32(), tokens, 4);
    a.topk_weights = tigon_tensor_2d(&weights, NULL, tigon_f32(), tokens, 4);
    a.counts = tigon_tensor_1d(&counts, NULL, tigon_i64(), 300);
    a.balance_loss = tigon_tensor_1d(&loss, NULL, tigon_f32(), 1);
    uint64_t bytes;
    test_expect_status(tigon_moe_route_workspace(NULL, &a, &bytes), TIGON_OK, NULL);
    assert_true(bytes >= before);
    before = bytes;
  }
  route_problem p;
  route_make(&p, &route_cases[5], TIGON_F32, 0, 1, 5);
  const tigon_moe_route_args a = route_args(&p);
  const tigon_moe_route_backward_args b = route_backward_args(&p);
  uint64_t bytes;
  test_workspace w;
  test_expect_status(tigon_moe_route_workspace(NULL, &a, &bytes), TIGON_OK, NULL);
  test_workspace_make(&w, bytes - 1, 1);
  test_expect_status(tigon_moe_route(&w.exec, &a), TIGON_WORKSPACE, "workspace_bytes");
  test_workspace_free(&w);
  test_expect_status(tigon_moe_route_backward_workspace(NULL, &b, &bytes), TIGON_OK, NULL);
  test_workspace_make(&w, bytes - 1, 1);
  test_expect_status(tigon_moe_route_backward(&w.exec, &b), TIGON_WORKSPACE, "workspace_bytes");
  test_workspace_free(&w);
  route_free(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_oracle_differences),
    cmocka_unit_test(test_cases),
#if defined(TIGON_TEST_ON_GPU)
    cmocka_unit_test(test_many_tokens),
#endif
    cmocka_unit_test(test_order),
    cmocka_unit_test(test_threads),
    cmocka_unit_test(test_absent_tensors),
    cmocka_unit_test(test_record),
    cmocka_unit_test(test_workspaces)
  };
  return test_gate_report("moe_route", cmocka_run_group_tests(tests, NULL, NULL));
}
