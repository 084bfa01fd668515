#include "random.h"

#include <math.h>

static uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

random_stream random_open(uint64_t seed, uint64_t name) {
  return (random_stream){mix(mix(seed + UINT64_C(0x9e3779b97f4a7c15)) ^ (name * UINT64_C(0xd6e8feb86659fd93)))};
}

uint64_t random_bits(random_stream *stream) {
  stream->state += UINT64_C(0x9e3779b97f4a7c15);
  return mix(stream->state);
}

uint64_t random_below(random_stream *stream, uint64_t bound) {
  const uint64_t limit = UINT64_MAX - UINT64_MAX % bound;
  uint64_t bits = random_bits(stream);
  while (bits >= limit) bits = random_bits(stream);
  return bits % bound;
}

double random_unit(random_stream *stream) { return (double)(random_bits(stream) >> 11) * 0x1p-53; }

double random_normal(random_stream *stream) {
  const double radius = sqrt(-2.0 * log(1.0 - random_unit(stream)));
  return radius * cos(6.283185307179586 * random_unit(stream));
}
