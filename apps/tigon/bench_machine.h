/* What a receipt says about the machine and the build, and where the program's own files lie. */
#ifndef APPS_BENCH_MACHINE_H
#define APPS_BENCH_MACHINE_H

#include <cjson/cJSON.h>

#include "bench.h"

/* The environment object of a receipt, without the ceilings; NULL where there is no memory. */
cJSON *bench_environment(const bench *b);

/* Writes the path of peers/torch_cpu.py: in bench/ of the source tree that the program was built in, or in
 * PREFIX/share/tigon/bench where it is installed. False where there is none. */
bool bench_find_peer(char *path, size_t size);

#endif
