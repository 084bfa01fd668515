/* OpenBLAS as a yardstick. Distribution builds misdetect new processors, so every type it may be told is tried. */
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

typedef void sgemm_function(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a,
                            int lda, const float *b, int ldb, float beta, float *c, int ldc);

static void *open_library(void) {
  void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
  return library ? library : dlopen("libopenblas.so", RTLD_NOW | RTLD_LOCAL);
}

/* Loads the library as that type, once a process. */
static sgemm_function *load(const char *type, int threads) {
  setenv("OPENBLAS_CORETYPE", type, 1);
  unsetenv("OPENBLAS_L2_SIZE");
  void *library = open_library();
  if (!library) return NULL;
  void (*set_threads)(int) = (void (*)(int))dlsym(library, "openblas_set_num_threads");
  if (set_threads) set_threads(threads);
  return (sgemm_function *)dlsym(library, "cblas_sgemm");
}

static double seconds_of(sgemm_function *sgemm, int64_t n, const float *a, const float *b, float *c) {
  enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };
  const double start = bench_now();
  sgemm(ROW_MAJOR, PLAIN, TRANSPOSED, (int)n, (int)n, (int)n, 1, a, (int)n, b, (int)n, 0, c, (int)n);
  return bench_now() - start;
}

/* In a child: the best of a few products, in seconds; 0 where the library is missing. */
static double try_type(const char *type, int threads, int64_t n) {
  sgemm_function *sgemm = load(type, threads);
  if (!sgemm) return 0;
  const uint64_t bytes = (uint64_t)(n * n) * sizeof(float);
  float *a = bench_alloc(bytes), *b = bench_alloc(bytes), *c = bench_alloc(bytes);
  for (int64_t i = 0; i < n * n; i++) a[i] = b[i] = (float)(i % 17 - 8) / 8;
  double best = seconds_of(sgemm, n, a, b, c);
  for (int i = 0; i < 5; i++) {
    const double seconds = seconds_of(sgemm, n, a, b, c);
    if (seconds < best) best = seconds;
  }
  return best;
}

/* A type may crash on this processor, so each is tried in a child. */
static const char *find_type(int threads, int64_t n) {
#if defined(__x86_64__)
  static const char *const types[] = {"SapphireRapids", "Cooperlake", "SkylakeX", "Zen", "Haswell"};
#else
  static const char *const types[] = {"NEOVERSEV1", "NEOVERSEN1", "CORTEXA57", "ARMV8"};
#endif
  const char *best_type = NULL;
  double best = 0;
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    int ends[2];
    if (pipe(ends) != 0) return NULL;
    const pid_t child = fork();
    if (child == 0) {
      const double seconds = try_type(types[i], threads, n);
      _exit(write(ends[1], &seconds, sizeof seconds) == sizeof seconds ? 0 : 1);
    }
    close(ends[1]);
    double seconds = 0;
    if (child < 0 || read(ends[0], &seconds, sizeof seconds) != sizeof seconds) seconds = 0;
    close(ends[0]);
    if (child > 0) waitpid(child, NULL, 0);
    if (seconds > 0 && (best == 0 || seconds < best)) {
      best = seconds;
      best_type = types[i];
    }
  }
  return best_type;
}

const char *bench_openblas(const bench *b, int64_t n, tigon_linear_args *args, double *ours, double *theirs) {
  enum { PAIRS = 15 };
  const char *type = find_type(b->threads, n);
  sgemm_function *sgemm = type ? load(type, b->threads) : NULL;
  if (!sgemm) return NULL;
  /* its threads spin for a while after a product, which would slow ours */
  const struct timespec settle = {.tv_nsec = 50 * 1000 * 1000};
  double tigon[PAIRS], openblas[PAIRS];
  for (int i = -1; i < PAIRS; i++) {
    const double start = bench_now();
    if (tigon_linear(&b->exec, args) != TIGON_OK) return NULL;
    tigon[i < 0 ? 0 : i] = bench_now() - start;
    openblas[i < 0 ? 0 : i] = seconds_of(sgemm, n, args->x->data, args->weight->data, args->y->data);
    nanosleep(&settle, NULL);
  }
  *ours = bench_median(tigon, PAIRS);
  *theirs = bench_median(openblas, PAIRS);
  return type;
}
