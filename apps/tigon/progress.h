/*
 * What a run tells while it trains: a line on standard error, rewritten in place on a terminal and printed now and then
 * otherwise, and one JSON object a step in OUT/metrics.jsonl.
 */
#ifndef APPS_PROGRESS_H
#define APPS_PROGRESS_H

#include <stdint.h>
#include <stdio.h>

#include "failure.h"

#define METRICS_NAME "metrics.jsonl"

typedef struct step_report {
  int64_t step, steps, tokens; /* tokens of this step */
  double loss, rate, gradient_norm;
  double balance;               /* mean balance loss of the layers; 1 is even */
  double busiest;               /* rows of the busiest expert of any layer, 1 is an even share */
  double step_seconds, seconds; /* of this step; of the run */
  double seconds_left;
} step_report;

typedef struct progress {
  FILE *metrics;
  char path[4096];
  int terminal;                   /* columns, 0: standard error is no terminal */
  bool begun;                     /* a step was told */
  double shown;                   /* when the line was last printed, in seconds of the run */
  double loss, tokens_per_second; /* running means */
} progress;

/* Opens the metrics file and forgets its lines after `step`, which a run that goes on from there writes again. */
bool progress_open(progress *p, const char *directory, int64_t step, failure *failed);
bool progress_step(progress *p, const step_report *report, failure *failed);
/* Ends the line on the terminal, so that other text can follow. */
void progress_pause(progress *p);
bool progress_close(progress *p, failure *failed);

#endif
