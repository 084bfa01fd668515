#include "bench_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_peer.h"
#include "bench_receipt.h"

enum { MOST_REPETITIONS = 500, FEWEST_REPETITIONS = 7, QUICK_REPETITIONS = 3 };

typedef struct series {
  double time[MOST_REPETITIONS];
} series;

static double gain(const bench_pass *pass) { return (pass->flop > 0 ? pass->flop : (double)pass->bytes) * 1e-9; }
static const char *unit(const bench_pass *pass) { return pass->flop > 0 ? "GFLOP/s" : "GB/s"; }

void bench_print_header(const bench *b) {
  printf(
      "%d threads, %s; medians of repetitions in turns; the ceiling (fused multiply-adds on registers, or a copy of\n"
      "the same bytes) was measured between them; peak MiB above the inputs; x: the peer's time over tigon's\n\n",
      b->threads, tigon_cpu_isa());
  if (!strcmp(tigon_cpu_isa(), "amx") || !strcmp(tigon_cpu_isa(), "avx512_bf16"))
    printf("bfloat16 rows run on instructions of their own and may pass this ceiling, which is that of float32\n\n");
  printf("%-21s %-26s %-16s %-8s %10s %16s %16s %7s %9s\n", "family", "row", "pass", "dtype", "ms", "rate", "ceiling",
         "", "peak MiB");
}

static void print_end(const bench_figures *figures) {
  if (figures->peak >= 0)
    printf(" %9.1f", (double)figures->peak / (1 << 20));
  else
    printf(" %9s", "-");
  printf("%s\n", figures->correct ? "" : "  WRONG RESULT");
}

static void print_ours(const bench_case *c, const bench_pass *pass) {
  const double rate = gain(pass) / pass->ours.seconds;
  printf("%-21s %-26s %-16s %-8s %10.3f %8.1f %-7s %8.1f %-7s %6.1f%%", c->family, c->name, pass->name, c->dtype,
         pass->ours.seconds * 1e3, rate, unit(pass), pass->ceiling, unit(pass), 100 * rate / pass->ceiling);
  print_end(&pass->ours);
}

static void record(bench *b, const bench_case *c, const bench_pass *pass) {
  print_ours(c, pass);
  bench_receipt_add(b->receipt, c, pass, "tigon", tigon_version(), &pass->ours);
  for (int i = 0; i < bench_peer_providers(b->peer); i++) {
    const bench_figures *theirs = &pass->theirs[i];
    if (theirs->seconds < 0) continue;
    const double ratio = theirs->seconds / pass->ours.seconds;
    printf("%21s %-43s %-8s %10.3f %8.1f %-7s %16s %6.2fx", "", bench_peer_provider(b->peer, i), c->dtype,
           theirs->seconds * 1e3, gain(pass) / theirs->seconds, unit(pass), "", ratio);
    print_end(theirs);
    bench_receipt_add(b->receipt, c, pass, bench_peer_provider(b->peer, i), bench_peer_version(b->peer), theirs);
    b->compared += theirs->correct;
    b->slower += theirs->correct && ratio < 1;
  }
  fflush(stdout);
}

static bool library_failed(void) {
  fflush(stdout);
  fprintf(stderr, "tigon bench: %s\n", tigon_last_error());
  return false;
}

static void drop_workspace(bench *b) {
  if (b->exec.workspace) bench_free(b->exec.workspace);
  b->exec.workspace = NULL;
  b->exec.workspace_bytes = 0;
}

void bench_case_start(bench *b, bench_case *c) {
  drop_workspace(b);
  c->level = bench_memory_now();
  bench_peer_prepare(b->peer, c);
}

void bench_case_end(bench *b, bench_case *c) {
  drop_workspace(b);
  bench_tensors_free(&c->tensors);
}

/* The first run: its peak of memory, which outputs and workspace are part of, and its result. */
static bool run_once(bench *b, const bench_case *c, bench_pass *pass) {
  uint64_t bytes;
  drop_workspace(b);
  const bool known = bench_memory_reset() && c->level >= 0;
  if (pass->workspace(b, pass->args, &bytes) != TIGON_OK) return library_failed();
  if (bytes) b->exec.workspace = bench_alloc(bytes);
  b->exec.workspace_bytes = bytes;
  if (pass->run(b, pass->args) != TIGON_OK) return library_failed();
  const int64_t peak = bench_memory_peak();
  pass->ours = (bench_figures){.peak = known && peak >= c->level ? peak - c->level : -1};
  pass->ours.correct = pass->check(pass->context);
  return true;
}

/* The same of a peer; its outputs take the place of ours for the check. */
static void run_peer_once(bench *b, const bench_case *c, bench_pass *pass, int i) {
  bench_figures *theirs = &pass->theirs[i];
  *theirs = (bench_figures){.seconds = -1};
  double seconds;
  if (!bench_peer_peak(b->peer, i, pass->name, &theirs->peak)) return;
  if (!bench_peer_run(b->peer, i, pass->name, &seconds)) return;
  for (const char *const *name = pass->outputs; *name; name++)
    if (!bench_peer_fetch(b->peer, i, pass->name, *name, bench_find_tensor((bench_tensors *)&c->tensors, *name)))
      return;
  theirs->correct = pass->check(pass->context);
  theirs->seconds = 0;
  b->wrong = b->wrong || !theirs->correct;
}

static void finish(bench_figures *figures, series *measured, int n) {
  figures->seconds = bench_median(measured->time, n);
  figures->fastest = measured->time[0];
}

static bool repeat(bench *b, bench_pass *pass, int providers, series *ours, series *ceilings, series *theirs, void *to,
                   const void *from) {
  const int fewest = b->quick ? QUICK_REPETITIONS : FEWEST_REPETITIONS;
  const double long_enough = b->quick ? 0 : b->seconds * (1 + providers), too_long = 20 * long_enough;
  int n = 0;
  for (double spent = 0; n < MOST_REPETITIONS && (n < fewest || spent < long_enough); n++) {
    if (n >= QUICK_REPETITIONS && spent > too_long) break; /* a peer without instructions for bfloat16, say */
    ceilings->time[n] = to ? bench_copy_rate(b, to, from, pass->bytes) : bench_fma_rate(b);
    const double start = bench_now();
    if (pass->run(b, pass->args) != TIGON_OK) return library_failed();
    ours->time[n] = bench_now() - start;
    spent += ours->time[n];
    for (int i = 0; i < providers; i++) {
      if (pass->theirs[i].seconds < 0) continue;
      if (bench_peer_run(b->peer, i, pass->name, &theirs[i].time[n]))
        spent += theirs[i].time[n];
      else
        pass->theirs[i].seconds = -1;
    }
  }
  pass->repetitions = n;
  pass->ceiling = bench_median(ceilings->time, n);
  finish(&pass->ours, ours, n);
  for (int i = 0; i < providers; i++)
    if (pass->theirs[i].seconds >= 0) finish(&pass->theirs[i], &theirs[i], n);
  return true;
}

bool bench_case_measure(bench *b, const bench_case *c, bench_pass *pass) {
  static series ours, ceilings, theirs[BENCH_MOST_PROVIDERS];
  if (!run_once(b, c, pass)) return false;
  const int providers = bench_peer_providers(b->peer);
  for (int i = 0; i < providers; i++) run_peer_once(b, c, pass, i);
  const bool copies = pass->flop == 0;
  void *to = copies ? bench_alloc(pass->bytes / 2) : NULL, *from = copies ? bench_alloc(pass->bytes / 2) : NULL;
  const bool good = repeat(b, pass, providers, &ours, &ceilings, theirs, to, from);
  bench_free(to);
  bench_free(from);
  if (!good) return false;
  b->wrong = b->wrong || !pass->ours.correct;
  record(b, c, pass);
  return true;
}

static bench_figures together(const bench_figures *one, const bench_figures *other) {
  bench_figures both = {.seconds = -1, .correct = one->correct && other->correct, .peak = -1};
  if (one->seconds < 0 || other->seconds < 0) return both;
  both.seconds = one->seconds + other->seconds;
  both.fastest = one->fastest + other->fastest;
  if (one->peak >= 0 && other->peak >= 0) both.peak = one->peak > other->peak ? one->peak : other->peak;
  return both;
}

void bench_case_sum(bench *b, const bench_case *c, const bench_pass *forward, const bench_pass *backward) {
  bench_pass sum = {.name = "forward+backward", .flop = forward->flop + backward->flop};
  sum.bytes = forward->bytes + backward->bytes;
  /* the rate of both when each runs at its own ceiling */
  sum.ceiling = gain(&sum) / (gain(forward) / forward->ceiling + gain(backward) / backward->ceiling);
  sum.repetitions = forward->repetitions < backward->repetitions ? forward->repetitions : backward->repetitions;
  sum.ours = together(&forward->ours, &backward->ours);
  for (int i = 0; i < BENCH_MOST_PROVIDERS; i++) sum.theirs[i] = together(&forward->theirs[i], &backward->theirs[i]);
  record(b, c, &sum);
}

void bench_print_growth(const char *family, const char *what, double once, double twice) {
  printf("%-21s time(2n) / time(n) in %s: %.2f\n", family, what, twice / once);
}
