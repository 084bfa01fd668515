/* The decode step against the oracle's single token, and its own rules. */
#include "lightning_attention/fixture.h"

typedef struct decode_case {
  const char *name;
  int64_t N, H, HV, K, V;
  double decay[4];
  bool decay_of_query_heads;
  double scale;
  tigon_kind query_kind, value_kind, out_kind;
  int64_t pool_pad; /* floats between states */
  tigon_kind index_kind;
  int64_t P, slots[6]; /* P 0: no indices */
} decode_case;

static const decode_case decode_cases[] = {
    {"one", 1, 1, 1, 1, 1, .decay = {0.5}},
    {"no sequence", 0, 2, 2, 8, 8, .decay = {0.5}},
    {"heads of 128", 3, 2, 2, 128, 128, .decay = TYPICAL},
    {"one large head", 1, 1, 1, 300, 260, .decay = {0.1}},
    {"K 1024, V 1024", 1, 1, 1, 1024, 1024, .decay = {0.1}},
    {"K 7, V 129", 5, 3, 3, 7, 129, .decay = GENTLE},
    {"K 129, V 7", 5, 3, 3, 129, 7, .decay = STEEP},
    {"K 63, V 65", 2, 1, 4, 63, 65, .decay = TYPICAL},
    {"groups of 4, decay per query head", 2, 2, 8, 65, 31, .decay = TYPICAL, .decay_of_query_heads = true},
    {"scale", 2, 2, 2, 31, 33, .decay = TYPICAL, .scale = -0.7},
    {"bf16", 4, 4, 4, 64, 64, .decay = TYPICAL, .scale = 0.125, ALL_BF16},
    {"f16", 4, 2, 4, 64, 64, .decay = GENTLE, .scale = 0.125, ALL_F16},
    {"mixed", 2, 2, 2, 33, 37, .decay = TYPICAL, .query_kind = TIGON_BF16, .value_kind = TIGON_F16},
    {"padded pool", 3, 2, 4, 16, 24, .decay = TYPICAL, .pool_pad = 1000},
    {"pool", 3, 2, 4, 16, 24, .decay = TYPICAL, .pool_pad = 7, TIGON_I32, 5, {3, 0, 4}},
    {"pool, padding", 6, 1, 2, 33, 65, .decay = TYPICAL, .pool_pad = 64, TIGON_I64, 4, {-1, 2, -1, 0, 3, -1}, ALL_BF16},
    {"pool, nothing but padding", 3, 2, 2, 16, 24, .decay = TYPICAL, .pool_pad = 1, TIGON_I64, 2, {-1, -1, -1}},
    {"pool, slots that are not there",
     6,
     2,
     2,
     128,
     128,
     .decay = TYPICAL,
     .pool_pad = 1,
     TIGON_I64,
     3,
     {-2, 1, 3, INT64_MAX, INT64_MIN, 0}},
    {"bad decay counts as 0", 2, 4, 4, 16, 24, .decay = {-1, NAN, INFINITY, -0.0}},
};

typedef struct decode_fixture {
  const decode_case *c;
  test_tensor q, k, v, decay, state, out, state_indices;
} decode_fixture;

static void make_decode(decode_fixture *f, const decode_case *c, uint64_t seed) {
  test_rng rng = {seed};
  memset(f, 0, sizeof *f);
  f->c = c;
  const test_layout padded = {.row_pad = 3, .offset = 1};
  const int64_t decays = c->decay_of_query_heads ? c->H : c->HV;
  test_tensor_make(&f->q, kind_or_f32(c->query_kind), 3, (int64_t[]){c->N, c->H, c->K}, padded);
  test_tensor_make(&f->k, kind_or_f32(c->query_kind), 3, (int64_t[]){c->N, c->H, c->K}, (test_layout){0});
  test_tensor_make(&f->v, kind_or_f32(c->value_kind), 3, (int64_t[]){c->N, c->HV, c->V}, padded);
  test_tensor_make(&f->out, kind_or_f32(c->out_kind), 3, (int64_t[]){c->N, c->HV, c->V}, padded);
  test_tensor_make(&f->decay, TIGON_F32, 1, &decays, (test_layout){.vector_stride = 2});
  for (int64_t i = 0; i < decays; i++) test_tensor_set(&f->decay, i, c->decay[i % 4]);
  const int64_t shape[4] = {c->P ? c->P : c->N, c->HV, c->V, c->K};
  if (c->pool_pad)
    make_pool(&f->state, shape, c->pool_pad);
  else
    test_tensor_make(&f->state, TIGON_F32, 4, shape, padded);
  if (c->P) {
    test_tensor_make(&f->state_indices, c->index_kind, 1, &c->N, (test_layout){.vector_stride = 2});
    for (int64_t i = 0; i < c->N; i++)
      tigon_store_index(f->state_indices.tensor.dl.data, c->index_kind, 2 * i, c->slots[i]);
  }
  test_tensor *random[] = {&f->q, &f->k, &f->v, &f->state};
  for (int i = 0; i < 4; i++) test_tensor_fill_normal(random[i], &rng, 1.0);
}

static tigon_lightning_attention_decode_args decode_args(decode_fixture *f) {
  return (tigon_lightning_attention_decode_args){.size = sizeof(tigon_lightning_attention_decode_args),
                                                 .scale = (float)f->c->scale,
                                                 .q = &f->q.tensor.dl,
                                                 .k = &f->k.tensor.dl,
                                                 .v = &f->v.tensor.dl,
                                                 .decay = &f->decay.tensor.dl,
                                                 .state = &f->state.tensor.dl,
                                                 .out = &f->out.tensor.dl,
                                                 .state_indices = present(&f->state_indices)};
}

static void run_decode(decode_fixture *f, int threads) {
  const tigon_lightning_attention_decode_args args = decode_args(f);
  const tigon_exec exec = {.size = sizeof exec, .num_threads = threads};
  uint64_t bytes = 1;
  test_expect_status(tigon_lightning_attention_decode_workspace(&exec, &args, &bytes), TIGON_OK, NULL);
  assert_int_equal(bytes, 0);
  test_expect_status(tigon_lightning_attention_decode(&exec, &args), TIGON_OK, NULL);
}

static void free_decode(decode_fixture *f) {
  test_tensor *all[] = {&f->q, &f->k, &f->v, &f->decay, &f->state, &f->out, &f->state_indices};
  for (int i = 0; i < 7; i++) {
    if (all[i]->block) test_tensor_check_surroundings(all[i]);
    test_tensor_free(all[i]);
  }
}

static double bound_of(tigon_kind kind) { return kind == TIGON_BF16 ? 0x1p-9 : kind == TIGON_F16 ? 0x1p-12 : 1e-5; }

static void test_oracle(void **unused) {
  (void)unused;
  for (size_t i = 0; i < sizeof decode_cases / sizeof *decode_cases; i++) {
    const decode_case *c = &decode_cases[i];
    decode_fixture f;
    make_decode(&f, c, 60 + i);
    const int64_t sizes[8] = {c->N, 1, c->H, c->HV, c->K, c->V, c->N, f.decay.count};
    double *q = test_tensor_values(&f.q), *k = test_tensor_values(&f.k), *v = test_tensor_values(&f.v);
    double *decay = test_tensor_values(&f.decay), *state = test_tensor_values(&f.state);
    const lightning_inputs in = {.sizes = sizes,
                                 .scale = c->scale != 0 ? (double)(float)c->scale : 1.0,
                                 .q = q,
                                 .k = k,
                                 .v = v,
                                 .decay = decay,
                                 .initial_state = state,
                                 .slots = c->P ? c->slots : NULL,
                                 .pool = c->P};
    double *out = doubles(f.out.count), *next = test_tensor_values(&f.state);
    double *plain_out = doubles(f.out.count), *plain_next = test_tensor_values(&f.state);
    lightning_oracle(&in, out, next);
    lightning_plain(&in, plain_out, plain_next, f.out.kind);
    run_decode(&f, 2);
    test_gate("out", &f.out, out, plain_out, bound_of(f.out.kind));
    test_gate("state", &f.state, next, plain_next, bound_of(TIGON_F32));
    double *all[] = {q, k, v, decay, state, out, next, plain_out, plain_next};
    for (int n = 0; n < 9; n++) free(all[n]);
    free_decode(&f);
    test_count_case();
  }
}

static bool named(const decode_case *c, int64_t slot) {
  for (int64_t n = 0; n < c->N; n++)
    if (c->slots[n] == slot) return true;
  return false;
}

/* Slots in no use may hold NaN; padding writes zeros and leaves every slot's bytes; the record tells of bad indices. */
static void test_pool(void **unused) {
  (void)unused;
  tigon_context *context;
  test_expect_status(tigon_context_create((DLDevice){.device_type = kDLCPU}, &context), TIGON_OK, NULL);
  for (size_t i = 0; i < sizeof decode_cases / sizeof *decode_cases; i++) {
    const decode_case *c = &decode_cases[i];
    if (!c->P) continue;
    decode_fixture f;
    make_decode(&f, c, 60 + i);
    const int64_t slot = c->HV * c->V * c->K, row = c->HV * c->V;
    for (int64_t e = 0; e < f.state.count; e++)
      if (!named(c, e / slot)) test_tensor_set(&f.state, e, (double)NAN);
    const tigon_lightning_attention_decode_args args = decode_args(&f);
    const tigon_exec exec = {.size = sizeof exec, .num_threads = 2, .context = context};
    test_expect_status(tigon_lightning_attention_decode(&exec, &args), TIGON_OK, NULL);
    for (int64_t e = 0; e < f.state.count; e++)
      if (!named(c, e / slot)) assert_true(isnan(test_tensor_get(&f.state, e)));
    int64_t bad = -1;
    for (int64_t n = c->N - 1; n >= 0; n--) {
      const bool padding = c->slots[n] < 0 || c->slots[n] >= c->P;
      if (padding && c->slots[n] != -1) bad = n;
      for (int64_t e = n * row; e < (n + 1) * row; e++)
        assert_true(padding ? test_tensor_get(&f.out, e) == 0 : isfinite(test_tensor_get(&f.out, e)));
    }
    tigon_record record;
    assert_int_equal(tigon_check(context, &record), bad < 0 ? TIGON_OK : TIGON_INVALID_ARGUMENT);
    if (bad >= 0) {
      assert_string_equal(record.argument, "state_indices");
      assert_true(record.index == bad && record.value == c->slots[bad]);
    }
    tigon_clear(context);
    free_decode(&f);
    test_count_case();
  }
  tigon_context_destroy(context);
}

static void test_threads(void **unused) {
  (void)unused;
  for (size_t i = 0; i < sizeof decode_cases / sizeof *decode_cases; i++) {
    decode_fixture f[3];
    for (int run = 0; run < 3; run++) {
      make_decode(&f[run], &decode_cases[i], 60 + i);
      run_decode(&f[run], (int[]){1, 2, 7}[run]);
      test_tensor_check_same("out", &f[0].out, &f[run].out);
      test_tensor_check_same("state", &f[0].state, &f[run].state);
      test_tensor_check_same("q", &f[0].q, &f[run].q);
    }
    for (int run = 0; run < 3; run++) free_decode(&f[run]);
  }
}

/* A NaN in one sequence and head stays there. */
static void test_nan_stays(void **unused) {
  (void)unused;
  const decode_case c = {"NaN", 3, 2, 4, 20, 35, .decay = TYPICAL};
  for (int what = 0; what < 3; what++) {
    decode_fixture clean, f;
    make_decode(&clean, &c, 5);
    make_decode(&f, &c, 5);
    /* sequence 1; head 1 of q and k (value heads 2 and 3), or value head 2 */
    if (what < 2)
      test_tensor_set(what == 0 ? &f.q : &f.k, (1 * 2 + 1) * 20 + 4, (double)NAN);
    else
      test_tensor_set(&f.v, (1 * 4 + 2) * 35 + 9, (double)NAN);
    run_decode(&clean, 2);
    run_decode(&f, 2);
    for (int64_t i = 0; i < f.out.count; i++) {
      const int64_t sequence = i / 35 / 4, head = i / 35 % 4;
      const bool hit = sequence == 1 && (what < 2 ? head >= 2 : head == 2 && i % 35 == 9);
      if (hit)
        assert_true(isnan(test_tensor_get(&f.out, i)));
      else
        assert_true(test_tensor_get(&f.out, i) == test_tensor_get(&clean.out, i));
    }
    free_decode(&clean);
    free_decode(&f);
  }
}

static void test_arguments(void **unused) {
  (void)unused;
  const decode_case c = {"arguments",    2, 2, 4, 8, 12, .decay = TYPICAL, .index_kind = TIGON_I32, .P = 2,
                         .slots = {1, 0}};
  for (int wrong = 0; wrong < 18; wrong++) {
    decode_fixture f, clean;
    make_decode(&f, &c, 5);
    make_decode(&clean, &c, 5);
    tigon_lightning_attention_decode_args args = decode_args(&f);
    const char *name = "";
    switch (wrong) {
    case 0:
      name = "q";
      args.q = NULL;
      break;
    case 1:
      name = "k";
      f.k.tensor.shape[2] = 7;
      break;
    case 2:
      name = "v";
      f.v.tensor.shape[1] = 3;
      break;
    case 3:
      name = "v";
      f.v.tensor.shape[0] = 1;
      break;
    case 4:
      name = "decay";
      f.decay.tensor.shape[0] = 3;
      break;
    case 5:
      name = "state";
      f.state.tensor.shape[3] = 9;
      break;
    case 6:
      name = "state";
      f.state.tensor.dl.dtype = tigon_bf16();
      break;
    case 7:
      name = "out";
      f.out.tensor.shape[2] = 11;
      break;
    case 8:
      name = "out";
      f.out.tensor.strides[1] = 0;
      break;
    case 9:
      name = "scale";
      args.scale = INFINITY;
      break;
    case 10:
      name = "k";
      f.k.tensor.dl.dtype = tigon_f16();
      break;
    case 11:
      name = "state";
      args.state = NULL;
      break;
    case 12:
      name = "q";
      f.q.tensor.shape[2] = 1025;
      break;
    case 13:
      name = "out";
      f.out.tensor.dl.data = f.v.tensor.dl.data;
      break;
    case 14:
      name = "state_indices";
      f.state_indices.tensor.shape[0] = 3;
      break;
    case 15:
      name = "state_indices";
      f.state_indices.tensor.dl.dtype = tigon_f32();
      break;
    case 16:
      name = "state_indices";
      f.state_indices.tensor.dl.device.device_type = kDLCUDA;
      break;
    case 17:
      name = "state";
      args.state_indices = NULL;
      f.state.tensor.shape[0] = 1;
      break;
    default:
      break;
    }
    test_expect_status(tigon_lightning_attention_decode(NULL, &args), TIGON_INVALID_ARGUMENT, name);
    assert_memory_equal(f.out.block, clean.out.block, f.out.bytes);
    assert_memory_equal(f.state.block, clean.state.block, f.state.bytes);
    test_tensor *all[] = {&f.q, &f.k, &f.v, &f.decay, &f.state, &f.out, &f.state_indices};
    for (int i = 0; i < 7; i++) free(all[i]->block);
    free_decode(&clean);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_oracle),    cmocka_unit_test(test_pool),      cmocka_unit_test(test_threads),
      cmocka_unit_test(test_nan_stays), cmocka_unit_test(test_arguments),
  };
  return test_gate_report("lightning_attention_decode", cmocka_run_group_tests(tests, NULL, NULL));
}
