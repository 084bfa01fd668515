/* States alone and their merge: against the oracle, forward, and each other. */
#include "lightning_attention/pools.h"

static void check_record(tigon_context *context, const char *op, const char *argument, int64_t index, int64_t value) {
  tigon_record record;
  assert_int_equal(tigon_check(context, &record), argument ? TIGON_INVALID_ARGUMENT : TIGON_OK);
  if (argument) {
    assert_string_equal(record.op, op);
    assert_string_equal(record.argument, argument);
    assert_true(record.index == index && record.value == value);
  }
  tigon_clear(context);
}

static tigon_context *new_context(void) {
  tigon_context *context;
  test_expect_status(tigon_context_create((DLDevice){.device_type = kDLCPU}, &context), TIGON_OK, NULL);
  return context;
}

/* Tokens past a sequence's length may hold anything. */
static void poison_rest(pool_fixture *f) {
  test_tensor *tokens[] = {&f->f.k, &f->f.v};
  for (int t = 0; t < 2; t++) {
    const int64_t row = tokens[t]->count / (f->c.B * f->c.T > 0 ? f->c.B * f->c.T : 1);
    for (int64_t n = 0; n < f->f.N && f->p->length_kind; n++) {
      const int64_t begin = f->c.bounds_kind ? f->c.bounds[n] : n * f->c.T;
      int64_t used = f->p->lengths[n] > 0 ? f->p->lengths[n] : 0;
      if (used > tokens_of(f, n)) used = tokens_of(f, n);
      for (int64_t i = used * row; i < tokens_of(f, n) * row; i++)
        test_tensor_set(tokens[t], begin * row + i, (double)NAN);
    }
  }
}

static void check_state_case(const pool_case *p, uint64_t seed, tigon_context *context) {
  pool_fixture f[3];
  for (int i = 0; i < 3; i++) {
    make_pool_fixture(&f[i], p, seed);
    poison_rest(&f[i]);
  }
  oracle_inputs o;
  read_pool_inputs(&o, &f[0]);
  o.in.lengths = p->length_kind ? p->lengths : NULL;
  double *state = test_tensor_values(written_pool(&f[0])), *plain = test_tensor_values(written_pool(&f[0]));
  lightning_oracle(&o.in, NULL, state);
  lightning_plain(&o.in, NULL, plain, TIGON_F32);
  for (int i = 0; i < 3; i++) {
    const tigon_lightning_attention_state_args args = state_args(&f[i]);
    call_state(&args, (int[]){2, 1, 7}[i], i ? NULL : context);
    test_tensor_check_same("final_state", written_pool(&f[0]), written_pool(&f[i]));
  }
  check_record(context, "tigon_lightning_attention_state", p->bad, p->bad_index, p->bad_value);
  test_gate("state", written_pool(&f[0]), state, plain, state_bound());
  free(state);
  free(plain);
  free_inputs(&o);
  for (int i = 0; i < 3; i++) free_pool_fixture(&f[i]);
  test_count_case();
}

/* The pool cases of forward, whole and with lengths. */
static void test_pool_cases(void **unused) {
  (void)unused;
  test_rng rng = {3};
  tigon_context *context = new_context();
  for (size_t i = 0; i < sizeof pool_cases / sizeof *pool_cases; i++) {
    pool_case p = pool_cases[i];
    if (p.c.final_state == FINAL_ABSENT) continue;
    p.every = 0;
    p.begin_kind = (tigon_kind)0;
    if (p.bad && strncmp(p.bad, "checkpoint", 10) == 0) p.bad = NULL;
    check_state_case(&p, 300 + i, context);
    p.length_kind = test_random(&rng) % 2 ? TIGON_I32 : TIGON_I64;
    for (int64_t n = 0; n < MAX_BOUNDS; n++) {
      const int64_t whole =
          p.c.bounds_kind ? (n + 1 < p.c.bounds_count ? p.c.bounds[n + 1] - p.c.bounds[n] : 0) : p.c.T;
      p.lengths[n] = test_random_range(&rng, 0, whole);
    }
    check_state_case(&p, 300 + i, context);
  }
  tigon_context_destroy(context);
}

static void test_bad_lengths(void **unused) {
  (void)unused;
  tigon_context *context = new_context();
  const pool_case cases[] = {
      {{"below 0", 3, 20, 2, 2, 9, 12, TYPICAL, IN_PLACE},
       .length_kind = TIGON_I32,
       .lengths = {3, -1, 20},
       .bad = "lengths",
       .bad_index = 1,
       .bad_value = -1},
      {{"past the end", 3, 20, 2, 2, 9, 12, TYPICAL, IN_PLACE},
       .length_kind = TIGON_I64,
       .lengths = {3, 20, INT64_MAX},
       .bad = "lengths",
       .bad_index = 2,
       .bad_value = INT64_MAX},
      {{"packed", 1, 90, 2, 2, 9, 12, TYPICAL, IN_PLACE, SEQUENCES(TIGON_I32, 0, 70, 90)},
       .length_kind = TIGON_I64,
       .lengths = {INT64_MIN, 21},
       .bad = "lengths",
       .bad_value = INT64_MIN},
      {{"after the slots", 2, 20, 2, 2, 9, 12, TYPICAL, IN_PLACE},
       SLOTS(2, TIGON_I64, 1, 2),
       .length_kind = TIGON_I64,
       .lengths = {-3, 2},
       .bad = "state_indices",
       .bad_index = 1,
       .bad_value = 2},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_state_case(&cases[i], i, context);
  tigon_context_destroy(context);
}

/* The bits of forward. */
static void test_bits_of_forward(void **unused) {
  (void)unused;
  for (size_t i = 0; i < sizeof pool_cases / sizeof *pool_cases; i++) {
    if (pool_cases[i].c.final_state == FINAL_ABSENT) continue;
    pool_fixture a, b;
    make_pool_fixture(&a, &pool_cases[i], 300 + i);
    make_pool_fixture(&b, &pool_cases[i], 300 + i);
    const tigon_lightning_attention_args forward = pool_args(&a);
    const tigon_lightning_attention_state_args state = state_args(&b);
    call_forward(&forward, 2, NULL);
    call_state(&state, 2, NULL);
    test_tensor_check_same(pool_cases[i].c.name, written_pool(&a), written_pool(&b));
    free_pool_fixture(&a);
    free_pool_fixture(&b);
  }
}

/* --- merge -------------------------------------------------------------------------------------------------------- */

typedef struct merge_fixture {
  int64_t N, HV, V, K;
  test_tensor left, right, out, decay, lengths;
} merge_fixture;

static void make_merge(merge_fixture *f, int64_t N, int64_t HV, int64_t V, int64_t K, int64_t decays,
                       const double *slopes, tigon_kind length_kind, const int64_t *lengths) {
  const int64_t shape[4] = {N, HV, V, K};
  test_rng rng = {(uint64_t)(N + HV * V + K)};
  *f = (merge_fixture){N, HV, V, K, .lengths = {.kind = length_kind}};
  make_pool(&f->left, shape, 1);
  make_pool(&f->right, shape, 0);
  make_pool(&f->out, shape, 3);
  test_tensor_fill_normal(&f->left, &rng, 1.0);
  test_tensor_fill_normal(&f->right, &rng, 1.0);
  test_tensor_make(&f->decay, TIGON_F32, 1, &decays, (test_layout){.vector_stride = 3});
  for (int64_t i = 0; i < decays; i++) test_tensor_set(&f->decay, i, slopes[i % 4]);
  make_vector(&f->lengths, length_kind, N, lengths);
}

static void free_merge(merge_fixture *f) {
  test_tensor *all[] = {&f->left, &f->right, &f->out, &f->decay, &f->lengths};
  for (int i = 0; i < 5; i++) {
    test_tensor_check_surroundings(all[i]);
    test_tensor_free(all[i]);
  }
}

static tigon_lightning_attention_merge_args merge_args(merge_fixture *f) {
  return (tigon_lightning_attention_merge_args){.size = sizeof(tigon_lightning_attention_merge_args),
                                                .left = &f->left.tensor.dl,
                                                .right = &f->right.tensor.dl,
                                                .decay = &f->decay.tensor.dl,
                                                .lengths = &f->lengths.tensor.dl,
                                                .out = &f->out.tensor.dl};
}

static void call_merge(const tigon_lightning_attention_merge_args *args, int threads, tigon_context *context) {
  const tigon_exec exec = {.size = sizeof exec, .num_threads = threads, .context = context};
  uint64_t bytes = 1;
  test_expect_status(tigon_lightning_attention_merge_workspace(&exec, args, &bytes), TIGON_OK, NULL);
  assert_int_equal(bytes, 0);
  test_expect_status(tigon_lightning_attention_merge(&exec, args), TIGON_OK, NULL);
}

/* out, or the state that takes its place, against lambda^length * left + right in float64 and in float32. */
static void check_merge(merge_fixture *f, test_tensor *out, const double *slopes, const int64_t *lengths) {
  double *left = test_tensor_values(&f->left), *right = test_tensor_values(&f->right);
  double *exact = doubles(f->left.count), *plain = doubles(f->left.count);
  tigon_lightning_attention_merge_args args = merge_args(f);
  args.out = &out->tensor.dl;
  call_merge(&args, 2, NULL);
  const int64_t state = f->V * f->K;
  for (int64_t i = 0; i < f->left.count; i++) {
    const int64_t head = i / state % f->HV, n = i / state / f->HV;
    const double s = slopes[head / (f->HV / f->decay.count) % 4];
    const double power = lengths[n] > 0 ? exp(-(s >= 0 ? (double)(float)s : 0) * (double)lengths[n]) : 1;
    exact[i] = power * left[i] + right[i];
    plain[i] = (float)((float)power * (float)left[i]) + (float)right[i];
  }
  test_gate("merge", out, exact, plain, 1e-6);
  double *all[] = {left, right, exact, plain};
  for (int i = 0; i < 4; i++) free(all[i]);
  test_count_case();
}

static void test_merge(void **unused) {
  (void)unused;
  const int64_t lengths[] = {5, 0, 1000, INT64_MAX, 64, 1};
  const double slopes[][4] = {{0, 1e-4, 0.92, 2}, {4, 8, 30, INFINITY}, {-1, (double)NAN, -0.0, 0.5}};
  const int64_t sizes[][4] = {{6, 4, 12, 20}, {1, 8, 7, 129}, {6, 1, 1, 1}, {2, 4, 128, 128}, {0, 4, 8, 8}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (int s = 0; s < 3; s++)
      for (int place = 0; place < 3; place++) {
        const int64_t *z = sizes[i], decays = place == 1 && z[1] > 1 ? z[1] / 2 : z[1];
        merge_fixture f;
        make_merge(&f, z[0], z[1], z[2], z[3], decays, slopes[s], place ? TIGON_I64 : TIGON_I32,
                   place ? lengths : (int64_t[]){5, 0, 1000, INT32_MAX, 64, 1});
        check_merge(&f, place == 0 ? &f.out : place == 1 ? &f.left : &f.right, slopes[s], lengths);
        free_merge(&f);
      }
}

static void test_merge_bits_and_record(void **unused) {
  (void)unused;
  tigon_context *context = new_context();
  const int64_t lengths[] = {5, -2, INT64_MIN};
  const double slopes[] = {0.5, 0.1, 0.2, 0.3};
  merge_fixture f[3];
  for (int i = 0; i < 3; i++) {
    make_merge(&f[i], 3, 4, 9, 30, 4, slopes, TIGON_I64, lengths);
    const tigon_lightning_attention_merge_args args = merge_args(&f[i]);
    call_merge(&args, (int[]){1, 2, 7}[i], context);
    check_record(context, "tigon_lightning_attention_merge", "lengths", 1, -2);
    test_tensor_check_same("merge", &f[0].out, &f[i].out);
  }
  test_tensor_set(&f[0].decay, 2, -1); /* comes first in the record */
  const tigon_lightning_attention_merge_args args = merge_args(&f[0]);
  call_merge(&args, 1, context);
  check_record(context, "tigon_lightning_attention_merge", "decay", 2, 0xbf800000);
  for (int i = 0; i < 3; i++) free_merge(&f[i]);
  tigon_context_destroy(context);
}

/* --- local states of parts, merged, are the state of the whole
 * ------------------------------------------------------ */

static void add_part(pool_fixture *f, int64_t begin, int64_t length, test_tensor *sum, test_tensor *local) {
  tigon_lightning_attention_state_args args = state_args(f);
  test_tensor *tokens[] = {&f->f.k, &f->f.v};
  for (int t = 0; t < 2; t++) {
    tokens[t]->tensor.shape[1] = length;
    tokens[t]->tensor.dl.byte_offset +=
        (uint64_t)(begin * tokens[t]->tensor.strides[1] * tigon_kind_bytes(tokens[t]->kind));
  }
  args.initial_state = NULL;
  args.final_state = &local->tensor.dl;
  call_state(&args, 2, NULL);
  for (int t = 0; t < 2; t++) {
    tokens[t]->tensor.shape[1] = f->c.T;
    tokens[t]->tensor.dl.byte_offset -=
        (uint64_t)(begin * tokens[t]->tensor.strides[1] * tigon_kind_bytes(tokens[t]->kind));
  }
  test_tensor lengths;
  make_vector(&lengths, TIGON_I64, f->f.N, (int64_t[]){length, length, length});
  const tigon_lightning_attention_merge_args merge = {.size = sizeof merge,
                                                      .left = &sum->tensor.dl,
                                                      .right = &local->tensor.dl,
                                                      .decay = &f->f.decay.tensor.dl,
                                                      .lengths = &lengths.tensor.dl,
                                                      .out = &sum->tensor.dl};
  call_merge(&merge, 2, NULL);
  test_tensor_free(&lengths);
}

static void test_parts(void **unused) {
  (void)unused;
  static const double decays[][4] = {TYPICAL, GENTLE, {0, 1e-4, 30, INFINITY}};
  test_rng rng = {8};
  for (int round = 0; round < 60; round++) {
    pool_case p = {.c = {"parts", .B = 3, .K = 20, .V = 12, .H = 2, .HV = 4, STATES}};
    p.c.T = test_random_range(&rng, 1, 400);
    memcpy(p.c.decay, decays[round % 3], sizeof p.c.decay);
    pool_fixture f;
    make_pool_fixture(&f, &p, (uint64_t)round);
    oracle_inputs o;
    read_pool_inputs(&o, &f);
    double *exact = doubles(f.final.count), *plain = doubles(f.final.count);
    lightning_oracle(&o.in, NULL, exact);
    lightning_plain(&o.in, NULL, plain, TIGON_F32);
    for (int64_t begin = 0; begin < p.c.T;) {
      const int64_t length = test_random_range(&rng, 1, p.c.T - begin);
      add_part(&f, begin, length, &f.initial, &f.final);
      begin += length;
    }
    test_gate("state of parts", &f.initial, exact, plain, state_bound());
    free(exact);
    free(plain);
    free_inputs(&o);
    free_pool_fixture(&f);
    test_count_case();
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_pool_cases),
      cmocka_unit_test(test_bad_lengths),
      cmocka_unit_test(test_bits_of_forward),
      cmocka_unit_test(test_merge),
      cmocka_unit_test(test_merge_bits_and_record),
      cmocka_unit_test(test_parts),
  };
  return test_gate_report("lightning_attention_state", cmocka_run_group_tests(tests, NULL, NULL));
}
