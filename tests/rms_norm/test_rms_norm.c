/* rms_norm forward and backward against the float64 oracle, over the case table and every mix of dtypes. */
#include "tests/rms_norm/problem.h"

/* Gate 1, beyond the rounding to the output's dtype: half of such a rounding at the size of the rms; fp32:
 * thirty-two. */
static double bound_of(tigon_kind kind) {
  return kind == TIGON_BF16 ? 0x1p-9 : kind == TIGON_F16 ? 0x1p-12 : 32 * 0x1p-24;
}

/* An intermediate that was rounded to the kind: elements reach twelve times the rms. */
static double bound_where(bool rounded, tigon_kind kind) {
  if (!rounded || kind == TIGON_F32) return 0;
  return kind == TIGON_BF16 ? 12 * 0x1p-8 : 12 * 0x1p-11;
}

/* "out", or "out_via_float16" where the header rounds an intermediate to that kind at the most. */
static const char *gate_name(char name[32], const char *output, tigon_kind a, tigon_kind b) {
  const tigon_kind coarsest = a == TIGON_BF16 || b == TIGON_BF16 ? TIGON_BF16 : a == TIGON_F32 ? b : a;
  snprintf(name, 32, coarsest == TIGON_F32 ? "%s" : "%s_via_%s", output, test_kind_name(coarsest));
  return name;
}

/* An fp32 sum over rows gathers roundings like a random walk. */
static double row_sum_bound(int64_t rows) { return 0x1p-23 * sqrt((double)rows); }

static unsigned char *snapshot(const test_tensor *t) {
  unsigned char *copy = malloc(t->bytes);
  assert_non_null(copy);
  memcpy(copy, t->block, t->bytes);
  return copy;
}

enum { INPUTS = OUT }; /* tensors before OUT are inputs */

static void snapshot_inputs(const problem *p, unsigned char *copies[INPUTS]) {
  for (int i = 0; i < INPUTS; i++) copies[i] = p->present[i] ? snapshot(&p->t[i]) : NULL;
}

static void check_inputs(const problem *p, unsigned char *copies[INPUTS], int except) {
  for (int i = 0; i < INPUTS; i++) {
    if (copies[i] && i != except && memcmp(copies[i], p->t[i].block, p->t[i].bytes) != 0)
      fail_msg("input %d was changed", i);
    free(copies[i]);
  }
}

static void check_forward(problem *p) {
  const int64_t n = p->rows * p->shape.width;
  double *x = problem_values(p, X), *residual = problem_values(p, RESIDUAL), *weight = problem_values(p, WEIGHT);
  double *out = problem_zeros(n), *sum = problem_zeros(n), *rstd = problem_zeros(p->rows);
  double *plain_out = problem_zeros(n), *plain_sum = problem_zeros(n), *plain_rstd = problem_zeros(p->rows);
  const double eps = problem_eps(p), offset = (double)p->options.offset;
  const tigon_kind xhat_kind = problem_xhat_kind(p);
  reference_rms_norm(p->rows, p->shape.width, x, residual, weight, eps, offset, out, sum, rstd);
  plain_rms_norm(p->rows, p->shape.width, x, residual, weight, eps, offset, (int)p->kinds.sum, (int)xhat_kind,
                 (int)p->kinds.out, plain_out, plain_sum, plain_rstd);
  const tigon_kind sum_kind = p->options.residual ? p->kinds.sum : TIGON_F32;
  char name[32];
  const double sum_bound = bound_where(p->options.residual, p->kinds.sum);
  const double bound = bound_of(p->kinds.out) + bound_where(true, xhat_kind) + sum_bound;
  test_gate(gate_name(name, "out", xhat_kind, sum_kind), &p->t[OUT], out, plain_out, bound);
  if (p->present[SUM]) test_gate("residual_out", &p->t[SUM], sum, plain_sum, bound_of(p->kinds.sum));
  if (p->options.rstd)
    test_gate(gate_name(name, "rstd", sum_kind, sum_kind), &p->t[RSTD], rstd, plain_rstd,
              bound_of(TIGON_F32) + sum_bound);
  double *all[] = {x, residual, weight, out, sum, rstd, plain_out, plain_sum, plain_rstd};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* rstd as the oracle has it for the tensor that backward reads, rounded once. */
static void set_rstd(problem *p) {
  double *sum = problem_values(p, p->options.residual ? SUM : X), *rstd = problem_zeros(p->rows);
  reference_rms_norm(p->rows, p->shape.width, sum, NULL, NULL, problem_eps(p), 0, NULL, NULL, rstd);
  for (int64_t r = 0; r < p->rows; r++) test_tensor_set(&p->t[RSTD], r, rstd[r]);
  free(sum);
  free(rstd);
}

static void gate_rounded(const char *name, const test_tensor *t, const double *oracle, const double *plain) {
  double *rounded = problem_zeros(t->count);
  for (int64_t i = 0; i < t->count; i++) rounded[i] = (double)tigon_round_to(t->kind, (float)plain[i]);
  test_gate(name, t, oracle, rounded, bound_of(t->kind));
  free(rounded);
}

static void check_backward(problem *p, const double *d_weight_before) {
  const int64_t n = p->rows * p->shape.width, width = p->shape.width;
  double *dy = problem_values(p, DY), *d_sum = problem_values(p, D_SUM), *weight = problem_values(p, WEIGHT);
  double *sum = problem_values(p, p->options.residual ? SUM : X), *rstd = problem_values(p, RSTD);
  double *ds = problem_zeros(n), *d_weight = problem_zeros(width);
  double *plain_ds = problem_zeros(n), *plain_d_weight = problem_zeros(width);
  const tigon_kind xhat_kind = problem_xhat_kind(p);
  const double offset = (double)p->options.offset;
  char name[32];
  reference_rms_norm_backward(p->rows, width, dy, d_sum, sum, weight, problem_eps(p), offset, ds, d_weight);
  for (int64_t j = 0; d_weight_before && j < width; j++) d_weight[j] += d_weight_before[j];
  const tigon_kind d_weight_kind = p->present[D_WEIGHT] ? p->t[D_WEIGHT].kind : TIGON_F32;
  plain_rms_norm_backward(p->rows, width, dy, d_sum, sum, weight, rstd, offset, (int)xhat_kind, (int)d_weight_kind,
                          d_weight_before, plain_ds, plain_d_weight);
  if (p->present[DX]) gate_rounded("dx", &p->t[DX], ds, plain_ds);
  if (p->present[D_RESIDUAL]) gate_rounded("d_residual", &p->t[D_RESIDUAL], ds, plain_ds);
  if (p->present[D_WEIGHT])
    test_gate(gate_name(name, "d_weight", xhat_kind, xhat_kind), &p->t[D_WEIGHT], d_weight, plain_d_weight,
              bound_of(d_weight_kind) + bound_where(true, xhat_kind) + row_sum_bound(p->rows));
  double *all[] = {dy, d_sum, weight, sum, rstd, ds, d_weight, plain_ds, plain_d_weight};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static void run_case(rms_shape shape, rms_options options, rms_kinds kinds, uint64_t seed) {
  problem p;
  unsigned char *copies[INPUTS];
  problem_make(&p, shape, options, kinds, seed);
  snapshot_inputs(&p, copies);
  problem_forward(&p, (int)(seed % 3) + 1);
  check_forward(&p);
  check_inputs(&p, copies, RSTD);
  set_rstd(&p);
  snapshot_inputs(&p, copies);
  double *before = options.accumulate ? problem_values(&p, D_WEIGHT) : NULL;
  problem_backward(&p, (int)(seed % 4) + 1);
  check_backward(&p, before);
  check_inputs(&p, copies, -1);
  free(before);
  problem_free(&p);
  test_count_case();
}

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static void test_case_table(void **state) {
  (void)state;
  for (int s = 0; s < COUNT(rms_shapes); s++)
    for (int o = 0; o < COUNT(rms_option_sets); o++) {
      const int i = s * COUNT(rms_option_sets) + o;
      const rms_kinds common = rms_plain_mix((s + o) % RMS_PLAIN_MIXES), any = rms_mix(i * 7 % RMS_MIXES);
      run_case(rms_shapes[s], rms_option_sets[o], common, (uint64_t)i);
      run_case(rms_shapes[s], rms_option_sets[o], any, (uint64_t)i + 1000);
    }
}

/* Widths and rows of all sizes, with any options and kinds; half of the widths are whole vectors. Rows of a few
 * elements, in which ds cancels to little more than its roundings, stand in the table with options that keep them from
 * it. */
static void test_random_shapes(void **state) {
  (void)state;
  enum { SHAPES = 200, MOST_ELEMENTS = 1 << 17 };
  test_rng rng = {2026};
  for (int i = 0; i < SHAPES; i++) {
    const int64_t size = test_random_range(&rng, 4, 16);
    int64_t width = test_random_range(&rng, 9, (int64_t)1 << size);
    if (i % 2 == 0) width = (width + 7) / 8 * 8;
    const int64_t heads = i % 5 == 0 ? test_random_range(&rng, 1, 5) : 0;
    const int64_t most = MOST_ELEMENTS / width / (heads ? heads : 1);
    const rms_shape shape = {test_random_range(&rng, 1, most < 1 ? 1 : most > 700 ? 700 : most), heads, width};
    const rms_options options = rms_option_sets[test_random_range(&rng, 0, COUNT(rms_option_sets) - 1)];
    const bool plain = test_random_range(&rng, 0, 1);
    run_case(shape, options,
             plain ? rms_plain_mix((int)test_random_range(&rng, 0, RMS_PLAIN_MIXES - 1))
                   : rms_mix((int)test_random_range(&rng, 0, RMS_MIXES - 1)),
             (uint64_t)i + 9000);
  }
}

static void test_every_mix_of_dtypes(void **state) {
  (void)state;
  const rms_shape shape = {17, 0, 83};
  for (int i = 0; i < RMS_MIXES; i++)
    for (int32_t casting = 0; casting < 2; casting++) {
      rms_options options = rms_option_sets[2];
      options.casting = casting;
      run_case(shape, options, rms_mix(i), (uint64_t)i + 5000);
    }
}

#if defined(TIGON_TEST_ON_GPU)
/* More rows than the blocks of a device take at once, so that each block takes several in turn; whole vectors, with the
 * residual stream and without, compact and padded. */
static void test_many_rows(void **state) {
  (void)state;
  const rms_shape shapes[] = {{9000, 0, 512}, {2003, 0, 2048}, {401, 0, 8192}, {37, 0, 65536}, {3000, 4, 128}};
  for (int s = 0; s < COUNT(shapes); s++)
    for (int mix = 0; mix < 2; mix++)
      for (int o = 0; o < 4; o += o == 0 ? 2 : 1) {
        rms_options options = rms_option_sets[o];
        options.whole = options.strided;
        run_case(shapes[s], options, rms_plain_mix(mix), (uint64_t)s + 7000);
      }
}
#endif

/* 1e8 = (1e4)^2 is far above fp16's range; a long row's squares are many. */
static void test_large_and_long_rows(void **state) {
  (void)state;
  const rms_shape shape = {3, 0, 262144};
  for (int casting = 0; casting < 2; casting++)
    for (int mix = 0; mix < 3; mix++) {
      problem p;
      problem_make(&p, shape, rms_option_sets[casting], rms_plain_mix(mix), 9);
      for (int64_t i = 0; i < p.t[X].count; i++) test_tensor_set(&p.t[X], i, i & 1 ? 1e4 : -1e4);
      problem_forward(&p, 2);
      check_forward(&p);
      const double expected = 1 / sqrt(pow(test_tensor_get(&p.t[X], 1), 2) + problem_eps(&p));
      for (int64_t r = 0; r < 3; r++) assert_true(fabs(test_tensor_get(&p.t[RSTD], r) / expected - 1) < 5e-7);
      problem_free(&p);
      test_count_case();
    }
}

static void test_zero_rows(void **state) {
  (void)state;
  for (int mix = 0; mix < 3; mix++) {
    problem p;
    problem_make(&p, (rms_shape){4, 0, 70}, rms_option_sets[0], rms_plain_mix(mix), 11);
    test_tensor_fill_value(&p.t[X], 0);
    problem_forward(&p, 1);
    for (int64_t r = 0; r < 4; r++)
      assert_true(test_tensor_get(&p.t[RSTD], r) == (double)(float)(1 / sqrt(problem_eps(&p))));
    for (int64_t i = 0; i < p.t[OUT].count; i++) assert_true(test_tensor_get(&p.t[OUT], i) == 0);
    problem_backward(&p, 1);
    check_backward(&p, NULL);
    problem_free(&p);
  }
}

/* Rows with NaN or Inf leave the other rows' bits alone; in backward d_weight takes them. */
static void test_bad_values_stay_in_their_rows(void **state) {
  (void)state;
  const double bad[] = {NAN, INFINITY, -INFINITY};
  for (int which = 0; which < 3; which++)
    for (int mix = 0; mix < 3; mix++) {
      const rms_shape shape = {9, 0, 67};
      problem clean, hurt;
      problem_make(&clean, shape, rms_option_sets[2], rms_plain_mix(mix), 21);
      problem_make(&hurt, shape, rms_option_sets[2], rms_plain_mix(mix), 21);
      for (int64_t j = 5; j < 67; j += 60) test_tensor_set(&hurt.t[X], 4 * 67 + j, bad[which]);
      test_tensor_set(&hurt.t[DY], 2 * 67 + 66, bad[which]);
      problem_forward(&clean, 2), problem_forward(&hurt, 2);
      problem_backward(&clean, 2), problem_backward(&hurt, 2);
      const int outputs[] = {OUT, SUM, DX, D_RESIDUAL};
      for (int o = 0; o < COUNT(outputs); o++)
        for (int64_t i = 0; i < clean.t[OUT].count; i++) {
          const bool touched = i / 67 == 4 || (o >= 2 && i / 67 == 2);
          if (!touched)
            assert_true(test_tensor_get(&clean.t[outputs[o]], i) == test_tensor_get(&hurt.t[outputs[o]], i));
        }
      if (which == 0) assert_true(isnan(test_tensor_get(&hurt.t[OUT], 4 * 67)));
      assert_false(isfinite(test_tensor_get(&hurt.t[DX], 2 * 67)));
      assert_false(isfinite(test_tensor_get(&hurt.t[D_WEIGHT], 66)));
      problem_free(&clean);
      problem_free(&hurt);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_case_table),
    cmocka_unit_test(test_random_shapes),
#if defined(TIGON_TEST_ON_GPU)
    cmocka_unit_test(test_many_rows),
#endif
    cmocka_unit_test(test_every_mix_of_dtypes),
    cmocka_unit_test(test_large_and_long_rows),
    cmocka_unit_test(test_zero_rows),
    cmocka_unit_test(test_bad_values_stay_in_their_rows),
  };
  return test_gate_report("rms_norm", cmocka_run_group_tests(tests, NULL, NULL));
}
