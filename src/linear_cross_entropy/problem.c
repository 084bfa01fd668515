#include "linear_cross_entropy/problem.h"
#include "base/integer.h"

#include <inttypes.h>
#include <math.h>

tigon_view tigon_lce_check_vector(tigon_checker *check, const char *name, const DLTensor *tensor, unsigned flags,
                                  int64_t tokens) {
  return tigon_check_tensor(check, name, tensor, TIGON_F32, flags | TIGON_ANY_STRIDE, 1, &tokens);
}

static void check_finite(tigon_checker *check, const char *name, float value, float least, const char *expected) {
  tigon_check_that(check, isfinite(value) && value >= least, name, "expected %s, got %g", expected, (double)value);
}

void tigon_lce_check_loss(tigon_checker *check, const tigon_lce_loss_args *args, tigon_lce_loss *l) {
  tigon_check_that(check, args->set_ignore_index == 0 || args->set_ignore_index == 1, "set_ignore_index",
                   "expected 0 or 1, got %" PRId32, args->set_ignore_index);
  check_finite(check, "z_loss", args->z_loss, -INFINITY, "a finite number");
  tigon_check_that(check, args->label_smoothing >= 0 && args->label_smoothing <= 1, "label_smoothing",
                   "expected a number from 0 to 1, got %g", (double)args->label_smoothing);
  tigon_check_that(check, l->tokens <= INT32_MAX, "target", "expected at most %" PRId32 " tokens, got %" PRId64,
                   INT32_MAX, l->tokens);
  l->target = tigon_check_tensor(check, "target", args->target, TIGON_INDICES, TIGON_ANY_STRIDE, 1, &l->tokens);
  l->class_weight =
      tigon_check_tensor(check, "class_weight", args->class_weight, TIGON_F32, TIGON_OPTIONAL, 1, &l->classes);
  l->token_weight = tigon_lce_check_vector(check, "token_weight", args->token_weight, TIGON_OPTIONAL, l->tokens);
  l->ignore_index = args->set_ignore_index ? args->ignore_index : -100;
  l->z_loss = args->z_loss;
  l->label_smoothing = args->label_smoothing;
}

static void check_vocabulary(tigon_checker *check, const tigon_lce_problem_args *args, tigon_lce_problem *p) {
  const int64_t rows = p->weight.shape[0];
  tigon_check_that(check, args->vocab_begin >= 0 && args->vocab_begin <= INT64_MAX - rows, "vocab_begin",
                   "expected a class, 0 or more, got %" PRId64, args->vocab_begin);
  tigon_check_that(check, args->vocab_size >= 0, "vocab_size",
                   "expected the number of classes, or 0 for vocab_begin + V, got %" PRId64, args->vocab_size);
  if (check->status != TIGON_OK) return;
  p->vocab_begin = args->vocab_begin;
  p->loss.classes = args->vocab_size ? args->vocab_size : args->vocab_begin + rows;
  const int64_t left = p->loss.classes - args->vocab_begin;
  p->vocabulary = left > 0 ? tigon_smaller(left, rows) : 0;
}

void tigon_lce_check_problem(tigon_checker *check, const tigon_exec *exec, const tigon_lce_problem_args *args,
                             tigon_lce_problem *p) {
  tigon_check_alone(check, args->team, "vocab_begin", 0);
  check_finite(check, "inverse_temperature", args->inverse_temperature, 0, "a positive finite number, or 0 for 1");
  check_finite(check, "softcap", args->softcap, 0, "a positive finite number, or 0 for none");
  p->x = tigon_check_tensor(check, "x", args->x, TIGON_FLOATS, 0, 2, (int64_t[]){-1, -1});
  tigon_check_that(check, p->x.shape[0] <= INT32_MAX, "x", "expected at most %" PRId32 " rows, got %" PRId64, INT32_MAX,
                   p->x.shape[0]);
  p->loss.tokens = p->x.shape[0];
  p->width = p->x.shape[1];
  p->weight = tigon_check_tensor(check, "weight", args->weight, TIGON_FLOATS, 0, 2, (int64_t[]){-1, p->width});
  p->bias = tigon_check_tensor(check, "bias", args->bias, TIGON_FLOATS, TIGON_OPTIONAL, 1, p->weight.shape);
  check_vocabulary(check, args, p);
  tigon_lce_check_loss(check, &args->loss, &p->loss);
  p->inverse_temperature = args->inverse_temperature == 0 ? 1.0f : args->inverse_temperature;
  p->softcap = args->softcap;
  p->threads = exec->num_threads;
}

void tigon_lce_check_saved(tigon_checker *check, const void *saved, uint64_t bytes, tigon_lce_problem *p) {
  if (!saved || check->query || check->status != TIGON_OK) return;
  tigon_check_that(check, (uintptr_t)saved % 64 == 0, "saved", "expected 64-byte alignment, got address %p", saved);
  if (p->loss.tokens == 0 || p->width == 0) return; /* nothing is multiplied */
  const uint64_t columns = bytes / ((uint64_t)p->loss.tokens * sizeof(float));
  p->saved = (float *)(uintptr_t)saved;
  p->saved_columns =
      columns >= (uint64_t)p->vocabulary ? p->vocabulary : (int64_t)(columns / TIGON_LCE_TILE * TIGON_LCE_TILE);
}

void tigon_lce_check_outputs(tigon_checker *check, const tigon_lce_loss *l, const tigon_lce_output_args *args,
                             const char *states, tigon_lce_outputs *outputs) {
  const unsigned flags = TIGON_OPTIONAL | TIGON_OUTPUT;
  outputs->loss = tigon_lce_check_vector(check, "loss", args->loss, flags, l->tokens);
  outputs->nll = tigon_lce_check_vector(check, "nll", args->nll, flags, l->tokens);
  outputs->lse = tigon_lce_check_vector(check, "lse", args->lse, flags, l->tokens);
  outputs->entropy = tigon_lce_check_vector(check, "entropy", args->entropy, flags, l->tokens);
  outputs->argmax =
      tigon_check_tensor(check, "argmax", args->argmax, TIGON_INDICES, flags | TIGON_ANY_STRIDE, 1, &l->tokens);
  outputs->correct = tigon_lce_check_vector(check, "correct", args->correct, flags, l->tokens);
  outputs->partial = tigon_check_tensor(check, states, args->partial, TIGON_F32, flags, 2, (int64_t[]){l->tokens, 8});
  const bool ids = args->argmax || args->correct || args->partial;
  tigon_check_that(check, !ids || l->classes <= INT32_MAX, "vocab_size",
                   "expected at most %" PRId32 " classes with argmax, correct or %s, got %" PRId64, INT32_MAX, states,
                   l->classes);
}

void tigon_lce_list_outputs(const tigon_lce_outputs *outputs, const char *states,
                            tigon_lce_named list[TIGON_LCE_OUTPUTS]) {
  const tigon_lce_named all[TIGON_LCE_OUTPUTS] = {{"loss", &outputs->loss},     {"nll", &outputs->nll},
                                                  {"lse", &outputs->lse},       {"entropy", &outputs->entropy},
                                                  {"argmax", &outputs->argmax}, {"correct", &outputs->correct},
                                                  {states, &outputs->partial}};
  memcpy(list, all, sizeof all);
}

void tigon_lce_check_apart(tigon_checker *check, const tigon_lce_named *list, int outputs, int count) {
  for (int i = 0; i < outputs; i++)
    for (int j = i + 1; j < count; j++)
      tigon_check_apart(check, list[i].name, list[i].view, list[j].name, list[j].view);
}

void tigon_lce_keep_tokens(const char *op, tigon_context *context, tigon_lce_loss *l, int32_t *kept) {
  bool noted = false;
  l->kept = kept;
  l->kept_count = 0;
  for (int64_t token = 0; token < l->tokens; token++) {
    const int64_t target = tigon_lce_target(l, token);
    if (target == l->ignore_index) continue;
    if (target >= 0 && target < l->classes) {
      kept[l->kept_count++] = (int32_t)token;
    } else if (!noted) {
      tigon_context_note(context, TIGON_INVALID_ARGUMENT, op, "target", token, target);
      noted = true;
    }
  }
}
