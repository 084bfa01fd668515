/* `tigon bench`: speed of each family beside what the machine can do and beside a peer, measured in the same run. */
#include "bench.h"

#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench_case.h"
#include "bench_machine.h"
#include "bench_peer.h"
#include "bench_receipt.h"
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
    "Measures the rows of each named family (gemm, rms_norm, lightning_attention, linear_cross_entropy, moe; all of\n"
    "them without a name) on random data. Beside each rate stands its ceiling, measured between the repetitions of\n"
    "that row: fused multiply-adds on registers for rows bound by arithmetic, a copy of the same bytes for rows bound\n"
    "by memory. Tensors lie on huge pages where the system grants them on request (transparent_hugepage: madvise or\n"
    "always). Samples of each result are compared with the plain formula.\n"
    "\n"
    "Where Python with PyTorch is installed, PyTorch runs the same rows on the same data and threads in a process of\n"
    "its own, in turns with tigon. gemm is also compared with OpenBLAS where libopenblas is installed.";

static const char *const after =
    "ENVIRONMENT\n"
    "       TIGON_PYTHON\n"
    "              The Python interpreter of the peer, unless --python names one.\n"
    "\n"
    "EXIT STATUS\n"
    "       0      Measured. Without PyTorch that is so too, unless --python or --peer asked for it.\n"
    "       1      An operation, an allocation, the receipt or the peer failed, or a result was wrong.\n"
    "       2      The command line is wrong.\n";

typedef struct settings {
  int64_t threads;
  double seconds, limit;
  const char *receipt, *python, *peer;
  bool quick, no_peer;
} settings;

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

/* --receipt without a name gets one. */
static void name_receipt(int argc, char **argv) {
  static char word[80];
  const time_t now = time(NULL);
  struct tm utc;
  gmtime_r(&now, &utc);
  strftime(word, sizeof word, "--receipt=bench/results/cpu-%Y%m%d-%H%M%S.jsonl", &utc);
  for (int i = 1; i < argc; i++)
    if (!strcmp(argv[i], "--receipt") && (i + 1 == argc || !strncmp(argv[i + 1], "--", 2))) argv[i] = word;
}

static bench_peer *find_peer(const settings *s, int threads, bool *failed) {
  static char script[4096];
  const char *named = getenv("TIGON_PYTHON");
  bench_peer_settings peer = {.threads = threads, .limit = s->limit, .required = s->python || s->peer};
  peer.python = s->python ? s->python : named && *named ? named : "python3";
  peer.script = s->peer;
  if (!s->peer && bench_find_peer(script, sizeof script)) peer.script = script;
  if (peer.script) return bench_peer_open(&peer, failed);
  fprintf(stderr, "tigon bench: no peer: its program bench/peers/torch_cpu.py is not beside this one; see --peer\n");
  *failed = peer.required;
  return NULL;
}

static void print_summary(const bench *b) {
  if (b->compared) printf("\n%d comparisons with peers; tigon is slower in %d of them\n", b->compared, b->slower);
}

static int run(const settings *s, int chosen) {
  failure failed;
  bench b = {.threads = s->threads ? (int)s->threads : tigon_cpu_threads(), .seconds = s->seconds, .quick = s->quick};
  b.exec.size = sizeof b.exec;
  b.exec.num_threads = b.threads;
  if (s->receipt && !(b.receipt = bench_receipt_open(s->receipt, &failed))) return report("bench", &failed);
  bool good = true, no_peer = false;
  if (!s->no_peer) b.peer = find_peer(s, b.threads, &no_peer);
  b.crew = workers_create(b.threads);
  bench_print_header(&b);
  for (int i = 0; i < FAMILIES && good; i++)
    if (chosen >> i & 1) good = families[i].run(&b);
  print_summary(&b);
  const bool lost_peer = no_peer || bench_peer_failed(b.peer);
  if (b.receipt && !good) bench_receipt_drop(b.receipt);
  if (b.receipt && good) {
    good = bench_receipt_close(b.receipt, &b, &failed);
    if (good)
      printf("receipt: %s\n", s->receipt);
    else
      report("bench", &failed);
  }
  bench_peer_close(b.peer);
  workers_destroy(b.crew);
  return good && !lost_peer && !b.wrong ? EXIT_OK : EXIT_FAILED;
}

int command_bench(int argc, char **argv) {
  static const command_help help = {"bench", "[FAMILY...] [OPTION...]", "measure the speed of each family", description,
                                    after};
  settings s = {.seconds = 1, .limit = 600};
  option options[] = {
      INTEGER("--threads", "N", &s.threads, 0, 1024, "threads; 0 (the default) takes all processors"),
      REAL("--seconds", "S", &s.seconds, 0.001, 600, "measuring time of each row and provider, at least (default 1)"),
      TEXT("--receipt", "[FILE]", &s.receipt,
           "writes what was measured, and on what, as JSON Lines; without a name to\n"
           "bench/results/cpu-DATE-TIME.jsonl"),
      TEXT("--python", "PROGRAM", &s.python, "the Python interpreter of the peer (default $TIGON_PYTHON, or python3)"),
      TEXT("--peer", "FILE", &s.peer,
           "the program of the peer (default bench/peers/torch_cpu.py of the source tree, or\n"
           "share/tigon/bench/peers/torch_cpu.py where tigon is installed)"),
      REAL("--peer-limit", "S", &s.limit, 0.01, 86400,
           "seconds within which the peer must answer (default 600); rows go on without it"),
      FLAG("--no-peer", &s.no_peer, "measures without a peer"),
      FLAG("--quick", &s.quick, "tiny rows, which try everything and measure nothing"),
      {0},
  };
  name_receipt(argc, argv);
  const int chosen = take_families(&argc, &argv);
  if (chosen < 0) return EXIT_MISUSED;
  int status;
  if (!options_parse(options, &help, argc, argv, &status)) return status;
  if (s.no_peer && (s.peer || s.python)) return misuse("bench", "--no-peer cannot stand with --peer or --python");
  if (s.receipt && !*s.receipt) return misuse("bench", "--receipt: the name is empty");
  if (s.peer && !*s.peer) return misuse("bench", "--peer: the name is empty");
  if (s.python && !*s.python) return misuse("bench", "--python: the name is empty");
  mallopt(M_MMAP_THRESHOLD, 1 << 20); /* freed tensors leave the process: peaks of memory start from what is in use */
  signal(SIGPIPE, SIG_IGN);           /* a peer that dies, or a reader that leaves, is noticed where it is written to */
  return run(&s, chosen);
}
