/* What prefill and backward refuse, with the argument's name and without a write; queries; gradients of the oracle. */
#include "lightning_attention/fixture.h"

static const lightning_case small = {
    "arguments",         1, 20, 2, 4, 8, 12, TYPICAL, STATES, .bounds_kind = TIGON_I32, .bounds_count = 3,
    .bounds = {0, 9, 20}};

/* The operation's outputs, to see whether a refused call wrote to them. */
enum { OUTPUTS = 6 };
static test_tensor *output(fixture *f, int i) {
  test_tensor *const all[OUTPUTS] = {&f->out, &f->final_state, &f->dq, &f->dk, &f->dv, &f->d_initial_state};
  return all[i];
}

static void check_untouched(fixture *f) {
  for (int i = 0; i < OUTPUTS; i++)
    for (size_t byte = 0; byte < output(f, i)->bytes; byte++) assert_int_equal(output(f, i)->block[byte], 0xff);
}

/* Frees without looking at the (changed) shapes. */
static void drop_fixture(fixture *f) {
  test_tensor *all[] = {&f->q, &f->k, &f->v, &f->decay, &f->cu_seqlens, &f->initial_state, &f->dout, &f->d_final_state};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->block);
  for (int i = 0; i < OUTPUTS; i++) free(output(f, i)->block);
}

typedef enum change { SHAPE, STRIDE, DTYPE, NDIM, DEVICE, NULL_DATA, MISALIGNED } change;

/* Which tensor (order of both operations' lists below), what of it becomes which value, and the name in the error. */
typedef struct wrong {
  int tensor;
  change change;
  int dimension;
  int64_t value;
  const char *name;
} wrong;

enum { Q, K, V, DECAY, CU_SEQLENS, INITIAL, FIRST_OWN };
static test_tensor *input(fixture *f, int i) {
  test_tensor *const all[] = {&f->q, &f->k, &f->v, &f->decay, &f->cu_seqlens, &f->initial_state};
  return all[i];
}

static const wrong wrong_inputs[] = {
    {Q, SHAPE, 0, 2, "k"},
    {Q, SHAPE, 3, 0, "q"},
    {Q, SHAPE, 3, 1025, "q"},
    {Q, SHAPE, 2, 0, "q"},
    {Q, SHAPE, 1, -1, "q"},
    {Q, NDIM, 0, 3, "q"},
    {Q, DTYPE, 0, TIGON_I32, "q"},
    {Q, DEVICE, 0, 2, "q"},
    {Q, NULL_DATA, 0, 0, "q"},
    {Q, STRIDE, 3, 2, "q"},
    {Q, MISALIGNED, 0, 1, "q"},
    {K, SHAPE, 1, 19, "k"},
    {K, DTYPE, 0, TIGON_BF16, "k"},
    {V, SHAPE, 1, 21, "v"},
    {V, SHAPE, 2, 3, "v"},
    {V, SHAPE, 2, 0, "v"},
    {V, SHAPE, 3, 1025, "v"},
    {V, STRIDE, 3, 0, "v"},
    {DECAY, SHAPE, 0, 3, "decay"},
    {DECAY, DTYPE, 0, TIGON_F16, "decay"},
    {DECAY, NDIM, 0, 2, "decay"},
    {CU_SEQLENS, SHAPE, 0, 0, "cu_seqlens"},
    {CU_SEQLENS, DTYPE, 0, TIGON_F32, "cu_seqlens"},
    {CU_SEQLENS, SHAPE, 0, 4, "initial_state"},
    {INITIAL, SHAPE, 3, 9, "initial_state"},
    {INITIAL, DTYPE, 0, TIGON_BF16, "initial_state"},
    {INITIAL, STRIDE, 3, 5, "initial_state"},
    {INITIAL, NULL_DATA, 0, 0, "initial_state"},
};
static const wrong wrong_outputs[] = {
    {0, SHAPE, 3, 11, "out"},
    {0, STRIDE, 1, 0, "out"},
    {0, DTYPE, 0, TIGON_I64, "out"},
    {1, SHAPE, 0, 3, "final_state"},
    {1, STRIDE, 2, 0, "final_state"},
    {1, DTYPE, 0, TIGON_F16, "final_state"},
    {2, SHAPE, 3, 7, "dq"},
    {2, STRIDE, 1, 0, "dq"},
    {3, SHAPE, 1, 19, "dk"},
    {3, DTYPE, 0, TIGON_I32, "dk"},
    {4, SHAPE, 2, 2, "dv"},
    {4, STRIDE, 2, 0, "dv"},
    {5, SHAPE, 1, 2, "d_initial_state"},
    {5, DTYPE, 0, TIGON_BF16, "d_initial_state"},
};

static void apply(const wrong *w, test_tensor *t) {
  DLTensor *dl = &t->tensor.dl;
  switch (w->change) {
  case SHAPE:
    t->tensor.shape[w->dimension] = w->value;
    break;
  case STRIDE:
    t->tensor.strides[w->dimension] = w->value;
    break;
  case DTYPE:
    dl->dtype = test_dtype((tigon_kind)w->value);
    break;
  case NDIM:
    dl->ndim = (int)w->value;
    break;
  case DEVICE:
    dl->device.device_type = (DLDeviceType)w->value;
    break;
  case NULL_DATA:
    dl->data = NULL;
    break;
  case MISALIGNED:
    dl->byte_offset += (uint64_t)w->value;
    break;
  }
}

/* With workspace enough for the intact call. */
static tigon_status call(fixture *f, bool backward, test_workspace *w) {
  const tigon_lightning_attention_args a = forward_args(f);
  const tigon_lightning_attention_backward_args b = backward_args(f);
  return backward ? tigon_lightning_attention_backward(&w->exec, &b) : tigon_lightning_attention(&w->exec, &a);
}

static void check_refused(const wrong *w, bool backward, bool is_output) {
  fixture f;
  make_fixture(&f, &small, 1);
  test_workspace work;
  test_workspace_make(&work, 1 << 22, 2);
  apply(w, is_output ? output(&f, w->tensor) : input(&f, w->tensor));
  test_expect_status(call(&f, backward, &work), TIGON_INVALID_ARGUMENT, w->name);
  check_untouched(&f);
  test_workspace_free(&work);
  drop_fixture(&f);
  test_count_case();
}

static void test_wrong_tensors(void **unused) {
  (void)unused;
  for (size_t i = 0; i < sizeof wrong_inputs / sizeof *wrong_inputs; i++)
    for (int backward = 0; backward < 2; backward++) check_refused(&wrong_inputs[i], backward, false);
  for (size_t i = 0; i < sizeof wrong_outputs / sizeof *wrong_outputs; i++)
    check_refused(&wrong_outputs[i], wrong_outputs[i].tensor >= 2, true);
}

static void test_wrong_options(void **unused) {
  (void)unused;
  fixture f;
  make_fixture(&f, &small, 1);
  test_workspace w;
  test_workspace_make(&w, 1 << 22, 2);
  tigon_lightning_attention_args a = forward_args(&f);
  a.scale = NAN;
  test_expect_status(tigon_lightning_attention(&w.exec, &a), TIGON_INVALID_ARGUMENT, "scale");
  a = forward_args(&f);
  a.team = (const tigon_team *)(uintptr_t)64;
  test_expect_status(tigon_lightning_attention(&w.exec, &a), TIGON_UNSUPPORTED, "team");
  a = forward_args(&f);
  a.out = &f.v.tensor.dl;
  test_expect_status(tigon_lightning_attention(&w.exec, &a), TIGON_INVALID_ARGUMENT, "out");
  a = forward_args(&f); /* the same memory as the initial state, but other strides */
  f.final_state.tensor.dl.data = f.initial_state.tensor.dl.data;
  test_expect_status(tigon_lightning_attention(&w.exec, &a), TIGON_INVALID_ARGUMENT, "final_state");
  tigon_lightning_attention_backward_args b = backward_args(&f);
  b.dk = b.dq;
  test_expect_status(tigon_lightning_attention_backward(&w.exec, &b), TIGON_INVALID_ARGUMENT, "dk");
  b = backward_args(&f);
  b.dout = NULL;
  test_expect_status(tigon_lightning_attention_backward(&w.exec, &b), TIGON_INVALID_ARGUMENT, "dout");
  test_expect_status(tigon_lightning_attention(&w.exec, NULL), TIGON_INVALID_ARGUMENT, "args");
  test_expect_status(tigon_lightning_attention_workspace(&w.exec, &a, NULL), TIGON_INVALID_ARGUMENT, "bytes");
  check_untouched(&f);
  test_workspace_free(&w);
  drop_fixture(&f);
}

static void test_workspace_to_the_byte(void **unused) {
  (void)unused;
  fixture f;
  make_fixture(&f, &small, 1);
  const tigon_lightning_attention_args a = forward_args(&f);
  const tigon_lightning_attention_backward_args b = backward_args(&f);
  const tigon_exec exec = {.size = sizeof exec, .num_threads = 2};
  uint64_t bytes[2];
  test_expect_status(tigon_lightning_attention_workspace(&exec, &a, &bytes[0]), TIGON_OK, NULL);
  test_expect_status(tigon_lightning_attention_backward_workspace(&exec, &b, &bytes[1]), TIGON_OK, NULL);
  for (int backward = 0; backward < 2; backward++) {
    test_workspace w;
    test_workspace_make(&w, bytes[backward] - 1, 2);
    test_expect_status(call(&f, backward, &w), TIGON_WORKSPACE, "workspace");
    w.exec.workspace = NULL;
    test_expect_status(call(&f, backward, &w), TIGON_WORKSPACE, "workspace");
    w.exec.workspace = w.block + 4096;
    test_workspace_free(&w);
  }
  check_untouched(&f);
  drop_fixture(&f);
}

/* Queries need no data, and grow with batch, tokens and sequences. */
static void test_queries_grow(void **unused) {
  (void)unused;
  static const int64_t widths[][4] = {
      {1, 1, 8, 8}, {2, 4, 128, 128}, {1, 2, 16, 128}, {1, 8, 1024, 1024}, {3, 3, 7, 129}};
  for (size_t s = 0; s < sizeof widths / sizeof *widths; s++)
    for (int threads = 1; threads <= 8; threads *= 2) {
      uint64_t last[2] = {0, 0};
      for (int64_t B = 0; B < 70; B++) {
        const int64_t H = widths[s][0], HV = widths[s][1], KS = widths[s][2], VS = widths[s][3];
        tigon_tensor q, v, decay;
        tigon_lightning_attention_args a = {.size = sizeof a};
        a.q = a.k = tigon_tensor_4d(&q, NULL, tigon_f32(), B, B * 10, H, KS);
        a.v = a.out = tigon_tensor_4d(&v, NULL, tigon_f32(), B, B * 10, HV, VS);
        a.decay = tigon_tensor_1d(&decay, NULL, tigon_f32(), HV);
        tigon_lightning_attention_backward_args b = {.size = sizeof b, .q = a.q, .k = a.k, .v = a.v};
        b.decay = a.decay;
        b.dout = b.dv = a.out;
        b.dq = b.dk = &q.dl;
        const tigon_exec exec = {.size = sizeof exec, .num_threads = threads};
        uint64_t bytes[2];
        test_expect_status(tigon_lightning_attention_workspace(&exec, &a, &bytes[0]), TIGON_OK, NULL);
        test_expect_status(tigon_lightning_attention_backward_workspace(&exec, &b, &bytes[1]), TIGON_OK, NULL);
        for (int i = 0; i < 2; i++) {
          assert_true(bytes[i] >= last[i] && bytes[i] % 256 == 0);
          last[i] = bytes[i];
        }
      }
    }
}

/* Random damage to the descriptors: refused without a write, or (harmless damage) computed within the tensors. */
static void test_random_damage(void **unused) {
  (void)unused;
  test_rng rng = {4711};
  int refused = 0;
  for (int n = 0; n < 4000; n++) {
    fixture f;
    make_fixture(&f, &small, 1);
    test_workspace w;
    test_workspace_make(&w, 1 << 20, 2);
    const bool backward = n % 2;
    const int which = (int)test_random_range(&rng, 0, 8);
    test_tensor *t = which < 6 ? input(&f, which) : output(&f, backward ? which - 4 : which % 2);
    const change changes[] = {SHAPE, DTYPE, NDIM, DEVICE, MISALIGNED};
    wrong damage = {.change = changes[test_random_range(&rng, 0, 4)], .dimension = (int)test_random_range(&rng, 0, 3)};
    /* sizes that need more memory than is there are not among them: no check could see that */
    damage.value = damage.change == SHAPE ? test_random_range(&rng, -3, 7) : test_random_range(&rng, -1, 20);
    if (damage.change == MISALIGNED) damage.value = 1 + 2 * test_random_range(&rng, 0, 3);
    apply(&damage, t);
    const tigon_status status = call(&f, backward, &w);
    if (status != TIGON_OK) {
      check_untouched(&f);
      refused++;
    }
    test_workspace_free(&w);
    drop_fixture(&f);
  }
  assert_true(refused > 3000);
}

/* --- the oracle's gradients against differences of its own forward ------------------------------------------------ */

static double loss(const lightning_inputs *in, const double *dout, const double *d_final, int64_t outs,
                   int64_t states) {
  double *out = doubles(outs), *final = doubles(states), sum = 0;
  lightning_oracle(in, out, final);
  for (int64_t i = 0; i < outs; i++) sum += dout[i] * out[i];
  for (int64_t i = 0; i < states; i++) sum += d_final[i] * final[i];
  free(out);
  free(final);
  return sum;
}

static void check_difference(const lightning_inputs *in, double *x, int64_t n, const double *gradient,
                             const oracle_inputs *o, int64_t outs, int64_t states) {
  for (int64_t i = 0; i < n; i++) { /* the loss is linear in each element, so a large step is exact */
    const double kept = x[i];
    x[i] = kept + 1;
    const double up = loss(in, o->dout, o->d_final_state, outs, states);
    x[i] = kept - 1;
    const double down = loss(in, o->dout, o->d_final_state, outs, states);
    x[i] = kept;
    const double difference = (up - down) / 2;
    if (!(fabs(difference - gradient[i]) <= 1e-10 * (1 + fabs(difference))))
      fail_msg("element %lld: gradient %.12g, difference %.12g", (long long)i, gradient[i], difference);
  }
}

static void test_oracle_gradients(void **unused) {
  (void)unused;
  const lightning_case c = {"differences",
                            1,
                            9,
                            2,
                            4,
                            3,
                            5,
                            {0, 0.3, 1, 5},
                            .scale = 0.7,
                            STATES,
                            .bounds_kind = TIGON_I32,
                            .bounds_count = 4,
                            .bounds = {0, 4, 4, 8}};
  fixture f;
  make_fixture(&f, &c, 3);
  oracle_inputs o;
  read_inputs(&o, &f);
  double *dq = doubles(f.q.count), *dk = doubles(f.k.count), *dv = doubles(f.v.count);
  double *d_initial = doubles(f.initial_state.count);
  const lightning_gradients g = {o.dout, o.d_final_state, dq, dk, dv, d_initial};
  lightning_backward_oracle(&o.in, &g);
  const int64_t outs = f.out.count, states = f.initial_state.count;
  check_difference(&o.in, o.q, f.q.count, dq, &o, outs, states);
  check_difference(&o.in, o.k, f.k.count, dk, &o, outs, states);
  check_difference(&o.in, o.v, f.v.count, dv, &o, outs, states);
  check_difference(&o.in, o.initial_state, states, d_initial, &o, outs, states);
  double *all[] = {dq, dk, dv, d_initial};
  for (int i = 0; i < 4; i++) free(all[i]);
  free_inputs(&o);
  free_fixture(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_wrong_tensors),         cmocka_unit_test(test_wrong_options),
      cmocka_unit_test(test_workspace_to_the_byte), cmocka_unit_test(test_queries_grow),
      cmocka_unit_test(test_random_damage),         cmocka_unit_test(test_oracle_gradients),
  };
  return test_gate_report("lightning_attention_arguments", cmocka_run_group_tests(tests, NULL, NULL));
}
