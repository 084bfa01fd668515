/* What a call costs the host beyond its launches: the median of calls that only enqueue, beside as many empty
 * launches. */
#include <time.h>

#include "tests/gpu/device.h"

enum { CALLS = 2000, BATCH = 50 };

static const char *const empty_kernel =
    ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry empty() { ret; }\n";

typedef struct bench {
  CUfunction empty;
  int launches;
  tigon_exec exec;
  tigon_rms_norm_args forward;
  tigon_rms_norm_backward_args backward;
} bench;

static void launch_empty(bench *b) {
  CUlaunchConfig config = {.gridDimX = 1,
                           .gridDimY = 1,
                           .gridDimZ = 1,
                           .blockDimX = 32,
                           .blockDimY = 1,
                           .blockDimZ = 1,
                           .hStream = b->exec.stream};
  for (int i = 0; i < b->launches; i++) GPU(cuLaunchKernelEx(&config, b->empty, NULL, NULL));
}

static void call_forward(bench *b) { test_expect_status(tigon_rms_norm(&b->exec, &b->forward), TIGON_OK, NULL); }
static void call_backward(bench *b) {
  test_expect_status(tigon_rms_norm_backward(&b->exec, &b->backward), TIGON_OK, NULL);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Medians in microseconds of two functions in turns. */
static void medians(bench *b, void (*one)(bench *), void (*other)(bench *), double *first, double *second) {
  static double a[CALLS], c[CALLS];
  for (int i = -BATCH; i < CALLS; i++) {
    if (i % BATCH == 0) GPU(cuStreamSynchronize(b->exec.stream));
    const double start = now();
    one(b);
    const double middle = now();
    other(b);
    const double end = now();
    if (i >= 0) a[i] = middle - start, c[i] = end - middle;
  }
  qsort(a, CALLS, sizeof *a, ascending);
  qsort(c, CALLS, sizeof *c, ascending);
  *first = a[CALLS / 2];
  *second = c[CALLS / 2];
}

static void test_host_cost(void **state) {
  (void)state;
  enum { ROWS = 64, WIDTH = 2048 };
  bench b = {.exec = {.size = sizeof b.exec, .device = {kDLCUDA, 0}}};
  CUmodule module;
  CUstream stream;
  tigon_tensor x, weight, out, rstd, dx, d_weight;
  GPU(cuModuleLoadData(&module, empty_kernel));
  GPU(cuModuleGetFunction(&b.empty, module, "empty"));
  GPU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  b.exec.stream = stream;
  const size_t bytes = (size_t)ROWS * WIDTH * 2;
  tigon_tensor *tensors[] = {&x, &out, &dx};
  for (int i = 0; i < 3; i++) tigon_tensor_2d(tensors[i], (void *)gpu_alloc(bytes), tigon_bf16(), ROWS, WIDTH);
  tigon_tensor_1d(&weight, (void *)gpu_alloc(WIDTH * 2), tigon_bf16(), WIDTH);
  tigon_tensor_1d(&d_weight, (void *)gpu_alloc(WIDTH * 2), tigon_bf16(), WIDTH);
  tigon_tensor_1d(&rstd, (void *)gpu_alloc(ROWS * 4), tigon_f32(), ROWS);
  tigon_tensor *all[] = {&x, &out, &dx, &weight, &d_weight, &rstd};
  for (int i = 0; i < 6; i++) all[i]->dl.device = b.exec.device;
  b.forward = (tigon_rms_norm_args){
      .size = sizeof b.forward, .x = &x.dl, .weight = &weight.dl, .out = &out.dl, .rstd = &rstd.dl};
  b.backward = (tigon_rms_norm_backward_args){.size = sizeof b.backward,
                                              .dy = &x.dl,
                                              .x = &x.dl,
                                              .weight = &weight.dl,
                                              .rstd = &rstd.dl,
                                              .dx = &dx.dl,
                                              .d_weight = &d_weight.dl};
  test_expect_status(tigon_rms_norm_backward_workspace(&b.exec, &b.backward, &b.exec.workspace_bytes), TIGON_OK, NULL);
  b.exec.workspace = (void *)gpu_alloc(b.exec.workspace_bytes);
  double ours, empty;
  for (b.launches = 1; b.launches <= 2; b.launches++) {
    medians(&b, b.launches == 1 ? call_forward : call_backward, launch_empty, &ours, &empty);
    printf("host cost %s: %.2f us, %d empty launches %.2f us: %.2f us more\n", b.launches == 1 ? "forward" : "backward",
           ours, b.launches, empty, ours - empty);
    assert_true(ours - empty <= 1.0);
  }
  GPU(cuStreamSynchronize(stream));
  for (int i = 0; i < 6; i++) gpu_free((CUdeviceptr)all[i]->dl.data);
  gpu_free((CUdeviceptr)b.exec.workspace);
  GPU(cuStreamDestroy(stream));
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_host_cost)};

GPU_MAIN(tests)
