#include "train.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "forward.h"
#include "machine.h"
#include "paths.h"
#include "progress.h"
#include "summary.h"

static volatile sig_atomic_t caught;

static void on_signal(int number) { caught = number; }

/* The first signal ends the run after its step; a second one kills the program. Under nohup SIGHUP is ignored, and
 * stays so. A reader of the output that leaves (head) does not end the run. */
static void catch_signals(void) {
  signal(SIGPIPE, SIG_IGN);
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND | SA_RESTART}, before;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  if (!sigaction(SIGHUP, NULL, &before) && before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, NULL);
}

/* What is saved cannot be lost any more: a signal may end the validation at once. */
static void release_signals(void) {
  const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
  for (int i = 0; i < 3; i++) {
    struct sigaction action;
    if (sigaction(numbers[i], NULL, &action) || action.sa_handler != on_signal) continue;
    signal(numbers[i], SIG_DFL);
  }
}

typedef struct run {
  const train_settings *settings;
  run_state *state;
  model_shape shape;
  model m;
  sampler source;
  progress shown;
  int64_t saved_step; /* -1: nothing is saved */
} run;

static double finished_part(const run *r) {
  const double by_steps = (double)r->state->step / (double)r->state->steps;
  const double by_time = r->settings->time_limit > 0 ? r->state->seconds / r->settings->time_limit : 0;
  return fmin(1, fmax(by_steps, by_time));
}

/* Linear warm-up over the first 5 %, then a cosine down to 5 % of the peak. */
static double learning_rate(const run *r) {
  const double warm_up = 0.05, floor = 0.05, done = finished_part(r);
  if (done < warm_up) return r->state->rate * fmin(1, (done + 1.0 / (double)r->state->steps) / warm_up);
  const double cosine = 0.5 * (1 + cos(3.141592653589793 * (done - warm_up) / (1 - warm_up)));
  return r->state->rate * (floor + (1 - floor) * cosine);
}

static bool fill_batch(run *r, failure *failed) {
  const model *m = &r->m;
  for (int64_t row = 0; row < m->batch; row++) {
    const int32_t *window = sampler_next(&r->source, failed);
    if (!window) return false;
    memcpy(m->tokens + row * m->length, window, (size_t)m->length * sizeof *window);
    memcpy(m->targets + row * m->length, window + 1, (size_t)m->length * sizeof *window);
  }
  return true;
}

static void measure_balance(const model *m, step_report *report) {
  const model_config *c = &m->shape->config;
  const double share = (double)(m->batch * m->length * c->top_k) / (double)c->experts;
  report->balance = report->busiest = 0;
  for (int64_t layer = 0; layer < c->layers; layer++) {
    report->balance += (double)m->layers[layer].balance[0] / (double)c->layers;
    for (int64_t e = 0; e < c->experts; e++)
      report->busiest = fmax(report->busiest, m->layers[layer].counts[e] / share);
  }
}

/* The mean loss of the batch, then backward and the update. */
static bool take_step(run *r, step_report *report, failure *failed) {
  model *m = &r->m;
  const int64_t tokens = m->batch * m->length;
  if (!fill_batch(r, failed)) return false;
  forward(m);
  m->d_loss[0] = 1 / (float)tokens;
  m->d_balance[0] = (float)(r->settings->balance / (double)m->shape->config.layers);
  if (!m->failed_op) backward(m);
  if (m->failed_op) return fail_with(failed, "%s", tigon_last_error());
  double sum = 0;
  for (int64_t i = 0; i < tokens; i++) sum += (double)m->loss[i];
  report->loss = sum / (double)tokens;
  report->gradient_norm = adamw_gradient_norm(m);
  if (!isfinite(report->loss) || !isfinite(report->gradient_norm))
    return fail_with(
        failed, "step %lld: the loss or its gradient is not finite; try a smaller --lr (the last checkpoint is kept)",
        (long long)r->state->step + 1);
  adamw_update(m, &r->settings->adamw, report->rate, report->gradient_norm, r->state->step + 1);
  measure_balance(m, report);
  return true;
}

static bool save(run *r, failure *failed) {
  if (r->saved_step == r->state->step) return true;
  r->state->at = r->source.at;
  if (!checkpoint_write(r->settings->out, r->state, &r->m, failed)) return false;
  r->saved_step = r->state->step;
  return true;
}

static double seconds_left(const run *r, double seconds_before, int64_t first_step) {
  const double done = finished_part(r), spent = r->state->seconds - seconds_before;
  const double a_step = spent / (double)(r->state->step - first_step);
  const double by_steps = a_step * (double)(r->state->steps - r->state->step);
  if (r->settings->time_limit <= 0 || done >= 1) return done >= 1 ? 0 : by_steps;
  return fmin(by_steps, r->settings->time_limit - r->state->seconds);
}

static bool must_stop(const run *r) {
  return caught || (r->settings->stop_after && r->state->step >= r->settings->stop_after);
}

static bool loop(run *r, failure *failed) {
  run_state *s = r->state;
  const double before = s->seconds, begin = machine_seconds();
  const int64_t first = s->step;
  while (!must_stop(r) && s->step < s->steps && finished_part(r) < 1) {
    step_report report = {.steps = s->steps, .tokens = s->batch * s->length, .rate = learning_rate(r)};
    const double start = machine_seconds();
    if (!take_step(r, &report, failed)) return false;
    s->step++;
    const double end = machine_seconds();
    s->seconds = before + (end - begin);
    report.step = s->step;
    report.seconds = s->seconds;
    report.step_seconds = end - start;
    report.seconds_left = seconds_left(r, before, first);
    if (!progress_step(&r->shown, &report, failed)) return false;
    if (s->step % r->settings->save_every == 0 && !save(r, failed)) return false;
  }
  return true;
}

static bool start(run *r, const checkpoint *from, dataset *data, failure *failed) {
  const run_state *s = r->state;
  const model_settings settings = {s->batch, s->length, r->settings->threads, true};
  model_shape_init(&r->shape, &s->config);
  if (!sampler_open(&r->source, data, s->length, (uint64_t)s->seed, s->at, failed)) return false;
  if (!model_create(&r->m, &r->shape, &settings, failed)) return false;
  if (!from)
    model_init(&r->m, (uint64_t)s->seed);
  else if (!checkpoint_read(from, &r->m, failed))
    return false;
  r->saved_step = from ? s->step : -1;
  return make_directory(r->settings->out, failed) && progress_open(&r->shown, r->settings->out, s->step, failed);
}

static void announce(const run *r, const dataset *data) {
  const model_config *c = &r->shape.config;
  const run_state *s = r->state;
  const bool text = dataset_kind(data) == DATA_TEXT;
  printf("%s: %lld %s (%lld for validation) of %lld %s%s", data_kind_names[dataset_kind(data)], (long long)data->size,
         text                     ? "bytes"
         : data->token_bytes == 2 ? "uint16"
                                  : "uint32",
         (long long)(data->size - data->train_size), (long long)data->count, text ? "file" : "shard",
         data->count == 1 ? "" : "s");
  if (!text) printf(", vocabulary %lld", (long long)data->vocabulary);
  if (data->skipped)
    printf(", %lld %sleft out", (long long)data->skipped, text ? "hidden, binary, empty or unreadable " : "");
  printf(
      "\nmodel: %lld layers of width %lld, %lld heads, %lld experts of %lld (%lld a token), %.2f million parameters\n",
      (long long)c->layers, (long long)c->width, (long long)c->heads, (long long)c->experts, (long long)c->hidden,
      (long long)c->top_k, (double)r->shape.elements * 1e-6);
  printf("run: steps %lld to %lld of %lld x %lld tokens, %d threads, %s, %.0f MiB, into %s\n", (long long)s->step + 1,
         (long long)s->steps, (long long)s->batch, (long long)s->length, r->settings->threads, tigon_cpu_isa(),
         (double)r->m.arena_bytes / 0x1p20, r->settings->out);
  fflush(stdout);
}

static int finish(run *r, dataset *data, failure *failed) {
  if (must_stop(r) && r->state->step < r->state->steps) {
    fprintf(stderr, "tigon train: %s after step %lld; saved %s/%s, go on with --resume\n",
            caught ? "interrupted" : "stopped", (long long)r->state->step, r->settings->out, CHECKPOINT_NAME);
    return caught ? EXIT_SIGNALLED + (int)caught : EXIT_OK;
  }
  release_signals();
  printf("saved %s/%s after step %lld\n", r->settings->out, CHECKPOINT_NAME, (long long)r->state->step);
  fflush(stdout);
  if (r->settings->evaluate &&
      !summarise(&r->m, r->state, data, r->settings->validation_limit, r->settings->out, failed))
    return report("train", failed);
  return EXIT_OK;
}

int train_run(const train_settings *settings, run_state *state, const checkpoint *from, dataset *data) {
  run r = {.settings = settings, .state = state};
  failure failed;
  bool ok = start(&r, from, data, &failed);
  if (ok) {
    catch_signals();
    announce(&r, data);
    ok = loop(&r, &failed);
    progress_pause(&r.shown);
    ok = ok && save(&r, &failed);
  }
  failure ignored;
  ok = (!r.shown.metrics || progress_close(&r.shown, ok ? &failed : &ignored)) && ok;
  const int status = ok ? finish(&r, data, &failed) : report("train", &failed);
  model_destroy(&r.m);
  sampler_close(&r.source);
  return status;
}
