/* Two problems' outputs, bit by bit. */
#ifndef TIGON_TESTS_MOE_COMPARE_H
#define TIGON_TESTS_MOE_COMPARE_H

#include "tests/moe/problem.h"

enum { MOE_OUTPUTS = 7 };
static inline void moe_outputs_of(moe_problem *p, test_tensor *all[MOE_OUTPUTS]) {
  test_tensor *const outputs[MOE_OUTPUTS] = {&p->out,  &p->dx,        &p->d_weights, &p->d_gate,
                                             &p->d_up, &p->d_gate_up, &p->d_down};
  memcpy(all, outputs, sizeof outputs);
}

static inline void moe_check_same_outputs(const char *what, moe_problem *a, moe_problem *b) {
  test_tensor *of_a[MOE_OUTPUTS], *of_b[MOE_OUTPUTS];
  moe_outputs_of(a, of_a);
  moe_outputs_of(b, of_b);
  for (int i = 0; i < MOE_OUTPUTS; i++)
    if (of_a[i]->block) test_tensor_check_same(what, of_a[i], of_b[i]);
}

static inline void moe_check_same_values(const char *what, const test_tensor *a, const test_tensor *b) {
  assert_int_equal(a->count, b->count);
  for (int64_t i = 0; i < a->count; i++)
    if (memcmp(&(double){test_tensor_get(a, i)}, &(double){test_tensor_get(b, i)}, sizeof(double)) != 0)
      fail_msg("%s[%lld]: %.9g and %.9g", what, (long long)i, test_tensor_get(a, i), test_tensor_get(b, i));
}

static inline void moe_run_both(moe_problem *p, int threads) {
  moe_run_forward(p, threads, NULL);
  moe_run_backward(p, threads, NULL);
}

#endif
