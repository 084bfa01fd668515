/* Argument checks that forward, backward and the merge share. */
#ifndef TIGON_LINEAR_CROSS_ENTROPY_PROBLEM_H
#define TIGON_LINEAR_CROSS_ENTROPY_PROBLEM_H

#include "base/args.h"
#include "base/context.h"
#include "linear_cross_entropy/finish.h"

/* The members that the public structs have in common, by name. */
typedef struct tigon_lce_loss_args {
  const DLTensor *target, *class_weight, *token_weight;
  int64_t ignore_index;
  int32_t set_ignore_index;
  float z_loss, label_smoothing;
} tigon_lce_loss_args;
#define TIGON_LCE_LOSS_ARGS(args)                                                                          \
  {                                                                                                        \
    (args).target, (args).class_weight, (args).token_weight, (args).ignore_index, (args).set_ignore_index, \
        (args).z_loss, (args).label_smoothing                                                              \
  }

typedef struct tigon_lce_problem_args {
  tigon_lce_loss_args loss;
  const DLTensor *x, *weight, *bias;
  const tigon_team *team;
  int64_t vocab_begin, vocab_size;
  float inverse_temperature, softcap;
} tigon_lce_problem_args;
#define TIGON_LCE_PROBLEM_ARGS(args)                                                                  \
  {                                                                                                   \
    TIGON_LCE_LOSS_ARGS(args), (args).x, (args).weight, (args).bias, (args).team, (args).vocab_begin, \
        (args).vocab_size, (args).inverse_temperature, (args).softcap                                 \
  }

typedef struct tigon_lce_output_args {
  DLTensor *loss, *nll, *lse, *entropy, *argmax, *correct, *partial;
} tigon_lce_output_args;
#define TIGON_LCE_OUTPUT_ARGS(args, partial) \
  { (args).loss, (args).nll, (args).lse, (args).entropy, (args).argmax, (args).correct, (args).partial }

void tigon_lce_check_problem(tigon_checker *check, const tigon_exec *exec, const tigon_lce_problem_args *args,
                             tigon_lce_problem *p);
/* Places as many columns of logits in the block as fit. */
void tigon_lce_check_saved(tigon_checker *check, const void *saved, uint64_t bytes, tigon_lce_problem *p);
/* l->tokens and l->classes are set. */
void tigon_lce_check_loss(tigon_checker *check, const tigon_lce_loss_args *args, tigon_lce_loss *l);
/* states: what the argument of partials is called. */
void tigon_lce_check_outputs(tigon_checker *check, const tigon_lce_loss *l, const tigon_lce_output_args *args,
                             const char *states, tigon_lce_outputs *outputs);

/* A (T) float32 vector, of any stride. */
tigon_view tigon_lce_check_vector(tigon_checker *check, const char *name, const DLTensor *tensor, unsigned flags,
                                  int64_t tokens);

typedef struct tigon_lce_named {
  const char *name;
  const tigon_view *view;
} tigon_lce_named;

enum { TIGON_LCE_OUTPUTS = 7 };
/* partial is the last. */
void tigon_lce_list_outputs(const tigon_lce_outputs *outputs, const char *states,
                            tigon_lce_named list[TIGON_LCE_OUTPUTS]);

/* The first `outputs` of the list share memory with none of it. */
void tigon_lce_check_apart(tigon_checker *check, const tigon_lce_named *list, int outputs, int count);

/* An output that is present and has elements. */
static inline bool tigon_lce_wanted(const tigon_view *output) {
  return tigon_present(output) && tigon_elements(output) > 0;
}

static inline int32_t *tigon_lce_take_kept(tigon_arena *arena, const tigon_lce_loss *l) {
  return tigon_arena_take(arena, (uint64_t)l->tokens * sizeof(int32_t));
}

/* Lists the tokens that take part, and records the first target that is neither a class nor ignored. */
void tigon_lce_keep_tokens(const char *op, tigon_context *context, tigon_lce_loss *l, int32_t *kept);

#endif
