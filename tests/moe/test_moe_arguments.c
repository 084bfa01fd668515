/* Arguments of all four operations: each rule of the headers is broken once, then thousands of times at random. */
#include "tests/moe/problem.h"
#include "tests/moe/route_problem.h"

static const moe_case small = {6, 2, 10, 6, 4, ROUTE_RANDOM, 0};
static const moe_case small_packed = {6, 2, 10, 6, 4, ROUTE_RANDOM, MOE_PACKED};
static const route_case small_route = {6, 2, 5, LOGITS_NORMAL, 0, BIAS_NONE, 0, 0, 0};

/* A tensor of another dtype or shape in place of a good one. */
static tigon_tensor spare;
static float spare_data[4096];
static DLTensor *other(DLDataType dtype, int ndim, int64_t a, int64_t b, int64_t c) {
  return tigon_tensor_nd(&spare, spare_data, dtype, ndim, (int64_t[]){a, b, c});
}

/* --- one rule at a time ------------------------------------------------------------------------------------------ */

typedef struct forward_rule {
  const char *fragment;
  void (*break_it)(tigon_moe_args *a);
} forward_rule;

#define RULE(name, type, statement) \
  static void name(type *a) { statement; }
RULE(no_x, tigon_moe_args, a->x = NULL)
RULE(int_x, tigon_moe_args, a->x = other(tigon_i32(), 2, 6, 10, 0))
RULE(flat_x, tigon_moe_args, a->x = other(tigon_f32(), 1, 60, 0, 0))
RULE(no_ids, tigon_moe_args, a->topk_ids = NULL)
RULE(float_ids, tigon_moe_args, a->topk_ids = other(tigon_f32(), 2, 6, 2, 0))
RULE(short_ids, tigon_moe_args, a->topk_ids = other(tigon_i32(), 2, 5, 2, 0))
RULE(no_choice, tigon_moe_args, a->topk_ids = other(tigon_i32(), 2, 6, 0, 0))
RULE(many_choices, tigon_moe_args, a->topk_ids = other(tigon_i32(), 2, 6, 33, 0))
RULE(no_weights, tigon_moe_args, a->topk_weights = NULL)
RULE(wide_weights, tigon_moe_args, a->topk_weights = other(tigon_f32(), 2, 6, 3, 0))
RULE(no_gate, tigon_moe_args, a->gate = NULL)
RULE(no_up, tigon_moe_args, a->up = NULL)
RULE(no_gate_no_up, tigon_moe_args, a->gate = a->up = NULL)
RULE(all_three, tigon_moe_args, a->gate_up = other(tigon_f32(), 3, 4, 12, 10))
RULE(up_of_other_shape, tigon_moe_args, a->up = other(tigon_f32(), 3, 4, 7, 10))
RULE(gate_of_other_width, tigon_moe_args, a->gate = other(tigon_f32(), 3, 4, 6, 11))
RULE(odd_packed, tigon_moe_args, a->gate = a->up = NULL; a->gate_up = other(tigon_f32(), 3, 4, 13, 10))
RULE(no_expert, tigon_moe_args, a->gate = a->up = NULL; a->gate_up = other(tigon_f32(), 3, 0, 12, 10))
RULE(many_experts, tigon_moe_args, a->gate = a->up = NULL; a->gate_up = other(tigon_f32(), 3, 4097, 12, 10))
RULE(no_down, tigon_moe_args, a->down = NULL)
RULE(turned_down, tigon_moe_args, a->down = other(tigon_f32(), 3, 4, 6, 10))
RULE(no_out, tigon_moe_args, a->out = NULL)
RULE(out_is_x, tigon_moe_args, a->out = (DLTensor *)(uintptr_t)a->x)
RULE(long_out, tigon_moe_args, a->out = other(tigon_f32(), 2, 7, 10, 0))
RULE(expanded_out, tigon_moe_args, a->out = other(tigon_f32(), 2, 6, 10, 0); spare.strides[0] = 0)
RULE(spaced_x, tigon_moe_args, a->x = other(tigon_f32(), 2, 6, 10, 0); spare.strides[1] = 2)
RULE(odd_saved, tigon_moe_args, a->saved = (char *)a->saved + 4)
RULE(short_saved, tigon_moe_args, a->saved_bytes = 17)
RULE(a_shard, tigon_moe_args, a->expert_begin = 4)
RULE(gpu_x, tigon_moe_args, a->x = other(tigon_f32(), 2, 6, 10, 0); spare.dl.device.device_type = kDLCUDA)

static const forward_rule forward_rules[] = {
    {"x: expected a tensor", no_x},
    {"x: expected dtype", int_x},
    {"x: expected shape", flat_x},
    {"topk_ids: expected a tensor", no_ids},
    {"topk_ids: expected dtype", float_ids},
    {"topk_ids: expected shape", short_ids},
    {"topk_ids: expected 1 to 32 choices, got 0", no_choice},
    {"topk_ids: expected 1 to 32 choices, got 33", many_choices},
    {"topk_weights: expected a tensor", no_weights},
    {"topk_weights: expected shape", wide_weights},
    {"gate: expected a tensor", no_gate},
    {"up: expected a tensor", no_up},
    {"gate: expected a tensor", no_gate_no_up},
    {"gate: expected NULL", all_three},
    {"up: expected shape", up_of_other_shape},
    {"gate: expected shape", gate_of_other_width},
    {"gate_up: expected an even", odd_packed},
    {"gate_up: expected 1 to 4096 experts, got 0", no_expert},
    {"gate_up: expected 1 to 4096 experts, got 4097", many_experts},
    {"down: expected a tensor", no_down},
    {"down: expected shape", turned_down},
    {"out: expected a tensor", no_out},
    {"out: expected memory of its own", out_is_x},
    {"out: expected shape", long_out},
    {"out: expected an output without overlap", expanded_out},
    {"x: expected a contiguous", spaced_x},
    {"saved: expected 64-byte", odd_saved},
    {"saved_bytes: expected at least", short_saved},
    {"expert_begin: expected 0", a_shard},
    {"x: expected a CPU tensor", gpu_x},
};

typedef struct backward_rule {
  const char *fragment;
  void (*break_it)(tigon_moe_backward_args *a);
} backward_rule;

RULE(no_dout, tigon_moe_backward_args, a->dout = NULL)
RULE(short_dout, tigon_moe_backward_args, a->dout = other(tigon_f32(), 2, 5, 10, 0))
RULE(wide_dx, tigon_moe_backward_args, a->dx = other(tigon_f32(), 2, 6, 11, 0))
RULE(dx_is_dout, tigon_moe_backward_args, a->dx = (DLTensor *)(uintptr_t)a->dout)
RULE(dx_is_x, tigon_moe_backward_args, a->dx = (DLTensor *)(uintptr_t)a->x)
RULE(wide_d_weights, tigon_moe_backward_args, a->d_topk_weights = other(tigon_f32(), 2, 6, 3, 0))
RULE(d_gate_is_gate, tigon_moe_backward_args, a->d_gate = (DLTensor *)(uintptr_t)a->gate)
RULE(d_gate_is_d_up, tigon_moe_backward_args, a->d_gate = a->d_up)
RULE(packed_gradient, tigon_moe_backward_args, a->d_gate_up = other(tigon_f32(), 3, 4, 12, 10))
RULE(turned_d_down, tigon_moe_backward_args, a->d_down = other(tigon_f32(), 3, 4, 6, 10))
RULE(bad_flag, tigon_moe_backward_args, a->accumulate_weight_gradients = 2)
RULE(half_sum, tigon_moe_backward_args, a->accumulate_weight_gradients = 1;
     a->d_down = other(tigon_bf16(), 3, 4, 10, 6))
RULE(no_backward_x, tigon_moe_backward_args, a->x = NULL)
RULE(no_backward_down, tigon_moe_backward_args, a->down = NULL)
RULE(backward_shard, tigon_moe_backward_args, a->expert_begin = -1)
RULE(short_backward_saved, tigon_moe_backward_args, a->saved_bytes = 0)

static const backward_rule backward_rules[] = {
    {"dout: expected a tensor", no_dout},
    {"dout: expected shape", short_dout},
    {"dx: expected shape", wide_dx},
    {"dx: expected memory of its own, got that of dout", dx_is_dout},
    {"dx: expected memory of its own, got that of x", dx_is_x},
    {"d_topk_weights: expected shape", wide_d_weights},
    {"d_gate: expected memory of its own, got that of gate", d_gate_is_gate},
    {"d_gate: expected memory of its own, got that of d_up", d_gate_is_d_up},
    {"d_gate_up: expected NULL", packed_gradient},
    {"d_down: expected shape", turned_d_down},
    {"accumulate_weight_gradients: expected 0 or 1, got 2", bad_flag},
    {"d_down: expected dtype float32", half_sum},
    {"x: expected a tensor", no_backward_x},
    {"down: expected a tensor", no_backward_down},
    {"expert_begin: expected 0", backward_shard},
    {"saved_bytes: expected at least", short_backward_saved},
};

static void check_untouched(const test_tensor *t) {
  for (size_t i = 0; i < t->bytes; i++)
    if (t->block[i] != 0xff) fail_msg("an output was written by a call that failed");
}

static void check_outputs_untouched(const moe_problem *p) {
  const test_tensor *const outputs[] = {&p->out,  &p->dx,        &p->d_weights, &p->d_gate,
                                        &p->d_up, &p->d_gate_up, &p->d_down};
  for (int i = 0; i < 7; i++)
    if (outputs[i]->block) check_untouched(outputs[i]);
}

static void test_forward_rules(void **state) {
  (void)state;
  moe_problem p;
  moe_make(&p, &small, TIGON_F32, true, 1);
  test_workspace w;
  test_workspace_make(&w, 1 << 24, 1);
  for (size_t i = 0; i < sizeof forward_rules / sizeof *forward_rules; i++) {
    tigon_moe_args a = moe_forward_args(&p);
    forward_rules[i].break_it(&a);
    const tigon_status expected = a.expert_begin ? TIGON_UNSUPPORTED : TIGON_INVALID_ARGUMENT;
    test_expect_status(tigon_moe(&w.exec, &a), expected, forward_rules[i].fragment);
    check_outputs_untouched(&p);
    test_count_case();
  }
  test_workspace_free(&w);
  moe_free(&p);
}

static void test_backward_rules(void **state) {
  (void)state;
  moe_problem p;
  moe_make(&p, &small, TIGON_F32, true, 1);
  test_workspace w;
  test_workspace_make(&w, 1 << 24, 1);
  for (size_t i = 0; i < sizeof backward_rules / sizeof *backward_rules; i++) {
    tigon_moe_backward_args a = moe_backward_args(&p);
    backward_rules[i].break_it(&a);
    const tigon_status expected = a.expert_begin ? TIGON_UNSUPPORTED : TIGON_INVALID_ARGUMENT;
    test_expect_status(tigon_moe_backward(&w.exec, &a), expected, backward_rules[i].fragment);
    check_outputs_untouched(&p);
    test_count_case();
  }
  moe_problem packed;
  moe_make(&packed, &small_packed, TIGON_F32, true, 1);
  tigon_moe_backward_args a = moe_backward_args(&packed);
  a.d_gate = other(tigon_f32(), 3, 4, 6, 10);
  test_expect_status(tigon_moe_backward(&w.exec, &a), TIGON_INVALID_ARGUMENT, "d_gate: expected NULL");
  a.d_gate = NULL;
  a.d_up = &spare.dl;
  test_expect_status(tigon_moe_backward(&w.exec, &a), TIGON_INVALID_ARGUMENT, "d_up: expected NULL");
  check_outputs_untouched(&packed);
  moe_free(&packed);
  test_workspace_free(&w);
  moe_free(&p);
}

static void test_route_rules(void **state) {
  (void)state;
  route_problem p;
  route_make(&p, &small_route, TIGON_F32, 0, 0, 1);
  test_workspace w;
  test_workspace_make(&w, 1 << 16, 1);
  const struct {
    const char *fragment;
    int which;
  } rules[] = {{"score: expected", 0},
               {"renormalize: expected 0 or 1", 1},
               {"logits: expected a tensor", 2},
               {"topk_ids: expected shape", 3},
               {"topk_weights: expected dtype", 4},
               {"counts: expected shape", 5},
               {"balance_loss: expected", 6},
               {"topk_ids: expected 1 to 5", 7},
               {"topk_ids: expected 1 to 5", 8},
               {"logits: expected 1 to 4096", 9},
               {"topk_weights: expected memory", 10}};
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
    tigon_moe_route_args a = route_args(&p);
    if (rules[i].which == 0) a.score = 2;
    if (rules[i].which == 1) a.renormalize = -1;
    if (rules[i].which == 2) a.logits = NULL;
    if (rules[i].which == 3) a.topk_ids = other(tigon_i32(), 2, 7, 2, 0);
    if (rules[i].which == 4) a.topk_weights = other(tigon_bf16(), 2, 6, 2, 0);
    if (rules[i].which == 5) a.counts = other(tigon_i32(), 1, 6, 0, 0);
    if (rules[i].which == 6) a.balance_loss = other(tigon_f32(), 1, 2, 0, 0);
    if (rules[i].which == 7) a.topk_ids = other(tigon_i32(), 2, 6, 6, 0);
    if (rules[i].which == 8) a.topk_ids = other(tigon_i32(), 2, 6, 0, 0);
    if (rules[i].which == 9) a.logits = other(tigon_f32(), 2, 0, 4097, 0);
    if (rules[i].which == 10) a.balance_loss = other(tigon_f32(), 1, 1, 0, 0), a.topk_weights = NULL;
    if (rules[i].which == 10) {
      static tigon_tensor same;
      a.topk_weights = tigon_tensor_2d(&same, spare_data, tigon_f32(), 6, 2);
    }
    test_expect_status(tigon_moe_route(&w.exec, &a), TIGON_INVALID_ARGUMENT, rules[i].fragment);
    test_count_case();
  }
  tigon_moe_route_backward_args b = route_backward_args(&p);
  b.d_logits = (DLTensor *)(uintptr_t)b.logits;
  test_expect_status(tigon_moe_route_backward(&w.exec, &b), TIGON_INVALID_ARGUMENT, "d_logits: expected memory");
  b = route_backward_args(&p);
  b.d_logits = NULL;
  test_expect_status(tigon_moe_route_backward(&w.exec, &b), TIGON_INVALID_ARGUMENT, "d_logits: expected a tensor");
  b = route_backward_args(&p);
  b.d_topk_weights = other(tigon_f16(), 2, 6, 2, 0);
  test_expect_status(tigon_moe_route_backward(&w.exec, &b), TIGON_INVALID_ARGUMENT, "d_topk_weights: expected dtype");
  b = route_backward_args(&p);
  b.score = 7;
  test_expect_status(tigon_moe_route_backward(&w.exec, &b), TIGON_INVALID_ARGUMENT, "score: expected");
  const test_tensor *const outputs[] = {&p.ids, &p.weights, &p.counts, &p.loss, &p.d_logits};
  for (int i = 0; i < 5; i++) check_untouched(outputs[i]);
  test_workspace_free(&w);
  route_free(&p);
}

static void test_struct_sizes(void **state) {
  (void)state;
  moe_problem p;
  moe_make(&p, &small, TIGON_F32, false, 1);
  struct {
    tigon_moe_args args;
    uint64_t more;
  } newer = {.args = moe_forward_args(&p)};
  uint64_t bytes;
  newer.args.size = sizeof newer;
  test_expect_status(tigon_moe_workspace(NULL, &newer.args, &bytes), TIGON_OK, NULL);
  newer.more = 1;
  test_expect_status(tigon_moe_workspace(NULL, &newer.args, &bytes), TIGON_UNSUPPORTED, "args");
  newer.args.size = 0;
  test_expect_status(tigon_moe_workspace(NULL, &newer.args, &bytes), TIGON_INVALID_ARGUMENT, "size");
  newer.args.size = sizeof newer.args;
  test_expect_status(tigon_moe_workspace(NULL, &newer.args, NULL), TIGON_INVALID_ARGUMENT, "bytes");
  test_expect_status(tigon_moe_workspace(NULL, NULL, &bytes), TIGON_INVALID_ARGUMENT, "args");
  moe_free(&p);
}

/* --- at random ---------------------------------------------------------------------------------------------------- */

/* A tensor broken in one way that a check can see or that leaves all accesses inside its memory. */
static void corrupt(tigon_tensor *t, test_rng *rng) {
  const int axis = (int)test_random_range(rng, 0, t->dl.ndim > 0 ? t->dl.ndim - 1 : 0);
  switch (test_random(rng) % 9) {
  case 0:
    t->shape[axis] -= 1;
    break;
  case 1:
    t->shape[axis] = -test_random_range(rng, 1, 100);
    break;
  case 2:
    t->dl.ndim = (int32_t)test_random_range(rng, -1, 9);
    if (t->dl.ndim > 5) t->dl.shape = NULL;
    break;
  case 3:
    t->dl.dtype.code = (uint8_t)test_random(rng);
    if (t->dl.dtype.code <= kDLBfloat) t->dl.dtype.bits = 8;
    break;
  case 4:
    t->dl.dtype.lanes = (uint16_t)test_random_range(rng, 2, 9);
    break;
  case 5:
    t->dl.device.device_type = kDLCUDA;
    break;
  case 6:
    t->dl.data = NULL;
    break;
  case 7:
    t->dl.byte_offset = 1;
    break;
  default:
    t->strides[axis] = 0;
    break;
  }
}

static void corrupt_moe(moe_problem *p, test_rng *rng) {
  test_tensor *const all[] = {&p->x,       &p->ids,    &p->weights, &p->gate,      &p->up,
                              &p->gate_up, &p->down,   &p->dout,    &p->out,       &p->dx,
                              &p->d_gate,  &p->d_down, &p->d_up,    &p->d_gate_up, &p->d_weights};
  test_tensor *t = all[test_random(rng) % 15];
  if (t->block) corrupt(&t->tensor, rng);
}

static void test_random_corruption(void **state) {
  (void)state;
  test_rng rng = {99};
  int refused = 0;
  test_workspace w;
  test_workspace_make(&w, 1 << 24, 1);
  for (int i = 0; i < 4000; i++) {
    moe_problem p;
    moe_make(&p, i % 2 ? &small : &small_packed, TIGON_BF16, i % 4 > 1, 1);
    moe_problem broken = p;
    test_tensor *const copies[] = {&broken.x,    &broken.ids,     &broken.weights,   &broken.gate,
                                   &broken.up,   &broken.gate_up, &broken.down,      &broken.dout,
                                   &broken.out,  &broken.dx,      &broken.d_weights, &broken.d_gate,
                                   &broken.d_up, &broken.d_down,  &broken.d_gate_up};
    for (int n = 0; n < 15; n++) { /* the copies' descriptors point into themselves */
      if (copies[n]->tensor.dl.shape) copies[n]->tensor.dl.shape = copies[n]->tensor.shape;
      if (copies[n]->tensor.dl.strides) copies[n]->tensor.dl.strides = copies[n]->tensor.strides;
    }
    corrupt_moe(&broken, &rng);
    if (test_random(&rng) % 4 == 0) corrupt_moe(&broken, &rng);
    tigon_moe_args forward = moe_forward_args(&broken);
    tigon_moe_backward_args backward = moe_backward_args(&broken);
    uint64_t bytes;
    (void)tigon_moe_workspace(NULL, &forward, &bytes);
    (void)tigon_moe_saved(NULL, &forward, &bytes);
    (void)tigon_moe_backward_workspace(NULL, &backward, &bytes);
    if (tigon_moe(&w.exec, &forward) != TIGON_OK) {
      check_untouched(&p.out);
      refused++;
    }
    if (tigon_moe_backward(&w.exec, &backward) != TIGON_OK) {
      const test_tensor *const outputs[] = {&p.dx, &p.d_weights, &p.d_gate, &p.d_up, &p.d_gate_up, &p.d_down};
      for (int n = 0; n < 6; n++)
        if (outputs[n]->block) check_untouched(outputs[n]);
      refused++;
    }
    moe_free(&p);
  }
  test_workspace_free(&w);
  assert_true(refused > 4000);
}

static void test_random_route_corruption(void **state) {
  (void)state;
  test_rng rng = {98};
  int refused = 0;
  for (int i = 0; i < 3000; i++) {
    route_problem p;
    route_make(&p, &small_route, TIGON_BF16, i % 2, i / 2 % 2, 1);
    const tigon_moe_route_args good = route_args(&p);
    if (i % 3) route_run(&good, 1);
    test_workspace w;
    test_workspace_make(&w, 1 << 14, 1);
    test_tensor *const all[] = {&p.logits, &p.ids,       &p.weights, &p.counts,
                                &p.loss,   &p.d_weights, &p.d_loss,  &p.d_logits};
    test_tensor *t = all[test_random(&rng) % 8];
    const tigon_tensor kept = t->tensor;
    corrupt(&t->tensor, &rng);
    tigon_moe_route_args forward = route_args(&p);
    tigon_moe_route_backward_args backward = route_backward_args(&p);
    uint64_t bytes;
    (void)tigon_moe_route_workspace(NULL, &forward, &bytes);
    (void)tigon_moe_route_backward_workspace(NULL, &backward, &bytes);
    const tigon_status status = tigon_moe_route(&w.exec, &forward);
    const tigon_status backward_status = tigon_moe_route_backward(&w.exec, &backward);
    t->tensor = kept;
    if (status != TIGON_OK && i % 3 == 0)
      for (int n = 1; n < 5; n++) check_untouched(all[n]);
    if (backward_status != TIGON_OK) check_untouched(&p.d_logits);
    refused += (status != TIGON_OK) + (backward_status != TIGON_OK);
    test_workspace_free(&w);
    route_free(&p);
  }
  assert_true(refused > 2000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_forward_rules),     cmocka_unit_test(test_backward_rules),
      cmocka_unit_test(test_route_rules),       cmocka_unit_test(test_struct_sizes),
      cmocka_unit_test(test_random_corruption), cmocka_unit_test(test_random_route_corruption)};
  return test_gate_report("moe_arguments", cmocka_run_group_tests(tests, NULL, NULL));
}
