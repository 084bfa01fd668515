/* The vocabulary cut into shards: partials, their merge, and gradients by parts, against the oracle of the whole. */
#include "tests/linear_cross_entropy/problem.h"

enum { MOST = 8 };

/* Rows [begin, begin + count) of a tensor. */
static DLTensor *rows_of(tigon_tensor *to, const test_tensor *from, int64_t begin, int64_t count) {
  if (!from->block) return NULL;
  *to = from->tensor;
  to->dl.shape = to->shape;
  to->dl.strides = to->strides;
  to->shape[0] = count;
  to->dl.byte_offset += (uint64_t)(begin * to->strides[0] * tigon_kind_bytes(from->kind));
  return &to->dl;
}

/* A problem whose rows of weight, padding included, are cut at cuts[0] = 0 <= ... <= cuts[shards] = V. */
typedef struct sharded {
  lce_tensors t;
  int shards;
  int64_t cuts[MOST + 1];
  test_tensor partials; /* (shards, T, 8) */
} sharded;

static void cut(sharded *s, test_rng *rng) {
  const int64_t v = s->t.c.vocabulary;
  s->cuts[0] = 0;
  for (int i = 1; i < s->shards; i++) s->cuts[i] = test_random_range(rng, 0, v);
  if (s->shards > 2 && test_random_range(rng, 0, 1)) s->cuts[1] = s->cuts[2];               /* an empty one */
  if (s->shards > 1 && test_random_range(rng, 0, 1)) s->cuts[s->shards - 1] = s->t.classes; /* one of padding alone */
  s->cuts[s->shards] = v;
  for (int i = 1; i < s->shards; i++)
    for (int j = i; j > 0 && s->cuts[j] < s->cuts[j - 1]; j--) {
      const int64_t swap = s->cuts[j];
      s->cuts[j] = s->cuts[j - 1];
      s->cuts[j - 1] = swap;
    }
}

static void sharded_make(sharded *s, const lce_case *c, int shards, uint64_t seed) {
  test_rng rng = {seed ^ 77};
  lce_make(&s->t, c, seed);
  s->shards = shards;
  cut(s, &rng);
  const int64_t shape[] = {shards, c->tokens, 8};
  const test_layout layout = {.row_pad = c->strided ? 3 : 0};
  test_tensor_make(&s->partials, TIGON_F32, 3, shape, layout);
}

static void sharded_free(sharded *s) {
  test_tensor_free(&s->partials);
  lce_free(&s->t);
}

/* partials[i], as a tensor of its own. */
static DLTensor *partial_of(tigon_tensor *to, const sharded *s, int64_t i) {
  const tigon_tensor *all = &s->partials.tensor;
  tigon_tensor_2d(to, all->dl.data, tigon_f32(), all->shape[1], 8);
  to->strides[0] = all->strides[1];
  to->dl.strides = to->strides;
  to->strides[1] = 1;
  to->dl.byte_offset = all->dl.byte_offset + (uint64_t)(i * all->strides[0]) * sizeof(float);
  return &to->dl;
}

static void run_partial(const sharded *s, int64_t i, int threads) {
  tigon_tensor weight, bias, partial;
  const int64_t begin = s->cuts[i], count = s->cuts[i + 1] - begin;
  lce_tensors shard = s->t;
  tigon_linear_cross_entropy_args *f = &shard.forward;
  f->weight = rows_of(&weight, &s->t.weight, begin, count);
  f->bias = rows_of(&bias, &s->t.bias, begin, count);
  f->vocab_begin = begin;
  f->vocab_size = s->t.classes;
  f->loss = f->nll = f->lse = f->entropy = f->argmax = f->correct = NULL;
  f->partial = partial_of(&partial, s, i);
  lce_run_forward(&shard, threads, NULL);
}

/* The merge of partials [first, first + count) into the problem's outputs, or into `merged` alone where that is
 * given. */
static void run_merge(const sharded *s, int64_t first, int64_t count, DLTensor *merged, int threads,
                      tigon_context *context) {
  const tigon_linear_cross_entropy_args *f = &s->t.forward;
  tigon_tensor partials;
  tigon_linear_cross_entropy_merge_args args = {.size = sizeof args,
                                                .set_ignore_index = f->set_ignore_index,
                                                .partials = rows_of(&partials, &s->partials, first, count),
                                                .target = f->target,
                                                .class_weight = f->class_weight,
                                                .token_weight = f->token_weight,
                                                .merged = merged,
                                                .ignore_index = f->ignore_index,
                                                .vocab_size = s->t.classes,
                                                .z_loss = f->z_loss,
                                                .label_smoothing = f->label_smoothing};
  if (!merged) {
    args.merged = f->partial;
    args.loss = f->loss;
    args.nll = f->nll;
    args.lse = f->lse;
    args.entropy = f->entropy;
    args.argmax = f->argmax;
    args.correct = f->correct;
  }
  uint64_t bytes = 0;
  const tigon_exec exec = {.size = sizeof exec, .num_threads = threads};
  test_expect_status(tigon_linear_cross_entropy_merge_workspace(&exec, &args, &bytes), TIGON_OK, NULL);
  assert_true(bytes == ((uint64_t)s->t.c.tokens * 4 + 255) / 256 * 256);
  test_workspace w;
  test_workspace_make(&w, bytes, threads);
  w.exec.context = context;
  test_expect_status(tigon_linear_cross_entropy_merge(&w.exec, &args), TIGON_OK, NULL);
  test_workspace_free(&w);
}

/* A shard's gradients: its rows of dweight and dbias, and its part of dx, in float32. */
static void run_shard_backward(const sharded *s, int64_t i, test_tensor *dx_part, int threads) {
  tigon_tensor weight, bias, dweight, dbias;
  const int64_t begin = s->cuts[i], count = s->cuts[i + 1] - begin;
  lce_tensors shard = s->t;
  tigon_linear_cross_entropy_backward_args *b = &shard.backward;
  b->weight = rows_of(&weight, &s->t.weight, begin, count);
  b->bias = rows_of(&bias, &s->t.bias, begin, count);
  b->dweight = rows_of(&dweight, &s->t.dweight, begin, count);
  b->dbias = rows_of(&dbias, &s->t.dbias, begin, count);
  b->dx = dx_part ? &dx_part->tensor.dl : NULL;
  b->vocab_begin = begin;
  b->vocab_size = s->t.classes;
  lce_run_backward(&shard, threads, NULL);
}

/* dx is the sum of the shards' parts, rounded once. */
static void run_backward_by_parts(sharded *s, int threads) {
  test_tensor *dx = &s->t.dx, part;
  const int64_t shape[] = {s->t.c.tokens, s->t.c.width};
  const test_layout compact = {0};
  float *sum = calloc((size_t)dx->count + 1, sizeof *sum);
  assert_non_null(sum);
  for (int64_t i = 0; i < s->shards; i++) {
    test_tensor_make(&part, TIGON_F32, 2, shape, compact);
    run_shard_backward(s, i, dx->block ? &part : NULL, threads);
    for (int64_t j = 0; j < dx->count; j++) sum[j] += (float)test_tensor_get(&part, j);
    test_tensor_free(&part);
  }
  for (int64_t j = 0; j < dx->count; j++) test_tensor_set(dx, j, (double)sum[j]);
  free(sum);
}

static void sharded_run(sharded *s, int threads) {
  for (int64_t i = 0; i < s->shards; i++) run_partial(s, i, threads);
  run_merge(s, 0, s->shards, NULL, threads, NULL);
  run_backward_by_parts(s, threads);
}

/* --- the whole from its parts ----------------------------------------------------------------------------------- */

static const int shard_counts[] = {1, 2, 3, 8};

static void test_random_shards(void **state) {
  (void)state;
  test_rng rng = {2024};
  for (int run = 0; run < 40; run++) {
    const lce_case c = lce_random_case(&rng);
    lce_describe(&c);
    for (int i = 0; i < 4; i++) {
      sharded s;
      sharded_make(&s, &c, shard_counts[i], (uint64_t)(100 * run + i));
      sharded_run(&s, 2);
      lce_compare(&s.t, lce_random_gates(&s.t));
      test_tensor_check_surroundings(&s.partials);
      sharded_free(&s);
      test_count_case();
    }
  }
}

/* One partial of all classes: the whole call's bits, in outputs and in the partial itself. */
static void test_one_partial(void **state) {
  (void)state;
  test_rng rng = {5};
  for (int run = 0; run < LCE_CASES + 40; run++) {
    const lce_case c = run < LCE_CASES ? lce_cases[run] : lce_random_case(&rng);
    if (c.vocabulary == 0) continue;
    sharded s;
    lce_tensors whole;
    sharded_make(&s, &c, 1, (uint64_t)run);
    lce_make(&whole, &c, (uint64_t)run);
    lce_run_forward(&whole, 1, NULL);
    run_partial(&s, 0, 2);
    run_merge(&s, 0, 1, NULL, 2, NULL);
    const test_tensor *const got[] = {&s.t.loss,   &s.t.nll,     &s.t.lse,    &s.t.entropy,
                                      &s.t.argmax, &s.t.correct, &s.t.partial};
    const test_tensor *const expected[] = {&whole.loss,   &whole.nll,     &whole.lse,    &whole.entropy,
                                           &whole.argmax, &whole.correct, &whole.partial};
    for (int i = 0; i < 7; i++) test_tensor_check_same(c.name, got[i], expected[i]);
    sharded_free(&s);
    lce_free(&whole);
    test_count_case();
  }
}

/* Partials merged two and two, in a tree, and in the opposite order, pass the same gates. */
static void test_trees(void **state) {
  (void)state;
  test_rng rng = {31};
  for (int run = 0; run < 24; run++) {
    const lce_case c = lce_random_case(&rng);
    sharded s, level;
    lce_describe(&c);
    sharded_make(&s, &c, 8, (uint64_t)run);
    sharded_make(&level, &c, 8, (uint64_t)run);
    for (int64_t i = 0; i < 8; i++) run_partial(&s, run % 2 ? i : 7 - i, 1);
    for (int64_t i = 0; i < 4; i++) {
      tigon_tensor merged;
      run_merge(&s, 2 * i, 2, partial_of(&merged, &level, 3 - i), 1, NULL);
    }
    run_merge(&level, 0, 4, NULL, 1, NULL);
    run_backward_by_parts(&level, 1);
    lce_compare(&level.t, lce_random_gates(&level.t));
    sharded_free(&s);
    sharded_free(&level);
    test_count_case();
  }
}

static void test_same_bits(void **state) {
  (void)state;
  test_rng rng = {8};
  for (int run = 0; run < 12; run++) {
    const lce_case c = lce_random_case(&rng);
    static const int threads[] = {2, 7};
    sharded one, other;
    sharded_make(&one, &c, 3, (uint64_t)run);
    sharded_run(&one, 1);
    for (int k = 0; k < 2; k++) {
      sharded_make(&other, &c, 3, (uint64_t)run);
      sharded_run(&other, threads[k]);
      test_tensor *a[LCE_ALL_TENSORS], *b[LCE_ALL_TENSORS];
      lce_list(&one.t, a);
      lce_list(&other.t, b);
      for (int j = 0; j < LCE_ALL_TENSORS; j++)
        if (a[j]->block) test_tensor_check_same("shards", a[j], b[j]);
      test_tensor_check_same("partials", &one.partials, &other.partials);
      sharded_free(&other);
    }
    sharded_free(&one);
  }
}

/* --- borders, padding, masks ------------------------------------------------------------------------------------ */

/* Targets stand on both sides of every border, on the first and last class, and in the padding, where they are no
 * class. */
static void test_border_targets(void **state) {
  (void)state;
  static const int64_t cuts[] = {0, 1, 63, 64, 64, 300, 310, 390, 400};
  const lce_case c = {"borders", 64, 16, 400, F32_BIAS, .upstream = ALL, .padding = 20, .label_smoothing = 0.1f};
  sharded s;
  sharded_make(&s, &c, 8, 3);
  memcpy(s.cuts, cuts, sizeof cuts);
  for (int64_t i = 0; i < c.tokens; i++) {
    const int64_t target = cuts[i % 9] - (i / 9) % 2;
    test_tensor_set(&s.t.target, i, (double)(target < 0 ? 0 : target));
  }
  test_tensor_set(&s.t.target, 50, 379);
  test_tensor_set(&s.t.target, 20, -100);
  sharded_run(&s, 2);
  lce_compare(&s.t, BOTH_GATES);
  tigon_context *context = NULL;
  const DLDevice cpu = {kDLCPU, 0};
  test_expect_status(tigon_context_create(cpu, &context), TIGON_OK, NULL);
  run_merge(&s, 0, 8, NULL, 2, context);
  tigon_record record;
  assert_int_equal(tigon_check(context, &record), TIGON_INVALID_ARGUMENT);
  assert_string_equal(record.op, "tigon_linear_cross_entropy_merge");
  assert_string_equal(record.argument, "target");
  assert_int_equal(record.index, 7); /* the first target 390, in the padding */
  assert_int_equal(record.value, 390);
  tigon_context_destroy(context);
  sharded_free(&s);
  test_count_case();
}

static const tigon_linear_cross_entropy_partial *row_of(const sharded *s, int64_t shard, int64_t token) {
  tigon_tensor t;
  const DLTensor *dl = partial_of(&t, s, shard);
  return (const void *)((const char *)dl->data + dl->byte_offset + (uint64_t)(token * t.strides[0]) * sizeof(float));
}

/* Rows of a partial hold what the header says, ignored tokens and shards without classes the empty row. */
static void test_rows(void **state) {
  (void)state;
  static const tigon_linear_cross_entropy_partial empty = {-INFINITY, 0, 0, 0, 0, 0, 0, -1};
  const lce_case c = {"rows", 2, 1, 8, F32_BIAS, .padding = 2, .class_weight = POSITIVE};
  static const float z[] = {1, 3, -INFINITY, 3, 2, 0}, w[] = {1, 0.5f, 0, 2, 1, 1};
  sharded s;
  sharded_make(&s, &c, 4, 1);
  static const int64_t cuts[] = {0, 0, 4, 6, 8};
  memcpy(s.cuts, cuts, sizeof cuts);
  for (int64_t v = 0; v < 6; v++) {
    test_tensor_set(&s.t.weight, v, 0);
    test_tensor_set(&s.t.bias, v, (double)z[v]);
    test_tensor_set(&s.t.class_weight, v, (double)w[v]);
  }
  test_tensor_set(&s.t.target, 0, -100);
  test_tensor_set(&s.t.target, 1, 4);
  for (int64_t i = 0; i < 4; i++) run_partial(&s, i, 1);
  for (int64_t i = 0; i < 4; i++) assert_memory_equal(row_of(&s, i, 0), &empty, sizeof empty);
  assert_memory_equal(row_of(&s, 0, 1), &empty, sizeof empty); /* no rows of weight */
  assert_memory_equal(row_of(&s, 3, 1), &empty, sizeof empty); /* padding alone */
  const tigon_linear_cross_entropy_partial *a = row_of(&s, 1, 1), *b = row_of(&s, 2, 1);
  assert_true(a->max == 3 && a->ties == 2 && a->argmax == 1 && a->target == 0 && a->weights == 3.5f);
  assert_true(fabsf(a->rest - expf(-2)) < 1e-7f && fabsf(a->weighted + 2 * expf(-2)) < 1e-6f && a->smoothed == -2);
  assert_true(b->max == 2 && b->ties == 1 && b->argmax == 4 && b->target == 2 && b->weights == 2 && b->smoothed == -2);
  run_merge(&s, 0, 4, NULL, 1, NULL);
  assert_true(test_tensor_get(&s.t.argmax, 1) == 1 && test_tensor_get(&s.t.correct, 1) == 0);
  sharded_free(&s);
  test_count_case();
}

/* The lowest of equal classes wins in whatever order the shards come. */
static void test_ties_across_shards(void **state) {
  (void)state;
  const lce_case c = {"ties", 5, 4, 300, F32_BIAS, .upstream = LOSS};
  for (int reversed = 0; reversed < 2; reversed++) {
    sharded s, order;
    sharded_make(&s, &c, 3, 6);
    sharded_make(&order, &c, 3, 6);
    static const int64_t cuts[] = {0, 90, 200, 300};
    memcpy(s.cuts, cuts, sizeof cuts);
    test_tensor_fill_value(&s.t.weight, 0);
    test_tensor_fill_value(&s.t.bias, 0);
    static const int64_t tied[] = {299, 95, 91, 210};
    for (int i = 0; i < 4; i++) test_tensor_set(&s.t.bias, tied[i], 1);
    for (int64_t k = 0; k < c.tokens; k++) test_tensor_set(&order.t.target, k, k ? 95 : 91);
    for (int64_t i = 0; i < 3; i++) {
      tigon_tensor slot;
      run_partial(&s, i, 1);
      run_merge(&s, i, 1, partial_of(&slot, &order, reversed ? 2 - i : i), 1, NULL);
    }
    run_merge(&order, 0, 3, NULL, 1, NULL);
    for (int64_t k = 0; k < c.tokens; k++) {
      assert_true(test_tensor_get(&order.t.argmax, k) == 91);
      assert_true(test_tensor_get(&order.t.correct, k) == (k == 0));
    }
    sharded_free(&s);
    sharded_free(&order);
    test_count_case();
  }
}

/* Shards that are masked entirely, in every position; the whole masked; NaN stays in its token. */
static void test_masked_shards(void **state) {
  (void)state;
  const lce_case c = {"masked shards",         33, 8, 300, F32_BIAS, .upstream = ALL, .z_loss = 0.01f,
                      .class_weight = POSITIVE};
  for (int masked = 0; masked < 8; masked++) {
    sharded s;
    sharded_make(&s, &c, 3, (uint64_t)masked);
    static const int64_t cuts[] = {0, 90, 200, 300};
    memcpy(s.cuts, cuts, sizeof cuts);
    for (int64_t i = 0; i < 3; i++)
      for (int64_t v = cuts[i]; masked >> i & 1 && v < cuts[i + 1]; v++) test_tensor_set(&s.t.bias, v, -INFINITY);
    const int64_t open = masked & 1 ? masked & 2 ? 200 : 90 : 0; /* a class that is not masked, unless all are */
    for (int64_t k = 0; k < c.tokens; k++) test_tensor_set(&s.t.target, k, (double)(open + k));
    test_tensor_set(&s.t.x, 5 * c.width, NAN);
    for (int64_t i = 0; i < 3; i++) run_partial(&s, i, 2);
    run_merge(&s, 0, 3, NULL, 2, NULL);
    lce_expected oracle = lce_expect(&s.t, false);
    lce_gate("loss", &s.t.loss, oracle.loss, NULL, lce_statistic_bound(&s.t, oracle.loss, oracle.loss), GATE_1);
    lce_gate("entropy", &s.t.entropy, oracle.entropy, NULL, lce_statistic_bound(&s.t, oracle.entropy, NULL), GATE_1);
    for (int64_t k = 0; k < c.tokens; k++) assert_true(isnan(test_tensor_get(&s.t.lse, k)) == (k == 5 || masked == 7));
    lce_expected_free(&oracle);
    sharded_free(&s);
    test_count_case();
  }
}

/* --- arguments of the merge ------------------------------------------------------------------------------------- */

typedef struct merge_mistake {
  const char *fragment;
  void (*make)(sharded *s, tigon_linear_cross_entropy_merge_args *args);
} merge_mistake;

#define SET(name, statement)                                                  \
  static void name(sharded *s, tigon_linear_cross_entropy_merge_args *args) { \
    (void)s;                                                                  \
    (void)args;                                                               \
    statement;                                                                \
  }

SET(no_partials, args->partials = NULL)
SET(partials_matrix, args->partials = args->merged)
SET(none, s->partials.tensor.shape[0] = 0)
SET(seven, s->partials.tensor.shape[2] = 7)
SET(half, s->partials.tensor.dl.dtype = tigon_bf16())
SET(spaced, s->partials.tensor.strides[2] = 2)
SET(tokens, s->partials.tensor.shape[1] = 8)
SET(no_target, args->target = NULL)
SET(no_size, args->vocab_size = 0)
SET(many, args->vocab_size = (int64_t)INT32_MAX + 1)
SET(smoothing, args->label_smoothing = 2)
SET(z_loss, args->z_loss = INFINITY)
SET(class_weight, args->class_weight = s->t.forward.target)
SET(merged_is_partials, args->merged->data = s->partials.tensor.dl.data)
SET(merged_seven, s->t.partial.tensor.shape[1] = 7)
SET(loss_is_nll, args->loss = args->nll)
SET(argmax_float, args->argmax = args->loss)
SET(ignore_flag, args->set_ignore_index = -1)

static const merge_mistake merge_mistakes[] = {
    {": partials: expected a tensor", no_partials},
    {": partials: expected shape (*, *, 8)", partials_matrix},
    {": partials: expected at least one partial, got none", none},
    {": partials: expected shape (*, *, 8), got (3, 9, 7)", seven},
    {": partials: expected dtype float32", half},
    {": partials: expected a contiguous", spaced},
    {": target: expected shape (8), got (9)", tokens},
    {": target: expected a tensor", no_target},
    {": vocab_size: expected the number of classes", no_size},
    {": vocab_size: expected at most 2147483647 classes", many},
    {": label_smoothing: expected a number from 0 to 1", smoothing},
    {": z_loss: expected a finite number", z_loss},
    {": class_weight: expected dtype float32", class_weight},
    {": merged: expected memory of its own, got that of partials", merged_is_partials},
    {": merged: expected shape (9, 8), got (9, 7)", merged_seven},
    {": loss: expected memory of its own, got that of nll", loss_is_nll},
    {": argmax: expected dtype int32, int64", argmax_float},
    {": set_ignore_index: expected 0 or 1", ignore_flag},
};

static void test_merge_mistakes(void **state) {
  (void)state;
  const lce_case c = {"merge mistakes", 9, 4, 33, .upstream = LOSS};
  for (size_t i = 0; i <= sizeof merge_mistakes / sizeof *merge_mistakes; i++) {
    const bool sound = i == sizeof merge_mistakes / sizeof *merge_mistakes;
    sharded s;
    sharded_make(&s, &c, 3, 1);
    const tigon_linear_cross_entropy_args *f = &s.t.forward;
    tigon_linear_cross_entropy_merge_args args = {.size = sizeof args,
                                                  .partials = &s.partials.tensor.dl,
                                                  .target = f->target,
                                                  .merged = f->partial,
                                                  .loss = f->loss,
                                                  .nll = f->nll,
                                                  .argmax = f->argmax,
                                                  .vocab_size = 33};
    test_workspace w;
    test_workspace_make(&w, 256, 1);
    if (!sound) merge_mistakes[i].make(&s, &args);
    test_expect_status(tigon_linear_cross_entropy_merge(&w.exec, &args), sound ? TIGON_OK : TIGON_INVALID_ARGUMENT,
                       sound ? NULL : merge_mistakes[i].fragment);
    const test_tensor *const outputs[] = {&s.t.partial, &s.t.loss, &s.t.nll, &s.t.argmax};
    for (int k = 0; !sound && k < 4; k++)
      for (size_t j = 0; j < outputs[k]->bytes; j++) assert_int_equal(outputs[k]->block[j], 0xff);
    if (sound) {
      tigon_exec short_exec = w.exec;
      short_exec.workspace_bytes = 255;
      test_expect_status(tigon_linear_cross_entropy_merge(&short_exec, &args), TIGON_WORKSPACE, "exec.workspace");
      test_expect_status(tigon_linear_cross_entropy_merge(NULL, NULL), TIGON_INVALID_ARGUMENT, "args");
      test_expect_status(tigon_linear_cross_entropy_merge_workspace(NULL, &args, NULL), TIGON_INVALID_ARGUMENT,
                         "tigon_linear_cross_entropy_merge: bytes");
    }
    test_workspace_free(&w);
    sharded_free(&s);
    test_count_case();
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_shards),
      cmocka_unit_test(test_one_partial),
      cmocka_unit_test(test_trees),
      cmocka_unit_test(test_same_bits),
      cmocka_unit_test(test_border_targets),
      cmocka_unit_test(test_rows),
      cmocka_unit_test(test_ties_across_shards),
      cmocka_unit_test(test_masked_shards),
      cmocka_unit_test(test_merge_mistakes),
  };
  return test_gate_report("linear_cross_entropy_shards", cmocka_run_group_tests(tests, NULL, NULL));
}
