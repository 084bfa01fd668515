/* Wrong arguments of tigon_linear: refused with a message that names the argument, nothing written, never a crash. */
#include "tests/linear/problem.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

typedef void (*change_function)(problem *p, tigon_linear_args *f, tigon_linear_backward_args *b);

typedef struct error_case {
  change_function change;
  bool backward;
  const char *text;
} error_case;

#define CHANGE(name, ...)                                                             \
  static void name(problem *p, tigon_linear_args *f, tigon_linear_backward_args *b) { \
    (void)p;                                                                          \
    (void)f;                                                                          \
    (void)b;                                                                          \
    __VA_ARGS__;                                                                      \
  }

CHANGE(no_x, f->x = NULL; b->x = NULL)
CHANGE(no_weight, f->weight = NULL; b->weight = NULL)
CHANGE(no_y, f->y = NULL)
CHANGE(no_dy, b->dy = NULL)
CHANGE(flat_x, p->t[X].tensor.dl.ndim = 1)
CHANGE(wide_weight, p->t[WEIGHT].tensor.shape[1]++)
CHANGE(long_bias, p->t[BIAS].tensor.shape[0]++)
CHANGE(short_y, p->t[Y].tensor.shape[0]--)
CHANGE(integer_bias, p->t[BIAS].tensor.dl.dtype = tigon_i32())
CHANGE(expanded_y, p->t[Y].tensor.strides[0] = 0)
CHANGE(column_x, p->t[X].tensor.strides[1] = 3)
CHANGE(y_is_x, p->t[Y].tensor.dl.data = p->t[X].tensor.dl.data)
CHANGE(null_weight, p->t[WEIGHT].tensor.dl.data = NULL)
CHANGE(gpu_y, p->t[Y].tensor.dl.device.device_type = kDLCUDA)
CHANGE(no_size, f->size = b->size = 1)
CHANGE(accumulate_dx, b->accumulate_dx = 5)
CHANGE(accumulate_half, b->accumulate_dx = 1; p->t[DX].tensor.dl.dtype = tigon_f16())
CHANGE(accumulate_dweight, b->accumulate_dweight = -1)
CHANGE(accumulate_half_bias, b->accumulate_dweight = 1; p->t[DBIAS].tensor.dl.dtype = tigon_bf16())
CHANGE(short_dx, p->t[DX].tensor.shape[1]--)
CHANGE(short_dweight, p->t[DWEIGHT].tensor.shape[0]--)
CHANGE(short_dbias, p->t[DBIAS].tensor.shape[0]--)
CHANGE(dx_is_dy, p->t[DX].tensor.dl.data = p->t[DY].tensor.dl.data)
CHANGE(dweight_is_dx, p->t[DWEIGHT].tensor.dl.data = p->t[DX].tensor.dl.data)

static const error_case error_cases[] = {
    {no_x, false, "tigon_linear: x: expected a tensor, got NULL"},
    {no_weight, false, "tigon_linear: weight: expected a tensor, got NULL"},
    {no_y, false, "tigon_linear: y: expected a tensor, got NULL"},
    {flat_x, false, "tigon_linear: x: expected shape (*, *), got (30)"},
    {wide_weight, false, "tigon_linear: weight: expected shape (*, 20), got (25, 21)"},
    {long_bias, false, "tigon_linear: bias: expected shape (25), got (26)"},
    {short_y, false, "tigon_linear: y: expected shape (30, 25), got (29, 25)"},
    {integer_bias, false, "tigon_linear: bias: expected dtype"},
    {expanded_y, false, "tigon_linear: y: expected an output without overlap"},
    {column_x, false, "tigon_linear: x: expected a contiguous last dimension"},
    {y_is_x, false, "tigon_linear: y: expected memory of its own, got that of x"},
    {null_weight, false, "tigon_linear: weight: expected data, got NULL"},
    {gpu_y, false, "tigon_linear: y: expected a CPU tensor"},
    {no_size, false, "tigon_linear: args: expected its member size"},
    {no_dy, true, "tigon_linear_backward: dy: expected a tensor, got NULL"},
    {no_x, true, "tigon_linear_backward: x: expected a tensor, got NULL"},
    {no_weight, true, "tigon_linear_backward: weight: expected a tensor, got NULL"},
    {accumulate_dx, true, "tigon_linear_backward: accumulate_dx: expected 0 or 1, got 5"},
    {accumulate_half, true, "tigon_linear_backward: dx: expected dtype float32, because accumulate_dx is 1"},
    {accumulate_dweight, true, "tigon_linear_backward: accumulate_dweight: expected 0 or 1, got -1"},
    {accumulate_half_bias, true,
     "tigon_linear_backward: dbias: expected dtype float32, because accumulate_dweight is 1"},
    {short_dx, true, "tigon_linear_backward: dx: expected shape (30, 20), got (30, 19)"},
    {short_dweight, true, "tigon_linear_backward: dweight: expected shape (25, 20), got (24, 20)"},
    {short_dbias, true, "tigon_linear_backward: dbias: expected shape (25), got (24)"},
    {dx_is_dy, true, "tigon_linear_backward: dx: expected memory of its own, got that of dy"},
    {dweight_is_dx, true, "tigon_linear_backward: dweight: expected memory of its own, got that of dx"},
    {no_size, true, "tigon_linear_backward: args: expected its member size"},
};

static tigon_status call(problem *p, bool backward, change_function change, test_workspace *w) {
  tigon_linear_args forward_args = problem_forward_args(p);
  tigon_linear_backward_args backward_args = problem_backward_args(p);
  if (change) change(p, &forward_args, &backward_args);
  return backward ? tigon_linear_backward(&w->exec, &backward_args) : tigon_linear(&w->exec, &forward_args);
}

enum { TOKENS = 30, N = 25, D = 20 };

/* All tensors present, fp32; outputs hold their poison. */
static void make(problem *p) { problem_make(p, (linear_shape){TOKENS, N, D}, linear_option_sets[0], linear_mix(0), 1); }

static void make_workspace(test_workspace *w) {
  problem p;
  make(&p);
  const tigon_linear_args args = problem_forward_args(&p);
  const tigon_exec query = {.size = sizeof query, .num_threads = 1};
  uint64_t bytes = 0;
  test_expect_status(tigon_linear_workspace(&query, &args, &bytes), TIGON_OK, NULL);
  assert_true(bytes > 0);
  test_workspace_make(w, bytes, 1);
  problem_free(&p);
}

static void save(const problem *p, unsigned char *before[TENSORS]) {
  for (int i = 0; i < TENSORS; i++) {
    before[i] = malloc(p->t[i].bytes);
    assert_non_null(before[i]);
    memcpy(before[i], p->t[i].block, p->t[i].bytes);
  }
}

static void release(problem *p, unsigned char *before[TENSORS], bool untouched) {
  for (int i = 0; i < TENSORS; i++) {
    if (untouched && memcmp(before[i], p->t[i].block, p->t[i].bytes) != 0) fail_msg("tensor %d was written", i);
    free(before[i]);
    test_tensor_free(&p->t[i]);
  }
}

static void test_errors(void **state) {
  (void)state;
  test_workspace w;
  make_workspace(&w);
  for (int i = 0; i < COUNT(error_cases); i++) {
    problem p;
    unsigned char *before[TENSORS];
    make(&p);
    test_expect_status(call(&p, error_cases[i].backward, NULL, &w), TIGON_OK, NULL);
    save(&p, before);
    test_expect_status(call(&p, error_cases[i].backward, error_cases[i].change, &w), TIGON_INVALID_ARGUMENT,
                       error_cases[i].text);
    release(&p, before, true);
    test_count_case();
  }
  test_workspace_free(&w);
}

static void test_queries(void **state) {
  (void)state;
  uint64_t last_forward = 0, last_backward = 0;
  for (int64_t tokens = 0; tokens < 5000; tokens += 1 + tokens / 3) {
    tigon_tensor x, weight, y, dx;
    tigon_linear_args forward = {.size = sizeof forward};
    forward.x = tigon_tensor_2d(&x, NULL, tigon_bf16(), tokens, 100);
    forward.weight = tigon_tensor_2d(&weight, NULL, tigon_f32(), 50, 100);
    forward.y = tigon_tensor_2d(&y, NULL, tigon_f16(), tokens, 50);
    tigon_linear_backward_args backward = {.size = sizeof backward};
    backward.dy = &y.dl;
    backward.weight = &weight.dl;
    backward.dx = tigon_tensor_2d(&dx, NULL, tigon_f32(), tokens, 100);
    uint64_t bytes = 1;
    test_expect_status(tigon_linear_workspace(NULL, &forward, &bytes), TIGON_OK, NULL);
    assert_true(bytes >= last_forward && bytes % 256 == 0);
    last_forward = bytes;
    test_expect_status(tigon_linear_backward_workspace(NULL, &backward, &bytes), TIGON_OK, NULL);
    assert_true(bytes >= last_backward && bytes % 256 == 0);
    last_backward = bytes;
    test_expect_status(tigon_linear_workspace(NULL, &forward, NULL), TIGON_INVALID_ARGUMENT, "bytes");
    test_expect_status(tigon_linear_workspace(NULL, NULL, &bytes), TIGON_INVALID_ARGUMENT, "args");
  }
  assert_true(last_forward > 0 && last_backward > 0);
}

static void corrupt(test_rng *rng, DLTensor *t) {
  const int64_t values[] = {-1, 0, 1, 19, 21, 24, 26, 29, 31, INT64_MAX, INT64_MIN, INT64_C(1) << 60, INT64_C(1) << 32};
  const int64_t value = values[test_random_range(rng, 0, COUNT(values) - 1)];
  switch (test_random_range(rng, 0, 7)) {
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
  case 3:
    if (t->ndim == 2) t->strides[1] = value == 1 ? 2 : value;
    break;
  case 4:
    t->dtype.code = (uint8_t)test_random(rng);
    break;
  case 5:
    t->dtype.bits = (uint8_t)test_random(rng);
    break;
  case 6:
    t->data = NULL;
    break;
  default:
    t->device.device_type = (DLDeviceType)test_random_range(rng, 2, 20);
    break;
  }
}

static void test_random_corruptions(void **state) {
  (void)state;
  test_rng rng = {99};
  test_workspace w;
  make_workspace(&w);
  int refused = 0;
  for (int i = 0; i < 3000; i++) {
    problem p;
    unsigned char *before[TENSORS];
    make(&p);
    save(&p, before);
    corrupt(&rng, &p.t[test_random_range(&rng, 0, TENSORS - 1)].tensor.dl);
    const tigon_status status = call(&p, i & 1, NULL, &w);
    refused += status != TIGON_OK;
    release(&p, before, status != TIGON_OK);
  }
  test_workspace_free(&w);
  assert_true(refused > 1000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_errors),
      cmocka_unit_test(test_queries),
      cmocka_unit_test(test_random_corruptions),
  };
  return test_gate_report("linear", cmocka_run_group_tests(tests, NULL, NULL));
}
