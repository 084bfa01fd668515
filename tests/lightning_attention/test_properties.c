/* Equalities that hold whatever the numbers: packing, threads, isolation of NaN, orientation, the record. */
#include "lightning_attention/fixture.h"

static void copy_elements(test_tensor *to, int64_t to_first, const test_tensor *from, int64_t from_first, int64_t n) {
  for (int64_t i = 0; i < n; i++) test_tensor_set(to, to_first + i, test_tensor_get(from, from_first + i));
}

static void check_same_bits(const char *what, const test_tensor *a, int64_t a_first, const test_tensor *b,
                            int64_t b_first, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    const double x = test_tensor_get(a, a_first + i), y = test_tensor_get(b, b_first + i);
    if (memcmp(&x, &y, sizeof x) != 0) fail_msg("%s[%lld]: %.9g against %.9g", what, (long long)i, x, y);
  }
}

/* Sequence n of a packed fixture, by itself. */
static void check_separate(const fixture *packed, int64_t n) {
  lightning_case c = *packed->c;
  const int64_t begin = c.bounds[n], query = c.H * c.K, value = c.HV * c.V, states = c.HV * c.V * c.K;
  c.T = c.bounds[n + 1] - begin;
  c.bounds_kind = (tigon_kind)0;
  fixture one;
  make_fixture(&one, &c, 3);
  copy_elements(&one.q, 0, &packed->q, begin * query, c.T * query);
  copy_elements(&one.k, 0, &packed->k, begin * query, c.T * query);
  copy_elements(&one.v, 0, &packed->v, begin * value, c.T * value);
  copy_elements(&one.dout, 0, &packed->dout, begin * value, c.T * value);
  copy_elements(&one.initial_state, 0, &packed->initial_state, n * states, states);
  copy_elements(&one.d_final_state, 0, &packed->d_final_state, n * states, states);
  run_forward(&one, 1, NULL);
  run_backward(&one, 1, NULL);
  check_same_bits("out", &one.out, 0, &packed->out, begin * value, c.T * value);
  check_same_bits("final_state", &one.final_state, 0, &packed->final_state, n * states, states);
  check_same_bits("dq", &one.dq, 0, &packed->dq, begin * query, c.T * query);
  check_same_bits("dk", &one.dk, 0, &packed->dk, begin * query, c.T * query);
  check_same_bits("dv", &one.dv, 0, &packed->dv, begin * value, c.T * value);
  check_same_bits("d_initial_state", &one.d_initial_state, 0, &packed->d_initial_state, n * states, states);
  free_fixture(&one);
}

/* The cut into blocks of columns differs between the two, too. */
static void test_packed_is_separate(void **unused) {
  (void)unused;
  const lightning_case c = {"packed",
                            1,
                            291,
                            1,
                            2,
                            70,
                            100,
                            TYPICAL,
                            STATES,
                            .bounds_kind = TIGON_I32,
                            .bounds_count = 8,
                            .bounds = {0, 64, 64, 65, 128, 129, 256, 291}};
  fixture packed;
  make_fixture(&packed, &c, 5);
  run_forward(&packed, 2, NULL);
  run_backward(&packed, 2, NULL);
  for (int64_t n = 0; n < packed.N; n++) check_separate(&packed, n);
  free_fixture(&packed);
}

static test_tensor *results(fixture *f, int i) {
  test_tensor *const all[] = {&f->out, &f->final_state, &f->dq, &f->dk, &f->dv, &f->d_initial_state};
  return i < 6 ? all[i] : NULL;
}

/* 1, 2 and 7 threads, and a second run into the same outputs, give the same bits; inputs stay as they were. */
static void test_bits(void **unused) {
  (void)unused;
  for (size_t i = 0; i < sizeof lightning_cases / sizeof *lightning_cases; i++) {
    lightning_case c = lightning_cases[i];
    if (c.final_state == FINAL_ALIAS) c.final_state = FINAL_OWN;
    fixture f[4];
    for (int run = 0; run < 4; run++) {
      make_fixture(&f[run], &c, 40 + i);
      if (run == 0) continue; /* keeps the inputs */
      run_forward(&f[run], (int[]){0, 1, 2, 7}[run], NULL);
      run_backward(&f[run], (int[]){0, 1, 2, 7}[run], NULL);
    }
    run_forward(&f[3], 3, NULL);
    run_backward(&f[3], 3, NULL);
    for (int run = 1; run < 4; run++) {
      const test_tensor *before[] = {&f[0].q,          &f[0].k,
                                     &f[0].v,          &f[0].decay,
                                     &f[0].cu_seqlens, &f[0].initial_state,
                                     &f[0].dout,       &f[0].d_final_state,
                                     &f[0].qkv};
      const test_tensor *after[] = {&f[run].q,          &f[run].k,
                                    &f[run].v,          &f[run].decay,
                                    &f[run].cu_seqlens, &f[run].initial_state,
                                    &f[run].dout,       &f[run].d_final_state,
                                    &f[run].qkv};
      for (int t = 0; t < 9; t++)
        if (before[t]->block) test_tensor_check_same("input", before[t], after[t]);
      for (int t = 0; results(&f[run], t); t++)
        if (results(&f[run], t)->block) test_tensor_check_same(c.name, results(&f[1], t), results(&f[run], t));
    }
    for (int run = 0; run < 4; run++) free_fixture(&f[run]);
    test_count_case();
  }
}

/* The oracle with the same NaN says where NaN must stand, and that all else is as if there were none. */
static void check_against_oracle(fixture *f) {
  oracle_inputs o;
  read_inputs(&o, f);
  double *expected[6];
  for (int i = 0; i < 6; i++) expected[i] = doubles(results(f, i)->count);
  const lightning_gradients g = {o.dout, o.d_final_state, expected[2], expected[3], expected[4], expected[5]};
  lightning_oracle(&o.in, expected[0], expected[1]);
  lightning_backward_oracle(&o.in, &g);
  run_forward(f, 2, NULL);
  run_backward(f, 2, NULL);
  static const char *const names[] = {"out", "final_state", "dq", "dk", "dv", "d_initial_state"};
  for (int i = 0; i < 6; i++) {
    test_gate(names[i], results(f, i), expected[i], NULL, 4e-5);
    free(expected[i]);
  }
  free_inputs(&o);
}

static void test_nan_stays(void **unused) {
  (void)unused;
  test_rng rng = {77};
  for (int n = 0; n < 120; n++) {
    lightning_case c = {"NaN",
                        1,
                        200,
                        2,
                        4,
                        20,
                        35,
                        {0.01, 0.2, 1, 0},
                        STATES,
                        .bounds_kind = TIGON_I32,
                        .bounds_count = 4,
                        .bounds = {0, 20, 150, 195}};
    fixture f;
    make_fixture(&f, &c, 900 + (uint64_t)n);
    test_tensor *inputs[] = {&f.q, &f.k, &f.v, &f.dout, &f.initial_state, &f.d_final_state};
    test_tensor *t = inputs[n % 6];
    test_tensor_set(t, test_random_range(&rng, 0, t->count - 1), (double)NAN);
    check_against_oracle(&f);
    free_fixture(&f);
    test_count_case();
  }
}

/* Tokens in no sequence may hold anything; their rows are 0. */
static void test_poisoned_padding(void **unused) {
  (void)unused;
  const lightning_case c = {"padding",
                            1,
                            400,
                            2,
                            2,
                            20,
                            35,
                            TYPICAL,
                            STATES,
                            .bounds_kind = TIGON_I32,
                            .bounds_count = 3,
                            .bounds = {30, 100, 150},
                            .first_bad = 1};
  fixture f;
  make_fixture(&f, &c, 9);
  test_tensor *inputs[] = {&f.q, &f.k, &f.v, &f.dout};
  for (int i = 0; i < 4; i++) {
    const int64_t row = inputs[i]->count / c.T;
    for (int64_t e = 0; e < inputs[i]->count; e++)
      if (e / row < 30 || e / row >= 150) test_tensor_set(inputs[i], e, (double)NAN);
  }
  check_against_oracle(&f);
  test_tensor *outputs[] = {&f.out, &f.dq, &f.dk, &f.dv};
  for (int i = 0; i < 4; i++)
    for (int64_t e = 0; e < outputs[i]->count; e++)
      if (e / (outputs[i]->count / c.T) < 30 || e / (outputs[i]->count / c.T) >= 150)
        assert_true(test_tensor_get(outputs[i], e) == 0);
  free_fixture(&f);
}

/* One key e_3 and value e_5: S[v = 5][k = 3] = 1, after two more tokens lambda^2; the scale does not enter. */
static void test_state_orientation(void **unused) {
  (void)unused;
  const lightning_case c = {"orientation", 1, 3, 1, 1, 6, 9, {0.25}, .scale = -7, .final_state = FINAL_OWN};
  fixture f;
  make_fixture(&f, &c, 1);
  test_tensor_fill_value(&f.k, 0);
  test_tensor_fill_value(&f.v, 0);
  test_tensor_set(&f.k, 3, 1);
  test_tensor_set(&f.v, 5, 1);
  run_forward(&f, 1, NULL);
  for (int64_t i = 0; i < f.final_state.count; i++) {
    const double expected = i == 5 * 6 + 3 ? (double)(float)exp(-0.5) : 0;
    assert_true(test_tensor_get(&f.final_state, i) == expected);
  }
  free_fixture(&f);
}

/* A single gradient output asked for alone has the bits of the call for all. */
static void test_each_gradient_alone(void **unused) {
  (void)unused;
  const lightning_case c = {"alone", 2, 70, 2, 4, 33, 20, TYPICAL, STATES};
  for (int wanted = 2; wanted < 6; wanted++) {
    fixture all, one;
    make_fixture(&all, &c, 21);
    make_fixture(&one, &c, 21);
    run_backward(&all, 2, NULL);
    tigon_lightning_attention_backward_args args = backward_args(&one);
    if (wanted != 2) args.dq = NULL;
    if (wanted != 3) args.dk = NULL;
    if (wanted != 4) args.dv = NULL;
    if (wanted != 5) args.d_initial_state = NULL;
    uint64_t bytes;
    const tigon_exec exec = {.size = sizeof exec, .num_threads = 2};
    test_expect_status(tigon_lightning_attention_backward_workspace(&exec, &args, &bytes), TIGON_OK, NULL);
    test_workspace w;
    test_workspace_make(&w, bytes, 2);
    test_expect_status(tigon_lightning_attention_backward(&w.exec, &args), TIGON_OK, NULL);
    test_workspace_free(&w);
    test_tensor_check_same("gradient", results(&all, wanted), results(&one, wanted));
    free_fixture(&all);
    free_fixture(&one);
  }
}

static void check_record(tigon_context *context, const lightning_case *c, const char *op) {
  tigon_record record;
  const tigon_status status = tigon_check(context, &record);
  assert_int_equal(status, c->first_bad ? TIGON_INVALID_ARGUMENT : TIGON_OK);
  if (c->first_bad) {
    assert_string_equal(record.op, op);
    assert_string_equal(record.argument, "cu_seqlens");
    assert_int_equal(record.index, c->first_bad - 1);
    assert_true(record.value == c->bounds[c->first_bad - 1]);
  }
  tigon_clear(context);
}

static void test_record(void **unused) {
  (void)unused;
  tigon_context *context;
  test_expect_status(tigon_context_create((DLDevice){.device_type = kDLCPU}, &context), TIGON_OK, NULL);
  for (size_t i = 0; i < sizeof lightning_cases / sizeof *lightning_cases; i++) {
    const lightning_case *c = &lightning_cases[i];
    if (!c->bounds_kind) continue;
    fixture f;
    make_fixture(&f, c, 1);
    run_forward(&f, 2, context);
    check_record(context, c, "tigon_lightning_attention");
    run_backward(&f, 2, context);
    check_record(context, c, "tigon_lightning_attention_backward");
    free_fixture(&f);
  }
  const lightning_case bad = {"decay", 1, 3, 4, 4, 4, 4, .decay = {0.5, -0.0, -2.0, NAN}};
  fixture f;
  make_fixture(&f, &bad, 1);
  run_forward(&f, 2, context);
  tigon_record record;
  assert_int_equal(tigon_check(context, &record), TIGON_INVALID_ARGUMENT);
  assert_string_equal(record.argument, "decay");
  assert_int_equal(record.index, 2);
  assert_true(record.value == 0xc0000000);
  free_fixture(&f);
  tigon_context_destroy(context);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_packed_is_separate),
      cmocka_unit_test(test_bits),
      cmocka_unit_test(test_nan_stays),
      cmocka_unit_test(test_poisoned_padding),
      cmocka_unit_test(test_state_orientation),
      cmocka_unit_test(test_each_gradient_alone),
      cmocka_unit_test(test_record),
  };
  return test_gate_report("lightning_attention_properties", cmocka_run_group_tests(tests, NULL, NULL));
}
