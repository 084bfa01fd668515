/*
 * Per-head views: q, k and v as strided (T, N, H) slices of one fused projection, normalised in place or apart, with
 * the memory between them untouched. Both layouts of the fused tensor: (T, 3, N, H) and (T, N, 3, H).
 */
#include "tests/reference/rms_norm.h"
#include "tests/support/support.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

typedef struct heads_case {
  int64_t tokens, heads, width;
  bool interleaved; /* (T, N, 3, H) */
  tigon_kind kind;
} heads_case;

static const heads_case cases[] = {
    {1, 1, 64, false, TIGON_F32},   {5, 4, 64, false, TIGON_BF16}, {5, 4, 64, true, TIGON_BF16},
    {7, 3, 96, false, TIGON_F16},   {7, 3, 96, true, TIGON_F32},   {33, 8, 128, false, TIGON_BF16},
    {33, 8, 128, true, TIGON_F16},  {3, 2, 192, true, TIGON_BF16}, {9, 5, 256, false, TIGON_F32},
    {9, 5, 256, true, TIGON_BF16},  {2, 512, 64, true, TIGON_F32}, {4, 512, 128, false, TIGON_BF16},
    {257, 16, 64, true, TIGON_F32},
};

enum { PARTS = 3 };

typedef struct fused {
  test_tensor all;
  tigon_tensor part[PARTS]; /* q, k, v */
} fused;

static void make_fused(fused *f, const heads_case *c, uint64_t seed) {
  const int64_t size = PARTS * c->heads * c->width;
  test_rng rng = {seed};
  test_tensor_make(&f->all, c->kind, 2, (int64_t[]){c->tokens, size}, (test_layout){.row_pad = 8, .offset = 5});
  test_tensor_fill_normal(&f->all, &rng, 1);
  for (int p = 0; p < PARTS; p++) {
    tigon_tensor *t = &f->part[p];
    tigon_tensor_3d(t, f->all.tensor.dl.data, test_dtype(c->kind), c->tokens, c->heads, c->width);
    const int64_t begin = (c->interleaved ? p : p * c->heads) * c->width;
    t->dl.byte_offset = f->all.tensor.dl.byte_offset + (uint64_t)(begin * tigon_kind_bytes(c->kind));
    t->strides[0] = size + 8;
    t->strides[1] = c->interleaved ? PARTS * c->width : c->width;
  }
}

/* The dense index of an element of part p in the fused tensor. */
static int64_t place(const heads_case *c, int p, int64_t token, int64_t head, int64_t i) {
  const int64_t slot = c->interleaved ? head * PARTS + p : p * c->heads + head;
  return (token * PARTS * c->heads + slot) * c->width + i;
}

/* Part p as doubles, rows of heads. */
static double *values_of(const fused *f, const heads_case *c, int p) {
  double *values = malloc((size_t)(c->tokens * c->heads * c->width) * sizeof *values);
  assert_non_null(values);
  for (int64_t t = 0, at = 0; t < c->tokens; t++)
    for (int64_t h = 0; h < c->heads; h++)
      for (int64_t i = 0; i < c->width; i++, at++) values[at] = test_tensor_get(&f->all, place(c, p, t, h, i));
  return values;
}

static double bound_of(tigon_kind kind) {
  return kind == TIGON_BF16 ? 0x1p-9 : kind == TIGON_F16 ? 0x1p-12 : 32 * 0x1p-24;
}

/* Normalises one part, gemma casting; `into` is the part itself or a part of another fused tensor. */
static void normalise(fused *from, int p, tigon_tensor *into, test_tensor *weight, test_tensor *rstd, int threads) {
  tigon_rms_norm_args args = {.size = sizeof args, .casting = TIGON_CASTING_GEMMA};
  args.x = &from->part[p].dl;
  args.out = &into->dl;
  args.weight = &weight->tensor.dl;
  args.rstd = &rstd->tensor.dl;
  const tigon_exec exec = {.size = sizeof exec, .num_threads = threads};
  test_expect_status(tigon_rms_norm(&exec, &args), TIGON_OK, NULL);
}

/* All of `after` but part p has the bytes of `before`. */
static void check_others(const heads_case *c, const fused *before, const fused *after, int p) {
  for (int other = 0; other < PARTS; other++) {
    if (other == p) continue;
    for (int64_t t = 0; t < c->tokens; t++)
      for (int64_t h = 0; h < c->heads; h++)
        for (int64_t i = 0; i < c->width; i += c->width - 1) {
          const int64_t at = place(c, other, t, h, i);
          assert_true(test_tensor_get(&before->all, at) == test_tensor_get(&after->all, at));
        }
  }
  test_tensor_check_surroundings(&after->all);
}

static void gate_part(const heads_case *c, const fused *f, int p, const double *oracle, const double *plain) {
  test_tensor dense;
  double *got = values_of(f, c, p);
  test_tensor_make(&dense, c->kind, 3, (int64_t[]){c->tokens, c->heads, c->width}, (test_layout){0});
  for (int64_t i = 0; i < dense.count; i++) test_tensor_set(&dense, i, got[i]);
  test_gate("heads_out", &dense, oracle, plain, bound_of(c->kind));
  test_tensor_free(&dense);
  free(got);
}

static void run_forward(const heads_case *c, bool in_place) {
  const int64_t rows = c->tokens * c->heads, n = rows * c->width;
  for (int p = 0; p < PARTS; p++) {
    fused x, y;
    test_tensor weight, rstd;
    test_rng rng = {3};
    make_fused(&x, c, 7);
    make_fused(&y, c, 7);
    test_tensor_make(&weight, c->kind, 1, &c->width, (test_layout){0});
    test_tensor_fill_normal(&weight, &rng, 1);
    test_tensor_make(&rstd, TIGON_F32, 2, (int64_t[]){c->tokens, c->heads}, (test_layout){0});
    double *in = values_of(&x, c, p), *w = test_tensor_values(&weight);
    double *all = calloc((size_t)(4 * n + 2 * rows), sizeof *all);
    assert_non_null(all);
    double *out = all, *sum = all + n, *plain = all + 2 * n, *plain_sum = all + 3 * n, *r = all + 4 * n;
    reference_rms_norm(rows, c->width, in, NULL, w, (double)1e-6f, 0, out, sum, r);
    plain_rms_norm(rows, c->width, in, NULL, w, (double)1e-6f, 0, TIGON_F32, TIGON_F32, (int)c->kind, plain, plain_sum,
                   r + rows);
    fused *to = in_place ? &x : &y;
    normalise(&x, p, &to->part[p], &weight, &rstd, 3);
    gate_part(c, to, p, out, plain);
    check_others(c, in_place ? &y : &x, to, p);
    test_count_case();
    free(in), free(w), free(all);
    test_tensor_free(&weight), test_tensor_free(&rstd);
    test_tensor_free(&x.all), test_tensor_free(&y.all);
  }
}

static void test_slices_of_a_fused_projection(void **state) {
  (void)state;
  for (int i = 0; i < COUNT(cases); i++) run_forward(&cases[i], false);
}

static void test_slices_in_place(void **state) {
  (void)state;
  for (int i = 0; i < COUNT(cases); i++) run_forward(&cases[i], true);
}

/* k may be written while q is read, but not where the slices meet. */
static void test_slices_that_meet_are_refused(void **state) {
  (void)state;
  for (int i = 0; i < COUNT(cases); i++) {
    fused x;
    make_fused(&x, &cases[i], 1);
    tigon_rms_norm_args args = {.size = sizeof args, .x = &x.part[0].dl, .out = &x.part[1].dl};
    test_expect_status(tigon_rms_norm(NULL, &args), TIGON_OK, NULL);
    x.part[1].dl.byte_offset -= (uint64_t)tigon_kind_bytes(cases[i].kind);
    test_expect_status(tigon_rms_norm(NULL, &args), TIGON_INVALID_ARGUMENT,
                       "out: expected memory of its own, got that of x");
    test_tensor_free(&x.all);
  }
}

/* The same bits. On a device slices that are not aligned take another kernel, which sums in another order: there by
 * `step` of the size of the terms, and of the result. */
static bool same_sum(double step, double terms, double a, double b) {
#if defined(TIGON_TEST_ON_GPU)
  return fabs(a - b) <= step * (terms + fabs(b));
#else
  (void)step, (void)terms;
  return a == b;
#endif
}

/* The sum of |dy x rstd| over the rows of a column of compact tensors. */
static double terms_of(const test_tensor *dy, const test_tensor *x, double rstd, int64_t width, int64_t column) {
  double sum = 0;
  for (int64_t i = column; i < x->count; i += width) sum += fabs(test_tensor_get(dy, i) * test_tensor_get(x, i)) * rstd;
  return sum;
}

#define RSTD 0.75

/* Backward on slices: as on compact copies of them. */
static void run_backward(const heads_case *c) {
  const int64_t shape[3] = {c->tokens, c->heads, c->width};
  fused x, dy, dx;
  test_tensor flat_x, flat_dy, flat_dx, rstd, d_weight[2];
  make_fused(&x, c, 11), make_fused(&dy, c, 12), make_fused(&dx, c, 13);
  test_tensor *flat[] = {&flat_x, &flat_dy, &flat_dx};
  const fused *of[] = {&x, &dy, &dx};
  for (int i = 0; i < 3; i++) {
    double *values = values_of(of[i], c, 1);
    test_tensor_make(flat[i], c->kind, 3, shape, (test_layout){0});
    for (int64_t e = 0; e < flat[i]->count; e++) test_tensor_set(flat[i], e, values[e]);
    free(values);
  }
  test_tensor_make(&rstd, TIGON_F32, 2, shape, (test_layout){0});
  test_tensor_fill_value(&rstd, RSTD);
  for (int strided = 0; strided < 2; strided++) {
    test_tensor_make(&d_weight[strided], TIGON_F32, 1, &c->width, (test_layout){0});
    tigon_rms_norm_backward_args args = {.size = sizeof args};
    args.x = strided ? &x.part[1].dl : &flat_x.tensor.dl;
    args.dy = strided ? &dy.part[1].dl : &flat_dy.tensor.dl;
    args.dx = strided ? &dx.part[1].dl : &flat_dx.tensor.dl;
    args.rstd = &rstd.tensor.dl;
    args.d_weight = &d_weight[strided].tensor.dl;
    uint64_t bytes;
    test_expect_status(tigon_rms_norm_backward_workspace(NULL, &args, &bytes), TIGON_OK, NULL);
    test_workspace w;
    test_workspace_make(&w, bytes, 2);
    test_expect_status(tigon_rms_norm_backward(&w.exec, &args), TIGON_OK, NULL);
    test_workspace_free(&w);
  }
  double *got = values_of(&dx, c, 1);
  const double rounding = c->kind == TIGON_BF16 ? 0x1p-7 : c->kind == TIGON_F16 ? 0x1p-10 : 0x1p-20;
  for (int64_t i = 0; i < flat_dx.count; i++) assert_true(same_sum(rounding, 1, got[i], test_tensor_get(&flat_dx, i)));
  free(got);
  for (int64_t i = 0; i < c->width; i++)
    assert_true(same_sum(0x1p-20, terms_of(&flat_dy, &flat_x, RSTD, c->width, i), test_tensor_get(&d_weight[0], i),
                         test_tensor_get(&d_weight[1], i)));
  test_tensor_check_surroundings(&dx.all);
  test_tensor *all[] = {&flat_x, &flat_dy, &flat_dx, &rstd, &d_weight[0], &d_weight[1], &x.all, &dy.all, &dx.all};
  for (int i = 0; i < COUNT(all); i++) test_tensor_free(all[i]);
  test_count_case();
}

static void test_backward_on_slices(void **state) {
  (void)state;
  for (int i = 0; i < COUNT(cases); i++) run_backward(&cases[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_slices_of_a_fused_projection),
      cmocka_unit_test(test_slices_in_place),
      cmocka_unit_test(test_slices_that_meet_are_refused),
      cmocka_unit_test(test_backward_on_slices),
  };
  return test_gate_report("rms_norm", cmocka_run_group_tests(tests, NULL, NULL));
}
