/* What every operation promises: workspace, queries, absent outputs, errors, records, concurrent callers. */
#include <pthread.h>
#include <time.h>

#include "base/gemm.h"
#include "tests/linear_cross_entropy/problem.h"

static const lce_case plain_case = {"contract",      65,           64, 1000, HALF(TIGON_BF16), BF16_BIAS,
                                    .upstream = ALL, .ignored = 20};

static uint64_t forward_bytes(const lce_tensors *t, int threads) {
  uint64_t bytes = 0;
  const tigon_exec exec = {.size = sizeof exec, .num_threads = threads};
  test_expect_status(tigon_linear_cross_entropy_workspace(&exec, &t->forward, &bytes), TIGON_OK, NULL);
  return bytes;
}

static uint64_t backward_bytes(const lce_tensors *t, int threads) {
  uint64_t bytes = 0;
  const tigon_exec exec = {.size = sizeof exec, .num_threads = threads};
  test_expect_status(tigon_linear_cross_entropy_backward_workspace(&exec, &t->backward, &bytes), TIGON_OK, NULL);
  return bytes;
}

/* --- absent outputs --------------------------------------------------------------------------------------------- */

static void test_absent_statistics(void **state) {
  (void)state;
  lce_tensors all, t;
  lce_make(&all, &plain_case, 1);
  lce_run_forward(&all, 2, NULL);
  for (int mask = 0; mask < 16; mask++) {
    lce_make(&t, &plain_case, 1);
    DLTensor **const slots[] = {&t.forward.loss, &t.forward.nll, &t.forward.lse, &t.forward.entropy};
    const test_tensor *const got[] = {&t.loss, &t.nll, &t.lse, &t.entropy};
    const test_tensor *const expected[] = {&all.loss, &all.nll, &all.lse, &all.entropy};
    for (int i = 0; i < 4; i++)
      if (!(mask & 1 << i)) *slots[i] = NULL;
    lce_run_forward(&t, 2, NULL);
    for (int i = 0; i < 4; i++)
      if (mask & 1 << i) test_tensor_check_same("statistic", got[i], expected[i]);
    lce_free(&t);
    test_count_case();
  }
  lce_free(&all);
}

static void test_absent_gradients(void **state) {
  (void)state;
  lce_tensors all, t;
  lce_make(&all, &plain_case, 1);
  lce_run(&all, 2);
  for (int mask = 0; mask < 8; mask++) {
    lce_make(&t, &plain_case, 1);
    DLTensor **const slots[] = {&t.backward.dx, &t.backward.dweight, &t.backward.dbias};
    const test_tensor *const got[] = {&t.dx, &t.dweight, &t.dbias};
    const test_tensor *const expected[] = {&all.dx, &all.dweight, &all.dbias};
    for (int i = 0; i < 3; i++)
      if (!(mask & 1 << i)) *slots[i] = NULL;
    lce_run(&t, 2);
    for (int i = 0; i < 3; i++)
      if (mask & 1 << i) test_tensor_check_same("gradient", got[i], expected[i]);
    lce_free(&t);
    test_count_case();
  }
  lce_free(&all);
}

/* --- workspace -------------------------------------------------------------------------------------------------- */

/* A query's answer for shapes without data. */
typedef struct shape_query {
  int64_t tokens, width, vocabulary;
  DLDataType type;
  bool dx;
} shape_query;

static uint64_t query_bytes(const shape_query *q, bool backward, int threads) {
  tigon_tensor x, weight, target, lse, dx, dweight;
  const tigon_exec exec = {.size = sizeof exec, .num_threads = threads};
  uint64_t bytes = 1;
  const tigon_linear_cross_entropy_args f = {.size = sizeof f,
                                             .x = tigon_tensor_2d(&x, NULL, q->type, q->tokens, q->width),
                                             .weight = tigon_tensor_2d(&weight, NULL, q->type, q->vocabulary, q->width),
                                             .target = tigon_tensor_1d(&target, NULL, tigon_i64(), q->tokens),
                                             .lse = tigon_tensor_1d(&lse, NULL, tigon_f32(), q->tokens)};
  const tigon_linear_cross_entropy_backward_args b = {
      .size = sizeof b,
      .x = f.x,
      .weight = f.weight,
      .target = f.target,
      .lse = f.lse,
      .d_loss = f.lse,
      .dx = q->dx ? tigon_tensor_2d(&dx, NULL, q->type, q->tokens, q->width) : NULL,
      .dweight = tigon_tensor_2d(&dweight, NULL, q->type, q->vocabulary, q->width)};
  test_expect_status(backward ? tigon_linear_cross_entropy_backward_workspace(&exec, &b, &bytes)
                              : tigon_linear_cross_entropy_workspace(&exec, &f, &bytes),
                     TIGON_OK, NULL);
  assert_true(bytes % 256 == 0);
  return bytes;
}

static uint64_t block(uint64_t bytes) { return (bytes + 255) / 256 * 256; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* The formula of docs/linear_cross_entropy.md, without the scratch of the threads. */
static uint64_t formula(const shape_query *q, bool backward) {
  const uint64_t t = (uint64_t)q->tokens;
  const uint64_t kept = block(4 * t);
  if (backward) {
    const int64_t tile = smaller(768, (q->vocabulary + 15) / 16 * 16);
    const bool sums = q->dx && q->type.bits == 16 && q->vocabulary > 768;
    const uint64_t dz = q->type.code == kDLBfloat ? 2 : 4;
    return kept + block(32 * t) + block(dz * t * (uint64_t)tile) + (sums ? block(4 * t * (uint64_t)q->width) : 0);
  }
  const int64_t tiles = (q->vocabulary + TIGON_GEMM_N - 1) / TIGON_GEMM_N;
  const int64_t states = smaller(q->tokens * smaller(tiles, 128), 129 * TIGON_GEMM_M + q->tokens);
  return kept + block(32 * (uint64_t)states);
}

static const shape_query queries[] = {
    {0, 64, 320, {kDLFloat, 32, 1}, true},
    {1, 1, 1, {kDLFloat, 32, 1}, true},
    {2048, 1024, 32000, {kDLBfloat, 16, 1}, true},
    {2048, 1024, 32000, {kDLFloat, 32, 1}, true},
    {2048, 1024, 32000, {kDLBfloat, 16, 1}, false},
    {4096, 256, 256, {kDLBfloat, 16, 1}, true},
    {8192, 512, 151936, {kDLBfloat, 16, 1}, true},
    {65536, 4096, 262144, {kDLFloat, 16, 1}, true},            /* T V > 2^31 */
    {INT32_MAX, 1, (int64_t)1 << 40, {kDLFloat, 32, 1}, true}, /* T V > 2^63 */
    {INT32_MAX, 1 << 20, 4, {kDLBfloat, 16, 1}, true},
};

static void test_workspace_formula(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof queries / sizeof *queries; i++) {
    for (int backward = 0; backward < 2; backward++)
      for (int threads = 1; threads <= 3; threads++)
        assert_true(query_bytes(&queries[i], backward, threads) ==
                    formula(&queries[i], backward) + (uint64_t)threads * tigon_gemm_scratch());
    test_count_case();
  }
  const shape_query large = {8192, 512, 151936, tigon_bf16(), true};
  assert_true(query_bytes(&large, true, 2) < (uint64_t)64 << 20);
}

static void test_workspace_grows(void **state) {
  (void)state;
  static const int64_t vocabularies[] = {1, 300, 1000, 32000, 500000};
  for (size_t v = 0; v < sizeof vocabularies / sizeof *vocabularies; v++)
    for (int backward = 0; backward < 2; backward++) {
      uint64_t last = 0;
      for (int64_t tokens = 0; tokens < 100000; tokens += 1 + tokens / 50) {
        const shape_query q = {tokens, 64, vocabularies[v], tigon_bf16(), true};
        const uint64_t bytes = query_bytes(&q, backward, 2);
        assert_true(bytes >= last);
        last = bytes;
      }
    }
}

static void check_poisoned(const test_tensor *t) {
  for (size_t i = 0; t->block && i < t->bytes; i++) assert_int_equal(t->block[i], 0xff);
}

static void check_outputs_poisoned(const lce_tensors *t) {
  const test_tensor *const outputs[] = {&t->loss, &t->nll, &t->lse, &t->entropy, &t->dx, &t->dweight, &t->dbias};
  for (int i = 0; i < 7; i++) check_poisoned(outputs[i]);
}

static void test_workspace_refused(void **state) {
  (void)state;
  lce_tensors t;
  lce_make(&t, &plain_case, 1);
  for (int backward = 0; backward < 2; backward++) {
    test_workspace w;
    test_workspace_make(&w, backward ? backward_bytes(&t, 2) : forward_bytes(&t, 2), 2);
    tigon_exec short_exec = w.exec, null_exec = w.exec, skewed_exec = w.exec;
    short_exec.workspace_bytes--;
    null_exec.workspace = NULL;
    skewed_exec.workspace = (char *)w.exec.workspace + 8;
    const tigon_exec *const execs[] = {&short_exec, &null_exec, &skewed_exec, NULL};
    for (int i = 0; i < 4; i++)
      test_expect_status(backward ? tigon_linear_cross_entropy_backward(execs[i], &t.backward)
                                  : tigon_linear_cross_entropy(execs[i], &t.forward),
                         TIGON_WORKSPACE, "exec.workspace");
    test_workspace_free(&w);
  }
  check_outputs_poisoned(&t);
  lce_free(&t);
}

/* --- records ---------------------------------------------------------------------------------------------------- */

static void check_record(tigon_context *context, const char *op, int64_t index, int64_t value) {
  tigon_record record;
  assert_int_equal(tigon_check(context, &record), index < 0 ? TIGON_OK : TIGON_INVALID_ARGUMENT);
  if (index < 0) return;
  assert_string_equal(record.op, op);
  assert_string_equal(record.argument, "target");
  assert_int_equal(record.index, index);
  assert_int_equal(record.value, value);
  tigon_clear(context);
}

static void test_records(void **state) {
  (void)state;
  tigon_context *context = NULL;
  const DLDevice cpu = {kDLCPU, 0};
  test_expect_status(tigon_context_create(cpu, &context), TIGON_OK, NULL);
  static const int64_t bad[] = {1000, -1, 1001, INT32_MAX, INT32_MIN};
  for (int i = 0; i < 5; i++) {
    lce_case c = plain_case;
    c.target = i % 2 ? TIGON_I32 : TIGON_I64;
    c.strided = i == 2;
    lce_tensors t;
    lce_make(&t, &c, 1);
    lce_run_forward(&t, 2, context);
    check_record(context, "", -1, 0); /* -100 is ignored, and no mistake */
    test_tensor_set(&t.target, 60, (double)bad[(i + 1) % 5]);
    test_tensor_set(&t.target, 33 + i, (double)bad[i]);
    lce_run_forward(&t, 2, context);
    check_record(context, "tigon_linear_cross_entropy", 33 + i, bad[i]);
    lce_run_backward(&t, 2, context);
    check_record(context, "tigon_linear_cross_entropy_backward", 33 + i, bad[i]);
    for (int64_t j = 0; j < c.width; j++) assert_true(test_tensor_get(&t.dx, (33 + i) * c.width + j) == 0);
    lce_free(&t);
    test_count_case();
  }
  tigon_context_destroy(context);
}

/* --- skipped work ----------------------------------------------------------------------------------------------- */

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* other programs take wall time */
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* What is wanted of a backward pass. */
typedef struct work {
  const char *name;
  bool dx, dweight;
  int kept;     /* one of so many tokens */
  double limit; /* of the time for everything */
} work;

/* Three products for all gradients, two with a frozen operand, one for the bias alone, none for ignored rows. */
static const work works[] = {{"all", true, true, 1, 1},
                             {"frozen weight", true, false, 1, 0.85},
                             {"frozen x", false, true, 1, 0.85},
                             {"bias only", false, false, 1, 0.55},
                             {"1/8 kept", true, true, 8, 0.5}};
enum { WORKS = sizeof works / sizeof *works };

static double backward_time(lce_tensors *t, const work *w, const tigon_exec *exec) {
  lce_arguments(t);
  if (!w->dx) t->backward.dx = NULL;
  if (!w->dweight) t->backward.dweight = NULL;
  for (int64_t k = 0; k < t->c.tokens; k++) test_tensor_set(&t->target, k, k % w->kept ? -100 : (double)k);
  const double begin = seconds();
  test_expect_status(tigon_linear_cross_entropy_backward(exec, &t->backward), TIGON_OK, NULL);
  return seconds() - begin;
}

/* In turns, so that a busy machine slows all of them. */
static void test_skipped_work(void **state) {
  (void)state;
  const lce_case c = {"work", 256, 512, 2048, F32_BIAS, .upstream = ALL};
  lce_tensors t;
  lce_make(&t, &c, 1);
  lce_run_forward(&t, 1, NULL);
  test_workspace w;
  test_workspace_make(&w, backward_bytes(&t, 1), 1);
  double best[WORKS];
  for (int i = 0; i < WORKS; i++) best[i] = INFINITY;
  for (int turn = 0; turn < 7; turn++)
    for (int i = 0; i < WORKS; i++) best[i] = fmin(best[i], backward_time(&t, &works[i], &w.exec));
  for (int i = 0; i < WORKS; i++) {
    print_message("  %s: %.2f ms, %.2f of all\n", works[i].name, 1e3 * best[i], best[i] / best[0]);
#ifndef TEST_SANITIZED
    assert_true(best[i] <= works[i].limit * best[0]);
#endif
  }
  test_workspace_free(&w);
  lce_free(&t);
}

/* --- callers at the same time ----------------------------------------------------------------------------------- */

static void *run_again(void *context) {
  lce_tensors *t = context;
  for (int i = 0; i < 5; i++) lce_run(t, 2);
  return NULL;
}

static void test_concurrent_callers(void **state) {
  (void)state;
  lce_tensors expected, t[2];
  lce_make(&expected, &plain_case, 4);
  lce_run(&expected, 1);
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) {
    lce_make(&t[i], &plain_case, 4);
    assert_int_equal(pthread_create(&threads[i], NULL, run_again, &t[i]), 0);
  }
  for (int i = 0; i < 2; i++) {
    pthread_join(threads[i], NULL);
    test_tensor_check_same("loss", &t[i].loss, &expected.loss);
    test_tensor_check_same("dweight", &t[i].dweight, &expected.dweight);
    test_tensor_check_same("dx", &t[i].dx, &expected.dx);
    lce_free(&t[i]);
  }
  lce_free(&expected);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_absent_statistics), cmocka_unit_test(test_absent_gradients),
      cmocka_unit_test(test_workspace_formula), cmocka_unit_test(test_workspace_grows),
      cmocka_unit_test(test_workspace_refused), cmocka_unit_test(test_records),
      cmocka_unit_test(test_skipped_work),      cmocka_unit_test(test_concurrent_callers),
  };
  return test_gate_report("linear_cross_entropy_contract", cmocka_run_group_tests(tests, NULL, NULL));
}
