/* `tigon bench`: speed of each family beside what the machine can do, measured in the same run. */
#include "bench.h"

#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "options.h"

static const struct {
  const char *name;
  bench_family *run;
} families[] = {
    {"gemm", bench_gemm},
    {"rms_norm", bench_rms_norm},
    {"lightning_attention", bench_lightning_attention},
    {"linear_cross_entropy", bench_linear_cross_entropy},
    {"moe", bench_moe},
};

enum { FAMILIES = sizeof families / sizeof *families };

static const char *const description =
    "Measures the rows of each named family (gemm, rms_norm, lightning_attention, linear_cross_entropy, moe; all of "
    "them\n"
    "without a name) on random data. Beside each rate stands its ceiling, measured between the repetitions of that "
    "row:\n"
    "fused multiply-adds on registers for rows bound by arithmetic, a copy of the same bytes for rows bound by "
    "memory.\n"
    "gemm is also compared with OpenBLAS where libopenblas is installed. Tensors lie on huge pages where the system\n"
    "grants them on request (transparent_hugepage: madvise or always).";

static const char *const after = "EXIT STATUS\n"
                                 "       0      Measured.\n"
                                 "       1      An operation or an allocation failed.\n"
                                 "       2      The command line is wrong.\n";

/* argv without the leading family names, which it returns as a set of bits; -1 for an unknown name. */
static int take_families(int *argc, char ***argv) {
  int chosen = 0;
  while (*argc > 1 && (*argv)[1][0] != '-') {
    int found = -1;
    for (int i = 0; i < FAMILIES; i++)
      if (!strcmp((*argv)[1], families[i].name)) found = i;
    if (found < 0) {
      misuse("bench",
             "unknown family \"%.40s\"; expected gemm, rms_norm, lightning_attention, linear_cross_entropy or moe",
             (*argv)[1]);
      return -1;
    }
    chosen |= 1 << found;
    (*argv)++;
    (*argc)--;
  }
  return chosen ? chosen : (1 << FAMILIES) - 1;
}

int command_bench(int argc, char **argv) {
  static const command_help help = {"bench", "[FAMILY...] [OPTION...]", "measure the speed of each family", description,
                                    after};
  int64_t threads = 0;
  double seconds = 1;
  option options[] = {
      {"--threads", "N", OPTION_INTEGER, &threads, 0, 1024, "threads; 0 (the default) takes all processors", false},
      {"--seconds", "S", OPTION_REAL, &seconds, 0.01, 600, "measuring time of each row, at least (default 1)", false},
      {0},
  };
  const int chosen = take_families(&argc, &argv);
  if (chosen < 0) return EXIT_MISUSED;
  int status;
  if (!options_parse(options, &help, argc, argv, &status)) return status;
  status = EXIT_OK;
  bench b = {.threads = threads ? (int)threads : tigon_cpu_threads(), .seconds = seconds};
  b.exec.size = sizeof b.exec;
  b.exec.num_threads = b.threads;
  b.crew = workers_create(b.threads);
  bench_print_header(&b);
  for (int i = 0; i < FAMILIES && status == EXIT_OK; i++)
    if (chosen >> i & 1 && !families[i].run(&b)) status = EXIT_FAILED;
  if (b.exec.workspace) bench_free(b.exec.workspace);
  workers_destroy(b.crew);
  return status;
}
