/* OpenBLAS as a yardstick. Distribution builds misdetect new processors, so every type it may be told is tried. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

typedef void sgemm_function(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a,
                            int lda, const float *b, int ldb, float beta, float *c, int ldc);

static void *open_library(void) {
  void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
  return library ? library : dlopen("libopenblas.so", RTLD_NOW | RTLD_LOCAL);
}

/* In the child: median GFLOP/s of C = A B^T, n^3, in fp32; 0 where the library is missing. */
static double measure(int threads, int64_t n) {
  void *library = open_library();
  if (!library) return 0;
  sgemm_function *sgemm = (sgemm_function *)dlsym(library, "cblas_sgemm");
  void (*set_threads)(int) = (void (*)(int))dlsym(library, "openblas_set_num_threads");
  if (!sgemm || !set_threads) return 0;
  set_threads(threads);
  const uint64_t bytes = (uint64_t)(n * n) * sizeof(float);
  float *a = bench_alloc(bytes), *b = bench_alloc(bytes), *c = bench_alloc(bytes);
  for (int64_t i = 0; i < n * n; i++) a[i] = b[i] = (float)(i % 17 - 8) / 8;
  enum { REPETITIONS = 9, ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };
  double best[REPETITIONS];
  for (int r = -1; r < REPETITIONS; r++) {
    const double start = bench_now();
    sgemm(ROW_MAJOR, PLAIN, TRANSPOSED, (int)n, (int)n, (int)n, 1, a, (int)n, b, (int)n, 0, c, (int)n);
    const double rate = 2.0 * (double)n * (double)n * (double)n / (bench_now() - start) * 1e-9;
    int at = r < 0 ? 0 : r;
    for (; at > 0 && best[at - 1] > rate; at--) best[at] = best[at - 1];
    best[at] = rate;
    if (r < 0) best[0] = 0;
  }
  return best[REPETITIONS / 2];
}

double bench_openblas(int threads, int64_t n, char *best_type, uint64_t size) {
#if defined(__x86_64__)
  static const char *const types[] = {"SapphireRapids", "Cooperlake", "SkylakeX", "Zen", "Haswell"};
#else
  static const char *const types[] = {"NEOVERSEV1", "NEOVERSEN1", "CORTEXA57", "ARMV8"};
#endif
  double best = 0;
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    int ends[2];
    if (pipe(ends) != 0) return 0;
    const pid_t child = fork();
    if (child == 0) {
      setenv("OPENBLAS_CORETYPE", types[i], 1);
      unsetenv("OPENBLAS_L2_SIZE");
      const double rate = measure(threads, n);
      _exit(write(ends[1], &rate, sizeof rate) == sizeof rate ? 0 : 1);
    }
    close(ends[1]);
    double rate = 0;
    if (child < 0 || read(ends[0], &rate, sizeof rate) != sizeof rate)
      rate = 0; /* a type may crash on this processor */
    close(ends[0]);
    if (child > 0) waitpid(child, NULL, 0);
    if (rate > best) {
      best = rate;
      strncpy(best_type, types[i], size - 1);
      best_type[size - 1] = '\0';
    }
  }
  return best;
}
