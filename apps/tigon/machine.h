/* What the program asks of the machine: time and memory. */
#ifndef APPS_MACHINE_H
#define APPS_MACHINE_H

#include <stdint.h>

/* Seconds since the first call. Never goes back: where the clock does, it stands still for that moment, so that limits
 * and speeds stay what they are. Called by the main thread alone. */
double machine_seconds(void);

/* Bytes of physical memory. */
double machine_memory(void);

/* Items a second; 0 when no time has passed. */
static inline double per_second(int64_t items, double seconds) { return seconds > 0 ? (double)items / seconds : 0; }

#endif
