/* Size-versioned structs, exec defaults, workspaces, statuses and the context's record. */
#include <pthread.h>

#include "base/args.h"
#include "base/context.h"
#include "base/pool.h"
#include "base/status.h"
#include "tests/support/support.h"

typedef struct known_args {
  uint32_t size;
  int32_t first;
  int64_t second;
} known_args;

typedef struct newer_args {
  known_args known;
  int64_t third;
} newer_args;

static void test_older_and_newer_structs(void **state) {
  (void)state;
  newer_args from = {{sizeof(known_args), 5, 7}, 0};
  known_args to;
  assert_int_equal(tigon_args_load("op", "args", &from, &to, sizeof to), TIGON_OK);
  assert_true(to.first == 5 && to.second == 7);
  from.known.size = offsetof(known_args, second); /* an older caller: second is not his */
  assert_int_equal(tigon_args_load("op", "args", &from, &to, sizeof to), TIGON_OK);
  assert_true(to.first == 5 && to.second == 0);
  from.known.size = sizeof from; /* a newer caller who uses nothing new */
  assert_int_equal(tigon_args_load("op", "args", &from, &to, sizeof to), TIGON_OK);
  assert_true(to.first == 5 && to.second == 7);
  from.third = INT64_C(1) << 56;
  test_expect_status(
      tigon_args_load("op", "args", &from, &to, sizeof to), TIGON_UNSUPPORTED,
      "op: args: expected zeros past byte 16 (the struct is newer than this library), got a value at byte 23");
  from.known.size = 7;
  test_expect_status(tigon_args_load("op", "args", &from, &to, sizeof to), TIGON_INVALID_ARGUMENT,
                     "op: args: expected its member size to be sizeof the struct, got 7");
  from.known.size = 12; /* would cut the second member */
  test_expect_status(tigon_args_load("op", "args", &from, &to, sizeof to), TIGON_INVALID_ARGUMENT,
                     "op: args: expected its member size to be sizeof the struct, got 12");
  test_expect_status(tigon_args_load("op", "args", NULL, &to, sizeof to), TIGON_INVALID_ARGUMENT,
                     "op: args: expected a pointer, got NULL");
}

static void test_exec(void **state) {
  (void)state;
  tigon_exec exec;
  assert_int_equal(tigon_exec_load("op", NULL, TIGON_ON_CPU, &exec), TIGON_OK);
  assert_int_equal(exec.num_threads, tigon_cpu_threads());
  assert_int_equal(exec.device.device_type, kDLCPU);
  assert_null(exec.workspace);
  tigon_exec from = {.size = sizeof from, .num_threads = 3, .workspace = &exec, .workspace_bytes = 9};
  assert_int_equal(tigon_exec_load("op", &from, TIGON_ON_CPU, &exec), TIGON_OK);
  assert_true(exec.num_threads == 3 && exec.workspace_bytes == 9 && exec.workspace == from.workspace);
  from.num_threads = -1;
  test_expect_status(tigon_exec_load("op", &from, TIGON_ON_CPU, &exec), TIGON_INVALID_ARGUMENT,
                     "op: exec.num_threads: expected 0 to 1024, got -1");
  from.num_threads = TIGON_MAX_THREADS + 1;
  test_expect_status(tigon_exec_load("op", &from, TIGON_ON_CPU, &exec), TIGON_INVALID_ARGUMENT, "got 1025");
  from.num_threads = 0;
  from.device.device_type = kDLCUDA;
  test_expect_status(tigon_exec_load("op", &from, TIGON_ON_CPU, &exec), TIGON_UNSUPPORTED,
                     "op: exec.device: expected the CPU");
  from.size = 0;
  test_expect_status(tigon_exec_load("op", &from, TIGON_ON_CPU, &exec), TIGON_INVALID_ARGUMENT, "op: exec: ");
}

static void test_arena(void **state) {
  (void)state;
  _Alignas(64) static char memory[2048];
  tigon_arena counting = {0}, carving = {.base = memory};
  const uint64_t sizes[] = {1, 0, 256, 257, 1000};
  const uint64_t starts[] = {0, 256, 256, 512, 1024};
  for (int i = 0; i < 5; i++) {
    assert_null(tigon_arena_take(&counting, sizes[i]));
    const char *block = tigon_arena_take(&carving, sizes[i]);
    assert_ptr_equal(block, sizes[i] ? memory + starts[i] : NULL);
  }
  assert_int_equal(counting.used, 2048);
  assert_int_equal(carving.used, 2048);
}

static void test_workspaces(void **state) {
  (void)state;
  _Alignas(64) static char memory[512];
  tigon_exec exec = {.workspace = memory, .workspace_bytes = 256};
  assert_int_equal(tigon_workspace_check("op", &exec, 256), TIGON_OK);
  test_expect_status(tigon_workspace_check("op", &exec, 257), TIGON_WORKSPACE,
                     "op: exec.workspace_bytes: expected at least 257, got 256");
  exec.workspace = memory + 32;
  test_expect_status(tigon_workspace_check("op", &exec, 256), TIGON_WORKSPACE, "expected 64-byte alignment");
  exec.workspace = NULL;
  test_expect_status(tigon_workspace_check("op", &exec, 1), TIGON_WORKSPACE,
                     "op: exec.workspace: expected 1 bytes, got NULL");
  assert_int_equal(tigon_workspace_check("op", &exec, 0), TIGON_OK);
  uint64_t bytes = 0;
  assert_int_equal(tigon_workspace_answer("op", 77, &bytes), TIGON_OK);
  assert_int_equal(bytes, 77);
  test_expect_status(tigon_workspace_answer("op", 77, NULL), TIGON_INVALID_ARGUMENT, "op: bytes: ");
}

static void *error_of_thread(void *unused) {
  (void)unused;
  static int ok;
  if (*tigon_last_error() != '\0') return NULL;
  (void)tigon_fail(TIGON_INTERNAL, "op", "x", "in the other thread");
  return strcmp(tigon_last_error(), "op: x: in the other thread") == 0 ? &ok : NULL;
}

static void test_status(void **state) {
  (void)state;
  static const char *const names[] = {"OK",   "INVALID_ARGUMENT", "UNSUPPORTED",   "UNAVAILABLE", "WORKSPACE", "DRIVER",
                                      "COMM", "TIMEOUT",          "OUT_OF_MEMORY", "INTERNAL"};
  for (int i = 0; i < 10; i++) assert_string_equal(tigon_status_string((tigon_status)i), names[i]);
  assert_string_equal(tigon_status_string((tigon_status)99), "UNKNOWN");
  assert_int_equal(tigon_fail(TIGON_COMM, "op", "x", "expected %d", 3), TIGON_COMM);
  assert_string_equal(tigon_last_error(), "op: x: expected 3");
  pthread_t thread;
  void *text = NULL;
  assert_int_equal(pthread_create(&thread, NULL, error_of_thread, NULL), 0);
  pthread_join(thread, &text);
  assert_non_null(text);
  assert_string_equal(tigon_last_error(), "op: x: expected 3");
  char long_text[2000];
  memset(long_text, 'a', sizeof long_text - 1);
  long_text[sizeof long_text - 1] = '\0';
  (void)tigon_fail(TIGON_COMM, "op", "x", "%s", long_text);
  assert_true(strlen(tigon_last_error()) < 1000);
  (void)tigon_fail(TIGON_COMM, long_text, "x", "y");
  assert_true(strlen(tigon_last_error()) < 1000);
  assert_true(strlen(tigon_version()) >= 5 && tigon_cpu_threads() >= 1);
}

static void test_record(void **state) {
  (void)state;
  tigon_context *context = NULL;
  tigon_record record;
  const DLDevice cpu = {kDLCPU, 0}, other = {kDLVulkan, 0};
  test_expect_status(tigon_context_create(other, &context), TIGON_UNSUPPORTED, "device: expected the CPU");
  test_expect_status(tigon_context_create(cpu, NULL), TIGON_INVALID_ARGUMENT, "context");
  assert_int_equal(tigon_context_create(cpu, &context), TIGON_OK);
  assert_int_equal(tigon_check(context, &record), TIGON_OK);
  assert_int_equal(record.code, TIGON_OK);
  tigon_context_note(context, TIGON_INVALID_ARGUMENT, "tigon_moe", "topk_ids", 17, -5);
  tigon_context_note(context, TIGON_TIMEOUT, "tigon_other", "x", 1, 2); /* not the first */
  assert_int_equal(tigon_check(context, &record), TIGON_INVALID_ARGUMENT);
  assert_true(record.index == 17 && record.value == -5 && record.pe == 0);
  assert_string_equal(record.op, "tigon_moe");
  assert_string_equal(record.argument, "topk_ids");
  tigon_clear(context);
  assert_int_equal(tigon_check(context, &record), TIGON_OK);
  tigon_context_note(context, TIGON_TIMEOUT, "an operation whose name is far longer than the record has room for",
                     "an argument whose name is too long", 1, 2);
  assert_int_equal(tigon_check(context, &record), TIGON_TIMEOUT);
  assert_int_equal(strlen(record.op), sizeof record.op - 1);
  assert_int_equal(strlen(record.argument), sizeof record.argument - 1);
  test_expect_status(tigon_check(NULL, &record), TIGON_INVALID_ARGUMENT, "context");
  test_expect_status(tigon_check(context, NULL), TIGON_INVALID_ARGUMENT, "record");
  tigon_context_note(NULL, TIGON_TIMEOUT, "op", "x", 1, 2);
  tigon_clear(NULL);
  tigon_context_destroy(context);
  tigon_context_destroy(NULL);
}

typedef struct noter {
  tigon_context *context;
  int64_t index;
} noter;

static void *note_often(void *argument) {
  const noter *n = argument;
  for (int i = 0; i < 1000; i++) {
    tigon_record record;
    tigon_context_note(n->context, TIGON_INVALID_ARGUMENT, "tigon_op", "x", n->index, -n->index);
    (void)tigon_check(n->context, &record);
    if (record.code != TIGON_OK && record.value != -record.index) return n->context;
  }
  return NULL;
}

static void test_record_of_many_threads(void **state) {
  (void)state;
  enum { THREADS = 5 };
  tigon_context *context = NULL;
  assert_int_equal(tigon_context_create((DLDevice){kDLCPU, 0}, &context), TIGON_OK);
  pthread_t threads[THREADS];
  noter noters[THREADS];
  for (int i = 0; i < THREADS; i++) {
    noters[i] = (noter){context, i + 1};
    assert_int_equal(pthread_create(&threads[i], NULL, note_often, &noters[i]), 0);
  }
  for (int i = 0; i < 300; i++) tigon_clear(context);
  for (int i = 0; i < THREADS; i++) {
    void *torn;
    pthread_join(threads[i], &torn);
    assert_null(torn);
  }
  tigon_context_destroy(context);
}

/* What the library says about CUDA devices where there is no driver or no CUDA in the build; with a device, what it
 * is. */
static void test_devices(void **state) {
  (void)state;
  tigon_device_info info = {.size = sizeof info}, small = {.size = 8};
  tigon_context *context = NULL;
  const DLDevice gpu = {kDLCUDA, 0};
  test_expect_status(tigon_device_query(gpu, NULL), TIGON_INVALID_ARGUMENT,
                     "tigon_device_query: info: expected a pointer");
  test_expect_status(tigon_device_query((DLDevice){kDLCPU, 0}, &info), TIGON_OK, NULL);
  assert_string_equal(info.image, tigon_cpu_isa());
  test_expect_status(tigon_device_query((DLDevice){kDLCPU, 0}, &small), TIGON_OK, NULL);
  assert_true(small.size == 8 && small.image[0] == 0);
  const tigon_status known = tigon_device_query(gpu, &info);
  if (known == TIGON_OK) {
    assert_true(info.multiprocessors > 0 && info.driver_version >= info.oldest_driver_version);
    return;
  }
  assert_true(known == TIGON_UNSUPPORTED || known == TIGON_UNAVAILABLE);
  assert_true(strstr(tigon_last_error(), "tigon_device_query: ") != NULL);
  test_expect_status(tigon_context_create(gpu, &context), known, "tigon_context_create: ");
  assert_null(context);
  const tigon_exec exec = {.size = sizeof exec, .device = gpu};
  float value = 1;
  tigon_tensor x;
  tigon_rms_norm_args args = {.size = sizeof args, .x = tigon_tensor_2d(&x, &value, tigon_f32(), 1, 1), .out = &x.dl};
  x.dl.device = gpu;
  test_expect_status(tigon_rms_norm(&exec, &args), known, "tigon_rms_norm: exec.device: ");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_older_and_newer_structs),
      cmocka_unit_test(test_exec),
      cmocka_unit_test(test_arena),
      cmocka_unit_test(test_workspaces),
      cmocka_unit_test(test_status),
      cmocka_unit_test(test_record),
      cmocka_unit_test(test_devices),
      cmocka_unit_test(test_record_of_many_threads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
