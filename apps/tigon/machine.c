#include "machine.h"

#include <stdbool.h>
#include <time.h>
#include <unistd.h>

double machine_seconds(void) {
  static bool begun;
  static struct timespec last;
  static double seconds;
  struct timespec time;
  if (clock_gettime(CLOCK_MONOTONIC, &time)) return seconds;
  const double passed = (double)(time.tv_sec - last.tv_sec) + 1e-9 * (double)(time.tv_nsec - last.tv_nsec);
  if (begun && passed > 0) seconds += passed;
  begun = true;
  last = time;
  return seconds;
}

double machine_memory(void) { return (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE); }
