/* State pools, fresh sequences and checkpoints of prefill against the oracle; what stays untouched; the record. */
#include "lightning_attention/pools.h"

static double bound_of(tigon_kind kind) { return kind == TIGON_BF16 ? 0x1p-9 : kind == TIGON_F16 ? 0x1p-12 : 1e-5; }

/* Row of checkpoint j (1, 2, ...) of sequence n; -1: it has none. */
static int64_t checkpoint_row(const pool_fixture *f, int64_t n, int64_t j) {
  const pool_case *p = f->p;
  if (is_padding(p, n) || j * p->every > tokens_of(f, n)) return -1;
  int64_t begin = n * (f->c.T / p->every), end = begin + f->c.T / p->every;
  if (p->begin_kind) {
    begin = end = 0;
    for (int64_t i = 0; i <= n + 1; i++) {
      const int64_t value = p->begin[i] < p->rows ? p->begin[i] : p->rows;
      if (i <= n && value > begin) begin = value;
      if (value > end) end = value;
    }
  }
  const int64_t row = begin + j - 1;
  return row < end && row < p->rows ? row : -1;
}

/* Fills the expected checkpoints: states of the oracle after j * every tokens. Others are NaN, as the poison is. */
static void expect_checkpoints(const pool_fixture *f, const lightning_inputs *in, double *expected, double *plain) {
  const int64_t state = f->c.HV * f->c.V * f->c.K, slots = f->p->P ? f->p->P : f->f.N;
  for (int64_t i = 0; i < f->checkpoints.count; i++) expected[i] = plain[i] = (double)NAN;
  double *exact = doubles(slots * state), *rounded = doubles(slots * state);
  for (int64_t j = 1; j * f->p->every <= f->c.T; j++) {
    int64_t lengths[MAX_BOUNDS];
    for (int64_t n = 0; n < f->f.N; n++) lengths[n] = j * f->p->every;
    lightning_inputs part = *in;
    part.lengths = lengths;
    lightning_oracle(&part, NULL, exact);
    lightning_plain(&part, NULL, rounded, TIGON_F32);
    for (int64_t n = 0; n < f->f.N; n++) {
      const int64_t row = checkpoint_row(f, n, j);
      if (row < 0) continue;
      memcpy(expected + row * state, exact + slot_of(f->p, n) * state, sizeof(double) * (size_t)state);
      memcpy(plain + row * state, rounded + slot_of(f->p, n) * state, sizeof(double) * (size_t)state);
    }
  }
  free(exact);
  free(rounded);
}

static void check_checkpoints(pool_fixture *f, const lightning_inputs *in) {
  if (!f->p->every) return;
  double *expected = doubles(f->checkpoints.count), *plain = doubles(f->checkpoints.count);
  expect_checkpoints(f, in, expected, plain);
  test_gate("checkpoints", &f->checkpoints, expected, plain, bound_of(TIGON_F32));
  free(expected);
  free(plain);
}

static void check_record(tigon_context *context, const pool_case *p) {
  tigon_record record;
  assert_int_equal(tigon_check(context, &record), p->bad ? TIGON_INVALID_ARGUMENT : TIGON_OK);
  if (p->bad) {
    assert_string_equal(record.op, "tigon_lightning_attention");
    assert_string_equal(record.argument, p->bad);
    assert_true(record.index == p->bad_index && record.value == p->bad_value);
  }
  tigon_clear(context);
}

/* Slots in no use, and a pool that is only read, keep every bit. */
static void check_untouched(pool_fixture *f, pool_fixture *before) {
  const int64_t state = f->c.HV * f->c.V * f->c.K;
  test_tensor *pools[] = {&f->initial, &f->final}, *old[] = {&before->initial, &before->final};
  for (int i = 0; i < 2; i++)
    for (int64_t e = 0; e < pools[i]->count; e++) {
      if (pools[i] == written_pool(f) && sequence_at(f, e / state) >= 0) continue;
      const double a = test_tensor_get(pools[i], e), b = test_tensor_get(old[i], e);
      if (memcmp(&a, &b, sizeof a) != 0) fail_msg("element %lld of a slot in no use was written", (long long)e);
    }
}

static void check_threads(const pool_case *p, uint64_t seed, pool_fixture *first) {
  for (int threads = 1; threads <= 7; threads += 6) {
    pool_fixture f;
    make_pool_fixture(&f, p, seed);
    const tigon_lightning_attention_args args = pool_args(&f);
    call_forward(&args, threads, NULL);
    test_tensor_check_same("out", &first->f.out, &f.f.out);
    if (written_pool(&f)) test_tensor_check_same("final_state", written_pool(first), written_pool(&f));
    if (p->every) test_tensor_check_same("checkpoints", &first->checkpoints, &f.checkpoints);
    free_pool_fixture(&f);
  }
}

static void check_pool_case(const pool_case *p, uint64_t seed, tigon_context *context) {
  pool_fixture f, before;
  make_pool_fixture(&f, p, seed);
  make_pool_fixture(&before, p, seed);
  oracle_inputs o;
  read_pool_inputs(&o, &f);
  test_tensor *pool = written_pool(&f);
  double *out = doubles(f.f.out.count), *plain_out = doubles(f.f.out.count);
  double *state = pool ? test_tensor_values(pool) : NULL, *plain_state = pool ? test_tensor_values(pool) : NULL;
  lightning_oracle(&o.in, out, state);
  lightning_plain(&o.in, plain_out, plain_state, f.f.out.kind);
  const tigon_lightning_attention_args args = pool_args(&f);
  call_forward(&args, 2, context);
  check_record(context, p);
  test_gate("out", &f.f.out, out, plain_out, bound_of(f.f.out.kind));
  if (pool) test_gate("final_state", pool, state, plain_state, bound_of(TIGON_F32));
  check_checkpoints(&f, &o.in);
  check_untouched(&f, &before);
  check_threads(p, seed, &f);
  double *all[] = {out, plain_out, state, plain_state};
  for (int i = 0; i < 4; i++) free(all[i]);
  free_inputs(&o);
  free_pool_fixture(&f);
  free_pool_fixture(&before);
  test_count_case();
}

static tigon_context *new_context(void) {
  tigon_context *context;
  test_expect_status(tigon_context_create((DLDevice){.device_type = kDLCPU}, &context), TIGON_OK, NULL);
  return context;
}

static void test_table(void **unused) {
  (void)unused;
  tigon_context *context = new_context();
  for (size_t i = 0; i < sizeof pool_cases / sizeof *pool_cases; i++) {
    print_message("%s\n", pool_cases[i].c.name);
    check_pool_case(&pool_cases[i], 300 + i, context);
  }
  tigon_context_destroy(context);
}

/* Packed lengths 1 to 64 in shuffled slots; each third sequence is padding, each fifth fresh; all else holds NaN. */
static void test_every_length(void **unused) {
  (void)unused;
  tigon_context *context = new_context();
  for (int round = 0; round < 2; round++) {
    pool_case p = {.c = lightning_all_lengths(), .P = 80, .index_kind = TIGON_I32, .flag_kind = TIGON_U8, .pad = 7};
    p.c.final_state = round ? FINAL_OWN : FINAL_ALIAS;
    for (int64_t n = 0; n < 64; n++) {
      p.slots[n] = n % 3 == round ? -1 : n * 37 % 79;
      p.flags[n] = n % 5 != 0;
    }
    check_pool_case(&p, 9, context);
  }
  tigon_context_destroy(context);
}

static void random_states(pool_case *p, int64_t N, test_rng *rng) {
  p->pad = test_random_range(rng, 0, 9);
  p->index_kind = test_random(rng) % 2 ? TIGON_I32 : TIGON_I64;
  if (test_random(rng) % 4 && (p->c.initial_state || p->c.final_state)) {
    p->P = N + test_random_range(rng, 1, 4);
    for (int64_t n = 0; n < N; n++) p->slots[n] = test_random(rng) % 4 ? p->P - 1 - n : -1;
  }
  if (p->c.initial_state && test_random(rng) % 2) {
    p->flag_kind = (tigon_kind[]){TIGON_U8, TIGON_I32, TIGON_I64}[test_random(rng) % 3];
    for (int64_t n = 0; n < N; n++) p->flags[n] = (int64_t)(test_random(rng) % 2);
  }
}

static pool_case random_pool_case(test_rng *rng) {
  static const double decays[] = {0, 1e-4, 0.92, 2, 4, 8, 30, INFINITY};
  static const tigon_kind kinds[] = {TIGON_F32, TIGON_BF16, TIGON_F16};
  pool_case p = {.c = {.name = "random"}};
  lightning_case *c = &p.c;
  c->B = test_random_range(rng, 1, 4);
  c->T = test_random_range(rng, 0, 300);
  c->H = test_random_range(rng, 1, 2);
  c->HV = c->H * (1 << test_random_range(rng, 0, 3));
  c->K = test_random_range(rng, 1, 40);
  c->V = test_random_range(rng, 1, 40);
  for (int i = 0; i < 4; i++) c->decay[i] = decays[test_random(rng) % 8];
  c->decay_of_query_heads = test_random(rng) % 2;
  c->query_kind = kinds[test_random(rng) % 3];
  c->value_kind = kinds[test_random(rng) % 3];
  c->out_kind = kinds[test_random(rng) % 3];
  c->initial_state = test_random(rng) % 4 != 0;
  c->final_state = (final_mode)test_random_range(rng, 0, c->initial_state ? 2 : 1);
  int64_t N = c->B;
  if (test_random(rng) % 2) {
    c->B = 1;
    c->bounds_kind = test_random(rng) % 2 ? TIGON_I32 : TIGON_I64;
    N = test_random_range(rng, 1, 6);
    for (c->bounds_count = 1; c->bounds_count <= N; c->bounds_count++) {
      const int64_t at = c->bounds[c->bounds_count - 1] + test_random_range(rng, 0, 130);
      c->bounds[c->bounds_count] = at < c->T ? at : c->T;
    }
  }
  random_states(&p, N, rng);
  if (test_random(rng) % 2) {
    p.every = 64 * test_random_range(rng, 1, 2);
    p.begin_kind = c->bounds_kind || test_random(rng) % 2 ? TIGON_I64 : (tigon_kind)0;
    for (int64_t n = 0; n < N; n++) p.begin[n + 1] = p.begin[n] + c->T / p.every;
    p.rows = N * (c->T / p.every) + test_random_range(rng, 0, 2);
  }
  return p;
}

static void test_random_cases(void **unused) {
  (void)unused;
  test_rng rng = {77};
  tigon_context *context = new_context();
  for (int i = 0; i < 200; i++) {
    const pool_case p = random_pool_case(&rng);
    check_pool_case(&p, 2000 + (uint64_t)i, context);
  }
  tigon_context_destroy(context);
}

/* A slot that two sequences name is undefined afterwards; all others, and the other sequences' outputs, are right. */
static void test_duplicates(void **unused) {
  (void)unused;
  const pool_case good = {
      {"unique", 4, 100, 2, 4, 20, 12, TYPICAL, IN_PLACE}, SLOTS(6, TIGON_I32, 4, 0, 2, 5), .pad = 3};
  pool_case twice = good;
  twice.slots[3] = 0;
  pool_fixture a, b;
  make_pool_fixture(&a, &good, 4);
  make_pool_fixture(&b, &twice, 4);
  const tigon_lightning_attention_args first = pool_args(&a), second = pool_args(&b);
  call_forward(&first, 2, NULL);
  call_forward(&second, 1, NULL); /* on one thread: two would race for the slot, which ThreadSanitizer reports */
  const int64_t state = a.c.HV * a.c.V * a.c.K, row = a.c.T * a.c.HV * a.c.V;
  for (int64_t i = 0; i < a.initial.count; i++)
    if (i / state != 0 && i / state != 5) {
      const double x = test_tensor_get(&a.initial, i), y = test_tensor_get(&b.initial, i);
      assert_memory_equal(&x, &y, sizeof x);
    }
  for (int64_t i = 0; i < a.f.out.count; i++)
    if (i / row == 0 || i / row == 2) assert_true(test_tensor_get(&a.f.out, i) == test_tensor_get(&b.f.out, i));
  free_pool_fixture(&a);
  free_pool_fixture(&b);
}

/* A checkpoint has the bits of the final state of a call that ends there. */
static void test_checkpoint_bits(void **unused) {
  (void)unused;
  const pool_case p = {{"bits", 2, 330, 2, 4, 70, 100, TYPICAL, IN_PLACE}, .every = 64, .rows = 10, .pad = 3};
  pool_fixture whole;
  make_pool_fixture(&whole, &p, 6);
  const tigon_lightning_attention_args args = pool_args(&whole);
  call_forward(&args, 2, NULL);
  const int64_t state = p.c.HV * p.c.V * p.c.K;
  for (int64_t j = 1; j <= 5; j++) {
    pool_fixture f;
    make_pool_fixture(&f, &p, 6);
    tigon_lightning_attention_args prefix = pool_args(&f);
    test_tensor *tokens[] = {&f.f.q, &f.f.k, &f.f.v, &f.f.out};
    for (int t = 0; t < 4; t++) tokens[t]->tensor.shape[1] = 64 * j;
    prefix.checkpoints = NULL;
    prefix.checkpoint_every = 0;
    call_forward(&prefix, 2, NULL);
    for (int64_t i = 0; i < 2 * state; i++) {
      const int64_t row = i / state * 5 + j - 1;
      const double a = test_tensor_get(&f.initial, i), b = test_tensor_get(&whole.checkpoints, row * state + i % state);
      assert_memory_equal(&a, &b, sizeof a);
    }
    for (int t = 0; t < 4; t++) tokens[t]->tensor.shape[1] = p.c.T;
    free_pool_fixture(&f);
  }
  free_pool_fixture(&whole);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_table),      cmocka_unit_test(test_every_length),    cmocka_unit_test(test_random_cases),
      cmocka_unit_test(test_duplicates), cmocka_unit_test(test_checkpoint_bits),
  };
  return test_gate_report("lightning_attention_pools", cmocka_run_group_tests(tests, NULL, NULL));
}
