#include "ngram.h"

#include <math.h>
#include <stdlib.h>

/* All n-grams of the training split as big-endian numbers in rising order, so that those with a common context are
 * neighbours. kinds[i] counts the different n-grams before position i. */
typedef struct ngrams {
  uint32_t *keys;
  uint32_t *kinds;
  int64_t count;
} ngrams;

static void sort_by_digit(const uint32_t *from, uint32_t *to, int64_t count, int shift) {
  int64_t place[257] = {0};
  for (int64_t i = 0; i < count; i++) place[(from[i] >> shift & 255) + 1]++;
  for (int digit = 0; digit < 256; digit++) place[digit + 1] += place[digit];
  for (int64_t i = 0; i < count; i++) to[place[from[i] >> shift & 255]++] = from[i];
}

static bool collect(ngrams *grams, const uint8_t *bytes, int64_t count, int n) {
  grams->count = count - n + 1;
  grams->keys = malloc((size_t)(grams->count + 1) * sizeof *grams->keys);
  grams->kinds = malloc((size_t)(grams->count + 1) * sizeof *grams->kinds);
  if (!grams->keys || !grams->kinds) return false;
  const uint32_t mask = n == 4 ? UINT32_MAX : (UINT32_C(1) << 8 * n) - 1;
  uint32_t key = 0;
  for (int64_t i = 0; i < count; i++) {
    key = (key << 8 | bytes[i]) & mask;
    if (i >= n - 1) grams->keys[i - n + 1] = key;
  }
  for (int digit = 0; digit < n; digit++) {
    uint32_t *sorted = grams->kinds;
    sort_by_digit(grams->keys, sorted, grams->count, 8 * digit);
    grams->kinds = grams->keys;
    grams->keys = sorted;
  }
  grams->kinds[0] = 0;
  for (int64_t i = 0; i < grams->count; i++)
    grams->kinds[i + 1] = grams->kinds[i] + (i == 0 || grams->keys[i] != grams->keys[i - 1]);
  return true;
}

/* First position whose key is at least this. */
static int64_t lower_bound(const ngrams *grams, uint64_t key) {
  int64_t low = 0, high = grams->count;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (grams->keys[middle] < key)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static double probability(const ngrams *grams, int n, const uint8_t *at, double shorter) {
  uint64_t context = 0;
  for (int i = n - 1; i > 0; i--) context = context << 8 | at[-i];
  const uint64_t gram = context << 8 | at[0];
  const int64_t begin = lower_bound(grams, context << 8), end = lower_bound(grams, (context + 1) << 8);
  if (begin == end) return shorter;
  const int64_t count = lower_bound(grams, gram + 1) - lower_bound(grams, gram);
  const double kinds = grams->kinds[end] - grams->kinds[begin];
  return ((double)count + kinds * shorter) / ((double)(end - begin) + kinds);
}

bool ngram_nats(const uint8_t *bytes, int64_t begin, int64_t end, double nats[NGRAM_ORDERS], failure *failed) {
  double *shorter = malloc((size_t)(end - begin) * sizeof *shorter);
  if (!shorter) {
    free(shorter);
    return fail_with(failed, "no memory for the n-gram models of %lld bytes", (long long)begin);
  }
  for (int64_t i = 0; i < end - begin; i++) shorter[i] = 1.0 / 256;
  for (int n = 1; n <= NGRAM_ORDERS; n++) {
    ngrams grams = {0};
    const bool ok = collect(&grams, bytes, begin, n);
    double sum = 0;
    for (int64_t i = 0; ok && i < end - begin; i++) {
      shorter[i] = probability(&grams, n, bytes + begin + i, shorter[i]);
      sum -= log(shorter[i]);
    }
    free(grams.keys);
    free(grams.kinds);
    if (!ok) {
      free(shorter);
      return fail_with(failed, "no memory for the n-gram models of %lld bytes", (long long)begin);
    }
    nats[n - 1] = sum / (double)(end - begin);
  }
  free(shorter);
  return true;
}
