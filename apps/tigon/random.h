/* Random numbers: SplitMix64. Every stream is a function of a seed and a name, so that nothing but the seed and a
 * position needs to be stored to go on with the same numbers. */
#ifndef APPS_RANDOM_H
#define APPS_RANDOM_H

#include <stdint.h>

typedef struct random_stream {
  uint64_t state;
} random_stream;

random_stream random_open(uint64_t seed, uint64_t name);
uint64_t random_bits(random_stream *stream);
/* Uniform in [0, bound), bound > 0. */
uint64_t random_below(random_stream *stream, uint64_t bound);
/* Uniform in [0, 1). */
double random_unit(random_stream *stream);
/* Normal with mean 0 and variance 1. */
double random_normal(random_stream *stream);

#endif
