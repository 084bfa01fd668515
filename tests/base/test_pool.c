/* The thread pool: every chunk once, slots in range and never shared, many callers at once, use after fork. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/pool.h"
#include "tests/support/support.h"

enum { MOST_THREADS = 64 };

typedef struct job_state {
  int threads;
  _Atomic int *runs;                /* of each chunk */
  _Atomic int inside[MOST_THREADS]; /* threads that use a slot now */
  _Atomic int wrong;
} job_state;

static void count_chunk(void *context, int64_t chunk, int slot) {
  job_state *job = context;
  if (slot < 0 || slot >= job->threads) {
    atomic_fetch_add(&job->wrong, 1);
    return;
  }
  if (atomic_fetch_add(&job->inside[slot], 1) != 0) atomic_fetch_add(&job->wrong, 1);
  atomic_fetch_add(&job->runs[chunk], 1);
  for (volatile int i = 0; i < 50; i++) continue;
  atomic_fetch_sub(&job->inside[slot], 1);
}

static bool run_job(int threads, int64_t chunks) {
  job_state job = {.threads = threads, .runs = calloc((size_t)chunks + 1, sizeof(_Atomic int))};
  if (!job.runs) return false;
  tigon_parallel(threads, chunks, count_chunk, &job);
  bool right = atomic_load(&job.wrong) == 0;
  for (int64_t i = 0; i < chunks; i++) right &= atomic_load(&job.runs[i]) == 1;
  free(job.runs);
  return right;
}

static void test_every_chunk_once(void **state) {
  (void)state;
  const int threads[] = {1, 2, 7, MOST_THREADS};
  const int64_t chunks[] = {0, 1, 2, 3, 6, 7, 8, 100, 5000};
  for (int round = 0; round < 20; round++)
    for (int t = 0; t < 4; t++)
      for (int c = 0; c < 9; c++) assert_true(run_job(threads[t], chunks[c]));
}

/* What a task wrote is there when the call returns, with no atomics in between. */
static void square(void *context, int64_t chunk, int slot) {
  (void)slot;
  ((int64_t *)context)[chunk] = chunk * chunk;
}

static void test_results_are_visible(void **state) {
  (void)state;
  for (int round = 0; round < 500; round++) {
    int64_t values[33] = {0};
    tigon_parallel(2 + round % 6, 33, square, values);
    for (int64_t i = 0; i < 33; i++) assert_true(values[i] == i * i);
  }
}

static void *caller(void *argument) {
  const int threads = *(const int *)argument;
  for (int i = 0; i < 200; i++)
    if (!run_job(threads, 1 + i % 40)) return argument;
  return NULL;
}

static void test_many_callers_at_once(void **state) {
  (void)state;
  enum { CALLERS = 9 };
  pthread_t callers[CALLERS];
  int threads[CALLERS];
  for (int i = 0; i < CALLERS; i++) {
    threads[i] = 1 + i % 7;
    assert_int_equal(pthread_create(&callers[i], NULL, caller, &threads[i]), 0);
  }
  for (int i = 0; i < CALLERS; i++) {
    void *failed;
    pthread_join(callers[i], &failed);
    assert_null(failed);
  }
}

static void expect_child_success(int64_t chunks, bool fork_again) {
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    bool right = true;
    for (int i = 0; i < 20; i++) right &= run_job(2 + i % 6, chunks);
    if (fork_again) {
      const pid_t grandchild = fork();
      if (grandchild == 0) _exit(run_job(5, chunks) ? 0 : 1);
      int status = 1;
      right &= grandchild > 0 && waitpid(grandchild, &status, 0) == grandchild && status == 0;
    }
    _exit(right ? 0 : 1);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
}

/* qemu-user cannot start a thread in a forked child. */
static void skip_under_qemu(void) {
  if (getenv("TIGON_TEST_REDUCED")) skip();
}

static void test_after_fork(void **state) {
  (void)state;
  skip_under_qemu();
  assert_true(run_job(7, 100)); /* the parent has workers */
  for (int i = 0; i < 5; i++) {
    expect_child_success(100, i % 2 == 1);
    assert_true(run_job(7, 100));
  }
}

static _Atomic int stop;

static void *busy_caller(void *unused) {
  (void)unused;
  while (!atomic_load(&stop)) (void)run_job(3, 20);
  return NULL;
}

/* The fork comes while other threads are inside the pool. */
static void test_fork_while_others_run(void **state) {
  (void)state;
  skip_under_qemu();
  pthread_t callers[3];
  atomic_store(&stop, 0);
  for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&callers[i], NULL, busy_caller, NULL), 0);
  for (int i = 0; i < 10; i++) expect_child_success(30, false);
  atomic_store(&stop, 1);
  for (int i = 0; i < 3; i++) pthread_join(callers[i], NULL);
}

int main(void) {
  alarm(120); /* a hang fails */
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_chunk_once),      cmocka_unit_test(test_results_are_visible),
      cmocka_unit_test(test_many_callers_at_once),  cmocka_unit_test(test_after_fork),
      cmocka_unit_test(test_fork_while_others_run),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
