/* Every case of the table against the oracle, forward and backward. */
#include "tests/linear_cross_entropy/problem.h"

/* What must hold to the bit, beside the gates. */
static void check_exact(const lce_tensors *t) {
  const lce_case *c = &t->c;
  int64_t kept = 0;
  for (int64_t i = 0; i < c->tokens; i++) {
    const double nll = test_tensor_get(&t->nll, i), entropy = test_tensor_get(&t->entropy, i);
    if (nll < 0 || entropy < 0) fail_msg("token %lld: nll %g, entropy %g", (long long)i, nll, entropy);
    if (!lce_left_out(t, i)) {
      kept++;
      continue;
    }
    const test_tensor *const vectors[] = {&t->loss, &t->nll, &t->lse, &t->entropy};
    for (int j = 0; j < 4; j++) assert_true(test_tensor_get(vectors[j], i) == 0);
    assert_true(test_tensor_get(&t->argmax, i) == -1 && test_tensor_get(&t->correct, i) == 0);
    for (int64_t j = 0; t->dx.block && j < c->width; j++) assert_true(test_tensor_get(&t->dx, i * c->width + j) == 0);
  }
  const int64_t zeros = kept > 0 ? t->classes : 0; /* from this row of the weight on */
  for (int64_t i = zeros * c->width; i < t->dweight.count; i++)
    assert_true(test_tensor_get(&t->dweight, i) == (c->accumulate ? t->dweight_before[i] : 0));
  for (int64_t i = zeros; i < t->dbias.count; i++)
    assert_true(test_tensor_get(&t->dbias, i) == (c->accumulate ? t->dbias_before[i] : 0));
}

static void test_cases(void **state) {
  (void)state;
  for (int i = 0; i < LCE_CASES; i++) {
    lce_tensors t, before;
    lce_make(&t, &lce_cases[i], 1000 + (uint64_t)i);
    lce_make(&before, &lce_cases[i], 1000 + (uint64_t)i);
    print_message("  %s\n", lce_cases[i].name);
    lce_run(&t, 2);
    lce_compare(&t, BOTH_GATES);
    check_exact(&t);
    test_tensor *list[LCE_ALL_TENSORS], *inputs[LCE_ALL_TENSORS];
    lce_list(&t, list);
    lce_list(&before, inputs);
    for (int j = 0; j < LCE_ALL_TENSORS; j++) {
      if (!list[j]->block) continue;
      test_tensor_check_surroundings(list[j]);
      if (j < LCE_INPUTS) test_tensor_check_same("input", list[j], inputs[j]);
    }
    lce_free(&t);
    lce_free(&before);
    test_count_case();
  }
}

/* 1, 2 and 7 threads, and a second backward, give the same bits. */
static void test_same_bits(void **state) {
  (void)state;
  for (int i = 0; i < LCE_CASES; i++) {
    lce_tensors one, other;
    lce_make(&one, &lce_cases[i], (uint64_t)i);
    lce_run(&one, 1);
    test_tensor *first[LCE_ALL_TENSORS], *second[LCE_ALL_TENSORS];
    lce_list(&one, first);
    static const int threads[] = {2, 7};
    for (int k = 0; k < 2; k++) {
      lce_make(&other, &lce_cases[i], (uint64_t)i);
      lce_run(&other, threads[k]);
      if (k == 1 && !other.c.accumulate) lce_run_backward(&other, threads[k], NULL);
      lce_list(&other, second);
      for (int j = 0; j < LCE_ALL_TENSORS; j++)
        if (first[j]->block) test_tensor_check_same(lce_cases[i].name, first[j], second[j]);
      lce_free(&other);
    }
    lce_free(&one);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases), cmocka_unit_test(test_same_bits)};
  return test_gate_report("linear_cross_entropy", cmocka_run_group_tests(tests, NULL, NULL));
}
