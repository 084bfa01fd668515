/* The model: gradients against finite differences, generation against the training pass, and validation. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "adamw.h"
#include "evaluate.h"
#include "forward.h"
#include "model.h"
#include "random.h"

enum { BATCH = 2, LENGTH = 9, TOKENS = BATCH * LENGTH };

static const model_config configs[] = {
    {.layers = 2, .width = 16, .heads = 2, .experts = 3, .top_k = 2, .hidden = 8, .vocabulary = 256},
    {.layers = 1, .width = 12, .heads = 3, .experts = 4, .top_k = 1, .hidden = 5, .vocabulary = 97},
    {.layers = 3, .width = 24, .heads = 1, .experts = 1, .top_k = 1, .hidden = 16, .vocabulary = 300},
};
enum { CONFIGS = sizeof configs / sizeof *configs };

static void create(model *m, model_shape *shape, const model_config *config, bool training, int64_t batch,
                   int64_t length) {
  failure failed;
  const model_settings settings = {batch, length, 2, training};
  model_shape_init(shape, config);
  if (!model_create(m, shape, &settings, &failed)) fail_msg("%s", failed.text);
  model_init(m, 7);
}

static void fill(model *m, uint64_t seed) {
  random_stream random = random_open(seed, 1);
  for (int64_t i = 0; i < m->batch * m->length; i++) {
    m->tokens[i] = (int32_t)random_below(&random, (uint64_t)m->shape->config.vocabulary);
    m->targets[i] = (int32_t)random_below(&random, (uint64_t)m->shape->config.vocabulary);
  }
}

/* What backward differentiates. */
static double objective(model *m) {
  forward(m);
  assert_null(m->failed_op);
  double sum = 0;
  for (int64_t i = 0; i < m->batch * m->length; i++) sum += (double)m->loss[i] * (double)m->d_loss[0];
  for (int64_t layer = 0; layer < m->shape->config.layers; layer++)
    sum += (double)m->layers[layer].balance[0] * (double)m->d_balance[0];
  return sum;
}

static void copy_ids(const model *m, int32_t *ids) {
  const model_config *c = &m->shape->config;
  for (int64_t layer = 0; layer < c->layers; layer++)
    memcpy(ids + layer * TOKENS * c->top_k, m->layers[layer].ids, (size_t)(TOKENS * c->top_k) * sizeof(int32_t));
}

/* d objective / d h at weights + h * direction of one tensor, from two points. False when the routes are not the same
 * at both: the objective jumps where they change. */
static bool slope(model *m, const parameter *p, const float *direction, double h, double *result) {
  float *weights = m->weights + p->offset;
  float *kept = malloc((size_t)p->count * sizeof *kept);
  int32_t routes[2][MAX_LAYERS * TOKENS];
  memset(routes, 0, sizeof routes);
  memcpy(kept, weights, (size_t)p->count * sizeof *kept);
  double values[2], moved[2] = {0, 0};
  for (int side = 0; side < 2; side++) {
    for (int64_t i = 0; i < p->count; i++) weights[i] = kept[i] + (float)(side ? h : -h) * direction[i];
    for (int64_t i = 0; i < p->count; i++) moved[side] += ((double)weights[i] - (double)kept[i]) * (double)direction[i];
    values[side] = objective(m);
    copy_ids(m, routes[side]);
  }
  memcpy(weights, kept, (size_t)p->count * sizeof *kept);
  free(kept);
  *result = (values[1] - values[0]) / (moved[1] - moved[0]); /* the direction has length 1 */
  return !memcmp(routes[0], routes[1], sizeof *routes);
}

static void check_tensor(model *m, const parameter *p, const float *gradient, bool along) {
  float *direction = malloc((size_t)p->count * sizeof *direction);
  random_stream random = random_open(3, (uint64_t)p->offset);
  double length = 0, expected = 0, norm = 0;
  for (int64_t i = 0; i < p->count; i++) {
    direction[i] = along ? gradient[i] : (float)random_normal(&random) * (gradient[i] != 0 || p->count < 4000);
    length += (double)direction[i] * (double)direction[i];
    norm += (double)gradient[i] * (double)gradient[i];
  }
  assert_true(norm > 1e-12);
  for (int64_t i = 0; i < p->count; i++) {
    direction[i] = (float)(direction[i] / sqrt(length));
    expected += (double)gradient[i] * (double)direction[i];
  }
  double step = 1e-3, wide, narrow = 0;
  while (!slope(m, p, direction, step, &wide) && step > 1e-4) step /= 2;
  assert_true(step > 1e-4 && slope(m, p, direction, step / 2, &narrow));
  const double got = (4 * narrow - wide) / 3; /* Richardson: the terms in step^2 cancel */
  /* Rounding of the objective weighs more in a smaller step. */
  const double error = fabs(got - expected), bound = 2e-3 * sqrt(norm) + 2e-6 / step;
  if (error > bound)
    fail_msg("%s %s: slope %g, gradient %g, |gradient| %g", p->name, along ? "along the gradient" : "at random", got,
             expected, sqrt(norm));
  assert_true(bound < 0.1 * sqrt(norm)); /* or the comparison would say nothing */
  free(direction);
}

static void gradients_are_slopes(void **state) {
  (void)state;
  int cases = 0;
  for (int i = 0; i < CONFIGS; i++) {
    model m;
    model_shape shape;
    create(&m, &shape, &configs[i], true, BATCH, LENGTH);
    fill(&m, 5);
    for (int64_t j = 0; j < shape.elements; j++) m.weights[j] *= 1.5f; /* away from the small gradients of the start */
    m.d_loss[0] = 1.0f / 4;
    m.d_balance[0] = 0.5f;
    objective(&m);
    backward(&m);
    assert_null(m.failed_op);
    float *gradient = malloc((size_t)shape.elements * sizeof *gradient);
    memcpy(gradient, m.gradients, (size_t)shape.elements * sizeof *gradient);
    for (int j = 0; j < shape.count; j++) {
      const parameter *p = &shape.parameters[j];
      if (configs[i].experts == 1 && strstr(p->name, "router")) {
        for (int64_t k = 0; k < p->count; k++) assert_float_equal(gradient[p->offset + k], 0, 1e-6);
        continue; /* one expert has weight 1 whatever its logit */
      }
      check_tensor(&m, p, gradient + p->offset, true);
      check_tensor(&m, p, gradient + p->offset, false);
      cases += 2;
    }
    free(gradient);
    model_destroy(&m);
  }
  printf("cases: %d\n", cases);
}

static void backward_twice_is_the_same(void **state) {
  (void)state;
  model m;
  model_shape shape;
  create(&m, &shape, &configs[0], true, BATCH, LENGTH);
  fill(&m, 5);
  m.d_loss[0] = 1;
  const size_t bytes = (size_t)shape.elements * sizeof(float);
  float *first = malloc(bytes);
  forward(&m);
  backward(&m);
  memcpy(first, m.gradients, bytes);
  backward(&m);
  assert_memory_equal(first, m.gradients, bytes);
  free(first);
  model_destroy(&m);
}

/* Log-probability of a token from logits. */
static double log_probability(const float *logits, int64_t vocabulary, int32_t token) {
  double sum = 0;
  for (int i = 0; i < vocabulary; i++) sum += exp((double)logits[i]);
  return (double)logits[token] - log(sum);
}

static void decoding_agrees_with_training(void **state) {
  (void)state;
  for (int i = 0; i < CONFIGS; i++) {
    const int64_t length = 150; /* several chunks of the attention */
    model all, one;
    model_shape shape;
    create(&all, &shape, &configs[i], true, 1, length);
    create(&one, &shape, &configs[i], false, 1, 1);
    fill(&all, 11);
    forward(&all);
    assert_null(all.failed_op);
    for (int64_t t = 0; t < length; t++) {
      one.tokens[0] = all.tokens[t];
      forward(&one);
      assert_null(one.failed_op);
      assert_float_equal(-log_probability(one.next_logits, shape.config.vocabulary, all.targets[t]), all.loss[t], 2e-4);
    }
    model_destroy(&one);
    model_destroy(&all);
  }
}

/* The bytes as data, through a file. */
static void open_bytes(dataset *data, const uint8_t *bytes, size_t size, int64_t train_size) {
  char path[] = "/tmp/tigon_model_XXXXXX", *paths[] = {path, NULL};
  const int descriptor = mkstemp(path);
  assert_true(descriptor >= 0 && write(descriptor, bytes, size) == (ssize_t)size);
  close(descriptor);
  const text_list list = {paths, 1}, none = {0};
  failure failed;
  int32_t first;
  if (!dataset_open(data, &list, &none, 0, &failed)) fail_msg("%s", failed.text);
  assert_true(dataset_read(data, 0, 1, &first, &failed)); /* which keeps the file open */
  data->train_size = train_size;
  unlink(path);
}

/* Validation counts every byte of the split once: a model without opinion needs log 256 nats for each. */
static void validation_counts_every_byte_once(void **state) {
  (void)state;
  uint8_t bytes[3000];
  for (int i = 0; i < 3000; i++) bytes[i] = (uint8_t)(i * 7);
  for (int64_t train_size = 2000; train_size < 3000; train_size += 37) {
    dataset data;
    open_bytes(&data, bytes, sizeof bytes, train_size);
    model m;
    model_shape shape;
    create(&m, &shape, &configs[0], true, 3, 40);
    memset(m.weights + model_parameter(&shape, -1, OUTPUT)->offset, 0, 256 * 16 * sizeof(float));
    double nats;
    failure failed;
    assert_true(evaluate(&m, &data, data.size, &nats, &failed));
    assert_float_equal(nats, log(256), 1e-5);
    dataset_close(&data);
    model_destroy(&m);
  }
}

/* Validation in windows against one pass that has all context: the same but for what lies beyond the windows. */
static void validation_reads_the_right_targets(void **state) {
  (void)state;
  uint8_t bytes[64];
  random_stream random = random_open(1, 2);
  for (int i = 0; i < 64; i++) bytes[i] = (uint8_t)random_below(&random, 256);
  dataset data;
  open_bytes(&data, bytes, sizeof bytes, 40);
  model m, one;
  model_shape shape;
  create(&m, &shape, &configs[0], true, 2, 32); /* its first 8 tokens are context: one window holds all 24 bytes */
  create(&one, &shape, &configs[0], false, 1, 1);
  double nats, expected = 0;
  failure failed;
  assert_true(evaluate(&m, &data, data.size, &nats, &failed));
  for (int at = 31; at < 63; at++) {
    one.tokens[0] = bytes[at];
    forward(&one);
    if (at + 1 >= 40) expected -= log_probability(one.next_logits, shape.config.vocabulary, bytes[at + 1]) / 24;
  }
  assert_float_equal(nats, expected, 1e-4);
  dataset_close(&data);
  model_destroy(&one);
  model_destroy(&m);
}

/* AdamW against its formula in float64, with clipping, and decay where it belongs. */
static void adamw_follows_its_formula(void **state) {
  (void)state;
  model m;
  model_shape shape;
  create(&m, &shape, &configs[0], true, BATCH, LENGTH);
  const adamw_settings settings = {.beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f, .clip = 1};
  double *w = malloc((size_t)shape.elements * sizeof *w), *first = calloc((size_t)shape.elements, sizeof *first);
  double *second = calloc((size_t)shape.elements, sizeof *second);
  for (int64_t i = 0; i < shape.elements; i++) w[i] = (double)m.weights[i];
  for (int step = 1; step <= 3; step++) {
    random_stream random = random_open(9, (uint64_t)step);
    double norm = 0;
    for (int j = 0; j < shape.count; j++)
      for (int64_t i = 0; i < shape.parameters[j].count; i++) {
        float *g = m.gradients + shape.parameters[j].offset + i;
        *g = (float)random_normal(&random) * (step == 2 ? 1e-4f : 1e-1f);
        norm += (double)*g * (double)*g;
      }
    norm = sqrt(norm);
    assert_float_equal(adamw_gradient_norm(&m), norm, 1e-5 * norm);
    adamw_update(&m, &settings, 1e-2, norm, step);
    for (int j = 0; j < shape.count; j++) {
      const parameter *p = &shape.parameters[j];
      const bool decays = strcmp(p->name, "embedding") && !strstr(p->name, "norm");
      for (int64_t i = p->offset; i < p->offset + p->count; i++) {
        const double g = (double)m.gradients[i] * (norm > 1 ? 1 / norm : 1);
        first[i] = 0.9 * first[i] + 0.1 * g;
        second[i] = 0.95 * second[i] + 0.05 * g * g;
        const double ratio = first[i] / (1 - pow(0.9, step)) / (sqrt(second[i] / (1 - pow(0.95, step))) + 1e-8);
        w[i] = w[i] * (decays ? 1 - 1e-3 : 1) - 1e-2 * ratio;
        assert_float_equal(m.weights[i], w[i], 2e-5);
      }
    }
  }
  free(w);
  free(first);
  free(second);
  model_destroy(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gradients_are_slopes),
      cmocka_unit_test(backward_twice_is_the_same),
      cmocka_unit_test(decoding_agrees_with_training),
      cmocka_unit_test(validation_counts_every_byte_once),
      cmocka_unit_test(validation_reads_the_right_targets),
      cmocka_unit_test(adamw_follows_its_formula),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
