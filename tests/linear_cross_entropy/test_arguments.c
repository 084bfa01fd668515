/* Argument checks: each rule with its message, and random corruptions, which must never write or crash. */
#include "tests/linear_cross_entropy/problem.h"

static const lce_case base_case = {"arguments",
                                   17,
                                   8,
                                   33,
                                   HALF(TIGON_BF16),
                                   BF16_BIAS,
                                   .upstream = ALL,
                                   .z_loss = 0.1f,
                                   .class_weight = POSITIVE,
                                   .token_weight = true};

/* Both passes on their own copies of the tensors' descriptions, so that a corruption is undone by making them again. */
typedef struct call {
  lce_tensors t;
  test_workspace w;
  bool backward;
  tigon_exec exec;
} call;

static void call_make(call *c, bool backward) {
  lce_make(&c->t, &base_case, 2);
  if (backward) lce_run_forward(&c->t, 1, NULL);
  c->backward = backward;
  uint64_t bytes = 0;
  const tigon_exec exec = {.size = sizeof exec, .num_threads = 1};
  test_expect_status(backward ? tigon_linear_cross_entropy_backward_workspace(&exec, &c->t.backward, &bytes)
                              : tigon_linear_cross_entropy_workspace(&exec, &c->t.forward, &bytes),
                     TIGON_OK, NULL);
  test_workspace_make(&c->w, bytes, 1);
  c->exec = c->w.exec;
}

static void call_free(call *c) {
  test_workspace_free(&c->w);
  lce_free(&c->t);
}

static tigon_status call_run(call *c) {
  return c->backward ? tigon_linear_cross_entropy_backward(&c->exec, &c->t.backward)
                     : tigon_linear_cross_entropy(&c->exec, &c->t.forward);
}

static tigon_status call_query(call *c, uint64_t *bytes) {
  return c->backward ? tigon_linear_cross_entropy_backward_workspace(&c->exec, &c->t.backward, bytes)
                     : tigon_linear_cross_entropy_workspace(&c->exec, &c->t.forward, bytes);
}

/* The outputs of the pass. */
static int list_outputs(call *c, test_tensor *list[7]) {
  test_tensor *forward[] = {&c->t.loss,   &c->t.nll,     &c->t.lse,    &c->t.entropy,
                            &c->t.argmax, &c->t.correct, &c->t.partial};
  test_tensor *backward[] = {&c->t.dx, &c->t.dweight, &c->t.dbias, NULL, NULL, NULL, NULL};
  memcpy(list, c->backward ? backward : forward, sizeof forward);
  return c->backward ? 3 : 7;
}

static void poison_outputs(call *c) {
  test_tensor *list[7];
  for (int i = list_outputs(c, list) - 1; i >= 0; i--) memset(list[i]->block, 0xff, list[i]->bytes);
}

static void check_untouched(call *c) {
  test_tensor *list[7];
  for (int i = list_outputs(c, list) - 1; i >= 0; i--)
    for (size_t j = 0; j < list[i]->bytes; j++)
      if (list[i]->block[j] != 0xff) fail_msg("output %d was written", i);
}

/* --- the table -------------------------------------------------------------------------------------------------- */

typedef enum which { FORWARD = 1, BACKWARD = 2, BOTH = 3 } which;

typedef struct mistake {
  const char *fragment; /* of the message */
  void (*make)(call *);
  which pass;
  tigon_status status; /* TIGON_OK stands for INVALID_ARGUMENT */
  bool data;           /* concerns data, which queries do not see */
} mistake;

#define SET(name, statement) \
  static void name(call *c) { statement; }
#define SET_BOTH(name, member, value) SET(name, c->t.forward.member = c->t.backward.member = value)

SET_BOTH(no_x, x, NULL)
SET_BOTH(no_weight, weight, NULL)
SET_BOTH(no_target, target, NULL)
SET(no_lse, c->t.backward.lse = NULL)
SET(no_entropy, c->t.backward.entropy = NULL)
SET(x_vector, c->t.x.tensor.dl.ndim = 1)
SET(x_int, c->t.x.tensor.dl.dtype = tigon_i32())
SET(x_double, c->t.x.tensor.dl.dtype.code = kDLFloat; c->t.x.tensor.dl.dtype.bits = 64)
SET(x_lanes, c->t.x.tensor.dl.dtype.lanes = 2)
SET(x_negative, c->t.x.tensor.shape[0] = -1)
SET(x_columns, c->t.x.tensor.strides[1] = 2)
SET(x_device, c->t.x.tensor.dl.device.device_type = kDLCUDA)
SET(x_null, c->t.x.tensor.dl.data = NULL)
SET(x_skewed, c->t.x.tensor.dl.byte_offset = 1)
SET(x_huge, c->t.x.tensor.shape[0] = (int64_t)INT32_MAX + 1)
SET(weight_width, c->t.weight.tensor.shape[1] = 7)
SET(weight_columns, c->t.weight.tensor.strides[1] = -1)
SET(bias_short, c->t.bias.tensor.shape[0] = 32)
SET(bias_spaced, c->t.bias.tensor.strides[0] = 2)
SET(target_float, c->t.target.tensor.dl.dtype = tigon_f32())
SET(target_short, c->t.target.tensor.shape[0] = 16)
SET(target_matrix, c->t.target.tensor.dl.ndim = 2)
SET(loss_half, c->t.loss.tensor.dl.dtype = tigon_bf16())
SET(loss_expanded, c->t.loss.tensor.strides[0] = 0)
SET(nll_long, c->t.nll.tensor.shape[0] = 18)
SET(lse_half, c->t.lse.tensor.dl.dtype = tigon_f16())
SET(lse_is_nll, c->t.lse.tensor.dl.data = c->t.nll.tensor.dl.data)
SET(entropy_is_x, c->t.entropy.tensor.dl.data = c->t.x.tensor.dl.data)
SET(entropy_short, c->t.entropy.tensor.shape[0] = 16)
SET(d_loss_half, c->t.d_loss.tensor.dl.dtype = tigon_bf16())
SET(d_lse_short, c->t.d_lse.tensor.shape[0] = 1)
SET(d_entropy_matrix, c->t.d_entropy.tensor.dl.ndim = 2)
SET(dx_rows, c->t.dx.tensor.shape[0] = 16)
SET(dx_expanded, c->t.dx.tensor.strides[0] = 0)
SET(dx_is_x, c->t.dx.tensor.dl.data = c->t.x.tensor.dl.data)
SET(dweight_columns, c->t.dweight.tensor.strides[1] = 3)
SET(dweight_rows, c->t.dweight.tensor.shape[0] = 32)
SET(dweight_is_weight, c->t.dweight.tensor.dl.data = c->t.weight.tensor.dl.data)
SET(dbias_expanded, c->t.dbias.tensor.strides[0] = 0)
SET(dbias_int, c->t.dbias.tensor.dl.dtype = tigon_i64())
SET_BOTH(ignore_flag, set_ignore_index, 2)
SET_BOTH(begin_negative, vocab_begin, -1)
SET_BOTH(begin_huge, vocab_begin, INT64_MAX)
SET_BOTH(size_negative, vocab_size, -5)
SET(shard, c->t.forward.vocab_begin = 33; c->t.forward.class_weight = NULL)
SET(some_classes, c->t.forward.vocab_size = 34; c->t.forward.class_weight = NULL; c->t.forward.loss = NULL)
SET(many_classes, c->t.forward.vocab_size = (int64_t)INT32_MAX + 1; c->t.forward.class_weight = NULL;
    c->t.forward.loss = c->t.forward.nll = c->t.forward.lse = c->t.forward.entropy = c->t.forward.argmax =
        c->t.forward.correct = NULL)
SET_BOTH(negative_softcap, softcap, -1)
SET_BOTH(nan_softcap, softcap, NAN)
SET_BOTH(infinite_softcap, softcap, INFINITY)
SET_BOTH(negative_smoothing, label_smoothing, -0.1f)
SET_BOTH(large_smoothing, label_smoothing, 1.1f)
SET_BOTH(nan_smoothing, label_smoothing, NAN)
SET(class_weight_half, c->t.class_weight.tensor.dl.dtype = tigon_bf16())
SET(class_weight_short, c->t.class_weight.tensor.shape[0] = 32)
SET(class_weight_spaced, c->t.class_weight.tensor.strides[0] = 2)
SET(token_weight_long, c->t.token_weight.tensor.shape[0] = 18)
SET(token_weight_int, c->t.token_weight.tensor.dl.dtype = tigon_i32())
SET(argmax_float, c->t.argmax.tensor.dl.dtype = tigon_f32())
SET(argmax_is_target, c->t.argmax.tensor.dl.data = c->t.target.tensor.dl.data)
SET(correct_int, c->t.correct.tensor.dl.dtype = tigon_i32())
SET(correct_is_weight, c->t.correct.tensor.dl.data = c->t.token_weight.tensor.dl.data)
SET(partial_short, c->t.partial.tensor.shape[1] = 7)
SET(partial_half, c->t.partial.tensor.dl.dtype = tigon_f16())
SET(accumulate_flag, c->t.backward.accumulate_weight_gradients = 2)
SET(accumulate_half, c->t.backward.accumulate_weight_gradients = 1)
SET(reserved, c->t.backward.reserved = 1)
SET_BOTH(team, team, (const tigon_team *)(const void *)c)
SET_BOTH(negative_temperature, inverse_temperature, -1)
SET_BOTH(nan_temperature, inverse_temperature, NAN)
SET_BOTH(infinite_temperature, inverse_temperature, INFINITY)
SET_BOTH(nan_z_loss, z_loss, NAN)
SET_BOTH(small_size, size, 4)
SET(exec_device, c->exec.device.device_type = kDLCUDA)
SET(exec_threads, c->exec.num_threads = -1)
SET(exec_size, c->exec.size = 0)
SET(bias_gone_dbias_short, c->t.forward.bias = c->t.backward.bias = NULL; c->t.dbias.tensor.shape[0] = 3)

static const mistake mistakes[] = {
    {": x: expected a tensor", no_x, .pass = BOTH},
    {": weight: expected a tensor", no_weight, .pass = BOTH},
    {": target: expected a tensor", no_target, .pass = BOTH},
    {": lse: expected a tensor", no_lse, .pass = BACKWARD},
    {": entropy: expected a tensor", no_entropy, .pass = BACKWARD},
    {": x: expected shape", x_vector, .pass = BOTH},
    {": x: expected dtype", x_int, .pass = BOTH},
    {": x: expected dtype", x_double, .pass = BOTH},
    {": x: expected dtype", x_lanes, .pass = BOTH},
    {": x: expected shape", x_negative, .pass = BOTH},
    {": x: expected a contiguous", x_columns, .pass = BOTH},
    {": x: expected a CPU tensor", x_device, .pass = BOTH},
    {": x: expected data", x_null, .pass = BOTH, .data = true},
    {": x: expected data aligned", x_skewed, .pass = BOTH, .data = true},
    {": x: expected at most 2147483647 rows", x_huge, .pass = BOTH},
    {": weight: expected shape (*, 8), got (33, 7)", weight_width, .pass = BOTH},
    {": weight: expected a contiguous", weight_columns, .pass = BOTH},
    {": bias: expected shape (33), got (32)", bias_short, .pass = BOTH},
    {": bias: expected a contiguous", bias_spaced, .pass = BOTH},
    {": target: expected dtype int32, int64", target_float, .pass = BOTH},
    {": target: expected shape (17), got (16)", target_short, .pass = BOTH},
    {": target: expected shape", target_matrix, .pass = BOTH},
    {": loss: expected dtype float32", loss_half, .pass = FORWARD},
    {": loss: expected an output without overlap", loss_expanded, .pass = FORWARD},
    {": nll: expected shape (17), got (18)", nll_long, .pass = FORWARD},
    {": lse: expected dtype float32", lse_half, .pass = BOTH},
    {": nll: expected memory of its own", lse_is_nll, .pass = FORWARD, .data = true},
    {": entropy: expected memory of its own, got that of x", entropy_is_x, .pass = FORWARD, .data = true},
    {": entropy: expected shape (17), got (16)", entropy_short, .pass = BOTH},
    {": d_loss: expected dtype float32", d_loss_half, .pass = BACKWARD},
    {": d_lse: expected shape (17), got (1)", d_lse_short, .pass = BACKWARD},
    {": d_entropy: expected shape", d_entropy_matrix, .pass = BACKWARD},
    {": dx: expected shape (17, 8), got (16, 8)", dx_rows, .pass = BACKWARD},
    {": dx: expected an output without overlap", dx_expanded, .pass = BACKWARD},
    {": dx: expected memory of its own, got that of x", dx_is_x, .pass = BACKWARD, .data = true},
    {": dweight: expected a contiguous", dweight_columns, .pass = BACKWARD},
    {": dweight: expected shape (33, 8), got (32, 8)", dweight_rows, .pass = BACKWARD},
    {": dweight: expected memory of its own", dweight_is_weight, .pass = BACKWARD, .data = true},
    {": dbias: expected", dbias_expanded, .pass = BACKWARD},
    {": dbias: expected dtype", dbias_int, .pass = BACKWARD},
    {": dbias: expected shape (33), got (3)", bias_gone_dbias_short, .pass = BACKWARD},
    {": set_ignore_index: expected 0 or 1, got 2", ignore_flag, .pass = BOTH},
    {": vocab_begin: expected a class, 0 or more, got -1", begin_negative, .pass = BOTH},
    {": vocab_begin: expected", begin_huge, .pass = BOTH},
    {": vocab_size: expected the number of classes", size_negative, .pass = BOTH},
    {": loss: expected NULL where weight holds 33 of the 66 classes (from 33 on)", shard, .pass = FORWARD},
    {": nll: expected NULL where weight holds 33 of the 34 classes (from 0 on)", some_classes, .pass = FORWARD},
    {": vocab_size: expected at most 2147483647 classes", many_classes, .pass = FORWARD},
    {": softcap: expected a positive finite number", negative_softcap, .pass = BOTH},
    {": softcap: expected", nan_softcap, .pass = BOTH},
    {": softcap: expected", infinite_softcap, .pass = BOTH},
    {": label_smoothing: expected a number from 0 to 1, got -0.1", negative_smoothing, .pass = BOTH},
    {": label_smoothing: expected", large_smoothing, .pass = BOTH},
    {": label_smoothing: expected", nan_smoothing, .pass = BOTH},
    {": class_weight: expected dtype float32, got bfloat16", class_weight_half, .pass = BOTH},
    {": class_weight: expected shape (33), got (32)", class_weight_short, .pass = BOTH},
    {": class_weight: expected a contiguous", class_weight_spaced, .pass = BOTH},
    {": token_weight: expected shape (17), got (18)", token_weight_long, .pass = BOTH},
    {": token_weight: expected dtype float32", token_weight_int, .pass = BOTH},
    {": argmax: expected dtype int32, int64", argmax_float, .pass = FORWARD},
    {": argmax: expected memory of its own, got that of target", argmax_is_target, .pass = FORWARD, .data = true},
    {": correct: expected dtype float32", correct_int, .pass = FORWARD},
    {": correct: expected memory of its own, got that of token_weight", correct_is_weight, .pass = FORWARD,
     .data = true},
    {": partial: expected shape (17, 8), got (17, 7)", partial_short, .pass = FORWARD},
    {": partial: expected dtype float32", partial_half, .pass = FORWARD},
    {": accumulate_weight_gradients: expected 0 or 1, got 2", accumulate_flag, .pass = BACKWARD},
    {": dweight: expected dtype float32, got bfloat16", accumulate_half, .pass = BACKWARD},
    {": reserved: expected 0, got 1", reserved, .pass = BACKWARD},
    {": team: ", team, .pass = BOTH, .status = TIGON_UNSUPPORTED},
    {": inverse_temperature: expected", negative_temperature, .pass = BOTH},
    {": inverse_temperature: expected", nan_temperature, .pass = BOTH},
    {": inverse_temperature: expected", infinite_temperature, .pass = BOTH},
    {": z_loss: expected a finite number", nan_z_loss, .pass = BOTH},
    {": args: expected its member size", small_size, .pass = BOTH},
    {": exec.device: ", exec_device, .pass = BOTH, .status = TIGON_UNSUPPORTED},
    {": exec.num_threads: ", exec_threads, .pass = BOTH},
    {": exec: ", exec_size, .pass = BOTH},
};

static void test_mistakes(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++)
    for (int backward = 0; backward < 2; backward++) {
      const mistake *m = &mistakes[i];
      if (!(m->pass & (backward ? BACKWARD : FORWARD))) continue;
      const tigon_status expected = m->status == TIGON_OK ? TIGON_INVALID_ARGUMENT : m->status;
      call c;
      call_make(&c, backward);
      m->make(&c);
      test_expect_status(call_run(&c), expected, m->fragment);
      const char *op = backward ? "tigon_linear_cross_entropy_backward: " : "tigon_linear_cross_entropy: ";
      assert_true(strncmp(tigon_last_error(), op, strlen(op)) == 0);
      uint64_t bytes = 7;
      test_expect_status(call_query(&c, &bytes), m->data ? TIGON_OK : expected, m->fragment);
      if (!m->data) assert_int_equal(bytes, 7);
      assert_true(m->data || strncmp(tigon_last_error(), op, strlen(op)) == 0); /* queries speak for the operation */
      check_untouched(&c);
      call_free(&c);
      test_count_case();
    }
}

static void test_null_structs(void **state) {
  (void)state;
  uint64_t bytes;
  test_expect_status(tigon_linear_cross_entropy(NULL, NULL), TIGON_INVALID_ARGUMENT, "args");
  test_expect_status(tigon_linear_cross_entropy_backward(NULL, NULL), TIGON_INVALID_ARGUMENT, "args");
  test_expect_status(tigon_linear_cross_entropy_workspace(NULL, NULL, &bytes), TIGON_INVALID_ARGUMENT, "args");
  call c;
  for (int backward = 0; backward < 2; backward++) {
    call_make(&c, backward);
    test_expect_status(call_query(&c, NULL), TIGON_INVALID_ARGUMENT, "bytes");
    call_free(&c);
  }
}

/* A newer caller's struct is longer: fine while the tail is zeros. An older caller's is shorter: the rest is
 * default. */
static void test_struct_sizes(void **state) {
  (void)state;
  struct {
    tigon_linear_cross_entropy_args args;
    int64_t tail[2];
  } longer = {0};
  call c;
  call_make(&c, false);
  longer.args = c.t.forward;
  longer.args.size = sizeof longer;
  test_expect_status(tigon_linear_cross_entropy(&c.exec, &longer.args), TIGON_OK, NULL);
  longer.tail[1] = 1;
  test_expect_status(tigon_linear_cross_entropy(&c.exec, &longer.args), TIGON_UNSUPPORTED, "args");
  poison_outputs(&c);
  c.t.forward.size = offsetof(tigon_linear_cross_entropy_args, inverse_temperature);
  c.t.forward.inverse_temperature = c.t.forward.z_loss = NAN; /* lie past the size */
  test_expect_status(call_run(&c), TIGON_OK, NULL);
  for (int64_t i = 0; i < base_case.tokens; i++) {
    assert_true(test_tensor_get(&c.t.loss, i) == test_tensor_get(&c.t.nll, i));
    assert_true(isnan(test_tensor_get(&c.t.correct, i)) && test_tensor_get(&c.t.argmax, i) == -1); /* as poisoned */
  }
  call_free(&c);
}

/* --- random corruptions ----------------------------------------------------------------------------------------- */

/* Changes that a check can see, or that are harmless: no stride or shape that stays valid but leaves the block. */
static void corrupt_tensor(test_tensor *t, test_rng *rng) {
  static const DLDataType types[] = {{kDLFloat, 64, 1}, {kDLInt, 8, 1},     {kDLUInt, 32, 1}, {kDLFloat, 16, 4},
                                     {kDLInt, 16, 1},   {kDLBfloat, 32, 1}, {200, 32, 1},     {kDLFloat, 0, 1}};
  DLTensor *dl = &t->tensor.dl;
  switch (test_random_range(rng, 0, 7)) {
  case 0:
    dl->ndim = (int32_t)test_random_range(rng, -3, 9);
    if (dl->ndim > 5) dl->shape = NULL;
    break;
  case 1:
    dl->dtype = types[test_random_range(rng, 0, 7)];
    break;
  case 2:
    t->tensor.shape[0] += test_random_range(rng, 1, 5);
    break;
  case 3:
    t->tensor.shape[dl->ndim == 2] = -test_random_range(rng, 1, INT64_MAX);
    break;
  case 4:
    dl->device.device_type = (DLDeviceType)test_random_range(rng, 2, 20);
    break;
  case 5:
    dl->data = NULL;
    break;
  case 6:
    dl->byte_offset++;
    break;
  default:
    dl->shape = NULL;
  }
}

static void corrupt_number(call *c, test_rng *rng) {
  static const float odd[] = {NAN, INFINITY, -INFINITY, -1e-30f};
  tigon_linear_cross_entropy_args *f = &c->t.forward;
  tigon_linear_cross_entropy_backward_args *b = &c->t.backward;
  const float number = odd[test_random_range(rng, 0, 3)];
  switch (test_random_range(rng, 0, 11)) {
  case 0:
    f->inverse_temperature = b->inverse_temperature = number;
    break;
  case 8:
    f->softcap = b->softcap = number;
    break;
  case 9:
    f->label_smoothing = b->label_smoothing = number;
    break;
  case 10:
    f->vocab_size = b->vocab_size = test_random_range(rng, -40, 40);
    break;
  case 11:
    b->accumulate_weight_gradients = (int32_t)test_random_range(rng, -1, 2);
    break;
  case 1:
    f->z_loss = b->z_loss = number;
    break;
  case 2:
    f->vocab_begin = b->vocab_begin = test_random_range(rng, -5, 5);
    break;
  case 3:
    f->set_ignore_index = b->set_ignore_index = (int32_t)test_random_range(rng, -2, 3);
    break;
  case 4:
    f->size = b->size = (uint32_t)test_random_range(rng, 0, sizeof *f);
    break;
  case 5:
    c->exec.num_threads = (int32_t)test_random_range(rng, -2, 1);
    break;
  case 6:
    c->exec.workspace_bytes = (uint64_t)test_random_range(rng, 0, (int64_t)c->exec.workspace_bytes);
    break;
  default:
    c->exec.workspace = test_random_range(rng, 0, 1) ? NULL : (char *)c->w.exec.workspace + 4;
  }
}

static void test_corruptions(void **state) {
  (void)state;
  test_rng rng = {99};
  int refused = 0;
  enum { RUNS = 6000 };
  call c, sound;
  for (int run = 0; run < RUNS; run++) {
    if (run % (RUNS / 2) == 0) call_make(&c, run > 0);
    sound = c;
    test_tensor *list[LCE_ALL_TENSORS];
    lce_list(&c.t, list);
    for (int64_t k = test_random_range(&rng, 1, 3); k > 0; k--) {
      if (test_random_range(&rng, 0, 2))
        corrupt_tensor(list[test_random_range(&rng, 0, LCE_ALL_TENSORS - 1)], &rng);
      else
        corrupt_number(&c, &rng);
    }
    uint64_t bytes;
    (void)call_query(&c, &bytes);
    const bool ok = call_run(&c) == TIGON_OK;
    c = sound;
    if (ok) {
      poison_outputs(&c);
    } else {
      assert_true(strlen(tigon_last_error()) > 20);
      check_untouched(&c);
      refused++;
    }
    if (run % (RUNS / 2) == RUNS / 2 - 1) call_free(&c);
  }
  print_message("  %d of %d corrupted calls refused\n", refused, (int)RUNS);
  assert_true(refused > RUNS / 4);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_mistakes), cmocka_unit_test(test_null_structs),
                                     cmocka_unit_test(test_struct_sizes), cmocka_unit_test(test_corruptions)};
  return test_gate_report("linear_cross_entropy_arguments", cmocka_run_group_tests(tests, NULL, NULL));
}
