/* Clock, memory and ceilings. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "bench.h"

double bench_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum { HUGE_PAGE = 2 << 20 };

static uint64_t whole_pages(uint64_t bytes) { return (bytes + HUGE_PAGE) / HUGE_PAGE * HUGE_PAGE; }

void *bench_alloc(uint64_t bytes) {
  void *memory = aligned_alloc(HUGE_PAGE, whole_pages(bytes));
  if (!memory) {
    fprintf(stderr, "tigon bench: no memory for %llu bytes\n", (unsigned long long)bytes);
    exit(1);
  }
  madvise(memory, whole_pages(bytes), MADV_HUGEPAGE); /* a wish: 4 KiB pages are slower, not wrong */
  memset(memory, 0, whole_pages(bytes));
  return memory;
}

void bench_free(void *memory) { free(memory); }

/* Bytes of one line of /proc/self/status. */
static int64_t status_line(const char *name) {
  FILE *file = fopen("/proc/self/status", "re");
  if (!file) return -1;
  char line[256];
  long long kilobytes = -1;
  while (kilobytes < 0 && fgets(line, sizeof line, file))
    if (!strncmp(line, name, strlen(name))) kilobytes = strtoll(line + strlen(name), NULL, 10);
  fclose(file);
  return kilobytes < 0 ? -1 : kilobytes * 1024;
}

int64_t bench_memory_now(void) { return status_line("VmRSS:"); }
int64_t bench_memory_peak(void) { return status_line("VmHWM:"); }

bool bench_memory_reset(void) {
  FILE *file = fopen("/proc/self/clear_refs", "we");
  if (!file) return false;
  const bool written = fputs("5", file) >= 0;
  return !fclose(file) && written;
}

/* Enough independent chains to hide the latency of the addition, few enough to stay in registers. Intrinsics, since
 * compilers fuse nothing by themselves here. */
#define FMA_LOOP(name, v, chains, set, fma, target_set)                                               \
  target_set static void name(int64_t steps, float *sink) {                                           \
    v sum[chains];                                                                                    \
    const v factor = set(0.5f), addend = set(1.0f);                                                   \
    _Pragma("GCC unroll 32") for (int i = 0; i < chains; i++) sum[i] = set((float)i);                 \
    for (int64_t s = 0; s < steps; s++)                                                               \
      _Pragma("GCC unroll 32") for (int i = 0; i < chains; i++) sum[i] = fma(sum[i], factor, addend); \
    for (int i = 0; i < chains; i++)                                                                  \
      for (int j = 0; j < (int)(sizeof(v) / sizeof(float)); j++) *sink += sum[i][j];                  \
  }
#if defined(__x86_64__)
#include <immintrin.h>
FMA_LOOP(fma_avx512, __m512, 24, _mm512_set1_ps, _mm512_fmadd_ps, __attribute__((noinline, target("avx512f"))))
FMA_LOOP(fma_avx2, __m256, 12, _mm256_set1_ps, _mm256_fmadd_ps, __attribute__((noinline, target("avx2,fma"))))
#define MULTIPLY_ADD(a, b, c) _mm_add_ps(_mm_mul_ps(a, b), c) /* the generic set has no fused one */
FMA_LOOP(fma_generic, __m128, 12, _mm_set1_ps, MULTIPLY_ADD, __attribute__((noinline)))
#elif defined(__aarch64__)
#include <arm_neon.h>
#define MULTIPLY_ADD(a, b, c) vfmaq_f32(c, a, b)
FMA_LOOP(fma_generic, float32x4_t, 12, vdupq_n_f32, MULTIPLY_ADD, __attribute__((noinline)))
#else
typedef float four __attribute__((vector_size(16)));
#define FOUR(x)               ((four){(x), (x), (x), (x)})
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
FMA_LOOP(fma_generic, four, 12, FOUR, MULTIPLY_ADD, __attribute__((noinline)))
#endif

/* Many short pieces a thread, so that one that wakes late loses little. */
enum { FMA_STEPS = 50000, FMA_PIECES = 32, FMA_QUICK_PIECES = 2 };

static bool has_avx512(void) { return !strncmp(tigon_cpu_isa(), "avx512", 6) || !strcmp(tigon_cpu_isa(), "amx"); }
static bool has_avx2(void) { return !strcmp(tigon_cpu_isa(), "avx2"); }

static double fma_flop(void) { /* of one piece */
  return 2.0 * FMA_STEPS * (has_avx512() ? 16 * 24 : has_avx2() ? 8 * 12 : 4 * 12);
}

static void fma_body(void *context, int64_t begin, int64_t end) {
  (void)context;
  volatile float kept;
  for (int64_t i = begin; i < end; i++) {
    float sink = 0;
#if defined(__x86_64__)
    if (has_avx512())
      fma_avx512(FMA_STEPS, &sink);
    else if (has_avx2())
      fma_avx2(FMA_STEPS, &sink);
    else
#endif
      fma_generic(FMA_STEPS, &sink);
    kept = sink;
  }
  (void)kept;
}

double bench_fma_rate(bench *b) {
  const int pieces = b->threads * (b->quick ? FMA_QUICK_PIECES : FMA_PIECES);
  const double start = bench_now();
  parallel_for(b->crew, pieces, 1, fma_body, NULL);
  return fma_flop() * pieces / (bench_now() - start) * 1e-9;
}

typedef struct copy {
  char *to;
  const char *from;
} copy;

static void copy_body(void *context, int64_t begin, int64_t end) {
  const copy *c = context;
  memcpy(c->to + begin, c->from + begin, (size_t)(end - begin));
}

double bench_copy_rate(bench *b, void *to, const void *from, uint64_t bytes) {
  copy c = {to, from};
  const double start = bench_now();
  parallel_for(b->crew, (int64_t)(bytes / 2), 1 << 20, copy_body, &c);
  return (double)bytes / (bench_now() - start) * 1e-9;
}

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double bench_median(double *values, int n) {
  qsort(values, (size_t)n, sizeof *values, by_value);
  return values[n / 2];
}
