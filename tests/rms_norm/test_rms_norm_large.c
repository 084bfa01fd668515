/*
 * Outputs so large that the CPU writes them past its caches: the bits of the same rows in small calls, nothing outside
 * the rows written. Rows end in part of a vector, and lie apart. And tensors of more than 2^31 elements.
 */
#include <sys/mman.h>

#include "tests/support/support.h"

enum { WIDTH = 4001, STRIDE = 4096, PIECE = 500 };

typedef struct tensor_data {
  unsigned char *data;
  tigon_tensor tensor;
  tigon_kind kind;
  size_t bytes;
} tensor_data;

static void make(tensor_data *t, tigon_kind kind, int64_t rows) {
  t->kind = kind;
  t->bytes = (size_t)(rows * STRIDE * tigon_kind_bytes(kind));
  t->data = aligned_alloc(64, t->bytes);
  assert_non_null(t->data);
  memset(t->data, 0xff, t->bytes);
}

static void fill(tensor_data *t, int64_t rows, uint64_t seed) {
  test_rng rng = {seed};
  for (int64_t r = 0; r < rows; r++)
    for (int64_t j = 0; j < WIDTH; j++)
      tigon_store(t->data, t->kind, r * STRIDE + j, (float)(test_random_uniform(&rng) - 0.5));
}

/* Rows begin .. begin + rows of a tensor. */
static DLTensor *rows_of(tensor_data *t, int64_t begin, int64_t rows) {
  tigon_tensor_2d(&t->tensor, t->data + begin * STRIDE * tigon_kind_bytes(t->kind), test_dtype(t->kind), rows, WIDTH);
  t->tensor.strides[0] = STRIDE;
  return &t->tensor.dl;
}

static void run(tensor_data *x, tensor_data *dy, float *rstd, tensor_data *out, tensor_data *dx, int64_t begin,
                int64_t rows, int32_t casting) {
  tigon_tensor statistics;
  tigon_exec exec = {.size = sizeof exec, .num_threads = rows > PIECE ? 3 : 1};
  tigon_rms_norm_args forward = {.size = sizeof forward, .casting = casting};
  forward.x = rows_of(x, begin, rows);
  forward.out = rows_of(out, begin, rows);
  forward.rstd = tigon_tensor_1d(&statistics, rstd + begin, tigon_f32(), rows);
  test_expect_status(tigon_rms_norm(&exec, &forward), TIGON_OK, NULL);
  tigon_rms_norm_backward_args backward = {.size = sizeof backward, .casting = casting};
  backward.x = forward.x;
  backward.rstd = forward.rstd;
  backward.dy = rows_of(dy, begin, rows);
  backward.dx = rows_of(dx, begin, rows);
  test_expect_status(tigon_rms_norm_backward(&exec, &backward), TIGON_OK, NULL);
}

static void test_large_outputs(void **state) {
  (void)state;
  const tigon_kind kinds[] = {TIGON_F32, TIGON_BF16, TIGON_F16};
  for (int k = 0; k < 3; k++) {
    const int64_t rows = kinds[k] == TIGON_F32 ? 2200 : 4300;
    tensor_data x, dy, out[2], dx[2];
    make(&x, kinds[k], rows);
    make(&dy, kinds[k], rows);
    fill(&x, rows, 1);
    fill(&dy, rows, 2);
    float *rstd = malloc((size_t)rows * sizeof *rstd);
    assert_non_null(rstd);
    for (int i = 0; i < 2; i++) {
      make(&out[i], kinds[k], rows);
      make(&dx[i], kinds[k], rows);
    }
    run(&x, &dy, rstd, &out[0], &dx[0], 0, rows, k % 2);
    for (int64_t begin = 0; begin < rows; begin += PIECE)
      run(&x, &dy, rstd, &out[1], &dx[1], begin, rows - begin < PIECE ? rows - begin : PIECE, k % 2);
    assert_memory_equal(out[0].data, out[1].data, out[0].bytes); /* the poison between rows too */
    assert_memory_equal(dx[0].data, dx[1].data, dx[0].bytes);
    assert_true(isfinite(tigon_load(out[0].data, kinds[k], (rows - 1) * STRIDE + WIDTH - 1)));
    tensor_data *all[] = {&x, &dy, &out[0], &out[1], &dx[0], &dx[1]};
    for (int i = 0; i < 6; i++) free(all[i]->data);
    free(rstd);
  }
}

/* --- past 2^31 elements ------------------------------------------------------------------------------------------ */

/* Memory that costs only the pages that are touched. */
static void *reserve(size_t bytes) {
  void *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (block == MAP_FAILED) skip();
  return block;
}

/* Four rows, each 2^31 elements and more after the last, in all of forward's and backward's tensors. */
static void test_rows_more_than_2_31_elements_apart(void **state) {
  (void)state;
  enum { H = 70 };
  const int64_t step = (INT64_C(1) << 31) + 64, shape[] = {2, 2, H};
  const size_t bytes = (size_t)(3 * step + H) * 2;
  uint16_t *x = reserve(bytes), *out = reserve(bytes), *dx = reserve(bytes);
  uint16_t flat_x[4 * H], flat_out[4 * H], flat_dx[4 * H];
  test_rng rng = {3};
  for (int r = 0; r < 4; r++)
    for (int j = 0; j < H; j++) flat_x[r * H + j] = x[r * step + j] = tigon_to_bf16((float)test_random_normal(&rng));
  float rstd[4];
  for (int flat = 0; flat < 2; flat++) {
    tigon_tensor t[4];
    tigon_rms_norm_args forward = {.size = sizeof forward};
    forward.x = tigon_tensor_nd(&t[0], flat ? flat_x : x, tigon_bf16(), 3, shape);
    forward.out = tigon_tensor_nd(&t[1], flat ? flat_out : out, tigon_bf16(), 3, shape);
    forward.rstd = tigon_tensor_nd(&t[2], rstd, tigon_f32(), 2, shape);
    tigon_rms_norm_backward_args backward = {.size = sizeof backward, .x = forward.x, .rstd = forward.rstd};
    backward.dy = forward.out;
    backward.dx = tigon_tensor_nd(&t[3], flat ? flat_dx : dx, tigon_bf16(), 3, shape);
    for (int i = 0; i < 4 && !flat; i++)
      if (i != 2) t[i].strides[0] = 2 * step, t[i].strides[1] = step;
    test_expect_status(tigon_rms_norm(NULL, &forward), TIGON_OK, NULL);
    test_expect_status(tigon_rms_norm_backward(NULL, &backward), TIGON_OK, NULL);
  }
  for (int r = 0; r < 4; r++) {
    assert_memory_equal(out + r * step, flat_out + r * H, H * sizeof *out);
    assert_memory_equal(dx + r * step, flat_dx + r * H, H * sizeof *dx);
  }
  munmap(x, bytes), munmap(out, bytes), munmap(dx, bytes);
}

/* d_weight over one row that is repeated until rows x width passes 2^31: xhat and dy are 1, so that it counts the
 * rows. */
static void test_d_weight_over_2_31_elements(void **state) {
  (void)state;
#ifdef TEST_SANITIZED
  skip();
#else
  enum { H = 65 };
  if (getenv("TIGON_TEST_REDUCED")) skip();
  const int64_t rows = (INT64_C(1) << 25) + 8;
  float ones[H], d_weight[H], rstd = 1;
  for (int j = 0; j < H; j++) ones[j] = 1;
  tigon_tensor x, statistics, gradient;
  tigon_rms_norm_backward_args args = {.size = sizeof args};
  args.x = args.dy = tigon_tensor_2d(&x, ones, tigon_f32(), rows, H);
  args.rstd = tigon_tensor_1d(&statistics, &rstd, tigon_f32(), rows);
  args.d_weight = tigon_tensor_1d(&gradient, d_weight, tigon_f32(), H);
  x.strides[0] = statistics.strides[0] = 0;
  uint64_t bytes;
  test_expect_status(tigon_rms_norm_backward_workspace(NULL, &args, &bytes), TIGON_OK, NULL);
  test_workspace w;
  test_workspace_make(&w, bytes, 0);
  test_expect_status(tigon_rms_norm_backward(&w.exec, &args), TIGON_OK, NULL);
  test_workspace_free(&w);
  for (int j = 0; j < H; j++) assert_true(fabs((double)d_weight[j] / (double)rows - 1) < 1e-6);
#endif
}

/* Whole tensors of more than 2^31 elements (9 GB): TIGON_TEST_FULL=1. Rows repeat in a cycle that no power of two
 * meets. */
static void test_whole_tensors_past_2_31_elements(void **state) {
  (void)state;
  if (!getenv("TIGON_TEST_FULL")) skip();
  enum { H = 4096, CYCLE = 61 };
  const int64_t rows = (INT64_C(1) << 19) + 64;
  uint16_t *x = reserve((size_t)rows * H * 2), *out = reserve((size_t)rows * H * 2);
  float *rstd = reserve((size_t)rows * sizeof *rstd);
  static uint16_t few_out[CYCLE * H], few_dx[CYCLE * H];
  static float few_rstd[CYCLE];
  test_rng rng = {3};
  for (int64_t i = 0; i < CYCLE * H; i++) x[i] = tigon_to_bf16((float)test_random_normal(&rng));
  for (int64_t r = CYCLE; r < rows; r++) memcpy(x + r * H, x + r % CYCLE * H, H * 2);
  for (int few = 1; few >= 0; few--) {
    const int64_t n = few ? CYCLE : rows;
    tigon_tensor t[5];
    tigon_rms_norm_args forward = {.size = sizeof forward};
    forward.x = tigon_tensor_2d(&t[0], x, tigon_bf16(), n, H);
    forward.out = tigon_tensor_2d(&t[1], few ? few_out : out, tigon_bf16(), n, H);
    forward.rstd = tigon_tensor_1d(&t[2], few ? few_rstd : rstd, tigon_f32(), n);
    test_expect_status(tigon_rms_norm(NULL, &forward), TIGON_OK, NULL);
    for (int64_t r = 0; r < rows && !few; r++) assert_memory_equal(out + r * H, few_out + r % CYCLE * H, H * 2);
    tigon_rms_norm_backward_args backward = {.size = sizeof backward, .x = forward.x, .rstd = forward.rstd};
    backward.dy = tigon_tensor_2d(&t[3], x, tigon_bf16(), n, H);
    t[3].strides[0] = 0;
    backward.dx = tigon_tensor_2d(&t[4], few ? few_dx : out, tigon_bf16(), n, H);
    test_expect_status(tigon_rms_norm_backward(NULL, &backward), TIGON_OK, NULL);
    for (int64_t r = 0; r < rows && !few; r++) assert_memory_equal(out + r * H, few_dx + r % CYCLE * H, H * 2);
  }
  munmap(x, (size_t)rows * H * 2), munmap(out, (size_t)rows * H * 2), munmap(rstd, (size_t)rows * sizeof *rstd);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_large_outputs),
      cmocka_unit_test(test_rows_more_than_2_31_elements_apart),
      cmocka_unit_test(test_d_weight_over_2_31_elements),
      cmocka_unit_test(test_whole_tensors_past_2_31_elements),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
