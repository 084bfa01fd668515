/*
 * Loops of the program over its own threads. Work is cut into pieces by size alone, so results do not depend on the
 * number of threads.
 */
#ifndef APPS_PARALLEL_H
#define APPS_PARALLEL_H

#include <stdint.h>

typedef struct workers workers;

/* threads - 1 helpers beside the caller. NULL when they cannot be started. */
workers *workers_create(int threads);
void workers_destroy(workers *crew);

/* Runs body(context, begin, end) for consecutive pieces of at most `piece` items of [0, count). NULL crew: in the
 * caller alone. */
typedef void (*loop_body)(void *context, int64_t begin, int64_t end);
void parallel_for(workers *crew, int64_t count, int64_t piece, loop_body body, void *context);

#endif
