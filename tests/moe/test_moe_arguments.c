/* Arguments of the expert MLP: each rule of the header is broken once, then thousands of times at random. */
#include "tests/moe/broken.h"
#include "tests/moe/problem.h"

static const moe_case small = {6, 2, 10, 6, 4, ROUTE_RANDOM, 0};
static const moe_case small_packed = {6, 2, 10, 6, 4, ROUTE_RANDOM, MOE_PACKED};

/* --- one rule at a time ------------------------------------------------------------------------------------------ */

typedef struct forward_rule {
  const char *fragment;
  void (*break_it)(tigon_moe_args *a);
} forward_rule;

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

RULE(some_layout, tigon_moe_args, a->weight_layout = 3)
RULE(negative_layout, tigon_moe_args, a->weight_layout = -1)
RULE(interleaved, tigon_moe_args, a->weight_layout = TIGON_MOE_LAYOUT_INTERLEAVED)
RULE(rows_for_columns, tigon_moe_args, a->weight_layout = TIGON_MOE_LAYOUT_TRANSPOSED)
RULE(odd_columns, tigon_moe_args, a->weight_layout = TIGON_MOE_LAYOUT_TRANSPOSED; a->gate = a->up = NULL;
     a->gate_up = other(tigon_f32(), 3, 4, 10, 13))
RULE(turned_up, tigon_moe_args, a->weight_layout = TIGON_MOE_LAYOUT_TRANSPOSED; static tigon_tensor gate;
     a->gate = tigon_tensor_3d(&gate, spare_data, tigon_f32(), 4, 10, 6))
RULE(down_of_rows, tigon_moe_args, a->weight_layout = TIGON_MOE_LAYOUT_TRANSPOSED; a->gate = a->up = NULL;
     a->gate_up = other(tigon_f32(), 3, 4, 10, 12))
RULE(some_side, tigon_moe_args, a->weights_on_input = 2)
RULE(negative_limit, tigon_moe_args, a->row_limit = -1)

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
    {"weight_layout: expected TIGON_MOE_LAYOUT_ROWS (0) or TIGON_MOE_LAYOUT_TRANSPOSED (1), got 3", some_layout},
    {"weight_layout: expected TIGON_MOE_LAYOUT_ROWS (0) or TIGON_MOE_LAYOUT_TRANSPOSED (1), got -1", negative_layout},
    {"pass rows 0::2 as gate and 1::2 as up, two views with twice the row stride", interleaved},
    {"gate: expected shape (*, 10, *), got (4, 6, 10)", rows_for_columns},
    {"gate_up: expected an even third", odd_columns},
    {"up: expected shape (4, 10, 6), got (4, 6, 10)", turned_up},
    {"down: expected shape (4, 6, 10), got (4, 10, 6)", down_of_rows},
    {"weights_on_input: expected 0 or 1, got 2", some_side},
    {"row_limit: expected 0 (none) or more, got -1", negative_limit},
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

RULE(backward_layout, tigon_moe_backward_args, a->weight_layout = 7)
RULE(backward_interleaved, tigon_moe_backward_args, a->weight_layout = TIGON_MOE_LAYOUT_INTERLEAVED)
RULE(backward_side, tigon_moe_backward_args, a->weights_on_input = -1)
RULE(backward_limit, tigon_moe_backward_args, a->row_limit = INT64_MIN)
RULE(d_gate_of_columns, tigon_moe_backward_args, a->d_gate = other(tigon_f32(), 3, 4, 10, 6))

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
    {"weight_layout: expected TIGON_MOE_LAYOUT_ROWS", backward_layout},
    {"weight_layout: expected gate and up apart", backward_interleaved},
    {"weights_on_input: expected 0 or 1, got -1", backward_side},
    {"row_limit: expected 0 (none) or more", backward_limit},
    {"d_gate: expected shape (4, 6, 10), got (4, 10, 6)", d_gate_of_columns},
};

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
    const bool unsupported = a.expert_begin || a.weight_layout == TIGON_MOE_LAYOUT_INTERLEAVED;
    const tigon_status expected = unsupported ? TIGON_UNSUPPORTED : TIGON_INVALID_ARGUMENT;
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
    const bool unsupported = a.expert_begin || a.weight_layout == TIGON_MOE_LAYOUT_INTERLEAVED;
    const tigon_status expected = unsupported ? TIGON_UNSUPPORTED : TIGON_INVALID_ARGUMENT;
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
  newer.args.weight_layout = 99; /* past the end of an older struct */
  newer.args.size = offsetof(tigon_moe_args, weight_layout);
  test_expect_status(tigon_moe_workspace(NULL, &newer.args, &bytes), TIGON_OK, NULL);
  newer.args.weight_layout = 0;
  newer.args.size = 0;
  test_expect_status(tigon_moe_workspace(NULL, &newer.args, &bytes), TIGON_INVALID_ARGUMENT, "size");
  newer.args.size = sizeof newer.args;
  test_expect_status(tigon_moe_workspace(NULL, &newer.args, NULL), TIGON_INVALID_ARGUMENT, "bytes");
  test_expect_status(tigon_moe_workspace(NULL, NULL, &bytes), TIGON_INVALID_ARGUMENT, "args");
  moe_free(&p);
}

static void corrupt_options(tigon_moe_args *forward, tigon_moe_backward_args *backward, test_rng *rng) {
  static const int64_t limits[] = {INT64_MIN, -1, 1, 5, 12, INT64_MAX};
  forward->weight_layout = backward->weight_layout = (int32_t)test_random_range(rng, -1, 3);
  forward->weights_on_input = backward->weights_on_input = (int32_t)test_random_range(rng, -1, 2);
  forward->row_limit = backward->row_limit = limits[test_random(rng) % 6];
}

/* --- at random ---------------------------------------------------------------------------------------------------- */

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
    if (test_random(&rng) % 4 == 0) corrupt_options(&forward, &backward, &rng);
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

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_forward_rules), cmocka_unit_test(test_backward_rules),
                                     cmocka_unit_test(test_struct_sizes), cmocka_unit_test(test_random_corruption)};
  return test_gate_report("moe_arguments", cmocka_run_group_tests(tests, NULL, NULL));
}
