/* Arguments of the router: each rule of the header is broken once, then thousands of times at random. */
#include "tests/moe/broken.h"
#include "tests/moe/route_problem.h"

static const route_case small = {6, 2, 6, LOGITS_NORMAL, ROUTE_Z, BIAS_NORMAL, 3, 2, 0};

/* --- one rule at a time ------------------------------------------------------------------------------------------ */

typedef struct forward_rule {
  const char *fragment;
  void (*break_it)(tigon_moe_route_args *a);
} forward_rule;

RULE(some_score, tigon_moe_route_args, a->score = 2)
RULE(half_renormalized, tigon_moe_route_args, a->renormalize = -1)
RULE(no_logits, tigon_moe_route_args, a->logits = NULL)
RULE(long_ids, tigon_moe_route_args, a->topk_ids = other(tigon_i32(), 2, 7, 2, 0))
RULE(half_weights, tigon_moe_route_args, a->topk_weights = other(tigon_bf16(), 2, 6, 2, 0))
RULE(long_counts, tigon_moe_route_args, a->counts = other(tigon_i32(), 1, 7, 0, 0))
RULE(two_losses, tigon_moe_route_args, a->balance_loss = other(tigon_f32(), 1, 2, 0, 0))
RULE(many_choices, tigon_moe_route_args, a->topk_ids = other(tigon_i32(), 2, 6, 7, 0))
RULE(no_choice, tigon_moe_route_args, a->topk_ids = other(tigon_i32(), 2, 6, 0, 0))
RULE(many_experts, tigon_moe_route_args, a->logits = other(tigon_f32(), 2, 0, 4097, 0))
RULE(loss_in_weights, tigon_moe_route_args, a->balance_loss = other(tigon_f32(), 1, 1, 0, 0); static tigon_tensor same;
     a->topk_weights = tigon_tensor_2d(&same, spare_data, tigon_f32(), 6, 2))
RULE(long_bias, tigon_moe_route_args, a->selection_bias = other(tigon_f32(), 1, 7, 0, 0))
RULE(half_bias, tigon_moe_route_args, a->selection_bias = other(tigon_bf16(), 1, 6, 0, 0))
RULE(spaced_bias, tigon_moe_route_args, a->selection_bias = other(tigon_f32(), 1, 6, 0, 0); spare.strides[0] = 2)
RULE(uneven_groups, tigon_moe_route_args, a->n_group = 4)
RULE(negative_groups, tigon_moe_route_args, a->n_group = -3)
RULE(no_open_group, tigon_moe_route_args, a->topk_group = 0)
RULE(negative_open_groups, tigon_moe_route_args, a->topk_group = -1)
RULE(many_open_groups, tigon_moe_route_args, a->topk_group = 4)
RULE(open_without_groups, tigon_moe_route_args, a->n_group = 0)
RULE(no_room, tigon_moe_route_args, a->n_group = 6; a->topk_group = 1)
RULE(large_group_top, tigon_moe_route_args, a->group_top = 3)
RULE(negative_group_top, tigon_moe_route_args, a->group_top = -1)
RULE(nan_scale, tigon_moe_route_args, a->routed_scale = NAN)
RULE(infinite_scale, tigon_moe_route_args, a->routed_scale = -INFINITY)
RULE(half_z_loss, tigon_moe_route_args, a->z_loss = other(tigon_f16(), 1, 1, 0, 0))
RULE(two_z_losses, tigon_moe_route_args, a->z_loss = other(tigon_f32(), 1, 2, 0, 0))
RULE(one_loss, tigon_moe_route_args, a->z_loss = a->balance_loss)
RULE(counts_in_bias, tigon_moe_route_args, a->counts = other(tigon_i32(), 1, 6, 0, 0); static tigon_tensor same;
     a->selection_bias = tigon_tensor_1d(&same, spare_data, tigon_f32(), 6))

static const forward_rule forward_rules[] = {
    {"score: expected", some_score},
    {"renormalize: expected 0 or 1", half_renormalized},
    {"logits: expected a tensor", no_logits},
    {"topk_ids: expected shape", long_ids},
    {"topk_weights: expected dtype", half_weights},
    {"counts: expected shape", long_counts},
    {"balance_loss: expected", two_losses},
    {"topk_ids: expected 1 to 6", many_choices},
    {"topk_ids: expected 1 to 6", no_choice},
    {"logits: expected 1 to 4096", many_experts},
    {"topk_weights: expected memory", loss_in_weights},
    {"selection_bias: expected shape (6), got (7)", long_bias},
    {"selection_bias: expected dtype float32", half_bias},
    {"selection_bias: expected a contiguous", spaced_bias},
    {"n_group: expected a divisor of the 6 experts (or 0), got 4", uneven_groups},
    {"n_group: expected a divisor", negative_groups},
    {"topk_group: expected 1 to 3 (n_group), got 0", no_open_group},
    {"topk_group: expected 1 to 3 (n_group), got -1", negative_open_groups},
    {"topk_group: expected 1 to 3 (n_group), got 4", many_open_groups},
    {"topk_group: expected 1 to 1 (n_group), got 2", open_without_groups},
    {"topk_group: expected room for 2 choices, got 1 groups of 1 experts", no_room},
    {"group_top: expected 0 to 2, got 3", large_group_top},
    {"group_top: expected 0 to 2, got -1", negative_group_top},
    {"routed_scale: expected a finite number", nan_scale},
    {"routed_scale: expected a finite number, got -inf", infinite_scale},
    {"z_loss: expected dtype float32", half_z_loss},
    {"z_loss: expected shape (1), got (2)", two_z_losses},
    {"balance_loss: expected memory of its own, got that of z_loss", one_loss},
    {"counts: expected memory of its own, got that of selection_bias", counts_in_bias},
};

typedef struct backward_rule {
  const char *fragment;
  void (*break_it)(tigon_moe_route_backward_args *a);
} backward_rule;

RULE(d_logits_is_logits, tigon_moe_route_backward_args, a->d_logits = (DLTensor *)(uintptr_t)a->logits)
RULE(no_d_logits, tigon_moe_route_backward_args, a->d_logits = NULL)
RULE(half_d_weights, tigon_moe_route_backward_args, a->d_topk_weights = other(tigon_f16(), 2, 6, 2, 0))
RULE(backward_score, tigon_moe_route_backward_args, a->score = 7)
RULE(backward_renormalize, tigon_moe_route_backward_args, a->renormalize = 2)
RULE(long_d_z_loss, tigon_moe_route_backward_args, a->d_z_loss = other(tigon_f32(), 1, 6, 0, 0))
RULE(backward_scale, tigon_moe_route_backward_args, a->routed_scale = INFINITY)
RULE(reserved, tigon_moe_route_backward_args, a->reserved = 1)
RULE(d_z_in_d_logits, tigon_moe_route_backward_args, a->d_z_loss = other(tigon_f32(), 1, 1, 0, 0);
     static tigon_tensor same; a->d_logits = tigon_tensor_2d(&same, spare_data, tigon_f32(), 6, 6))

static const backward_rule backward_rules[] = {
    {"d_logits: expected memory", d_logits_is_logits},
    {"d_logits: expected a tensor", no_d_logits},
    {"d_topk_weights: expected dtype", half_d_weights},
    {"score: expected", backward_score},
    {"renormalize: expected 0 or 1", backward_renormalize},
    {"d_z_loss: expected shape (1), got (6)", long_d_z_loss},
    {"routed_scale: expected a finite number, got inf", backward_scale},
    {"reserved: expected 0, got 1", reserved},
    {"d_logits: expected memory of its own, got that of d_z_loss", d_z_in_d_logits},
};

static void check_outputs_untouched(const route_problem *p) {
  const test_tensor *const outputs[] = {&p->ids, &p->weights, &p->counts, &p->loss, &p->z_loss, &p->d_logits};
  for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) check_untouched(outputs[i]);
}

static void test_rules(void **state) {
  (void)state;
  route_problem p;
  route_make(&p, &small, TIGON_F32, 0, 0, 1);
  test_workspace w;
  test_workspace_make(&w, 1 << 16, 1);
  for (size_t i = 0; i < sizeof forward_rules / sizeof *forward_rules; i++) {
    tigon_moe_route_args a = route_args(&p);
    forward_rules[i].break_it(&a);
    test_expect_status(tigon_moe_route(&w.exec, &a), TIGON_INVALID_ARGUMENT, forward_rules[i].fragment);
    check_outputs_untouched(&p);
    test_count_case();
  }
  for (size_t i = 0; i < sizeof backward_rules / sizeof *backward_rules; i++) {
    tigon_moe_route_backward_args a = route_backward_args(&p);
    backward_rules[i].break_it(&a);
    test_expect_status(tigon_moe_route_backward(&w.exec, &a), TIGON_INVALID_ARGUMENT, backward_rules[i].fragment);
    check_outputs_untouched(&p);
    test_count_case();
  }
  test_workspace_free(&w);
  route_free(&p);
}

/* A caller that was compiled before the options gets their defaults, whatever stands behind its struct. */
static void test_older_struct(void **state) {
  (void)state;
  const route_case plain = {6, 2, 6, LOGITS_NORMAL, 0, BIAS_NONE, 0, 0, 0};
  route_problem p, old;
  route_make(&p, &plain, TIGON_F32, 0, 1, 1);
  route_make(&old, &plain, TIGON_F32, 0, 1, 1);
  const tigon_moe_route_args a = route_args(&p);
  tigon_moe_route_args b = route_args(&old);
  b.size = offsetof(tigon_moe_route_args, selection_bias);
  b.n_group = -5;
  b.routed_scale = NAN;
  route_run(&a, 1);
  route_run(&b, 1);
  test_tensor_check_same("topk_weights", &p.weights, &old.weights);
  route_free(&p), route_free(&old);
}

/* --- at random ---------------------------------------------------------------------------------------------------- */

static void corrupt_options(tigon_moe_route_args *a, test_rng *rng) {
  a->n_group = (int32_t)test_random_range(rng, -1, 7);
  a->topk_group = (int32_t)test_random_range(rng, -1, 7);
  a->group_top = (int32_t)test_random_range(rng, -1, 7);
}

static void test_random_corruption(void **state) {
  (void)state;
  test_rng rng = {98};
  int refused = 0;
  for (int i = 0; i < 3000; i++) {
    route_problem p;
    route_make(&p, &small, TIGON_BF16, i % 2, i / 2 % 2, 1);
    const tigon_moe_route_args good = route_args(&p);
    if (i % 3) route_run(&good, 1);
    test_workspace w;
    test_workspace_make(&w, 1 << 14, 1);
    test_tensor *const all[] = {&p.logits,    &p.ids,    &p.weights,  &p.counts, &p.loss,    &p.z_loss,
                                &p.d_weights, &p.d_loss, &p.d_logits, &p.bias,   &p.d_z_loss};
    test_tensor *t = all[test_random(&rng) % 11];
    const tigon_tensor kept = t->tensor;
    corrupt(&t->tensor, &rng);
    tigon_moe_route_args forward = route_args(&p);
    tigon_moe_route_backward_args backward = route_backward_args(&p);
    if (test_random(&rng) % 4 == 0) corrupt_options(&forward, &rng);
    uint64_t bytes;
    (void)tigon_moe_route_workspace(NULL, &forward, &bytes);
    (void)tigon_moe_route_backward_workspace(NULL, &backward, &bytes);
    const tigon_status status = tigon_moe_route(&w.exec, &forward);
    const tigon_status backward_status = tigon_moe_route_backward(&w.exec, &backward);
    t->tensor = kept;
    if (status != TIGON_OK && i % 3 == 0)
      for (int n = 1; n < 6; n++) check_untouched(all[n]);
    if (backward_status != TIGON_OK) check_untouched(&p.d_logits);
    refused += (status != TIGON_OK) + (backward_status != TIGON_OK);
    test_workspace_free(&w);
    route_free(&p);
  }
  assert_true(refused > 2000);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_rules), cmocka_unit_test(test_older_struct),
                                     cmocka_unit_test(test_random_corruption)};
  return test_gate_report("moe_route_arguments", cmocka_run_group_tests(tests, NULL, NULL));
}
