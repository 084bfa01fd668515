#include "sampler.h"

#include <stdlib.h>

#include "machine.h"
#include "random.h"

bool sampler_open(sampler *source, dataset *data, int64_t length, uint64_t seed, cursor at, failure *failed) {
  *source = (sampler){.data = data, .length = length, .seed = seed, .at = at, .drawn_epoch = -1};
  const int64_t most = data->train_size / length;
  if (most < 3)
    return fail_with(
        failed,
        "%s: the data are too short: %lld %s for training, but sequences of %lld tokens need at least %lld "
        "(give more data or a smaller --seq)",
        data->parts[0].path, (long long)data->train_size, dataset_kind(data) == DATA_TEXT ? "bytes" : "tokens",
        (long long)length, (long long)(3 * length));
  const double bytes = (double)most * sizeof *source->order;
  if (bytes < machine_memory()) source->order = malloc((size_t)most * sizeof *source->order);
  source->window = malloc((size_t)(length + 1) * sizeof *source->window);
  if (!source->order || !source->window)
    return fail_with(failed, "no memory for the order of %lld windows (a larger --seq makes fewer)", (long long)most);
  return true;
}

void sampler_close(sampler *source) {
  free(source->order);
  free(source->window);
  source->order = NULL;
  source->window = NULL;
}

static void draw_order(sampler *source) {
  random_stream random = random_open(source->seed, UINT64_C(0x100000000) + (uint64_t)source->at.epoch);
  source->offset = (int64_t)random_below(&random, (uint64_t)source->length);
  source->windows = (source->data->train_size - source->offset - 1) / source->length;
  for (int64_t i = 0; i < source->windows; i++) {
    const int64_t j = (int64_t)random_below(&random, (uint64_t)i + 1);
    source->order[i] = source->order[j];
    source->order[j] = i;
  }
  source->drawn_epoch = source->at.epoch;
}

const int32_t *sampler_next(sampler *source, failure *failed) {
  if (source->drawn_epoch != source->at.epoch) draw_order(source);
  if (source->at.index >= source->windows) {
    source->at = (cursor){source->at.epoch + 1, 0};
    draw_order(source);
  }
  const int64_t window = source->order[source->at.index++];
  const int64_t begin = source->offset + window * source->length;
  return dataset_read(source->data, begin, source->length + 1, source->window, failed) ? source->window : NULL;
}
