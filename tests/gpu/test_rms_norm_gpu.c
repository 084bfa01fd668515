/* What only a device has: streams, graphs, contexts, other processes, memory beyond 2^31 elements. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/rms_norm_setup.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* Runs first: the library is loaded while a stream is captured. */
static void test_capture_of_the_first_use(void **state) {
  (void)state;
  CUstream stream;
  CUgraph graph;
  CUgraphExec instance;
  rms_norm_setup s;
  GPU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  rms_norm_make(&s, 0, 333, 2048, stream);
  GPU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  rms_norm_run(&s);
  GPU(cuStreamEndCapture(stream, &graph));
  GPU(cuGraphInstantiate(&instance, graph, 0));
  GPU(cuGraphLaunch(instance, stream));
  GPU(cuStreamSynchronize(stream));
  const uint64_t replayed = rms_norm_results(&s);
  rms_norm_poison(&s);
  rms_norm_run(&s);
  GPU(cuStreamSynchronize(stream));
  assert_true(rms_norm_results(&s) == replayed);
  /* new data, same graph */
  rms_norm_fill(&s.x, s.rows * s.width, 77);
  GPU(cuGraphLaunch(instance, stream));
  GPU(cuStreamSynchronize(stream));
  const uint64_t other = rms_norm_results(&s);
  assert_true(other != replayed);
  rms_norm_poison(&s);
  rms_norm_run(&s);
  GPU(cuStreamSynchronize(stream));
  assert_true(rms_norm_results(&s) == other);
  GPU(cuGraphExecDestroy(instance));
  GPU(cuGraphDestroy(graph));
  rms_norm_drop(&s);
  GPU(cuStreamDestroy(stream));
}

static void test_same_bits_every_time(void **state) {
  (void)state;
  const int64_t shapes[][2] = {{4099, 2048}, {777, 4096}, {300, 8192}, {40, 65536},
                               {3, 262144},  {5000, 65},  {7, 70001}};
  for (int i = 0; i < COUNT(shapes); i++) {
    rms_norm_setup s;
    rms_norm_make(&s, 0, shapes[i][0], shapes[i][1], NULL);
    rms_norm_run(&s);
    GPU(cuCtxSynchronize());
    const uint64_t first = rms_norm_results(&s);
    for (int again = 0; again < 100; again++) {
      rms_norm_poison(&s);
      rms_norm_run(&s);
      GPU(cuCtxSynchronize());
      assert_true(rms_norm_results(&s) == first);
    }
    rms_norm_drop(&s);
  }
}

static void test_two_streams(void **state) {
  (void)state;
  enum { CALLS = 1000 };
  CUstream stream[2];
  rms_norm_setup s[2];
  uint64_t alone[2];
  for (int i = 0; i < 2; i++) {
    GPU(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
    rms_norm_make(&s[i], 0, i ? 600 : 2000, i ? 4096 : 1024, stream[i]);
    rms_norm_run(&s[i]);
    GPU(cuStreamSynchronize(stream[i]));
    alone[i] = rms_norm_results(&s[i]);
    rms_norm_poison(&s[i]);
  }
  for (int call = 0; call < CALLS; call++) {
    for (int i = 0; i < 2; i++) rms_norm_run(&s[i]);
    if (call % 100 < 99) continue; /* the other stream goes on */
    GPU(cuStreamSynchronize(stream[call / 100 % 2]));
    assert_true(rms_norm_results(&s[call / 100 % 2]) == alone[call / 100 % 2]);
  }
  for (int i = 0; i < 2; i++) {
    GPU(cuStreamSynchronize(stream[i]));
    assert_true(rms_norm_results(&s[i]) == alone[i]);
    rms_norm_drop(&s[i]);
    GPU(cuStreamDestroy(stream[i]));
  }
}

/* Another thread has no current context: the stream's own is used, and none is left behind. */
static void *run_in_thread(void *context) {
  CUcontext current;
  rms_norm_run(context);
  GPU(cuCtxGetCurrent(&current));
  return current;
}

static void test_streams_of_other_threads_and_contexts(void **state) {
  (void)state;
  CUcontext primary, own, now;
  CUstream stream;
  pthread_t thread;
  void *left;
  rms_norm_setup s;
  GPU(cuCtxGetCurrent(&primary));
  GPU(cuCtxCreate(&own, NULL, 0, 0));
  GPU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  rms_norm_make(&s, 0, 50, 512, stream);
  GPU(cuCtxSetCurrent(primary));
  rms_norm_run(&s);
  GPU(cuCtxGetCurrent(&now));
  assert_ptr_equal(now, primary);
  GPU(cuCtxSetCurrent(own));
  GPU(cuStreamSynchronize(stream));
  const uint64_t first = rms_norm_results(&s);
  rms_norm_poison(&s);
  assert_int_equal(pthread_create(&thread, NULL, run_in_thread, &s), 0);
  pthread_join(thread, &left);
  assert_null(left);
  GPU(cuStreamSynchronize(stream));
  assert_true(rms_norm_results(&s) == first);
  s.exec.stream = NULL; /* now the current context, which is not the primary one */
  rms_norm_poison(&s);
  rms_norm_run(&s);
  GPU(cuCtxSynchronize());
  assert_true(rms_norm_results(&s) == first);
  s.exec.stream = CU_STREAM_PER_THREAD;
  rms_norm_poison(&s);
  rms_norm_run(&s);
  GPU(cuCtxSynchronize());
  assert_true(rms_norm_results(&s) == first);
  rms_norm_drop(&s);
  GPU(cuStreamDestroy(stream));
  GPU(cuCtxSetCurrent(primary));
  GPU(cuCtxDestroy(own));
}

static void test_second_device(void **state) {
  (void)state;
  if (gpu_open()->devices < 2) skip();
  CUcontext now, first;
  rms_norm_setup here, there;
  rms_norm_make(&here, 0, 100, 3072, NULL);
  rms_norm_run(&here);
  GPU(cuCtxSynchronize());
  GPU(cuCtxGetCurrent(&first));
  gpu_use(1);
  rms_norm_make(&there, 1, 100, 3072, NULL);
  gpu_use(0); /* tensors on device 1 while device 0 is current */
  rms_norm_run(&there);
  GPU(cuCtxGetCurrent(&now));
  assert_ptr_equal(now, first);
  gpu_use(1);
  GPU(cuCtxSynchronize());
  assert_true(rms_norm_results(&there) == rms_norm_results(&here));
  CUstream stream;
  GPU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  gpu_use(0);
  here.exec.stream = stream;
  test_expect_status(tigon_rms_norm(&here.exec, &here.forward), TIGON_INVALID_ARGUMENT,
                     "exec.stream: expected a stream of CUDA device 0 (exec.device), got one of device 1");
  here.forward.out->device.device_id = 1;
  test_expect_status(tigon_rms_norm(&here.exec, &here.forward), TIGON_INVALID_ARGUMENT,
                     "out: expected a tensor on CUDA device 0");
  here.forward.out->device.device_id = 0;
  gpu_use(1);
  rms_norm_drop(&there);
  GPU(cuStreamDestroy(stream));
  gpu_use(0);
  rms_norm_drop(&here);
}

static void test_forked_child(void **state) {
  (void)state;
  rms_norm_setup s;
  rms_norm_make(&s, 0, 4, 64, NULL);
  rms_norm_run(&s);
  GPU(cuCtxSynchronize());
  const pid_t child = fork();
  if (child == 0) {
    const tigon_status status = tigon_rms_norm(&s.exec, &s.forward);
    _exit(status == TIGON_UNAVAILABLE && strstr(tigon_last_error(), "forked") ? 0 : 1);
  }
  int status = 1;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  rms_norm_run(&s);
  GPU(cuCtxSynchronize());
  rms_norm_drop(&s);
}

static void test_bad_devices_and_records(void **state) {
  (void)state;
  tigon_device_info info = {.size = sizeof info};
  tigon_context *context;
  tigon_record record;
  test_expect_status(tigon_device_query((DLDevice){kDLCUDA, 63}, &info), TIGON_UNAVAILABLE, "got 63");
  test_expect_status(tigon_device_query((DLDevice){kDLCUDA, 64}, &info), TIGON_INVALID_ARGUMENT, "got 64");
  test_expect_status(tigon_device_query((DLDevice){kDLCUDA, 0}, &info), TIGON_OK, NULL);
  assert_true(info.multiprocessors > 0 && info.compute_major >= 8 && info.name[0] && info.image[0]);
  test_expect_status(tigon_context_create((DLDevice){kDLCUDA, 63}, &context), TIGON_UNAVAILABLE, "got 63");
  test_expect_status(tigon_context_create((DLDevice){kDLCUDA, 0}, &context), TIGON_OK, NULL);
  assert_int_equal(tigon_check(context, &record), TIGON_OK);
  tigon_clear(context);
  tigon_context_destroy(context);
  rms_norm_setup s;
  rms_norm_make(&s, 0, 4, 64, NULL);
  s.forward.x = tigon_tensor_2d(&s.x, s.x.dl.data, tigon_f32(), 4, 64); /* a CPU tensor */
  test_expect_status(tigon_rms_norm(&s.exec, &s.forward), TIGON_INVALID_ARGUMENT,
                     "x: expected a tensor on CUDA device 0");
  rms_norm_drop(&s);
}

/* dx of one row by the header's formula; dy is x. */
static double large_gradient(const float *x, const float *weight, int64_t width, double rstd, int64_t j) {
  double mean = 0;
  for (int64_t i = 0; i < width; i++) mean += (double)x[i] * (double)weight[i] * (double)x[i] * rstd;
  mean /= (double)width;
  return rstd * ((double)x[j] * (double)weight[j] - (double)x[j] * rstd * mean);
}

/* More elements than 2^31, all 0 but in the last row, which is compared with the formula. */
static void test_more_elements_than_int32(void **state) {
  (void)state;
  enum { WIDTH = 4096 };
  static float x_row[WIDTH], weight[WIDTH];
  static uint16_t bits[WIDTH];
  const int64_t rows = ((int64_t)1 << 31) / WIDTH + 5;
  const size_t bytes = (size_t)(rows * WIDTH) * 2, last = bytes - sizeof bits;
  rms_norm_setup small, s = {.rows = rows, .width = WIDTH};
  rms_norm_make(&small, 0, 2, WIDTH, NULL);
  s.exec = small.exec;
  s.forward = small.forward;
  s.backward = small.backward;
  DLTensor *x = rms_norm_on_device(&s, &s.x, tigon_bf16(), rows, WIDTH),
           *out = rms_norm_on_device(&s, &s.out, tigon_bf16(), rows, WIDTH);
  DLTensor *dx = rms_norm_on_device(&s, &s.dx, tigon_bf16(), rows, WIDTH),
           *rstd = rms_norm_on_device(&s, &s.rstd, tigon_f32(), 1, rows);
  double squares = 0;
  for (int64_t j = 0; j < WIDTH; j++) {
    x_row[j] = (float)(j % 13) - 6;
    bits[j] = tigon_to_bf16(x_row[j]);
    squares += (double)x_row[j] * (double)x_row[j];
  }
  GPU(cuMemcpyDtoH(weight, (CUdeviceptr)small.weight.dl.data, sizeof weight));
  GPU(cuMemsetD8((CUdeviceptr)x->data, 0, bytes));
  GPU(cuMemcpyHtoD((CUdeviceptr)x->data + last, bits, sizeof bits));
  s.forward.x = s.backward.x = s.backward.dy = x;
  s.forward.out = out;
  s.forward.rstd = rstd;
  s.backward.rstd = rstd;
  s.backward.dx = dx;
  test_expect_status(tigon_rms_norm_backward_workspace(&s.exec, &s.backward, &s.exec.workspace_bytes), TIGON_OK, NULL);
  s.exec.workspace = (void *)gpu_alloc(s.exec.workspace_bytes);
  rms_norm_run(&s);
  GPU(cuCtxSynchronize());
  float got, d_weight[WIDTH];
  GPU(cuMemcpyDtoH(&got, (CUdeviceptr)rstd->data + (size_t)(rows - 1) * 4, sizeof got));
  assert_true(fabs((double)got * sqrt(squares / WIDTH + 1e-6) - 1) < 1e-6);
  GPU(cuMemcpyDtoH(bits, (CUdeviceptr)out->data + last, sizeof bits));
  for (int64_t j = 0; j < WIDTH; j++) {
    const float xhat = tigon_round_to(TIGON_BF16, x_row[j] * got);
    assert_true(tigon_from_bf16(bits[j]) == tigon_round_to(TIGON_BF16, xhat * weight[j]));
  }
  GPU(cuMemcpyDtoH(d_weight, (CUdeviceptr)s.backward.d_weight->data, sizeof d_weight));
  for (int64_t j = 0; j < WIDTH; j++) /* all other rows add 0 */
    assert_true(d_weight[j] == x_row[j] * tigon_round_to(TIGON_BF16, x_row[j] * got));
  GPU(cuMemcpyDtoH(bits, (CUdeviceptr)dx->data + last, sizeof bits));
  for (int64_t j = 0; j < WIDTH; j += 97) {
    const double exact = large_gradient(x_row, weight, WIDTH, (double)got, j);
    assert_true(fabs((double)tigon_from_bf16(bits[j]) - exact) <= 0x1p-8 * fabs(exact) + 1e-5);
  }
  const size_t before = last - sizeof bits; /* beyond 2^31 elements as well */
  GPU(cuMemcpyDtoH(bits, (CUdeviceptr)out->data + before, sizeof bits));
  for (int64_t j = 0; j < WIDTH; j++) assert_true(tigon_from_bf16(bits[j]) == 0);
  gpu_free((CUdeviceptr)x->data), gpu_free((CUdeviceptr)out->data), gpu_free((CUdeviceptr)dx->data);
  gpu_free((CUdeviceptr)rstd->data), gpu_free((CUdeviceptr)s.exec.workspace);
  rms_norm_drop(&small);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_capture_of_the_first_use),
    cmocka_unit_test(test_same_bits_every_time),
    cmocka_unit_test(test_two_streams),
    cmocka_unit_test(test_streams_of_other_threads_and_contexts),
    cmocka_unit_test(test_second_device),
    cmocka_unit_test(test_forked_child),
    cmocka_unit_test(test_bad_devices_and_records),
    cmocka_unit_test(test_more_elements_than_int32),
};

GPU_MAIN(tests)
