/* Forward and gradients against the oracle, over the case table and random cases; bits, threads, inputs. */
#include "lightning_attention/fixture.h"

/* Of the rms, beyond the rounding of each element: intermediates are fp32, so an element near a tie may still round to
 * the other side of it, by less than a tenth of its last place. Fp32 sums show a third of their bound. */
static double bound_of(tigon_kind kind) { return kind == TIGON_BF16 ? 0x1p-9 : kind == TIGON_F16 ? 0x1p-12 : 1e-5; }

static void check_forward(fixture *f) {
  oracle_inputs o;
  read_inputs(&o, f);
  const int64_t states = f->N * f->c->HV * f->c->V * f->c->K;
  double *out = doubles(f->out.count), *plain_out = doubles(f->out.count);
  double *state = doubles(states), *plain_state = doubles(states);
  lightning_oracle(&o.in, out, state);
  lightning_plain(&o.in, plain_out, plain_state, f->out.kind);
  run_forward(f, 2, NULL);
  test_gate("out", &f->out, out, plain_out, bound_of(f->out.kind));
  if (f->c->final_state != FINAL_ABSENT)
    test_gate("final_state", f->c->final_state == FINAL_ALIAS ? &f->initial_state : &f->final_state, state, plain_state,
              bound_of(TIGON_F32));
  free(out);
  free(plain_out);
  free(state);
  free(plain_state);
  free_inputs(&o);
}

typedef struct gradients {
  lightning_gradients g;
  double *dq, *dk, *dv, *d_initial_state;
} gradients;

static void make_gradients(gradients *g, const fixture *f, const oracle_inputs *o) {
  g->dq = doubles(f->q.count);
  g->dk = doubles(f->q.count);
  g->dv = doubles(f->v.count);
  g->d_initial_state = doubles(f->N * f->c->HV * f->c->V * f->c->K);
  g->g = (lightning_gradients){o->dout, o->d_final_state, g->dq, g->dk, g->dv, g->d_initial_state};
}

static void free_gradients(gradients *g) {
  free(g->dq);
  free(g->dk);
  free(g->dv);
  free(g->d_initial_state);
}

static void check_backward(fixture *f) {
  oracle_inputs o;
  read_inputs(&o, f);
  gradients exact, plain;
  make_gradients(&exact, f, &o);
  make_gradients(&plain, f, &o);
  lightning_backward_oracle(&o.in, &exact.g);
  lightning_backward_plain(&o.in, &plain.g, (int[]){f->dq.kind, f->dk.kind, f->dv.kind});
  run_backward(f, 2, NULL);
  test_gate("dq", &f->dq, exact.dq, plain.dq, bound_of(f->dq.kind));
  test_gate("dk", &f->dk, exact.dk, plain.dk, bound_of(f->dk.kind));
  test_gate("dv", &f->dv, exact.dv, plain.dv, bound_of(f->dv.kind));
  test_gate("d_initial_state", f->c->final_state == FINAL_ALIAS ? &f->d_final_state : &f->d_initial_state,
            exact.d_initial_state, plain.d_initial_state, bound_of(TIGON_F32));
  free_gradients(&exact);
  free_gradients(&plain);
  free_inputs(&o);
}

/* Gradients first: forward may replace the initial state. */
static void check_case(const lightning_case *c, uint64_t seed) {
  fixture f;
  make_fixture(&f, c, seed);
  check_backward(&f);
  check_forward(&f);
  free_fixture(&f);
  test_count_case();
}

static void test_table(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof lightning_cases / sizeof *lightning_cases; i++) {
    print_message("%s\n", lightning_cases[i].name);
    check_case(&lightning_cases[i], 100 + i);
  }
}

static void test_all_lengths(void **state) {
  (void)state;
  const lightning_case c = lightning_all_lengths();
  check_case(&c, 7);
}

static lightning_case random_case(test_rng *rng) {
  static const double decays[] = {0, 1e-4, 0.004, 0.0625, 0.3, 0.92, 2, 4, 8, 30, 1000, 1e4};
  static const tigon_kind kinds[] = {TIGON_F32, TIGON_BF16, TIGON_F16};
  lightning_case c = {.name = "random"};
  const int64_t group = 1 << test_random_range(rng, 0, 2);
  c.B = test_random_range(rng, 1, 3);
  c.T = test_random_range(rng, 0, 200);
  c.H = test_random_range(rng, 1, 3);
  c.HV = c.H * group;
  c.K = test_random_range(rng, 1, 70);
  c.V = test_random_range(rng, 1, 70);
  for (int i = 0; i < 4; i++) c.decay[i] = decays[test_random_range(rng, 0, 11)];
  c.decay_of_query_heads = test_random(rng) % 2;
  c.scale = test_random(rng) % 2 ? 0 : test_random_normal(rng);
  c.query_kind = kinds[test_random(rng) % 3];
  c.value_kind = kinds[test_random(rng) % 3];
  c.out_kind = kinds[test_random(rng) % 3];
  c.initial_state = test_random(rng) % 2;
  c.final_state = (final_mode)test_random_range(rng, 0, c.initial_state ? 2 : 1);
  c.fused = test_random(rng) % 4 == 0;
  c.expanded = test_random(rng) % 4 == 0;
  if (test_random(rng) % 2) {
    c.B = 1;
    c.bounds_kind = test_random(rng) % 2 ? TIGON_I32 : TIGON_I64;
    c.bounds_count = 1;
    while (c.bounds_count < 8) {
      const int64_t length = test_random_range(rng, 0, 100), at = c.bounds[c.bounds_count - 1];
      c.bounds[c.bounds_count++] = at + length < c.T ? at + length : c.T;
    }
  }
  return c;
}

static void test_random_cases(void **state) {
  (void)state;
  test_rng rng = {2024};
  for (int i = 0; i < 250; i++) {
    const lightning_case c = random_case(&rng);
    check_case(&c, 1000 + (uint64_t)i);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_table),
      cmocka_unit_test(test_all_lengths),
      cmocka_unit_test(test_random_cases),
  };
  return test_gate_report("lightning_attention", cmocka_run_group_tests(tests, NULL, NULL));
}
