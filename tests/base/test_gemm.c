/*
 * The packed product against float64, on every instruction set that the processor has: each runs in a forked child with
 * TIGON_CPU_ISA set.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "base/gemm.h"
#include "tests/support/support.h"

typedef struct gemm_case {
  int64_t m, n, k;
  tigon_kind a, b, c;
  bool a_transposed, b_transposed, a_gather, b_gather, bias, accumulate;
  float alpha;
  int64_t pad; /* elements after each stored row */
} gemm_case;

/* An operand and its logical values (rows, k). */
typedef struct operand {
  test_tensor stored;
  int32_t *gather;
  double *values;
  tigon_matrix matrix;
} operand;

static const void *data_of(const test_tensor *t) { return (const char *)t->tensor.dl.data + t->tensor.dl.byte_offset; }

static void operand_make(operand *o, int64_t rows, int64_t k, tigon_kind kind, bool transposed, bool gather,
                         int64_t pad, test_rng *rng) {
  const int64_t stored_rows = transposed ? k : rows, columns = transposed ? rows : k;
  const int64_t data_rows = gather ? stored_rows + 3 : stored_rows;
  memset(o, 0, sizeof *o);
  test_tensor_make(&o->stored, kind, 2, (int64_t[]){data_rows, columns}, (test_layout){.row_pad = pad});
  test_tensor_fill_normal(&o->stored, rng, 1);
  o->values = malloc(((size_t)(rows * k) + 1) * sizeof *o->values);
  o->gather = malloc(((size_t)stored_rows + 1) * sizeof *o->gather);
  assert_true(o->values && o->gather);
  for (int64_t i = 0; i < stored_rows; i++)
    o->gather[i] = gather ? (int32_t)test_random_range(rng, 0, data_rows - 1) : (int32_t)i;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t p = 0; p < k; p++) {
      const int64_t at = transposed ? (int64_t)o->gather[p] * columns + r : (int64_t)o->gather[r] * columns + p;
      o->values[r * k + p] = test_tensor_get(&o->stored, at);
    }
  o->matrix = (tigon_matrix){.data = data_of(&o->stored),
                             .kind = kind,
                             .stride = columns + pad,
                             .transposed = transposed,
                             .gather = gather ? o->gather : NULL};
}

static void operand_free(operand *o) {
  test_tensor_free(&o->stored);
  free(o->gather);
  free(o->values);
}

typedef struct problem {
  gemm_case shape;
  operand a, b;
  test_tensor c, bias;
  double *c_before;
  tigon_gemm_store store;
  tigon_gemm gemm;
} problem;

static void problem_make(problem *p, gemm_case s, uint64_t seed) {
  test_rng rng = {seed};
  memset(p, 0, sizeof *p);
  p->shape = s;
  operand_make(&p->a, s.m, s.k, s.a, s.a_transposed, s.a_gather, s.pad, &rng);
  operand_make(&p->b, s.n, s.k, s.b, s.b_transposed, s.b_gather, s.pad, &rng);
  test_tensor_make(&p->c, s.c, 2, (int64_t[]){s.m, s.n}, (test_layout){.row_pad = s.pad});
  test_tensor_make(&p->bias, TIGON_F32, 1, &s.n, (test_layout){0});
  test_tensor_fill_normal(&p->bias, &rng, 1);
  if (s.accumulate) test_tensor_fill_normal(&p->c, &rng, 1);
  p->c_before = test_tensor_values(&p->c);
  p->store = (tigon_gemm_store){
      .data = p->c.tensor.dl.data, .kind = s.c, .stride = s.n + s.pad, .alpha = s.alpha, .accumulate = s.accumulate};
  if (s.bias)
    p->store.bias = (tigon_view){
        .data = p->bias.tensor.dl.data, .kind = TIGON_F32, .ndim = 1, .shape = {s.n, 1, 1, 1, 1}, .stride = {1}};
  p->gemm = (tigon_gemm){.m = s.m,
                         .n = s.n,
                         .k = s.k,
                         .a = p->a.matrix,
                         .b = p->b.matrix,
                         .epilogue = TIGON_ISA_PICK(tigon_gemm_store_tile),
                         .context = &p->store};
}

static void problem_free(problem *p) {
  test_tensor_check_surroundings(&p->c);
  operand_free(&p->a);
  operand_free(&p->b);
  test_tensor_free(&p->c);
  test_tensor_free(&p->bias);
  free(p->c_before);
}

/* With scratch of exactly the size that the threads need, between guard zones. */
static void run_guarded(const tigon_gemm *products, int64_t count, int threads) {
  test_workspace w;
  test_workspace_make(&w, tigon_gemm_scratch() * (uint64_t)threads, threads);
  tigon_gemm_run(threads, products, count, w.exec.workspace);
  test_workspace_free(&w);
}

static void run_serial(const tigon_gemm *product) {
  test_workspace w;
  test_workspace_make(&w, tigon_gemm_scratch(), 1);
  tigon_gemm_serial(product, 0, w.exec.workspace);
  test_workspace_free(&w);
}

enum { MOST_THREADS = 7 };
static void *shared_scratch; /* for MOST_THREADS, kept from case to case as programs do */

static void run(const tigon_gemm *products, int64_t count, int threads) {
  assert_true(threads <= MOST_THREADS);
  if (!shared_scratch) shared_scratch = aligned_alloc(256, tigon_gemm_scratch() * MOST_THREADS);
  assert_non_null(shared_scratch);
  tigon_gemm_run(threads, products, count, shared_scratch);
}

static void check(const problem *p) {
  const gemm_case s = p->shape;
  double *oracle = malloc(((size_t)(s.m * s.n) + 1) * sizeof *oracle);
  double *plain = malloc(((size_t)(s.m * s.n) + 1) * sizeof *plain);
  assert_true(oracle && plain);
  for (int64_t i = 0; i < s.m; i++)
    for (int64_t j = 0; j < s.n; j++) {
      double sum = 0;
      float rounded = 0;
      for (int64_t q = 0; q < s.k; q++) {
        sum += p->a.values[i * s.k + q] * p->b.values[j * s.k + q];
        rounded += (float)p->a.values[i * s.k + q] * (float)p->b.values[j * s.k + q];
      }
      const double bias = s.bias ? test_tensor_get(&p->bias, j) : 0;
      const double before = s.accumulate ? p->c_before[i * s.n + j] : 0;
      oracle[i * s.n + j] = (double)s.alpha * sum + bias + before;
      plain[i * s.n + j] = (double)tigon_round_to(s.c, s.alpha * rounded + (float)bias + (float)before);
    }
  const double rounding = s.c == TIGON_BF16 ? 0x1p-9 : s.c == TIGON_F16 ? 0x1p-12 : 32 * 0x1p-24;
  /* An fp32 sum errs like a random walk; the worst of 10^5 elements lies some five deviations out. */
  test_gate("c", &p->c, oracle, plain, rounding + 0x1p-23 * sqrt((double)s.k));
  free(oracle);
  free(plain);
  test_count_case();
}

static void run_case(gemm_case s, int threads, uint64_t seed) {
  problem p;
  problem_make(&p, s, seed);
  run(&p.gemm, 1, threads);
  check(&p);
  problem_free(&p);
}

static const tigon_kind kinds[] = {TIGON_F32, TIGON_BF16, TIGON_F16};

/* Every orientation, gather and dtype of the operands, on sizes around tiles, panels and blocks. */
static void test_options(void **state) {
  (void)state;
  const int64_t sizes[][3] = {{1, 1, 1}, {7, 63, 64}, {65, 33, 129}, {15, 17, 257}};
  for (int size = 0; size < 4; size++)
    for (unsigned o = 0; o < 16; o++)
      for (unsigned d = 0; d < 9; d++) {
        const int64_t *n = sizes[size];
        run_case((gemm_case){.m = n[0],
                             .n = n[1],
                             .k = n[2],
                             .a = kinds[d % 3],
                             .b = kinds[d / 3],
                             .c = kinds[(o + d) % 3],
                             .a_transposed = o & 1,
                             .b_transposed = o & 2,
                             .a_gather = o & 4,
                             .b_gather = o & 8,
                             .bias = d & 1,
                             .alpha = 1,
                             .pad = (int64_t)(o % 5)},
                 1 + (int)(o % 3), o * 9 + d);
      }
}

static void test_sizes(void **state) {
  (void)state;
  test_rng rng = {42};
  for (uint64_t i = 0; i < 36; i++) {
    const unsigned o = (unsigned)test_random(&rng);
    const bool accumulate = o & 64;
    run_case((gemm_case){.m = test_random_range(&rng, 1, 400),
                         .n = test_random_range(&rng, 1, 400),
                         .k = test_random_range(&rng, 1, 400),
                         .a = kinds[i % 3],
                         .b = kinds[i / 3 % 3],
                         .c = accumulate ? TIGON_F32 : kinds[i / 9 % 3],
                         .a_transposed = o & 1,
                         .b_transposed = o & 2,
                         .a_gather = o & 4,
                         .b_gather = o & 8,
                         .bias = o & 16,
                         .accumulate = accumulate,
                         .alpha = o & 32 ? 1 : -0.5f,
                         .pad = (int64_t)(o >> 8 & 3)},
             1 + (int)(i % 7), i);
  }
  for (int64_t n = 0; n <= 40; n += 8) /* an extent of 0: no product, or zeros */
    for (int which = 0; which < 3; which++)
      run_case((gemm_case){.m = which == 0 ? 0 : n,
                           .n = which == 1 ? 0 : n,
                           .k = which == 2 ? 0 : n,
                           .a = TIGON_F32,
                           .b = TIGON_BF16,
                           .c = TIGON_F32,
                           .bias = true,
                           .accumulate = n > 16,
                           .alpha = 1},
               2, 7);
  run_case((gemm_case){.m = 900, .n = 800, .k = 20, .a = TIGON_F32, .b = TIGON_F32, .c = TIGON_F32, .alpha = 1}, 3, 8);
}

static void test_same_bits_for_any_threads(void **state) {
  (void)state;
  const int64_t sizes[][3] = {{300, 500, 700}, {1, 900, 300}, {1000, 3, 513}, {33, 33, 33}};
  for (int size = 0; size < 4; size++)
    for (unsigned o = 0; o < 4; o++) {
      const int64_t *n = sizes[size];
      const gemm_case s = {.m = n[0],
                           .n = n[1],
                           .k = n[2],
                           .a = kinds[o % 3],
                           .b = kinds[(o + 1) % 3],
                           .c = TIGON_F32,
                           .a_transposed = o & 1,
                           .b_transposed = o & 2,
                           .alpha = 1};
      problem one, other;
      problem_make(&one, s, 5);
      run_guarded(&one.gemm, 1, 1);
      const int threads[] = {2, 7, 0};
      for (int t = 0; t < 3; t++) {
        problem_make(&other, s, 5);
        if (threads[t])
          run_guarded(&other.gemm, 1, threads[t]);
        else
          run_serial(&other.gemm);
        test_tensor_check_same("c", &one.c, &other.c);
        problem_free(&other);
      }
      problem_free(&one);
      test_count_case();
    }
}

/* Products of different shapes, some empty, in one call: the bits of separate calls. */
static void test_grouped_products(void **state) {
  (void)state;
  enum { COUNT = 7 };
  problem grouped[COUNT], alone;
  tigon_gemm products[COUNT];
  for (int i = 0; i < COUNT; i++) {
    const gemm_case s = {.m = i == 3 ? 0 : 17 * i + 1,
                         .n = 90 - 9 * i,
                         .k = i == 5 ? 0 : 40 * i + 5,
                         .a = kinds[i % 3],
                         .b = kinds[i % 2],
                         .c = kinds[(i + 1) % 3],
                         .a_gather = i % 2 == 0,
                         .alpha = 1};
    problem_make(&grouped[i], s, (uint64_t)i);
  }
  for (int i = 0; i < COUNT; i++) products[i] = grouped[i].gemm;
  run(products, COUNT, 3);
  for (int i = 0; i < COUNT; i++) {
    problem_make(&alone, grouped[i].shape, (uint64_t)i);
    run(&alone.gemm, 1, 1);
    check(&grouped[i]);
    test_tensor_check_same("c", &grouped[i].c, &alone.c);
    problem_free(&alone);
  }
  for (int i = 0; i < COUNT; i++) problem_free(&grouped[i]);
  run(NULL, 0, 2);
}

/* NaN in a row of A stays in that row of C, in a row of B in that column. */
static void test_nan_stays_in_its_row(void **state) {
  (void)state;
  for (unsigned o = 0; o < 4; o++)
    for (int kind = 0; kind < 3; kind++) {
      const gemm_case s = {.m = 45,
                           .n = 70,
                           .k = 300,
                           .a = kinds[kind],
                           .b = kinds[kind],
                           .c = TIGON_F32,
                           .a_transposed = o & 1,
                           .b_transposed = o & 2,
                           .alpha = 1};
      problem clean, hurt;
      problem_make(&clean, s, 3);
      problem_make(&hurt, s, 3);
      test_tensor_set(&hurt.a.stored, s.a_transposed ? 299 * 45 + 44 : 44 * 300 + 299, NAN);
      test_tensor_set(&hurt.b.stored, s.b_transposed ? 7 * 70 + 69 : 69 * 300 + 7, INFINITY);
      run(&clean.gemm, 1, 1);
      run(&hurt.gemm, 1, 2);
      for (int64_t i = 0; i < 45; i++)
        for (int64_t j = 0; j < 70; j++) {
          const double before = test_tensor_get(&clean.c, i * 70 + j), after = test_tensor_get(&hurt.c, i * 70 + j);
          assert_true(i == 44 || j == 69 ? !isfinite(after) : after == before);
        }
      problem_free(&clean);
      problem_free(&hurt);
    }
}

typedef struct tile_record {
  int64_t m, n;
  int threads;
  int *seen; /* how often an epilogue got each element; tiles are disjoint, so threads do not meet */
  bool wrong;
} tile_record;

static void record_tile(void *context, int slot, int64_t m0, int64_t n0, int64_t m, int64_t n, float *tile,
                        int64_t ld) {
  tile_record *r = context;
  const bool right = slot >= 0 && slot < r->threads && m > 0 && n > 0 && m <= TIGON_GEMM_M && n <= TIGON_GEMM_N &&
                     m0 >= 0 && n0 >= 0 && m0 + m <= r->m && n0 + n <= r->n && ld >= n && ld % 4 == 0;
  if (!right) {
    r->wrong = true;
    return;
  }
  for (int64_t i = 0; i < m; i++) {
    for (int64_t j = 0; j < n; j++) r->seen[(m0 + i) * r->n + n0 + j]++;
    for (int64_t j = 0; j < ld; j++) tile[i * ld + j] = NAN; /* it is scratch */
  }
}

static void test_epilogues_get_each_element_once(void **state) {
  (void)state;
  for (int64_t m = 1; m < 2000; m = m * 3 + 2)
    for (int64_t n = 1; n < 2000; n = n * 4 + 1) {
      const gemm_case s = {.m = m, .n = n, .k = 3, .a = TIGON_F32, .b = TIGON_F32, .c = TIGON_F32, .alpha = 1};
      problem p;
      problem_make(&p, s, 1);
      for (int threads = 1; threads <= 5; threads += 4) {
        tile_record record = {m, n, threads, calloc((size_t)(m * n), sizeof(int)), false};
        assert_non_null(record.seen);
        p.gemm.epilogue = record_tile;
        p.gemm.context = &record;
        run(&p.gemm, 1, threads);
        assert_false(record.wrong);
        for (int64_t i = 0; i < m * n; i++) assert_int_equal(record.seen[i], 1);
        free(record.seen);
      }
      problem_free(&p);
      test_count_case();
    }
}

static int run_child(const char *isa) {
  setenv("TIGON_CPU_ISA", isa, 1);
  if (strcmp(tigon_cpu_isa(), isa) != 0) {
    printf("skipped: the processor has no %s\n", isa);
    return 0;
  }
  printf("instruction set %s\n", isa);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_options),
      cmocka_unit_test(test_sizes),
      cmocka_unit_test(test_same_bits_for_any_threads),
      cmocka_unit_test(test_grouped_products),
      cmocka_unit_test(test_nan_stays_in_its_row),
      cmocka_unit_test(test_epilogues_get_each_element_once),
  };
  char name[32];
  snprintf(name, sizeof name, "gemm_%s", isa);
  const int failures = test_gate_report(name, cmocka_run_group_tests(tests, NULL, NULL));
  free(shared_scratch);
  return failures;
}

int main(void) {
  static const char *const sets[] = {"generic", "avx2", "avx512", "avx512_bf16", "amx"};
  int failures = 0;
  for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
    fflush(stdout);
    const pid_t child = fork();
    if (child < 0) return 1;
    if (child == 0) {
      const int failed = run_child(sets[i]);
      fflush(stdout);
      _exit(failed ? 1 : 0);
    }
    int status = 1;
    if (waitpid(child, &status, 0) != child || status != 0) failures++;
  }
  return failures;
}
