/* What the arguments of pools, checkpoints, states alone and merges may be: refusals without a write, and extremes. */
#include "lightning_attention/pools.h"

#include <sys/mman.h>

static const pool_case packed = {{"packed", 1, 130, 2, 4, 8, 12, TYPICAL, STATES, SEQUENCES(TIGON_I32, 0, 65, 130)},
                                 SLOTS(4, TIGON_I32, 3, 1),
                                 FLAGS(TIGON_U8, 1, 0),
                                 .every = 64,
                                 .rows = 3,
                                 .begin_kind = TIGON_I64,
                                 .begin = {0, 1, 2},
                                 .length_kind = TIGON_I32,
                                 .lengths = {3, 4}};

enum { INITIAL, FINAL, INDICES, FLAGS_, ROWS, BEGIN, LENGTHS, K, V, DECAY, TENSORS };
static test_tensor *tensor_of(pool_fixture *f, int i) {
  test_tensor *const all[TENSORS] = {&f->initial, &f->final,   &f->indices, &f->flags, &f->checkpoints,
                                     &f->begin,   &f->lengths, &f->f.k,     &f->f.v,   &f->f.decay};
  return all[i];
}

typedef enum change { SHAPE, STRIDE, DTYPE, NDIM, DEVICE, NULL_DATA, MISALIGNED, ABSENT, OF_TENSOR } change;

typedef struct wrong {
  int tensor;
  change change;
  int dimension;
  int64_t value;
  const char *name;
} wrong;

static const wrong of_forward[] = {
    {INDICES, SHAPE, 0, 3, "state_indices"},
    {INDICES, DTYPE, 0, TIGON_F32, "state_indices"},
    {INDICES, DTYPE, 0, TIGON_U8, "state_indices"},
    {INDICES, NDIM, 0, 0, "state_indices"},
    {INDICES, DEVICE, 0, 2, "state_indices"},
    {INDICES, NULL_DATA, 0, 0, "state_indices"},
    {INDICES, MISALIGNED, 0, 1, "state_indices"},
    {INDICES, ABSENT, 0, 0, "initial_state"}, /* a pool of 4 for 2 sequences */
    {FLAGS_, SHAPE, 0, 1, "has_initial_state"},
    {FLAGS_, DTYPE, 0, TIGON_F32, "has_initial_state"},
    {FLAGS_, NULL_DATA, 0, 0, "has_initial_state"},
    {INITIAL, ABSENT, 0, 0, "has_initial_state"},
    {INITIAL, SHAPE, 1, 3, "initial_state"},
    {INITIAL, SHAPE, 3, 7, "initial_state"},
    {INITIAL, STRIDE, 3, 2, "initial_state"},
    {INITIAL, DTYPE, 0, TIGON_BF16, "initial_state"},
    {INITIAL, SHAPE, 0, 5, "final_state"}, /* pools of two sizes */
    {FINAL, SHAPE, 2, 11, "final_state"},
    {FINAL, STRIDE, 0, 0, "final_state"},
    {FINAL, STRIDE, 1, 4, "final_state"}, /* heads that overlap */
    {FINAL, OF_TENSOR, 0, K, "final_state"},
    {FINAL, OF_TENSOR, 0, INDICES, "final_state"},
    {FINAL, OF_TENSOR, 0, FLAGS_, "final_state"},
    {FINAL, OF_TENSOR, 0, INITIAL, "final_state"}, /* in place, but of other strides */
    {ROWS, ABSENT, 0, 0, "checkpoint"},
    {ROWS, SHAPE, 1, 2, "checkpoints"},
    {ROWS, DTYPE, 0, TIGON_F16, "checkpoints"},
    {ROWS, STRIDE, 2, 0, "checkpoints"},
    {ROWS, NULL_DATA, 0, 0, "checkpoints"},
    {ROWS, OF_TENSOR, 0, INITIAL, "checkpoints"},
    {ROWS, OF_TENSOR, 0, FINAL, "checkpoints"},
    {ROWS, OF_TENSOR, 0, BEGIN, "checkpoints"},
    {BEGIN, ABSENT, 0, 0, "checkpoint_begin"},
    {BEGIN, SHAPE, 0, 2, "checkpoint_begin"},
    {BEGIN, DTYPE, 0, TIGON_U8, "checkpoint_begin"},
};
static const wrong of_state[] = {
    {K, ABSENT, 0, 0, "k"},
    {K, SHAPE, 3, 1025, "k"},
    {K, SHAPE, 2, 0, "k"},
    {K, SHAPE, 1, 129, "v"},
    {V, SHAPE, 2, 3, "v"},
    {V, DTYPE, 0, TIGON_I32, "v"},
    {V, ABSENT, 0, 0, "v"},
    {DECAY, SHAPE, 0, 3, "decay"},
    {DECAY, ABSENT, 0, 0, "decay"},
    {LENGTHS, SHAPE, 0, 3, "lengths"},
    {LENGTHS, DTYPE, 0, TIGON_U8, "lengths"},
    {LENGTHS, NULL_DATA, 0, 0, "lengths"},
    {FINAL, ABSENT, 0, 0, "final_state"},
    {FINAL, SHAPE, 0, 5, "final_state"},
    {FINAL, STRIDE, 2, 0, "final_state"},
    {FINAL, OF_TENSOR, 0, LENGTHS, "final_state"},
    {FINAL, OF_TENSOR, 0, V, "final_state"},
    {INDICES, SHAPE, 0, 1, "state_indices"},
    {INITIAL, ABSENT, 0, 0, "has_initial_state"},
};

static void apply(const wrong *w, pool_fixture *f) {
  test_tensor *t = tensor_of(f, w->tensor);
  DLTensor *dl = &t->tensor.dl;
  if (w->change == SHAPE) t->tensor.shape[w->dimension] = w->value;
  if (w->change == STRIDE) t->tensor.strides[w->dimension] = w->value;
  if (w->change == DTYPE) dl->dtype = test_dtype((tigon_kind)w->value);
  if (w->change == NDIM) dl->ndim = (int)w->value;
  if (w->change == DEVICE) dl->device.device_type = (DLDeviceType)w->value;
  if (w->change == NULL_DATA) dl->data = NULL;
  if (w->change == MISALIGNED) dl->byte_offset += (uint64_t)w->value;
  if (w->change == OF_TENSOR) dl->data = tensor_of(f, (int)w->value)->tensor.dl.data;
}

static void drop(pool_fixture *f) {
  for (int i = 0; i < TENSORS; i++) free(tensor_of(f, i)->block);
  test_tensor *rest[] = {&f->f.q,  &f->f.out, &f->f.cu_seqlens, &f->f.dout,
                         &f->f.dq, &f->f.dk,  &f->f.dv,         &f->f.d_initial_state};
  for (int i = 0; i < 8; i++) free(rest[i]->block);
}

static void check_unwritten(pool_fixture *f) {
  test_tensor *outputs[] = {&f->final, &f->checkpoints, &f->f.out};
  for (int i = 0; i < 3; i++)
    for (size_t byte = 0; byte < outputs[i]->bytes; byte++) assert_int_equal(outputs[i]->block[byte], 0xff);
}

static void check_refused(const wrong *w, bool states_alone) {
  pool_fixture f;
  make_pool_fixture(&f, &packed, 1);
  test_workspace work;
  test_workspace_make(&work, 1 << 22, 2);
  apply(w, &f);
  tigon_lightning_attention_args a = pool_args(&f);
  tigon_lightning_attention_state_args s = state_args(&f);
  if (w->change == ABSENT) {
    const DLTensor *const gone = &tensor_of(&f, w->tensor)->tensor.dl;
    const DLTensor **const given[] = {
        &a.initial_state, &a.state_indices, &a.has_initial_state, &a.checkpoint_begin, &s.k, &s.v,
        &s.decay,         &s.initial_state, &s.state_indices,     &s.lengths};
    for (int i = 0; i < 10; i++)
      if (*given[i] == gone) *given[i] = NULL;
    if (a.checkpoints == gone) a.checkpoints = NULL;
    if (s.final_state == gone) s.final_state = NULL;
  }
  const tigon_status status =
      states_alone ? tigon_lightning_attention_state(&work.exec, &s) : tigon_lightning_attention(&work.exec, &a);
  test_expect_status(status, TIGON_INVALID_ARGUMENT, w->name);
  check_unwritten(&f);
  test_workspace_free(&work);
  drop(&f);
  test_count_case();
}

static void test_wrong_tensors(void **unused) {
  (void)unused;
  for (size_t i = 0; i < sizeof of_forward / sizeof *of_forward; i++) check_refused(&of_forward[i], false);
  for (size_t i = 0; i < sizeof of_state / sizeof *of_state; i++) check_refused(&of_state[i], true);
}

/* Random damage to descriptors and values: refused without a write, or (harmless damage) computed within the
 * tensors. */
static void test_random_damage(void **unused) {
  (void)unused;
  test_rng rng = {4712};
  int refused = 0;
  for (int n = 0; n < 4000; n++) {
    pool_case p = packed;
    for (int i = 0; i < 3; i++) {
      p.slots[i] = test_random_range(&rng, -2, 1) + 4 * i; /* none twice, some not there */
      p.begin[i] = test_random_range(&rng, -1, 5);
      p.lengths[i] = test_random_range(&rng, -10, 140);
    }
    pool_fixture f;
    make_pool_fixture(&f, &p, 1);
    test_workspace w;
    test_workspace_make(&w, 1 << 20, 2);
    const change changes[] = {SHAPE, DTYPE, NDIM, DEVICE, MISALIGNED};
    wrong damage = {.tensor = (int)test_random_range(&rng, 0, TENSORS - 1),
                    .change = changes[test_random_range(&rng, 0, 4)],
                    .dimension = (int)test_random_range(&rng, 0, 3)};
    damage.value = damage.change == SHAPE ? test_random_range(&rng, -3, 3) : test_random_range(&rng, -1, 20);
    if (damage.change == MISALIGNED) damage.value = 1 + 2 * test_random_range(&rng, 0, 3);
    apply(&damage, &f);
    const tigon_lightning_attention_args a = pool_args(&f);
    const tigon_lightning_attention_state_args s = state_args(&f);
    const tigon_status status =
        n % 2 ? tigon_lightning_attention_state(&w.exec, &s) : tigon_lightning_attention(&w.exec, &a);
    if (status != TIGON_OK) {
      check_unwritten(&f);
      refused++;
    }
    test_workspace_free(&w);
    drop(&f);
  }
  assert_true(refused > 2000 && refused < 3900);
}

static void test_wrong_options(void **unused) {
  (void)unused;
  pool_fixture f;
  make_pool_fixture(&f, &packed, 1);
  test_workspace w;
  test_workspace_make(&w, 1 << 22, 2);
  const int64_t every[] = {0, -64, 1, 63, 65, 96, INT64_MIN, INT64_MAX};
  for (size_t i = 0; i < sizeof every / sizeof *every; i++) {
    tigon_lightning_attention_args a = pool_args(&f);
    a.checkpoint_every = every[i];
    test_expect_status(tigon_lightning_attention(&w.exec, &a), TIGON_INVALID_ARGUMENT, "checkpoint_every");
  }
  tigon_lightning_attention_args a = pool_args(&f);
  a.checkpoints = NULL;
  test_expect_status(tigon_lightning_attention(&w.exec, &a), TIGON_INVALID_ARGUMENT, "checkpoint_every");
  a.checkpoint_every = 0;
  test_expect_status(tigon_lightning_attention(&w.exec, &a), TIGON_INVALID_ARGUMENT, "checkpoint_begin");
  a = pool_args(&f);
  a.initial_state = NULL;
  a.has_initial_state = NULL;
  a.final_state = NULL;
  test_expect_status(tigon_lightning_attention(&w.exec, &a), TIGON_INVALID_ARGUMENT, "state_indices");
  tigon_lightning_attention_state_args s = state_args(&f);
  s.team = (const tigon_team *)(uintptr_t)64;
  test_expect_status(tigon_lightning_attention_state(&w.exec, &s), TIGON_UNSUPPORTED, "team");
  test_expect_status(tigon_lightning_attention_state(&w.exec, NULL), TIGON_INVALID_ARGUMENT, "args");
  s = state_args(&f);
  w.exec.workspace = NULL;
  test_expect_status(tigon_lightning_attention_state(&w.exec, &s), TIGON_WORKSPACE, "workspace");
  w.exec.workspace = w.block + 4096;
  for (size_t byte = 0; byte < f.final.bytes; byte++) assert_int_equal(f.final.block[byte], 0xff);
  test_workspace_free(&w);
  free_pool_fixture(&f);
}

/* Backward takes no pool, and says what to do. */
static void test_backward_refuses_pools(void **unused) {
  (void)unused;
  pool_case p = packed;
  p.c.T = 130;
  pool_fixture f;
  make_pool_fixture(&f, &p, 1);
  for (int which = 0; which < 2; which++) {
    tigon_lightning_attention_backward_args b = backward_args(&f.f);
    uint64_t bytes = 77;
    if (which == 0) b.state_indices = &f.indices.tensor.dl;
    if (which == 1) b.has_initial_state = &f.flags.tensor.dl;
    const char *name = which ? "has_initial_state: expected NULL" : "state_indices: expected NULL";
    test_expect_status(tigon_lightning_attention_backward(NULL, &b), TIGON_UNSUPPORTED, name);
    test_expect_status(tigon_lightning_attention_backward(NULL, &b), TIGON_UNSUPPORTED, "gather");
    test_expect_status(tigon_lightning_attention_backward_workspace(NULL, &b, &bytes), TIGON_UNSUPPORTED, name);
    assert_int_equal(bytes, 77);
  }
  free_pool_fixture(&f);
}

static void test_merge_arguments(void **unused) {
  (void)unused;
  static const char *const names[16] = {"left",    "right",   "decay", "lengths", "out",  "right", "decay", "decay",
                                        "lengths", "lengths", "out",   "out",     "left", "left",  "out",   "team"};
  for (int i = 0; i < 16; i++) {
    float left[2 * 4 * 3 * 5] = {0}, right[2 * 4 * 3 * 5] = {0}, out[2 * 4 * 3 * 5], slopes[4] = {0};
    int32_t counts[2] = {1, 2};
    memset(out, 0xff, sizeof out);
    tigon_tensor l, r, o, d, n;
    tigon_lightning_attention_merge_args a = {.size = sizeof a};
    a.left = tigon_tensor_4d(&l, left, tigon_f32(), 2, 4, 3, 5);
    a.right = tigon_tensor_4d(&r, right, tigon_f32(), 2, 4, 3, 5);
    a.out = tigon_tensor_4d(&o, out, tigon_f32(), 2, 4, 3, 5);
    a.decay = tigon_tensor_1d(&d, slopes, tigon_f32(), 4);
    a.lengths = tigon_tensor_1d(&n, counts, tigon_i32(), 2);
    if (i == 0) a.left = NULL;
    if (i == 1) a.right = NULL;
    if (i == 2) a.decay = NULL;
    if (i == 3) a.lengths = NULL;
    if (i == 4) a.out = NULL;
    if (i == 5) r.shape[2] = 2;
    if (i == 6) d.shape[0] = 3;
    if (i == 7) d.shape[0] = 0;
    if (i == 8) n.shape[0] = 1;
    if (i == 9) n.dl.dtype = tigon_f32();
    if (i == 10) o.shape[3] = 4;
    if (i == 11) o.strides[1] = 0;
    if (i == 12) l.dl.dtype = tigon_f16();
    if (i == 13) l.shape[1] = 0;
    if (i == 14) o.dl.data = left + 1;
    if (i == 15) a.team = (const tigon_team *)(uintptr_t)64;
    const tigon_status expected = i == 15 ? TIGON_UNSUPPORTED : TIGON_INVALID_ARGUMENT;
    test_expect_status(tigon_lightning_attention_merge(NULL, &a), expected, names[i]);
    for (size_t byte = 0; byte < sizeof out; byte++) assert_int_equal(((unsigned char *)out)[byte], 0xff);
    test_count_case();
  }
}

/* A caller built against the first headers passes shorter structs: no pools. */
static void test_older_callers(void **unused) {
  (void)unused;
  pool_case p = packed;
  p.P = 0;
  pool_fixture f;
  make_pool_fixture(&f, &p, 1);
  tigon_lightning_attention_args args = pool_args(&f);
  args.size = (uint32_t)offsetof(tigon_lightning_attention_args, state_indices);
  call_forward(&args, 1, NULL);
  for (size_t byte = 0; byte < f.checkpoints.bytes; byte++) assert_int_equal(f.checkpoints.block[byte], 0xff);
  free_pool_fixture(&f);
}

/* Without tokens the batch may be any number: no work for it, and no workspace. */
static void test_enormous_batch_without_tokens(void **unused) {
  (void)unused;
  const int64_t B = INT64_C(1) << 50;
  tigon_tensor q, v, decay, rows, pool, indices;
  float slopes[2] = {0}, state[8] = {0};
  int64_t padding = -1;
  tigon_lightning_attention_args a = {.size = sizeof a, .checkpoint_every = 64};
  a.q = a.k = tigon_tensor_4d(&q, NULL, tigon_f32(), B, 0, 2, 2);
  a.v = a.out = tigon_tensor_4d(&v, NULL, tigon_f32(), B, 0, 2, 2);
  a.decay = tigon_tensor_1d(&decay, slopes, tigon_f32(), 2);
  a.checkpoints = tigon_tensor_4d(&rows, NULL, tigon_f32(), 0, 2, 2, 2);
  a.initial_state = tigon_tensor_4d(&pool, state, tigon_f32(), 1, 2, 2, 2);
  a.state_indices = tigon_tensor_1d(&indices, &padding, tigon_i64(), B);
  indices.strides[0] = 0;
  call_forward(&a, 2, NULL);
  tigon_lightning_attention_backward_args b = {.size = sizeof b, .q = a.q, .k = a.k, .v = a.v, .decay = a.decay};
  b.dout = b.dv = a.out;
  b.dq = b.dk = &q.dl;
  const tigon_exec exec = {.size = sizeof exec, .num_threads = 2};
  uint64_t bytes;
  test_expect_status(tigon_lightning_attention_backward_workspace(&exec, &b, &bytes), TIGON_OK, NULL);
  test_workspace w;
  test_workspace_make(&w, bytes, 2);
  test_expect_status(tigon_lightning_attention_backward(&w.exec, &b), TIGON_OK, NULL);
  test_workspace_free(&w);
}

/* Tokens and slots more than 2^31 elements apart, in memory of which only those pages exist. */
static void test_64_bit_offsets(void **unused) {
  (void)unused;
  const int64_t far = (INT64_C(1) << 31) + 64;
  const size_t bytes = (size_t)(4 * far) * sizeof(float);
  float *memory[2];
  for (int i = 0; i < 2; i++) {
    memory[i] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory[i] == MAP_FAILED) skip();
  }
  tigon_tensor q, out, pool, indices, decay;
  float slope = 0;
  int64_t slot = 2;
  tigon_tensor_4d(&q, memory[0], tigon_f32(), 1, 3, 1, 2);
  tigon_tensor_4d(&out, memory[0] + 16, tigon_f32(), 1, 3, 1, 2);
  tigon_tensor_4d(&pool, memory[1], tigon_f32(), 3, 1, 2, 2);
  q.strides[1] = out.strides[1] = pool.strides[0] = far;
  for (int t = 0; t < 3; t++) memory[0][t * far] = (float)(t + 1);
  memory[1][2 * far] = 100;
  tigon_lightning_attention_args a = {.size = sizeof a, .q = &q.dl, .k = &q.dl, .v = &q.dl, .out = &out.dl};
  a.decay = tigon_tensor_1d(&decay, &slope, tigon_f32(), 1);
  a.initial_state = a.final_state = &pool.dl;
  a.state_indices = tigon_tensor_1d(&indices, &slot, tigon_i64(), 1);
  call_forward(&a, 2, NULL);
  const float expected[3] = {101, 210, 342}; /* t + 1 times 100 + 1, + 4, + 9 */
  for (int t = 0; t < 3; t++) assert_true(memory[0][t * far + 16] == expected[t]);
  assert_true(memory[1][2 * far] == 114 && memory[1][0] == 0);
  for (int i = 0; i < 2; i++) munmap(memory[i], bytes);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_wrong_tensors),
      cmocka_unit_test(test_random_damage),
      cmocka_unit_test(test_wrong_options),
      cmocka_unit_test(test_backward_refuses_pools),
      cmocka_unit_test(test_merge_arguments),
      cmocka_unit_test(test_older_callers),
      cmocka_unit_test(test_enormous_batch_without_tokens),
      cmocka_unit_test(test_64_bit_offsets),
  };
  return test_gate_report("lightning_attention_pool_arguments", cmocka_run_group_tests(tests, NULL, NULL));
}
