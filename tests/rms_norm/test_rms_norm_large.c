/*
 * Outputs so large that the CPU writes them past its caches: the bits of the same rows in small calls, nothing outside the
 * rows written. Rows end in part of a vector, and lie apart.
 */
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

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_large_outputs)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
