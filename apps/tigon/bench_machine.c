#include "bench_machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench_child.h"
#include "bench_peer.h"
#include "bench_tensors.h"

extern char **environ;

static const char *const protocol =
    "Random data. After one run to get warm, repetitions in turns: the ceiling, tigon, each provider of the peer; the "
    "peer is a process of its own with the same number of threads, the same tensors, huge pages, and memory that it "
    "keeps. device_ms and op_ms: median wall time of the operation, which on a CPU are one. host_us: null, a CPU has "
    "no "
    "separate host. floor_ms: time of the row at the ceiling that was measured in turns with it (fused multiply-adds "
    "on "
    "registers, or a copy of the same bytes). linear_cross_entropy keeps its logits for backward, except in rows "
    "called recompute; a peer's "
    "backward runs on its kept graph. forward+backward is the sum of both medians and the larger peak. peak_bytes: "
    "most "
    "resident memory of the process above the level with the inputs present; backward counts what forward kept. "
    "correct: samples of the outputs compared with the plain formula in float64.";

/* The first line of a file that begins with `start`, without it; false where there is none. */
static bool line_of(const char *path, const char *start, char *text, size_t size) {
  FILE *file = fopen(path, "re");
  bool found = false;
  char line[512];
  while (file && !found && fgets(line, sizeof line, file)) {
    found = !strncmp(line, start, strlen(start));
    if (found) snprintf(text, size, "%s", line + strlen(start) + strspn(line + strlen(start), " \t:"));
  }
  if (file) fclose(file);
  if (found) text[strcspn(text, "\n")] = 0;
  return found;
}

/* The folder `up` levels above the one that the program lies in. */
static bool program_folder(int up, char *path, size_t size) {
  const ssize_t length = readlink("/proc/self/exe", path, size - 1);
  if (length <= 0) return false;
  path[length] = 0;
  for (int i = 0; i <= up; i++) {
    char *slash = strrchr(path, '/');
    if (!slash) return false;
    *slash = 0;
  }
  return true;
}

enum { LEVELS = 4 }; /* a build directory lies at most so deep in the source tree */

static bool source_folder(char *path, size_t size) {
  for (int up = 0; up < LEVELS; up++) {
    char file[4096];
    if (!program_folder(up, path, size)) return false;
    if (snprintf(file, sizeof file, "%s/bench/peers/torch_cpu.py", path) < (int)sizeof file && !access(file, R_OK))
      return true;
  }
  return false;
}

bool bench_find_peer(char *path, size_t size) {
  char folder[3072];
  if (source_folder(folder, sizeof folder)) {
    snprintf(path, size, "%s/bench/peers/torch_cpu.py", folder);
    return true;
  }
  if (!program_folder(1, folder, sizeof folder)) return false;
  snprintf(path, size, "%s/share/tigon/bench/peers/torch_cpu.py", folder);
  return !access(path, R_OK);
}

/* The commit of the source tree, "-dirty" when it has changes; false outside a tree. */
static bool find_commit(char *text, size_t size) {
  static bench_child child;
  char folder[3072];
  const char *line;
  if (!source_folder(folder, sizeof folder)) return false;
  const char *const argv[] = {"git",     "-C",      folder,      "describe",    "--always",
                              "--dirty", "--match", "no tag is", "--abbrev=40", NULL};
  if (bench_child_start(&child, argv, environ, -1)) return false;
  const bool heard = bench_child_listen(&child, 30, &line) == HEARD_LINE;
  if (heard) snprintf(text, size, "%s", line);
  return bench_child_end(&child, false) == 0 && heard;
}

static bool add_text(cJSON *object, const char *name, bool known, const char *text) {
  return known ? cJSON_AddStringToObject(object, name, text) : cJSON_AddNullToObject(object, name);
}

static bool add_device(cJSON *environment, const bench *b) {
  char text[512];
  struct utsname system;
  cJSON *device = cJSON_AddObjectToObject(environment, "device");
  const double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
  bool ok = add_text(device, "cpu", line_of("/proc/cpuinfo", "model name", text, sizeof text), text) &&
            cJSON_AddNumberToObject(device, "cores", (double)sysconf(_SC_NPROCESSORS_ONLN)) &&
            cJSON_AddNumberToObject(device, "memory_bytes", memory);
  ok = ok && add_text(device, "huge_pages",
                      line_of("/sys/kernel/mm/transparent_hugepage/enabled", "", text, sizeof text), text);
  const bool known = uname(&system) == 0;
  ok = ok && add_text(device, "architecture", known, system.machine);
  cJSON *versions = cJSON_AddObjectToObject(environment, "versions");
  ok = ok && cJSON_AddStringToObject(versions, "tigon", tigon_version()) &&
       add_text(versions, "kernel", known, system.release);
  return ok && (!b->peer || cJSON_AddStringToObject(versions, bench_peer_name(b->peer), bench_peer_version(b->peer)));
}

cJSON *bench_environment(const bench *b) {
  char commit[128], date[32];
  const time_t now = time(NULL);
  struct tm utc;
  gmtime_r(&now, &utc);
  strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
  cJSON *environment = cJSON_CreateObject();
  bool ok = cJSON_AddStringToObject(environment, "receipt", "tigon bench 1") &&
            cJSON_AddStringToObject(environment, "date", date) && add_device(environment, b);
  ok = ok && cJSON_AddStringToObject(environment, "compiler", __VERSION__) &&
       cJSON_AddStringToObject(environment, "isa", tigon_cpu_isa()) &&
       cJSON_AddNumberToObject(environment, "threads", b->threads) &&
       cJSON_AddNumberToObject(environment, "seed", BENCH_SEED) &&
       cJSON_AddBoolToObject(environment, "quick", b->quick) &&
       cJSON_AddNumberToObject(environment, "seconds_a_row", b->seconds) &&
       add_text(environment, "commit", find_commit(commit, sizeof commit), commit) &&
       cJSON_AddStringToObject(environment, "protocol", protocol);
  if (ok) return environment;
  cJSON_Delete(environment);
  return NULL;
}
