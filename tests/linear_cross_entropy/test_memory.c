/*
 * Peak memory of forward and backward: VmHWM of a process that does only this stays below inputs + outputs + 96 MiB.
 * The shape is a small one by default; TIGON_TEST_FULL=1 takes 8192 tokens of width 512 over 151936 classes in
 * bfloat16.
 */
#include "tests/support/support.h"

static double peak_mib(void) {
  FILE *status = fopen("/proc/self/status", "r");
  assert_non_null(status);
  char line[256];
  double kib = -1;
  while (fgets(line, sizeof line, status))
    if (sscanf(line, "VmHWM: %lf kB", &kib) == 1) break;
  fclose(status);
  assert_true(kib > 0);
  return kib / 1024;
}

static double total_mib;

static void *filled(int64_t elements, int64_t bytes, int byte) {
  const size_t size = (size_t)(elements * bytes);
  void *data = malloc(size);
  assert_non_null(data);
  memset(data, byte, size);
  total_mib += (double)size / 1048576;
  return data;
}

static void run(uint64_t bytes, tigon_exec *exec) {
  free(exec->workspace);
  exec->workspace = aligned_alloc(256, bytes);
  assert_non_null(exec->workspace);
  exec->workspace_bytes = bytes;
}

static void test_peak_memory(void **state) {
  (void)state;
  const bool full = getenv("TIGON_TEST_FULL") != NULL;
  const int64_t t = full ? 8192 : 1024, d = full ? 512 : 64, v = full ? 151936 : 50257;
  tigon_tensor x, weight, target, lse, loss, d_loss, dx, dweight;
  tigon_linear_cross_entropy_args args = {.size = sizeof args};
  args.x = tigon_tensor_2d(&x, filled(t * d, 2, 0x3c), tigon_bf16(), t, d);
  args.weight = tigon_tensor_2d(&weight, filled(v * d, 2, 0x3c), tigon_bf16(), v, d);
  args.target = tigon_tensor_1d(&target, filled(t, 4, 0), tigon_i32(), t);
  args.loss = tigon_tensor_1d(&loss, filled(t, 4, 0), tigon_f32(), t);
  args.lse = tigon_tensor_1d(&lse, filled(t, 4, 0), tigon_f32(), t);
  tigon_linear_cross_entropy_backward_args back = {
      .size = sizeof back, .x = args.x, .weight = args.weight, .target = args.target, .lse = args.lse};
  back.d_loss = tigon_tensor_1d(&d_loss, filled(t, 4, 0x3c), tigon_f32(), t);
  back.dx = tigon_tensor_2d(&dx, filled(t * d, 2, 0), tigon_bf16(), t, d);
  back.dweight = tigon_tensor_2d(&dweight, filled(v * d, 2, 0), tigon_bf16(), v, d);

  tigon_exec exec = {.size = sizeof exec, .num_threads = 2};
  uint64_t forward = 0, backward = 0;
  test_expect_status(tigon_linear_cross_entropy_workspace(&exec, &args, &forward), TIGON_OK, NULL);
  run(forward, &exec);
  test_expect_status(tigon_linear_cross_entropy(&exec, &args), TIGON_OK, NULL);
  test_expect_status(tigon_linear_cross_entropy_backward_workspace(&exec, &back, &backward), TIGON_OK, NULL);
  run(backward, &exec);
  test_expect_status(tigon_linear_cross_entropy_backward(&exec, &back), TIGON_OK, NULL);
  assert_true(((const float *)args.loss->data)[t - 1] > 0);

  const double peak = peak_mib(), logits = (double)t * (double)v * 4 / 1048576;
  printf(
      "tokens %lld, width %lld, classes %lld: inputs and outputs %.1f MiB, workspace %.1f and %.1f MiB, peak %.1f MiB "
      "(%.1f above inputs and outputs; fp32 logits would take %.0f)\n",
      (long long)t, (long long)d, (long long)v, total_mib, (double)forward / 1048576, (double)backward / 1048576, peak,
      peak - total_mib, logits);
  test_count_case();
#ifndef TEST_SANITIZED
  assert_true(peak < total_mib + 96);
#endif
  const DLTensor *all[] = {args.x, args.weight, args.target, args.loss, args.lse, back.d_loss, back.dx, back.dweight};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->data);
  free(exec.workspace);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_peak_memory)};
  return test_gate_report("linear_cross_entropy", cmocka_run_group_tests(tests, NULL, NULL));
}
