/* Tensor checks: what is accepted, and the exact text of what is not. */
#include "base/check.h"
#include "tests/support/support.h"

enum { ANY = -1 };

/* A checked tensor described by its parts; the message is empty where it must pass. */
typedef struct tensor_case {
  const char *message;
  int ndim;
  int64_t shape[3], stride[3]; /* stride all zero: NULL */
  unsigned kinds, flags;
  int expected_ndim;
  int64_t expected[3];
  DLDataType dtype;
  bool query, no_data, odd;
} tensor_case;

#define FLOAT32 \
  { kDLFloat, 32, 1 }

static const tensor_case tensor_cases[] = {
    {"", 2, {4, 8}, {0}, TIGON_FLOATS, 0, 2, {ANY, ANY}, FLOAT32, false, false, false},
    {"", 2, {4, 8}, {0}, TIGON_FLOATS, 0, 2, {4, 8}, {kDLBfloat, 16, 1}, false, false, false},
    {"", 2, {4, 8}, {-9, 1}, TIGON_FLOATS, 0, 2, {4, 8}, FLOAT32, false, false, false},
    {"", 2, {4, 8}, {0, 1}, TIGON_FLOATS, 0, 2, {4, 8}, FLOAT32, false, false, false},
    {"", 2, {4, 1}, {3, 77}, TIGON_FLOATS, TIGON_OUTPUT, 2, {4, 1}, FLOAT32, false, false, false},
    {"", 2, {1, 8}, {0, 1}, TIGON_FLOATS, TIGON_OUTPUT, 2, {1, 8}, FLOAT32, false, false, false},
    {"", 1, {4}, {5}, TIGON_FLOATS, TIGON_ANY_STRIDE, 1, {4}, FLOAT32, false, false, false},
    {"", 2, {0, 8}, {7, 9}, TIGON_FLOATS, TIGON_OUTPUT, 2, {0, 8}, FLOAT32, false, true, false},
    {"", 2, {4, 8}, {0}, TIGON_FLOATS, 0, 2, {4, 8}, FLOAT32, true, true, false},
    {"", 1, {4}, {0}, TIGON_INDICES, 0, 1, {4}, {kDLInt, 64, 1}, false, false, false},
    {"", 1, {4}, {5}, TIGON_FLAGS, TIGON_ANY_STRIDE, 1, {4}, {kDLUInt, 8, 1}, false, false, false},
    {"", 1, {4}, {0}, TIGON_FLAGS, 0, 1, {4}, {6, 8, 1}, false, false, false}, /* bool */
    {"", 1, {4}, {0}, TIGON_FLAGS, 0, 1, {4}, {kDLUInt, 8, 1}, false, false, true},
    {"expected dtype int32, int64, uint8 or bool, got int8",
     1,
     {4},
     {0},
     TIGON_FLAGS,
     0,
     1,
     {4},
     {kDLInt, 8, 1},
     false,
     false,
     false},
    {"expected dtype int32, int64, got uint8",
     1,
     {4},
     {0},
     TIGON_INDICES,
     0,
     1,
     {4},
     {kDLUInt, 8, 1},
     false,
     false,
     false},
    {"expected shape (4, 9), got (4, 8)", 2, {4, 8}, {0}, TIGON_FLOATS, 0, 2, {4, 9}, FLOAT32, false, false, false},
    {"expected shape (*, 9), got (4, 8)", 2, {4, 8}, {0}, TIGON_FLOATS, 0, 2, {ANY, 9}, FLOAT32, false, false, false},
    {"expected shape (4), got (4, 8)", 2, {4, 8}, {0}, TIGON_FLOATS, 0, 1, {4}, FLOAT32, false, false, false},
    {"expected shape (*, *), got (-1, 8)",
     2,
     {-1, 8},
     {0},
     TIGON_FLOATS,
     0,
     2,
     {ANY, ANY},
     FLOAT32,
     false,
     false,
     false},
    {"expected fewer than 2^60 elements",
     2,
     {INT64_C(1) << 31, INT64_C(1) << 31},
     {0},
     TIGON_FLOATS,
     0,
     2,
     {ANY, ANY},
     FLOAT32,
     true,
     true,
     false},
    {"expected fewer than 2^60 elements",
     2,
     {INT64_MAX, 0},
     {0},
     TIGON_FLOATS,
     0,
     2,
     {ANY, ANY},
     FLOAT32,
     true,
     true,
     false},
    {"expected a contiguous last dimension (stride 1), got stride 2",
     2,
     {4, 8},
     {16, 2},
     TIGON_FLOATS,
     0,
     2,
     {4, 8},
     FLOAT32,
     false,
     false,
     false},
    {"expected an output without overlap, got stride 0 in dimension 0",
     2,
     {4, 8},
     {0, 1},
     TIGON_FLOATS,
     TIGON_OUTPUT,
     2,
     {4, 8},
     FLOAT32,
     false,
     false,
     false},
    {"expected dtype float32, float16, bfloat16, got int32",
     1,
     {4},
     {0},
     TIGON_FLOATS,
     0,
     1,
     {4},
     {kDLInt, 32, 1},
     false,
     false,
     false},
    {"expected dtype int32, int64, got float32", 1, {4}, {0}, TIGON_INDICES, 0, 1, {4}, FLOAT32, false, false, false},
    {"expected dtype float32, got float32x4",
     1,
     {4},
     {0},
     TIGON_F32,
     0,
     1,
     {4},
     {kDLFloat, 32, 4},
     false,
     false,
     false},
    {"expected dtype float32, got float64", 1, {4}, {0}, TIGON_F32, 0, 1, {4}, {kDLFloat, 64, 1}, false, false, false},
    {"expected data, got NULL", 1, {4}, {0}, TIGON_FLOATS, 0, 1, {4}, FLOAT32, false, true, false},
    {"expected data aligned to its element size, got address",
     1,
     {4},
     {0},
     TIGON_FLOATS,
     0,
     1,
     {4},
     FLOAT32,
     false,
     false,
     true},
};

static float storage[64];

static void build(tigon_tensor *t, const tensor_case *c) {
  tigon_tensor_nd(t, c->no_data ? NULL : storage, c->dtype, c->ndim, c->shape);
  bool strided = false;
  for (int i = 0; i < c->ndim; i++) strided |= c->stride[i] != 0;
  if (strided) memcpy(t->strides, c->stride, (size_t)c->ndim * sizeof *t->strides);
  if (!strided) t->dl.strides = NULL;
  if (c->odd) t->dl.byte_offset = 1;
}

static void test_tensors(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof tensor_cases / sizeof *tensor_cases; i++) {
    const tensor_case *c = &tensor_cases[i];
    tigon_tensor t;
    build(&t, c);
    tigon_checker check = {.op = "tigon_op", .query = c->query};
    const tigon_view view = tigon_check_tensor(&check, "x", &t.dl, c->kinds, c->flags, c->expected_ndim, c->expected);
    char expected[160];
    snprintf(expected, sizeof expected, "tigon_op: x: %s", c->message);
    test_expect_status(check.status, *c->message ? TIGON_INVALID_ARGUMENT : TIGON_OK, expected);
    assert_int_equal(tigon_present(&view), !*c->message);
    if (!*c->message)
      for (int d = 0; d < 5; d++) assert_int_equal(view.shape[d], d < c->ndim ? c->shape[d] : 1);
  }
}

static void test_view_of_a_tensor(void **state) {
  (void)state;
  tigon_tensor t;
  tigon_tensor_3d(&t, storage, tigon_f32(), 2, 3, 4);
  t.dl.byte_offset = 8;
  t.strides[0] = 20;
  tigon_checker check = {.op = "tigon_op"};
  const tigon_view view = tigon_check_tensor(&check, "x", &t.dl, TIGON_FLOATS, 0, 3, (int64_t[]){ANY, ANY, ANY});
  assert_int_equal(check.status, TIGON_OK);
  assert_ptr_equal(view.data, (char *)storage + 8);
  assert_ptr_equal(tigon_at(&view, 1), (char *)storage + 8 + 80);
  assert_int_equal(tigon_elements(&view), 24);
  assert_int_equal(view.stride[0], 20);
  assert_int_equal(view.stride[1], 4);
  t.dl.strides = NULL; /* compact */
  const tigon_view compact = tigon_check_tensor(&check, "x", &t.dl, TIGON_FLOATS, 0, 3, (int64_t[]){ANY, ANY, ANY});
  assert_int_equal(compact.stride[0], 12);
}

/* Strides that are never taken may be any numbers; of those that are, products must not overflow. */
static void test_strides_of_any_size(void **state) {
  (void)state;
  const int64_t extents[] = {0, 1, 2};
  for (int i = 0; i < 3; i++)
    for (int query = 0; query < 2; query++) {
      tigon_tensor t;
      tigon_tensor_2d(&t, storage, tigon_f32(), extents[i], 4);
      t.strides[0] = INT64_MAX;
      tigon_checker check = {.op = "tigon_op", .query = query};
      const tigon_view view = tigon_check_tensor(&check, "x", &t.dl, TIGON_FLOATS, 0, 2, (int64_t[]){ANY, ANY});
      test_expect_status(check.status, i < 2 ? TIGON_OK : TIGON_INVALID_ARGUMENT,
                         "tigon_op: x: expected elements within 2^57 of the first, got stride 9223372036854775807");
      if (i < 2) assert_int_equal(view.stride[0], i * 4);
    }
}

static void test_absent_and_device(void **state) {
  (void)state;
  tigon_tensor t;
  tigon_tensor_1d(&t, storage, tigon_f32(), 4);
  tigon_checker check = {.op = "tigon_op"};
  tigon_view view = tigon_check_tensor(&check, "x", NULL, TIGON_FLOATS, TIGON_OPTIONAL, 1, (int64_t[]){4});
  assert_int_equal(check.status, TIGON_OK);
  assert_false(tigon_present(&view));
  t.dl.device.device_type = kDLCUDA;
  view = tigon_check_tensor(&check, "x", &t.dl, TIGON_FLOATS, 0, 1, (int64_t[]){4});
  test_expect_status(check.status, TIGON_INVALID_ARGUMENT, "tigon_op: x: expected a CPU tensor (device type 1), got 2");
  /* The first failure stays. */
  (void)tigon_check_tensor(&check, "y", NULL, TIGON_FLOATS, 0, 1, (int64_t[]){4});
  tigon_check_that(&check, false, "z", "expected nothing");
  test_expect_status(check.status, TIGON_INVALID_ARGUMENT, "tigon_op: x: ");
  tigon_checker other = {.op = "tigon_op"};
  (void)tigon_check_tensor(&other, "y", NULL, TIGON_FLOATS, 0, 1, (int64_t[]){4});
  test_expect_status(other.status, TIGON_INVALID_ARGUMENT, "tigon_op: y: expected a tensor, got NULL");
}

static void test_shapes_of_bad_tensors(void **state) {
  (void)state;
  tigon_tensor t;
  const int dims[] = {-1, 0, 9, INT32_MAX, INT32_MIN};
  int64_t many[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
    for (int null = 0; null < 2; null++) {
      tigon_tensor_1d(&t, storage, tigon_f32(), 4);
      t.dl.ndim = dims[i];
      t.dl.shape = null ? NULL : many;
      tigon_checker check = {.op = "tigon_op"};
      (void)tigon_check_tensor(&check, "x", &t.dl, TIGON_FLOATS, 0, 1, (int64_t[]){ANY});
      test_expect_status(check.status, TIGON_INVALID_ARGUMENT, "tigon_op: x: expected shape (*), got (");
    }
}

static void test_apart_and_alone(void **state) {
  (void)state;
  tigon_tensor t;
  tigon_tensor_1d(&t, storage, tigon_f32(), 4);
  tigon_checker check = {.op = "tigon_op"};
  const tigon_view a = tigon_check_tensor(&check, "a", &t.dl, TIGON_FLOATS, 0, 1, (int64_t[]){4});
  t.dl.byte_offset = 16;
  const tigon_view b = tigon_check_tensor(&check, "b", &t.dl, TIGON_FLOATS, 0, 1, (int64_t[]){4}), none = {0};
  tigon_check_apart(&check, "b", &b, "a", &a);
  tigon_check_apart(&check, "b", &b, "none", &none);
  tigon_check_alone(&check, NULL, "begin", 0);
  assert_int_equal(check.status, TIGON_OK);
  tigon_check_apart(&check, "out", &a, "a", &a);
  test_expect_status(check.status, TIGON_INVALID_ARGUMENT, "tigon_op: out: expected memory of its own, got that of a");
  t.dl.byte_offset = 4;
  tigon_checker shifted = {.op = "tigon_op"}, alias = {.op = "tigon_op"};
  const tigon_view c = tigon_check_tensor(&shifted, "c", &t.dl, TIGON_FLOATS, 0, 1, (int64_t[]){4});
  tigon_check_same_or_apart(&alias, "out", &a, "a", &a);
  tigon_check_same_or_apart(&alias, "out", &a, "b", &b);
  tigon_check_same_or_apart(&alias, "out", &a, "none", &none);
  assert_int_equal(alias.status, TIGON_OK);
  tigon_check_same_or_apart(&alias, "out", &c, "a", &a);
  test_expect_status(alias.status, TIGON_INVALID_ARGUMENT, "tigon_op: out: expected memory of its own, got that of a");
  tigon_check_apart(&shifted, "out", &c, "a", &a);
  test_expect_status(shifted.status, TIGON_INVALID_ARGUMENT, "tigon_op: out: expected memory of its own");
  tigon_checker folded = {.op = "tigon_op"};
  tigon_tensor_2d(&t, storage, tigon_f32(), 3, 4);
  t.strides[0] = 3;
  (void)tigon_check_tensor(&folded, "out", &t.dl, TIGON_FLOATS, TIGON_OUTPUT, 2, (int64_t[]){3, 4});
  test_expect_status(folded.status, TIGON_INVALID_ARGUMENT,
                     "tigon_op: out: expected an output without overlap, got stride 3 in dimension 0");
  tigon_checker team = {.op = "tigon_op"}, shard = {.op = "tigon_op"};
  tigon_check_alone(&team, (const tigon_team *)storage, "begin", 0);
  test_expect_status(team.status, TIGON_UNSUPPORTED, "tigon_op: team: expected NULL");
  tigon_check_alone(&shard, NULL, "begin", 5);
  test_expect_status(shard.status, TIGON_UNSUPPORTED, "tigon_op: begin: expected 0");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_tensors),
      cmocka_unit_test(test_view_of_a_tensor),
      cmocka_unit_test(test_strides_of_any_size),
      cmocka_unit_test(test_absent_and_device),
      cmocka_unit_test(test_shapes_of_bad_tensors),
      cmocka_unit_test(test_apart_and_alone),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
