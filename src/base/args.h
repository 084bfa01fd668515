/* Entry of every operation: reads size-versioned structs, picks the backend, carves the workspace. */
#ifndef TIGON_BASE_ARGS_H
#define TIGON_BASE_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tigon/base.h"

/* Copies the caller's struct (its first member is uint32_t size) into one of `known` bytes, zero-filled. */
tigon_status tigon_args_load(const char *op, const char *name, const void *from, void *to, size_t known);

/* Devices that an operation runs on. */
enum { TIGON_ON_CPU = 1, TIGON_ON_CUDA = 2 };

/* Fails with TIGON_UNSUPPORTED unless the device is of a kind in `devices` that this build has. */
tigon_status tigon_device_check(const char *op, const char *name, DLDevice device, unsigned devices);

/* tigon_args_load for tigon_exec; NULL gives the defaults. device comes back as one of `devices`, num_threads on the
 * CPU resolved (>= 1). */
tigon_status tigon_exec_load(const char *op, const tigon_exec *from, unsigned devices, tigon_exec *to);

/* Carves blocks out of a workspace, or only counts them where base is NULL (queries). Blocks are 256-byte aligned
 * relative to the base. */
typedef struct tigon_arena {
  char *base;
  uint64_t used;
} tigon_arena;

/* NULL while counting, and for zero bytes. */
void *tigon_arena_take(tigon_arena *arena, uint64_t bytes);

/* Checks the exec's workspace against the bytes that an arena counted. */
tigon_status tigon_workspace_check(const char *op, const tigon_exec *exec, uint64_t bytes);

/* Answers a _workspace query. */
tigon_status tigon_workspace_answer(const char *op, uint64_t used, uint64_t *bytes);

#endif
