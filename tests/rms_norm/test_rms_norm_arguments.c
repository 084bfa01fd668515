/* Wrong arguments of rms_norm: refused with a message that names the argument, nothing written, never a crash. */
#include "tests/rms_norm/problem.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* Changes one thing of a valid call. */
typedef void (*forward_change)(problem *p, tigon_rms_norm_args *args);
typedef void (*backward_change)(problem *p, tigon_rms_norm_backward_args *args);

typedef struct forward_error {
  forward_change change;
  tigon_status status;
  const char *text;
} forward_error;

typedef struct backward_error {
  backward_change change;
  tigon_status status;
  const char *text;
} backward_error;

#define FORWARD(name, ...)                               \
  static void name(problem *p, tigon_rms_norm_args *a) { \
    (void)p;                                             \
    (void)a;                                             \
    __VA_ARGS__;                                         \
  }
#define BACKWARD(name, ...)                                       \
  static void name(problem *p, tigon_rms_norm_backward_args *a) { \
    (void)p;                                                      \
    (void)a;                                                      \
    __VA_ARGS__;                                                  \
  }

FORWARD(no_x, a->x = NULL)
FORWARD(no_out, a->out = NULL)
FORWARD(no_residual_out, a->residual_out = NULL)
FORWARD(no_residual, a->residual = NULL)
FORWARD(bad_casting, a->casting = 2)
FORWARD(negative_eps, a->eps = -1e-6f)
FORWARD(nan_eps, a->eps = NAN)
FORWARD(infinite_offset, a->offset = INFINITY)
FORWARD(integer_x, p->t[X].tensor.dl.dtype = tigon_i32())
FORWARD(flat_x, p->t[X].tensor.dl.ndim = 1)
FORWARD(empty_width,
        for (int i = X; i <= SUM; i++) if (p->present[i]) p->t[i].tensor.shape[p->t[i].tensor.dl.ndim - 1] = 0)
FORWARD(long_weight, p->t[WEIGHT].tensor.shape[0]++)
FORWARD(short_out, p->t[OUT].tensor.shape[0]--)
FORWARD(residual_width, p->t[RESIDUAL].tensor.shape[1]++)
FORWARD(negative_rows, p->t[X].tensor.shape[0] = -5)
FORWARD(strided_x, p->t[X].tensor.strides[1] = 2)
FORWARD(strided_weight, p->t[WEIGHT].tensor.strides[0] = 2)
FORWARD(expanded_out, p->t[OUT].tensor.strides[0] = 0)
FORWARD(expanded_rstd, p->t[RSTD].tensor.strides[0] = 0)
FORWARD(half_rstd, p->t[RSTD].tensor.dl.dtype = tigon_f16())
FORWARD(null_x, p->t[X].tensor.dl.data = NULL)
FORWARD(null_rstd, p->t[RSTD].tensor.dl.data = NULL)
FORWARD(odd_address, p->t[WEIGHT].tensor.dl.byte_offset++)
FORWARD(gpu_x, p->t[X].tensor.dl.device.device_type = kDLCUDA)
FORWARD(out_is_residual, a->out = problem_dl(p, RESIDUAL))
FORWARD(sum_is_x, a->residual_out = problem_dl(p, X))
FORWARD(out_is_sum, a->out = problem_dl(p, SUM))
FORWARD(out_is_x_transposed, p->t[OUT].tensor.dl = p->t[X].tensor.dl;
        p->t[OUT].tensor.dl.strides = p->t[OUT].tensor.strides; p->t[OUT].tensor.strides[0]++)
FORWARD(rstd_is_weight, p->t[RSTD].tensor.dl.data = (char *)p->t[WEIGHT].tensor.dl.data +
                                                    p->t[WEIGHT].tensor.dl.byte_offset -
                                                    p->t[RSTD].tensor.dl.byte_offset)
FORWARD(no_size, a->size = 0)

static const forward_error forward_errors[] = {
    {no_x, TIGON_INVALID_ARGUMENT, "x: expected a tensor"},
    {no_out, TIGON_INVALID_ARGUMENT, "out: expected a tensor"},
    {no_residual_out, TIGON_INVALID_ARGUMENT, "residual_out: expected a tensor"},
    {no_residual, TIGON_INVALID_ARGUMENT, "residual_out: expected NULL"},
    {bad_casting, TIGON_INVALID_ARGUMENT,
     "casting: expected TIGON_CASTING_LLAMA (0) or TIGON_CASTING_GEMMA (1), got 2"},
    {negative_eps, TIGON_INVALID_ARGUMENT, "eps: "},
    {nan_eps, TIGON_INVALID_ARGUMENT, "eps: "},
    {infinite_offset, TIGON_INVALID_ARGUMENT, "offset: expected a finite number, got inf"},
    {integer_x, TIGON_INVALID_ARGUMENT, "x: expected dtype"},
    {flat_x, TIGON_INVALID_ARGUMENT, "x: expected shape"},
    {empty_width, TIGON_INVALID_ARGUMENT, "x: expected a last dimension of at least 1"},
    {long_weight, TIGON_INVALID_ARGUMENT, "weight: expected shape (37), got (38)"},
    {short_out, TIGON_INVALID_ARGUMENT, "out: expected shape (6, 37), got (5, 37)"},
    {residual_width, TIGON_INVALID_ARGUMENT, "residual: expected shape"},
    {negative_rows, TIGON_INVALID_ARGUMENT, "x: expected shape"},
    {strided_x, TIGON_INVALID_ARGUMENT, "x: expected a contiguous last dimension"},
    {strided_weight, TIGON_INVALID_ARGUMENT, "weight: expected a contiguous last dimension"},
    {expanded_out, TIGON_INVALID_ARGUMENT, "out: expected an output without overlap"},
    {expanded_rstd, TIGON_INVALID_ARGUMENT, "rstd: expected an output without overlap"},
    {half_rstd, TIGON_INVALID_ARGUMENT, "rstd: expected dtype float32, got float16"},
    {null_x, TIGON_INVALID_ARGUMENT, "x: expected data"},
    {null_rstd, TIGON_INVALID_ARGUMENT, "rstd: expected data"},
    {odd_address, TIGON_INVALID_ARGUMENT, "weight: expected data aligned"},
    {gpu_x, TIGON_INVALID_ARGUMENT, "x: expected a CPU tensor"},
    {out_is_residual, TIGON_INVALID_ARGUMENT, "out: expected memory of its own, got that of residual"},
    {sum_is_x, TIGON_INVALID_ARGUMENT, "residual_out: expected memory of its own, got that of x"},
    {out_is_sum, TIGON_INVALID_ARGUMENT, "out: expected memory of its own, got that of residual_out"},
    {out_is_x_transposed, TIGON_INVALID_ARGUMENT, "out: expected memory of its own, got that of x"},
    {rstd_is_weight, TIGON_INVALID_ARGUMENT, "rstd: expected memory of its own, got that of weight"},
    {no_size, TIGON_INVALID_ARGUMENT, "args: expected its member size"},
};

BACKWARD(b_no_x, a->x = NULL)
BACKWARD(b_no_rstd, a->rstd = NULL)
BACKWARD(b_casting, a->casting = -1)
BACKWARD(b_accumulate, a->accumulate_d_weight = 2)
BACKWARD(b_accumulate_half, a->accumulate_d_weight = 1; p->t[D_WEIGHT].tensor.dl.dtype = tigon_f16())
BACKWARD(b_offset, a->offset = NAN)
BACKWARD(b_x_dtype, a->x_dtype = tigon_i64())
BACKWARD(b_x_dtype_lanes, a->x_dtype.lanes = 4)
BACKWARD(b_dy_shape, p->t[DY].tensor.shape[1]--)
BACKWARD(b_d_sum_dtype, p->t[D_SUM].tensor.dl.dtype = tigon_i32())
BACKWARD(b_weight_shape, p->t[WEIGHT].tensor.shape[0]--)
BACKWARD(b_rstd_shape, p->t[RSTD].tensor.shape[0]--)
BACKWARD(b_dx_expanded, p->t[DX].tensor.strides[0] = 0)
BACKWARD(b_d_weight_shape, p->t[D_WEIGHT].tensor.shape[0]--)
BACKWARD(b_dx_is_x, a->dx = problem_dl(p, SUM))
BACKWARD(b_d_residual_is_dy, a->d_residual = problem_dl(p, DY))
BACKWARD(b_d_residual_is_dx, a->d_residual = problem_dl(p, DX))
BACKWARD(b_d_weight_is_weight, a->d_weight = problem_dl(p, WEIGHT))
BACKWARD(b_null_dy, p->t[DY].tensor.dl.data = NULL)

static const backward_error backward_errors[] = {
    {b_no_x, TIGON_INVALID_ARGUMENT, "x: expected a tensor"},
    {b_no_rstd, TIGON_INVALID_ARGUMENT, "rstd: expected a tensor"},
    {b_casting, TIGON_INVALID_ARGUMENT, "casting: "},
    {b_accumulate, TIGON_INVALID_ARGUMENT, "accumulate_d_weight: expected 0 or 1, got 2"},
    {b_accumulate_half, TIGON_INVALID_ARGUMENT, "d_weight: expected dtype float32"},
    {b_offset, TIGON_INVALID_ARGUMENT, "offset: "},
    {b_x_dtype, TIGON_INVALID_ARGUMENT, "x_dtype: "},
    {b_x_dtype_lanes, TIGON_INVALID_ARGUMENT, "x_dtype: "},
    {b_dy_shape, TIGON_INVALID_ARGUMENT, "dy: expected shape (6, 37), got (6, 36)"},
    {b_d_sum_dtype, TIGON_INVALID_ARGUMENT, "d_residual_out: expected dtype"},
    {b_weight_shape, TIGON_INVALID_ARGUMENT, "weight: expected shape"},
    {b_rstd_shape, TIGON_INVALID_ARGUMENT, "rstd: expected shape (6), got (5)"},
    {b_dx_expanded, TIGON_INVALID_ARGUMENT, "dx: expected an output without overlap"},
    {b_d_weight_shape, TIGON_INVALID_ARGUMENT, "d_weight: expected shape"},
    {b_dx_is_x, TIGON_INVALID_ARGUMENT, "dx: expected memory of its own, got that of x"},
    {b_d_residual_is_dy, TIGON_INVALID_ARGUMENT, "d_residual: expected memory of its own, got that of dy"},
    {b_d_residual_is_dx, TIGON_INVALID_ARGUMENT, "d_residual: expected memory of its own, got that of dx"},
    {b_d_weight_is_weight, TIGON_INVALID_ARGUMENT, "d_weight: expected memory of its own, got that of weight"},
    {b_null_dy, TIGON_INVALID_ARGUMENT, "dy: expected data"},
};

/* All tensors present, fp32, nothing accumulated; the outputs hold their poison. */
static void make(problem *p) {
  rms_options options = rms_option_sets[2];
  problem_make(p, (rms_shape){6, 0, 37}, options, rms_plain_mix(0), 1);
  test_tensor_fill_value(&p->t[RSTD], 1);
  test_tensor_fill_value(&p->t[SUM], 1);
}

static void check_untouched(const problem *p, const unsigned char *const before[TENSORS]) {
  for (int i = 0; i < TENSORS; i++)
    if (memcmp(before[i], p->t[i].block, p->t[i].bytes) != 0) fail_msg("tensor %d was written", i);
}

static void save(const problem *p, unsigned char *before[TENSORS]) {
  for (int i = 0; i < TENSORS; i++) {
    before[i] = malloc(p->t[i].bytes);
    assert_non_null(before[i]);
    memcpy(before[i], p->t[i].block, p->t[i].bytes);
  }
}

static void release(problem *p, unsigned char *before[TENSORS]) {
  for (int i = 0; i < TENSORS; i++) {
    free(before[i]);
    test_tensor_free(&p->t[i]);
  }
}

static void test_forward_errors(void **state) {
  (void)state;
  for (int i = 0; i < COUNT(forward_errors); i++) {
    problem p;
    unsigned char *before[TENSORS];
    make(&p);
    tigon_rms_norm_args args = problem_forward_args(&p);
    test_expect_status(tigon_rms_norm(NULL, &args), TIGON_OK, NULL);
    save(&p, before);
    forward_errors[i].change(&p, &args);
    test_expect_status(tigon_rms_norm(NULL, &args), forward_errors[i].status, forward_errors[i].text);
    check_untouched(&p, (const unsigned char *const *)before);
    release(&p, before);
    test_count_case();
  }
}

static void test_backward_errors(void **state) {
  (void)state;
  for (int i = 0; i < COUNT(backward_errors); i++) {
    problem p;
    unsigned char *before[TENSORS];
    make(&p);
    tigon_rms_norm_backward_args args = problem_backward_args(&p);
    test_workspace w;
    test_workspace_make(&w, 4096, 1);
    test_expect_status(tigon_rms_norm_backward(&w.exec, &args), TIGON_OK, NULL);
    save(&p, before);
    backward_errors[i].change(&p, &args);
    test_expect_status(tigon_rms_norm_backward(&w.exec, &args), backward_errors[i].status, backward_errors[i].text);
    check_untouched(&p, (const unsigned char *const *)before);
    test_workspace_free(&w);
    release(&p, before);
    test_count_case();
  }
}

/* Queries need no data, and refuse what the call refuses. */
static void test_queries_without_data(void **state) {
  (void)state;
  problem p;
  make(&p);
  void *data[TENSORS];
  for (int i = 0; i < TENSORS; i++) {
    data[i] = p.t[i].tensor.dl.data;
    p.t[i].tensor.dl.data = NULL;
  }
  tigon_rms_norm_args forward = problem_forward_args(&p);
  tigon_rms_norm_backward_args backward = problem_backward_args(&p);
  uint64_t bytes = 1;
  test_expect_status(tigon_rms_norm_workspace(NULL, &forward, &bytes), TIGON_OK, NULL);
  assert_int_equal(bytes, 0);
  test_expect_status(tigon_rms_norm_backward_workspace(NULL, &backward, &bytes), TIGON_OK, NULL);
  assert_int_equal(bytes, 256);
  test_expect_status(tigon_rms_norm_workspace(NULL, &forward, NULL), TIGON_INVALID_ARGUMENT, "bytes");
  test_expect_status(tigon_rms_norm_backward_workspace(NULL, NULL, &bytes), TIGON_INVALID_ARGUMENT, "args");
  backward.casting = 9;
  test_expect_status(tigon_rms_norm_backward_workspace(NULL, &backward, &bytes), TIGON_INVALID_ARGUMENT, "casting");
  for (int i = 0; i < TENSORS; i++) p.t[i].tensor.dl.data = data[i];
  problem_free(&p);
}

static void corrupt(test_rng *rng, DLTensor *t) {
  const int64_t values[] = {-1, 0, 1, 2, 3, 36, 37, 38, INT64_MAX, INT64_MIN, INT64_C(1) << 60, INT64_C(1) << 32};
  const int64_t value = values[test_random_range(rng, 0, COUNT(values) - 1)];
  switch (test_random_range(rng, 0, 8)) {
  case 0:
    t->ndim = (int)test_random_range(rng, -2, 9);
    if (t->ndim > 2) t->shape = NULL;
    break;
  case 1:
    t->shape[0] = value;
    break;
  case 2:
    t->shape[t->ndim - 1] = value;
    break;
  case 3: /* a vector of statistics may have any stride, so only matrices */
    if (t->ndim == 2) t->strides[1] = value == 1 ? 2 : value;
    break;
  case 4:
    t->dtype.code = (uint8_t)test_random(rng);
    break;
  case 5:
    t->dtype.bits = (uint8_t)test_random(rng);
    break;
  case 6:
    t->dtype.lanes = (uint16_t)test_random(rng);
    break;
  case 7:
    t->data = NULL;
    break;
  default:
    t->device.device_type = (DLDeviceType)test_random_range(rng, 2, 20);
    break;
  }
}

/* Random damage to a valid backward call (all of forward's tensors and more): refused without a trace, or harmless. */
static void test_random_corruptions(void **state) {
  (void)state;
  const int64_t first_option = offsetof(tigon_rms_norm_backward_args, x_dtype);
  test_rng rng = {99};
  int refused = 0;
  for (int i = 0; i < 4000; i++) {
    problem p;
    unsigned char *before[TENSORS];
    make(&p);
    const bool forward = i & 1;
    tigon_rms_norm_args forward_args = problem_forward_args(&p);
    tigon_rms_norm_backward_args backward_args = problem_backward_args(&p);
    test_workspace w;
    test_workspace_make(&w, 4096, 1);
    save(&p, before);
    const int which = (int)test_random_range(&rng, 0, TENSORS - 1);
    corrupt(&rng, &p.t[which].tensor.dl);
    if (i % 5 == 0)
      memset((char *)&backward_args + test_random_range(&rng, first_option, sizeof backward_args - 1), 0xff, 1);
    const tigon_status status =
        forward ? tigon_rms_norm(&w.exec, &forward_args) : tigon_rms_norm_backward(&w.exec, &backward_args);
    if (status != TIGON_OK) {
      check_untouched(&p, (const unsigned char *const *)before);
      refused++;
    }
    test_workspace_free(&w);
    release(&p, before);
  }
  assert_true(refused > 1500);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_forward_errors),
      cmocka_unit_test(test_backward_errors),
      cmocka_unit_test(test_queries_without_data),
      cmocka_unit_test(test_random_corruptions),
  };
  return test_gate_report("rms_norm", cmocka_run_group_tests(tests, NULL, NULL));
}
