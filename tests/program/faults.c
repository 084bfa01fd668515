/*
 * Preloaded into the program by the tests: allocations that fail and clocks that jump.
 *
 *     FAULT_ALLOCATION=N    the N-th allocation fails; N+ also all after it
 *     FAULT_COUNT=FILE      writes the number of allocations to a file at the end
 *     FAULT_CLOCK=LIST      seconds that the clock has jumped since the start, one for each reading; the last one stays
 *
 * Allocations are malloc, calloc, realloc, posix_memalign, aligned_alloc and mmap, from the start of the program on, by
 * whomever.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static atomic_long allocations;
static long first_failure;
static bool all_after, begun;

__attribute__((constructor)) static void begin(void) {
  const char *at = getenv("FAULT_ALLOCATION");
  first_failure = at ? strtol(at, NULL, 10) : 0;
  all_after = at && strchr(at, '+');
  begun = true;
}

__attribute__((destructor)) static void end(void) {
  const char *path = getenv("FAULT_COUNT");
  const int descriptor = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666) : -1;
  begun = false;
  if (descriptor >= 0) dprintf(descriptor, "%ld\n", atomic_load(&allocations));
}

static bool fails(void) {
  if (!begun) return false;
  const long number = atomic_fetch_add(&allocations, 1) + 1;
  if (!first_failure || number < first_failure || (number > first_failure && !all_after)) return false;
  errno = ENOMEM;
  return true;
}

void *malloc(size_t size) { return fails() ? NULL : __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return fails() ? NULL : __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { return fails() ? NULL : __libc_realloc(old, size); }
void *aligned_alloc(size_t alignment, size_t size) { return fails() ? NULL : __libc_memalign(alignment, size); }

int posix_memalign(void **result, size_t alignment, size_t size) {
  if (fails()) return ENOMEM;
  *result = __libc_memalign(alignment, size);
  return *result ? 0 : ENOMEM;
}

void *mmap(void *address, size_t length, int protection, int flags, int descriptor, off_t offset) {
  if (fails()) return MAP_FAILED;
  return (void *)syscall(SYS_mmap, address, length, protection, flags, descriptor, offset);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
  static const char *next;
  static double jump;
  if (!next) next = getenv("FAULT_CLOCK") ? getenv("FAULT_CLOCK") : "";
  if (*next) {
    char *rest;
    jump = strtod(next, &rest);
    next = *rest ? rest + 1 : rest;
  }
  const int result = (int)syscall(SYS_clock_gettime, clock, time);
  const double shifted = (double)time->tv_sec + 1e-9 * (double)time->tv_nsec + jump;
  time->tv_sec = (time_t)shifted;
  time->tv_nsec = (long)((shifted - (double)time->tv_sec) * 1e9);
  return result;
}
