/* What only a device has of the router: streams, graphs, contexts; equal bits every time. Its tensors lie there. */
#include "tests/gpu/device.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

enum { TENSORS = 10 };
enum { LOGITS, BIAS, IDS, WEIGHTS, COUNTS, LOSS, Z_LOSS, D_WEIGHTS, D_LOSSES, D_LOGITS };

typedef struct problem {
  int64_t tokens, choices, experts;
  tigon_tensor t[TENSORS], d_z_loss;
  size_t bytes[TENSORS];
  tigon_moe_route_args forward;
  tigon_moe_route_backward_args backward;
  tigon_exec exec;
} problem;

static DLTensor *make(problem *p, int which, DLDataType dtype, int ndim, int64_t rows, int64_t columns) {
  p->bytes[which] = (size_t)(rows * columns * dtype.bits / 8);
  tigon_tensor_nd(&p->t[which], (void *)gpu_alloc(p->bytes[which]), dtype, ndim,
                  ndim == 1 ? &columns : (int64_t[]){rows, columns});
  p->t[which].dl.device = (DLDevice){kDLCUDA, 0};
  return &p->t[which].dl;
}

/* Normal values; float32 tensors only. */
static void fill(problem *p, int which, uint64_t seed) {
  const size_t count = p->bytes[which] / sizeof(float);
  test_rng rng = {seed};
  float *values = malloc(p->bytes[which] + 1);
  assert_non_null(values);
  for (size_t i = 0; i < count; i++) values[i] = (float)test_random_normal(&rng);
  GPU(cuMemcpyHtoD((CUdeviceptr)p->t[which].dl.data, values, p->bytes[which]));
  GPU(cuCtxSynchronize());
  free(values);
}

/* With a bias and groups where n_group > 1; d_balance_loss and d_z_loss are two neighbours. */
static void problem_make(problem *p, int64_t tokens, int64_t choices, int64_t experts, int32_t n_group,
                         CUstream stream) {
  *p = (problem){.tokens = tokens, .choices = choices, .experts = experts};
  p->exec = (tigon_exec){.size = sizeof p->exec, .device = {kDLCUDA, 0}, .stream = stream};
  tigon_moe_route_args *f = &p->forward;
  tigon_moe_route_backward_args *b = &p->backward;
  f->size = sizeof *f;
  b->size = sizeof *b;
  f->score = b->score = n_group > 1;
  f->renormalize = b->renormalize = 1;
  f->logits = b->logits = make(p, LOGITS, tigon_f32(), 2, tokens, experts);
  f->selection_bias = make(p, BIAS, tigon_f32(), 1, 1, experts);
  if (n_group < 2) f->selection_bias = NULL;
  f->n_group = n_group;
  f->topk_group = n_group / 2;
  f->topk_ids = make(p, IDS, tigon_i64(), 2, tokens, choices);
  b->topk_ids = f->topk_ids;
  f->topk_weights = make(p, WEIGHTS, tigon_f32(), 2, tokens, choices);
  f->counts = make(p, COUNTS, tigon_i64(), 1, 1, experts);
  f->balance_loss = make(p, LOSS, tigon_f32(), 1, 1, 1);
  f->z_loss = make(p, Z_LOSS, tigon_f32(), 1, 1, 1);
  b->d_topk_weights = make(p, D_WEIGHTS, tigon_f32(), 2, tokens, choices);
  b->d_balance_loss = make(p, D_LOSSES, tigon_f32(), 1, 1, 2);
  p->t[D_LOSSES].shape[0] = 1;
  p->d_z_loss = p->t[D_LOSSES];
  b->d_z_loss = tigon_tensor_1d(&p->d_z_loss, (char *)p->t[D_LOSSES].dl.data + 4, tigon_f32(), 1);
  p->d_z_loss.dl.device = (DLDevice){kDLCUDA, 0};
  b->d_logits = make(p, D_LOGITS, tigon_f32(), 2, tokens, experts);
  const int filled[] = {LOGITS, BIAS, D_WEIGHTS, D_LOSSES};
  for (int i = 0; i < COUNT(filled); i++) fill(p, filled[i], (uint64_t)i + 1);
  uint64_t bytes, more;
  test_expect_status(tigon_moe_route_workspace(&p->exec, f, &bytes), TIGON_OK, NULL);
  test_expect_status(tigon_moe_route_backward_workspace(&p->exec, b, &more), TIGON_OK, NULL);
  p->exec.workspace_bytes = bytes > more ? bytes : more;
  p->exec.workspace = (void *)gpu_alloc(p->exec.workspace_bytes);
}

static void problem_drop(problem *p) {
  for (int i = 0; i < TENSORS; i++) gpu_free((CUdeviceptr)p->t[i].dl.data);
  gpu_free((CUdeviceptr)p->exec.workspace);
}

static void run(problem *p) {
  test_expect_status(tigon_moe_route(&p->exec, &p->forward), TIGON_OK, NULL);
  test_expect_status(tigon_moe_route_backward(&p->exec, &p->backward), TIGON_OK, NULL);
}

static const int outputs[] = {IDS, WEIGHTS, COUNTS, LOSS, Z_LOSS, D_LOGITS};

/* A hash of all outputs, which are poisoned then. */
static uint64_t take_results(problem *p) {
  uint64_t hash = 14695981039346656037u;
  for (int o = 0; o < COUNT(outputs); o++) {
    const CUdeviceptr data = (CUdeviceptr)p->t[outputs[o]].dl.data;
    const size_t bytes = p->bytes[outputs[o]];
    unsigned char *values = malloc(bytes);
    assert_non_null(values);
    GPU(cuMemcpyDtoH(values, data, bytes));
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ values[i]) * 1099511628211u;
    free(values);
    GPU(cuMemsetD8(data, 0xff, bytes));
  }
  GPU(cuCtxSynchronize());
  return hash;
}

/* Runs first: the library is loaded while a stream is captured. */
static void test_graph_with_new_logits(void **state) {
  (void)state;
  CUstream stream;
  CUgraph graph;
  CUgraphExec instance;
  problem p;
  GPU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  problem_make(&p, 777, 4, 96, 1, stream);
  GPU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  run(&p);
  GPU(cuStreamEndCapture(stream, &graph));
  GPU(cuGraphInstantiate(&instance, graph, 0));
  uint64_t before = 0;
  for (uint64_t seed = 1; seed < 5; seed++) {
    fill(&p, LOGITS, seed);
    GPU(cuGraphLaunch(instance, stream));
    GPU(cuStreamSynchronize(stream));
    const uint64_t replayed = take_results(&p);
    run(&p);
    GPU(cuStreamSynchronize(stream));
    assert_true(take_results(&p) == replayed && replayed != before);
    before = replayed;
  }
  GPU(cuGraphExecDestroy(instance));
  GPU(cuGraphDestroy(graph));
  problem_drop(&p);
  GPU(cuStreamDestroy(stream));
}

static void test_same_bits_every_time(void **state) {
  (void)state;
  static const int64_t shapes[][4] = {{8192, 8, 128, 1},  {4000, 8, 256, 8},  {3000, 6, 400, 1},
                                      {900, 32, 1024, 1}, {300, 8, 4096, 16}, {5, 2, 8, 1}};
  for (int i = 0; i < COUNT(shapes); i++) {
    problem p;
    problem_make(&p, shapes[i][0], shapes[i][1], shapes[i][2], (int32_t)shapes[i][3], NULL);
    run(&p);
    GPU(cuCtxSynchronize());
    const uint64_t first = take_results(&p);
    for (int again = 0; again < gpu_cases(50); again++) {
      run(&p);
      GPU(cuCtxSynchronize());
      assert_true(take_results(&p) == first);
    }
    problem_drop(&p);
  }
}

static void test_two_streams(void **state) {
  (void)state;
  const int calls = 100 * gpu_cases(4);
  CUstream stream[2];
  problem p[2];
  uint64_t alone[2];
  for (int i = 0; i < 2; i++) {
    GPU(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
    problem_make(&p[i], i ? 600 : 2000, 4, i ? 2048 : 64, i ? 1 : 8, stream[i]);
    run(&p[i]);
    GPU(cuStreamSynchronize(stream[i]));
    alone[i] = take_results(&p[i]);
  }
  for (int call = 0; call < calls; call++) {
    for (int i = 0; i < 2; i++) run(&p[i]);
    if (call % 50 < 49) continue; /* the other stream goes on */
    GPU(cuStreamSynchronize(stream[call / 50 % 2]));
    assert_true(take_results(&p[call / 50 % 2]) == alone[call / 50 % 2]);
  }
  for (int i = 0; i < 2; i++) {
    GPU(cuStreamSynchronize(stream[i]));
    problem_drop(&p[i]);
    GPU(cuStreamDestroy(stream[i]));
  }
}

static void set_id(problem *p, int64_t route, int64_t id) {
  GPU(cuMemcpyHtoD((CUdeviceptr)p->t[IDS].dl.data + (CUdeviceptr)route * sizeof id, &id, sizeof id));
}

/* The first bad id is noted, with d_balance_loss and without; the record is kept until it is cleared. */
static void test_record(void **state) {
  (void)state;
  tigon_record record;
  problem p;
  problem_make(&p, 9000, 8, 64, 1, NULL);
  test_expect_status(tigon_context_create(p.exec.device, &p.exec.context), TIGON_OK, NULL);
  run(&p);
  GPU(cuCtxSynchronize());
  assert_int_equal(tigon_check(p.exec.context, &record), TIGON_OK);
  set_id(&p, 60001, 64);
  set_id(&p, 30002, (int64_t)1 << 40);
  set_id(&p, 5, -7);
  for (int turn = 0; turn < 2; turn++) {
    test_expect_status(tigon_moe_route_backward(&p.exec, &p.backward), TIGON_OK, NULL);
    GPU(cuCtxSynchronize());
    assert_int_equal(tigon_check(p.exec.context, &record), TIGON_INVALID_ARGUMENT);
    assert_string_equal(record.op, "tigon_moe_route_backward");
    assert_string_equal(record.argument, "topk_ids");
    assert_int_equal(record.index, 30002);
    assert_int_equal(record.value, (int64_t)1 << 40);
    tigon_clear(p.exec.context);
    p.backward.d_balance_loss = NULL;
  }
  tigon_context_destroy(p.exec.context);
  problem_drop(&p);
}

static void test_refusals(void **state) {
  (void)state;
  float value = 0;
  tigon_tensor here;
  tigon_context *context;
  problem p;
  problem_make(&p, 4, 2, 8, 1, NULL);
  tigon_moe_route_args args = p.forward;
  args.balance_loss = tigon_tensor_1d(&here, &value, tigon_f32(), 1);
  test_expect_status(tigon_moe_route(&p.exec, &args), TIGON_INVALID_ARGUMENT,
                     "balance_loss: expected a tensor on CUDA device 0");
  tigon_exec exec = p.exec;
  exec.device = (DLDevice){kDLCPU, 0};
  test_expect_status(tigon_moe_route(&exec, &p.forward), TIGON_INVALID_ARGUMENT, "logits: expected a CPU tensor");
  exec = p.exec;
  exec.workspace_bytes = 0;
  test_expect_status(tigon_moe_route(&exec, &p.forward), TIGON_WORKSPACE, "workspace_bytes");
  test_expect_status(tigon_context_create((DLDevice){0}, &context), TIGON_OK, NULL);
  exec = p.exec;
  exec.context = context;
  test_expect_status(tigon_moe_route_backward(&exec, &p.backward), TIGON_INVALID_ARGUMENT,
                     "exec.context: expected a context of exec.device (type 2), got one of device type 1");
  tigon_context_destroy(context);
  problem_drop(&p);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_graph_with_new_logits), cmocka_unit_test(test_refusals),
                                          cmocka_unit_test(test_record), cmocka_unit_test(test_same_bits_every_time),
                                          cmocka_unit_test(test_two_streams)};
GPU_MAIN(tests)
