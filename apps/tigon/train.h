/* One training run: settings, the loop over steps, and the summary at its end. */
#ifndef APPS_TRAIN_H
#define APPS_TRAIN_H

#include "adamw.h"
#include "checkpoint.h"

typedef struct train_settings {
  const char *out;
  int threads;
  int64_t save_every; /* steps between checkpoints */
  int64_t stop_after; /* ends the run as a signal would after this step; 0: never */
  double time_limit;  /* seconds of training after which the schedule ends; 0: none */
  adamw_settings adamw;
  double balance;           /* weight of the balance loss in the gradient */
  bool evaluate;            /* at the end */
  int64_t validation_limit; /* tokens that are scored then, at most */
} train_settings;

/* Trains from `state` (all members set but the cursor of a new run) to its end. Returns the exit status. */
int train_run(const train_settings *settings, run_state *state, const checkpoint *from, dataset *data);

#endif
