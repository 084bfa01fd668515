/* The decode step against the oracle's single token, and its own rules. */
#include "lightning_attention/fixture.h"

typedef struct decode_case {
  const char *name;
  int64_t N, H, HV, K, V;
  double decay[4];
  bool decay_of_query_heads;
  double scale;
  tigon_kind query_kind, value_kind, out_kind;
  int64_t pool_pad; /* floats between the states of sequences */
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
    {"bad decay counts as 0", 2, 4, 4, 16, 24, .decay = {-1, NAN, INFINITY, -0.0}},
};

typedef struct decode_fixture {
  const decode_case *c;
  test_tensor q, k, v, decay, state, out;
} decode_fixture;

static void make_decode(decode_fixture *f, const decode_case *c, uint64_t seed) {
  test_rng rng = {seed};
  memset(f, 0, sizeof *f);
  f->c = c;
  const test_layout padded = {.row_pad = 3, .offset = 1};
  const int64_t decays = c->decay_of_query_heads ? c->H : c->HV, state = c->HV * c->V * c->K;
  test_tensor_make(&f->q, kind_or_f32(c->query_kind), 3, (int64_t[]){c->N, c->H, c->K}, padded);
  test_tensor_make(&f->k, kind_or_f32(c->query_kind), 3, (int64_t[]){c->N, c->H, c->K}, (test_layout){0});
  test_tensor_make(&f->v, kind_or_f32(c->value_kind), 3, (int64_t[]){c->N, c->HV, c->V}, padded);
  test_tensor_make(&f->out, kind_or_f32(c->out_kind), 3, (int64_t[]){c->N, c->HV, c->V}, padded);
  test_tensor_make(&f->decay, TIGON_F32, 1, &decays, (test_layout){.vector_stride = 2});
  for (int64_t i = 0; i < decays; i++) test_tensor_set(&f->decay, i, c->decay[i % 4]);
  if (c->pool_pad) { /* a (N, state + pad) block seen as (N, HV, V, K) */
    test_tensor_make(&f->state, TIGON_F32, 2, (int64_t[]){c->N, state}, (test_layout){.row_pad = c->pool_pad});
    const int64_t shape[4] = {c->N, c->HV, c->V, c->K};
    const int64_t strides[4] = {f->state.tensor.strides[0], c->V * c->K, c->K, 1};
    void *data = f->state.tensor.dl.data;
    tigon_tensor_nd(&f->state.tensor, data, tigon_f32(), 4, shape);
    memcpy(f->state.tensor.strides, strides, sizeof strides);
  } else {
    test_tensor_make(&f->state, TIGON_F32, 4, (int64_t[]){c->N, c->HV, c->V, c->K}, padded);
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
                                                 .out = &f->out.tensor.dl};
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
  test_tensor *all[] = {&f->q, &f->k, &f->v, &f->decay, &f->state, &f->out};
  for (int i = 0; i < 6; i++) {
    test_tensor_check_surroundings(all[i]);
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
    const lightning_inputs in = {sizes, c->scale != 0 ? (double)(float)c->scale : 1.0, q, k, v, decay, NULL, state};
    double *out = doubles(f.out.count), *next = doubles(f.state.count);
    double *plain_out = doubles(f.out.count), *plain_next = doubles(f.state.count);
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
  const decode_case c = {"arguments", 2, 2, 4, 8, 12, .decay = TYPICAL};
  for (int wrong = 0; wrong < 14; wrong++) {
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
    default:
      break;
    }
    test_expect_status(tigon_lightning_attention_decode(NULL, &args), TIGON_INVALID_ARGUMENT, name);
    assert_memory_equal(f.out.block, clean.out.block, f.out.bytes);
    assert_memory_equal(f.state.block, clean.state.block, f.state.bytes);
    test_tensor *all[] = {&f.q, &f.k, &f.v, &f.decay, &f.state, &f.out};
    for (int i = 0; i < 6; i++) free(all[i]->block);
    free_decode(&clean);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_oracle),
      cmocka_unit_test(test_threads),
      cmocka_unit_test(test_nan_stays),
      cmocka_unit_test(test_arguments),
  };
  return test_gate_report("lightning_attention_decode", cmocka_run_group_tests(tests, NULL, NULL));
}
