/*
 * The process' thread pool. Worker threads start at the first parallel call and sleep between calls. Several callers
 * may run at once; each takes part in its own job. A forked child starts its own workers at its first call.
 */
#ifndef TIGON_BASE_POOL_H
#define TIGON_BASE_POOL_H

#include <stdint.h>

#define TIGON_MAX_THREADS 1024

/* Runs task(context, chunk, slot) for every chunk in [0, chunks), in any order, on at most `threads` threads including
 * the caller, and returns when all are done. slot in [0, threads) names the thread within this call, for scratch
 * memory. How the work is cut must not depend on threads. Tasks do not call tigon_parallel. */
typedef void (*tigon_task)(void *context, int64_t chunk, int slot);
void tigon_parallel(int threads, int64_t chunks, tigon_task task, void *context);

#endif
