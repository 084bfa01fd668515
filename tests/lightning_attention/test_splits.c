/*
 * A sequence goes on from its state, whatever made it: any split into prefill, decode, verified and committed drafts,
 * and merged local states gives what the whole gives. All over a pool whose other slots hold NaN.
 */
#include "lightning_attention/pools.h"

enum { SLOTS_OF_POOL = 5 };

typedef struct split {
  pool_fixture f;    /* the whole: a batch of one */
  test_tensor pool;  /* the state so far, at `slot` */
  test_tensor out;   /* of the parts */
  test_tensor index; /* slot */
  tigon_kind index_kind;
  int64_t slot;
} split;

/* Tokens [begin, begin + length) of a (1, T, heads, size) tensor. */
static DLTensor *part_of(tigon_tensor *view, const test_tensor *t, int64_t begin, int64_t length) {
  *view = t->tensor;
  view->dl.shape = view->shape;
  view->dl.strides = view->strides;
  view->shape[1] = length;
  view->dl.byte_offset += (uint64_t)(begin * view->strides[1] * tigon_kind_bytes(t->kind));
  return &view->dl;
}

/* The same for one token, without the dimension of tokens. */
static DLTensor *token_of(tigon_tensor *view, const test_tensor *t, int64_t token) {
  part_of(view, t, token, 1);
  view->dl.ndim = 3;
  memmove(view->shape + 1, view->shape + 2, 2 * sizeof *view->shape);
  memmove(view->strides + 1, view->strides + 2, 2 * sizeof *view->strides);
  return &view->dl;
}

static void make_split(split *s, const pool_case *p, uint64_t seed) {
  memset(s, 0, sizeof *s);
  make_pool_fixture(&s->f, p, seed);
  const int64_t state = p->c.HV * p->c.V * p->c.K;
  s->slot = (int64_t)(seed % SLOTS_OF_POOL);
  make_pool(&s->pool, (int64_t[]){SLOTS_OF_POOL, p->c.HV, p->c.V, p->c.K}, 3);
  for (int64_t i = 0; i < state; i++) test_tensor_set(&s->pool, s->slot * state + i, test_tensor_get(&s->f.initial, i));
  test_tensor_make(&s->out, s->f.f.out.kind, 4, s->f.f.out.tensor.shape, (test_layout){.row_pad = 2});
  s->index_kind = seed % 2 ? TIGON_I32 : TIGON_I64;
  make_vector(&s->index, s->index_kind, 1, &s->slot);
}

static void free_split(split *s) {
  test_tensor *all[] = {&s->pool, &s->out, &s->index};
  for (int i = 0; i < 3; i++) {
    test_tensor_check_surroundings(all[i]);
    test_tensor_free(all[i]);
  }
  free_pool_fixture(&s->f);
}

static void prefill(split *s, int64_t begin, int64_t length, bool commit) {
  tigon_tensor q, k, v, out;
  tigon_lightning_attention_args args = forward_args(&s->f.f);
  args.q = part_of(&q, &s->f.f.q, begin, length);
  args.k = part_of(&k, &s->f.f.k, begin, length);
  args.v = part_of(&v, &s->f.f.v, begin, length);
  args.out = part_of(&out, &s->out, begin, length);
  args.initial_state = &s->pool.tensor.dl;
  args.final_state = commit ? &s->pool.tensor.dl : NULL;
  args.state_indices = &s->index.tensor.dl;
  call_forward(&args, 2, NULL);
}

/* The state after the first of `length` tokens; local: the initial state is not read. */
static void advance(split *s, int64_t begin, int64_t length, int64_t accepted, DLTensor *local) {
  tigon_tensor k, v;
  test_tensor lengths;
  make_vector(&lengths, TIGON_I32, 1, &accepted);
  tigon_lightning_attention_state_args args = state_args(&s->f);
  args.k = part_of(&k, &s->f.f.k, begin, length);
  args.v = part_of(&v, &s->f.f.v, begin, length);
  args.lengths = &lengths.tensor.dl;
  args.initial_state = local ? NULL : &s->pool.tensor.dl;
  args.final_state = local ? local : &s->pool.tensor.dl;
  args.state_indices = local ? NULL : &s->index.tensor.dl;
  call_state(&args, 2, NULL);
  test_tensor_free(&lengths);
}

/* The pool's slot takes lambda^length * itself + the local state. */
static void merge_part(split *s, int64_t begin, int64_t length) {
  const lightning_case *c = &s->f.c;
  test_tensor local, lengths;
  make_pool(&local, (int64_t[]){1, c->HV, c->V, c->K}, 1);
  make_vector(&lengths, TIGON_I64, 1, &length);
  advance(s, begin, length, length, &local.tensor.dl);
  tigon_tensor slot = s->pool.tensor;
  slot.dl.shape = slot.shape;
  slot.dl.strides = slot.strides;
  slot.shape[0] = 1;
  slot.dl.byte_offset += (uint64_t)(s->slot * slot.strides[0]) * sizeof(float);
  const tigon_lightning_attention_merge_args args = {.size = sizeof args,
                                                     .left = &slot.dl,
                                                     .right = &local.tensor.dl,
                                                     .decay = &s->f.f.decay.tensor.dl,
                                                     .lengths = &lengths.tensor.dl,
                                                     .out = &slot.dl};
  test_expect_status(tigon_lightning_attention_merge(NULL, &args), TIGON_OK, NULL);
  test_tensor_free(&local);
  test_tensor_free(&lengths);
}

static void decode_token(split *s, int64_t token) {
  tigon_tensor q, k, v, out;
  const tigon_lightning_attention_decode_args args = {.size = sizeof args,
                                                      .scale = (float)s->f.c.scale,
                                                      .q = token_of(&q, &s->f.f.q, token),
                                                      .k = token_of(&k, &s->f.f.k, token),
                                                      .v = token_of(&v, &s->f.f.v, token),
                                                      .decay = &s->f.f.decay.tensor.dl,
                                                      .state = &s->pool.tensor.dl,
                                                      .out = token_of(&out, &s->out, token),
                                                      .state_indices = &s->index.tensor.dl};
  test_expect_status(tigon_lightning_attention_decode(NULL, &args), TIGON_OK, NULL);
}

typedef enum way { PREFILL, DECODE, DRAFT, MERGE, WAYS } way;

/* Goes on by up to `length` tokens; returns how many. */
static int64_t go_on(split *s, way how, int64_t begin, int64_t length, test_rng *rng) {
  if (how == PREFILL) prefill(s, begin, length, true);
  if (how == DECODE)
    for (int64_t t = 0; t < length; t++) decode_token(s, begin + t);
  if (how == MERGE) {
    prefill(s, begin, length, false);
    merge_part(s, begin, length);
  }
  if (how != DRAFT) return length;
  const int64_t drafts = length < 8 ? length : 8, accepted = test_random_range(rng, 0, drafts);
  prefill(s, begin, drafts, false);
  advance(s, begin, drafts, accepted, NULL);
  return accepted;
}

/* Fp32 sums show half of 1e-5. Beyond 300 tokens the rounding of lambda^64, 2^-25 a chunk and always to the same side,
 * comes to more, of elements up to 8 times the rms. */
static double fp32_bound(int64_t tokens) { return 1e-5 + (tokens > 300 ? 8 * (double)tokens / 64 * 0x1p-25 : 0); }

static double bound_of(tigon_kind kind, int64_t tokens) {
  return kind == TIGON_BF16 ? 0x1p-9 : kind == TIGON_F16 ? 0x1p-12 : fp32_bound(tokens);
}

/* The parts and the whole call, each against the oracle; the other slots still hold NaN. */
static void check_split(split *s) {
  const int64_t state = s->f.c.HV * s->f.c.V * s->f.c.K;
  oracle_inputs o;
  read_pool_inputs(&o, &s->f);
  double *out = doubles(s->out.count), *plain_out = doubles(s->out.count);
  double *final = doubles(s->pool.count), *plain_final = doubles(s->pool.count);
  for (int64_t i = 0; i < s->pool.count; i++) final[i] = plain_final[i] = (double)NAN;
  lightning_oracle(&o.in, out, final + s->slot * state);
  lightning_plain(&o.in, plain_out, plain_final + s->slot * state, s->out.kind);
  const bool drift = s->f.c.T > 300; /* gates of their own, since their bounds are */
  test_gate(drift ? "drift out" : "out of parts", &s->out, out, plain_out, bound_of(s->out.kind, s->f.c.T));
  test_gate(drift ? "drift state" : "state of parts", &s->pool, final, plain_final, fp32_bound(s->f.c.T));
  const tigon_lightning_attention_args args = pool_args(&s->f);
  call_forward(&args, 2, NULL);
  test_gate(drift ? "drift out" : "out", &s->f.f.out, out, plain_out, bound_of(s->out.kind, s->f.c.T));
  test_gate(drift ? "drift state" : "final_state", &s->f.final, final + s->slot * state, plain_final + s->slot * state,
            fp32_bound(s->f.c.T));
  double *all[] = {out, plain_out, final, plain_final};
  for (int i = 0; i < 4; i++) free(all[i]);
  free_inputs(&o);
}

static pool_case split_case(test_rng *rng) {
  static const double decays[] = {0, 1e-4, 0.0625, 0.92, 2, 4, 8, 30, INFINITY};
  static const tigon_kind kinds[] = {TIGON_F32, TIGON_F32, TIGON_BF16, TIGON_F16};
  pool_case p = {.c = {.name = "split", .B = 1, .scale = 0.5, STATES}};
  p.c.T = test_random_range(rng, 2, 260);
  p.c.H = test_random_range(rng, 1, 2);
  p.c.HV = p.c.H * (1 << test_random_range(rng, 0, 3));
  p.c.K = test_random_range(rng, 1, 40);
  p.c.V = test_random_range(rng, 1, 40);
  p.c.decay_of_query_heads = test_random(rng) % 2;
  p.c.query_kind = p.c.value_kind = p.c.out_kind = kinds[test_random(rng) % 4];
  for (int i = 0; i < 4; i++) p.c.decay[i] = decays[test_random(rng) % 9];
  return p;
}

static void test_500_splits(void **unused) {
  (void)unused;
  test_rng rng = {11};
  int64_t parts = 0, aligned = 0;
  for (uint64_t round = 0; round < 500; round++) {
    const pool_case p = split_case(&rng);
    split s;
    make_split(&s, &p, 500 + round);
    for (int64_t begin = 0; begin < p.c.T;) {
      const way how = (way)test_random_range(&rng, 0, WAYS - 1);
      begin += go_on(&s, how, begin, test_random_range(&rng, 1, p.c.T - begin), &rng);
      parts++;
      aligned += begin % 64 == 0;
    }
    check_split(&s);
    free_split(&s);
    test_count_case();
  }
  print_message("%lld parts, %lld of them end at a multiple of 64\n", (long long)parts, (long long)aligned);
  assert_true(parts > 1500 && aligned < parts / 4);
}

/* Token by token from the first to the last, and every point to split 130 tokens in two. */
static void test_every_split_point(void **unused) {
  (void)unused;
  test_rng rng = {1};
  const pool_case p = {.c = {"split", 1, 130, 1, 2, 9, 14, {0.0625, 0.5}, .scale = 0.5, STATES}};
  for (int64_t at = 0; at <= 130; at++) {
    split s;
    make_split(&s, &p, 40);
    if (at > 0) go_on(&s, at % 2 ? MERGE : PREFILL, 0, at, &rng);
    if (at < 130) go_on(&s, at ? PREFILL : DECODE, at, 130 - at, &rng);
    check_split(&s);
    free_split(&s);
    test_count_case();
  }
}

/* --- drafts ------------------------------------------------------------------------------------------------------ */

static void check_bits(const char *what, const test_tensor *a, int64_t a_first, const test_tensor *b, int64_t b_first,
                       int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    const double x = test_tensor_get(a, a_first + i), y = test_tensor_get(b, b_first + i);
    if (memcmp(&x, &y, sizeof x) != 0) fail_msg("%s[%lld]: %.9g against %.9g", what, (long long)i, x, y);
  }
}

/* Sequence n has accepted n of the drafts, 0 to 8, and one is padding. Verifying leaves the pool; committing gives each
 * slot the bits of a prefill of what was accepted. */
static void test_drafts(void **unused) {
  (void)unused;
  for (int64_t drafts = 1; drafts <= 8; drafts++) {
    pool_case p = {.c = {"drafts", 10, 0, 2, 4, 40, 24, TYPICAL, ALL_BF16, IN_PLACE},
                   SLOTS(12, TIGON_I32, 3, 7, 1, 0, 11, 5, 4, 9, 2, -1),
                   .pad = 5,
                   .length_kind = TIGON_I64};
    p.c.T = drafts;
    for (int64_t n = 0; n < 10; n++) p.lengths[n] = n < drafts ? n : drafts;
    pool_fixture f, before;
    make_pool_fixture(&f, &p, 5);
    make_pool_fixture(&before, &p, 5);
    tigon_lightning_attention_args verify = pool_args(&f);
    verify.final_state = NULL;
    call_forward(&verify, 2, NULL);
    test_tensor_check_same("verified pool", &f.initial, &before.initial);
    const tigon_lightning_attention_state_args commit = state_args(&f);
    call_state(&commit, 2, NULL);
    const int64_t state = p.c.HV * p.c.V * p.c.K, row = p.c.HV * p.c.V;
    for (int64_t length = 0; length <= drafts; length++) {
      pool_fixture prefix;
      make_pool_fixture(&prefix, &p, 5);
      tigon_lightning_attention_args args = pool_args(&prefix);
      test_tensor *tokens[] = {&prefix.f.q, &prefix.f.k, &prefix.f.v, &prefix.f.out};
      for (int t = 0; t < 4; t++) tokens[t]->tensor.shape[1] = length;
      call_forward(&args, 2, NULL);
      for (int64_t n = 0; n < 9; n++) {
        if (p.lengths[n] != length) continue;
        check_bits("committed", &f.initial, p.slots[n] * state, &prefix.initial, p.slots[n] * state, state);
        check_bits("verified out", &f.f.out, n * drafts * row, &prefix.f.out, n * length * row, length * row);
      }
      for (int t = 0; t < 4; t++) tokens[t]->tensor.shape[1] = drafts;
      free_pool_fixture(&prefix);
      test_count_case();
    }
    for (int64_t i = 0; i < f.initial.count; i++)
      if (sequence_at(&f, i / state) < 0) assert_true(isnan(test_tensor_get(&f.initial, i)));
    free_pool_fixture(&f);
    free_pool_fixture(&before);
  }
}

/* One state serves several readers: prefill and decode from it alternate, and a read-only prefill in between changes
 * nothing. */
static void test_shared_state(void **unused) {
  (void)unused;
  const pool_case p = {.c = {"shared", 1, 120, 2, 2, 24, 20, TYPICAL, STATES}};
  split plain, shared;
  make_split(&plain, &p, 3);
  make_split(&shared, &p, 3);
  for (int64_t begin = 0; begin < 120; begin += 30) {
    prefill(&plain, begin, 20, true);
    prefill(&shared, begin, 30, false);
    prefill(&shared, begin, 20, true);
    for (int64_t t = 20; t < 30; t++) {
      decode_token(&plain, begin + t);
      prefill(&shared, begin + t, 1, false);
      decode_token(&shared, begin + t);
    }
  }
  test_tensor_check_same("state", &plain.pool, &shared.pool);
  test_tensor_check_same("out", &plain.out, &shared.out);
  check_split(&shared);
  free_split(&plain);
  free_split(&shared);
}

/* 65536 tokens with little or no decay: prefill in two, then decode, stay at the oracle. The full table has heads of
 * 128. */
static void test_drift(void **unused) {
  (void)unused;
  const bool full = getenv("TIGON_TEST_FULL") != NULL;
  const int64_t size = full ? 128 : 12, tokens = 65536;
  const pool_case p = {.c = {"drift", 1, tokens, 1, 4, size, size + 4, {0, 1e-6, 1e-5, 1e-4}, .scale = 0.1, STATES}};
  test_rng rng = {5};
  split s;
  make_split(&s, &p, 7);
  for (int64_t begin = 0; begin < tokens;) {
    const way how = begin < 1000 ? PREFILL : tokens - begin < 2000 ? DECODE : MERGE;
    const int64_t length = how == DECODE ? tokens - begin : tokens - begin - 1000;
    begin += go_on(&s, how, begin, begin ? length : 777, &rng);
  }
  check_split(&s);
  free_split(&s);
  test_count_case();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_500_splits), cmocka_unit_test(test_every_split_point),
      cmocka_unit_test(test_drafts),     cmocka_unit_test(test_shared_state),
      cmocka_unit_test(test_drift),
  };
  return test_gate_report("lightning_attention_splits", cmocka_run_group_tests(tests, NULL, NULL));
}
