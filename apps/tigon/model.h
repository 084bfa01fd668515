/*
 * The language model: shapes, parameters and one arena that holds everything of a run.
 *
 * Decoder-only over tokens. With h (B, T, D) the embedded tokens, each layer does
 *
 *     n = rms_norm(h)              q, k, v, g = qkvg n          q, k, v = silu(q), silu(k), silu(v)
 *     a = lightning_attention(q, k, v)                          one decay a head, from fast to slow
 *     h = h + out (rms_norm_per_head(a) * sigmoid(g))
 *     n = rms_norm(h)              ids, weights = moe_route(router n)
 *     h = h + moe(n, ids, weights)
 *
 * and the loss is linear_cross_entropy(rms_norm(h), output). Residual adds are fused into the next rms_norm. All in
 * float32. Position enters through the decays alone.
 */
#ifndef APPS_MODEL_H
#define APPS_MODEL_H

#include <stdbool.h>
#include <stdint.h>
#include <tigon/tigon.h>

#include "data.h"
#include "elementwise.h"
#include "failure.h"
#include "parallel.h"

enum { MAX_LAYERS = 64, LAYER_PARAMETERS = 8, MAX_PARAMETERS = MAX_LAYERS * LAYER_PARAMETERS + 3 };

typedef struct model_config {
  int64_t layers;
  int64_t width;   /* D */
  int64_t heads;   /* H; a head has D / H channels of query, key and value */
  int64_t experts; /* E */
  int64_t top_k;
  int64_t hidden; /* I, of one expert */
  int64_t vocabulary;
} model_config;

/* The presets "tiny" and "small", all but the vocabulary. False when there is none of this name. */
bool model_preset(const char *name, model_config *config);
bool model_config_check(const model_config *config, failure *failed);

/* A named tensor among the parameters. */
typedef struct parameter {
  char name[40];
  int ndim;
  int64_t shape[3];
  int64_t offset, count; /* in elements of the parameter block */
  bool decays;           /* weight decay applies */
  float initial;         /* norms: this value; otherwise normal with this standard deviation */
  bool constant;         /* starts at `initial` everywhere */
} parameter;

/* Everything that depends on the configuration alone. */
typedef struct model_shape {
  model_config config;
  int count;
  parameter parameters[MAX_PARAMETERS];
  int64_t elements; /* of the parameter block, all tensors together */
} model_shape;

enum { EMBEDDING, FINAL_NORM, OUTPUT, FIRST_LAYER }; /* indices of parameters */
/* and FIRST_LAYER + LAYER_PARAMETERS * layer + one of these */
enum { ATTENTION_NORM, QKVG, ATTENTION_OUT, MOE_NORM, ROUTER, EXPERT_GATE, EXPERT_UP, EXPERT_DOWN };

void model_shape_init(model_shape *shape, const model_config *config);

/* Decay of each head: 4 for the fastest, which sees little but its own token, down to 1/64. */
void model_decays(const model_config *config, float *decay);

/* What one layer's forward pass keeps for backward. */
typedef struct layer_activations {
  float *hidden;      // (B T, D) residual stream that the layer reads
  float *rstd;        // (B T)
  float *normed;      // (B T, D)
  float *qkvg;        // (B T, 4 D) before the activations
  float *qkv;         // (B T, 3 D) after silu
  float *attention;   // (B T, D)
  float *head_rstd;   // (B T, H)
  float *head_normed; // (B T, D)
  float *gated;       // (B T, D)
  float *middle;      // (B T, D) residual stream between attention and experts
  float *moe_rstd;    // (B T)
  float *moe_normed;  // (B T, D)
  float *logits;      // (B T, E) of the router
  int32_t *ids;       // (B T, k)
  float *weights;     // (B T, k)
  int32_t *counts;    // (E)
  float *balance;     // (1)
  void *saved;
  uint64_t saved_bytes;
} layer_activations;

typedef struct model {
  const model_shape *shape;
  int64_t batch, length; /* B, T of the activations */
  bool training;         /* with gradients, moments and saved activations */
  bool decoding;         /* otherwise: one token a sequence, with states, giving logits in place of a loss */
  bool planning;         /* operations only answer how much workspace they need */
  const char *failed_op; /* NULL while all calls succeeded */
  tigon_exec exec;
  workers *crew;
  const elementwise *loops;

  uint8_t *arena;
  uint64_t arena_bytes, taken;
  float *weights, *gradients, *moment, *variance; // (elements) each
  layer_activations layers[MAX_LAYERS];
  float *decay;                          // (H)
  int32_t *tokens, *targets;             // (B T)
  float *hidden, *rstd, *normed;         // final norm
  float *branch;                         // (B T, D) what attention or experts add to the residual stream
  float *loss, *lse;                     // (B T)
  float *states;                         // (layers, B, H, D / H, D / H) when decoding
  float *next_logits;                    // (B, vocabulary) when decoding
  float *d_hidden, *d_normed, *d_branch; // (B T, D)
  float *d_qkvg;                         // (B T, 4 D)
  float *d_attention;                    // (B T, D)
  float *d_logits;                       // (B T, E)
  float *d_weights;                      // (B T, k)
  float *d_loss, *d_balance;             // (1)
} model;

typedef struct model_settings {
  int64_t batch, length;
  int threads;
  bool training; /* otherwise for decoding, with length 1 */
} model_settings;

/* Allocates the one arena. */
bool model_create(model *m, const model_shape *shape, const model_settings *settings, failure *failed);
void model_destroy(model *m);

/* Weights from the seed; moments to zero. */
void model_init(model *m, uint64_t seed);

static inline const parameter *model_parameter(const model_shape *shape, int64_t layer, int which) {
  return &shape->parameters[layer < 0 ? which : FIRST_LAYER + LAYER_PARAMETERS * layer + which];
}

#endif
