/* Threads that use the library at the same time before anyone has: its kernels are loaded once, and all get results. */
#include <pthread.h>

#include "tests/gpu/rms_norm_setup.h"

enum { THREADS = 8 };

typedef struct worker {
  rms_norm_setup setup;
  pthread_barrier_t *start;
  bool good; /* cmocka's assertions belong to the main thread */
} worker;

static void *work(void *of) {
  worker *w = of;
  pthread_barrier_wait(w->start);
  w->good = tigon_rms_norm(&w->setup.exec, &w->setup.forward) == TIGON_OK &&
            tigon_rms_norm_backward(&w->setup.exec, &w->setup.backward) == TIGON_OK;
  return NULL;
}

static void test_first_use_by_many_threads(void **state) {
  (void)state;
  static worker workers[THREADS];
  pthread_t threads[THREADS];
  pthread_barrier_t start;
  assert_int_equal(pthread_barrier_init(&start, NULL, THREADS), 0);
  for (int i = 0; i < THREADS; i++) {
    CUstream stream;
    GPU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    rms_norm_make(&workers[i].setup, 0, 123, 1024, stream);
    workers[i].start = &start;
  }
  for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  GPU(cuCtxSynchronize());
  rms_norm_run(&workers[0].setup);
  GPU(cuCtxSynchronize());
  const uint64_t expected = rms_norm_results(&workers[0].setup);
  for (int i = 0; i < THREADS; i++) {
    assert_true(workers[i].good);
    assert_true(rms_norm_results(&workers[i].setup) == expected);
    CUstream stream = workers[i].setup.exec.stream;
    rms_norm_drop(&workers[i].setup);
    GPU(cuStreamDestroy(stream));
  }
  pthread_barrier_destroy(&start);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_first_use_by_many_threads),
};

GPU_MAIN(tests)
