/* `tigon train`: the command line, what it may and may not change of a checkpoint, and the run. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "commands.h"
#include "options.h"
#include "train.h"

static const char *const description =
    "Trains a decoder-only language model over bytes: lightning attention with an output gate, and a mixture of "
    "SwiGLU\n"
    "experts, in every layer. The last 5 % of the text (at least 100 000 bytes, at most a fifth) are kept for "
    "validation;\n"
    "the rest is visited in windows of --seq bytes, each once a pass, in random order. AdamW with linear warm-up and\n"
    "cosine decay; the gradient is clipped. At the end the validation loss is shown beside the text's own n-gram "
    "models.\n"
    "\n"
    "The first SIGINT (Ctrl-C), SIGTERM or SIGHUP finishes the step, saves and ends the run; the second ends it at "
    "once.\n"
    "A run that was stopped goes on with --resume and has then the same bits as one that was not, whatever --threads.";

static const char *const after =
    "FILES\n"
    "       DIR/checkpoint.safetensors\n"
    "              Weights, optimiser and position. It is replaced in one piece: whatever happens, it is whole.\n"
    "       DIR/metrics.jsonl\n"
    "              One JSON object a step: step, loss (nats a byte), lr, grad_norm, tokens_per_second, balance (1 is\n"
    "              even), busiest_expert (1 is an even share), tokens, seconds.\n"
    "       DIR/summary.json\n"
    "              Validation loss, n-gram losses, speed and time; written when all steps are done.\n"
    "\n"
    "EXIT STATUS\n"
    "       0      The run is done (or reached --stop-after).\n"
    "       1      It failed; a line on standard error says why. The last checkpoint is as it was.\n"
    "       2      The command line is wrong.\n"
    "       128+N  Signal N stopped it after saving: 130 for Ctrl-C.\n"
    "\n"
    "EXAMPLES\n"
    "       tigon train --data book.txt --out run\n"
    "       tigon train --data texts/ more.txt --steps 5000 --batch 16 --out big\n"
    "       tigon train --data book.txt --out run --resume --steps 4000\n"
    "       tigon sample --checkpoint run --prompt \"In the beginning\"\n";

/* What a preset trains with where the command line says nothing. */
typedef struct preset {
  const char *name;
  int64_t steps, batch, length;
  double rate;
} preset;

static const preset presets[] = {{"tiny", 200, 8, 64, 6e-3}, {"small", 2000, 8, 128, 4e-3}};

typedef struct command_line {
  text_list data;
  const char *preset;
  int64_t steps, batch, length, seed, threads, save_every, stop_after;
  double rate, time_limit;
  const char *out;
  bool resume, skip_validation;
} command_line;

enum { OPTIONS = 16 };

static void list_options(option options[OPTIONS], command_line *c) {
  const option all[OPTIONS] = {
      LIST("--data", "PATH...", &c->data,
           "Text to learn: files are taken as they are; of directories all files in order of name, but for those\n"
           "that are hidden, empty, or binary (hold a NUL byte). Required."),
      TEXT("--out", "DIR", &c->out, "Where the run's files go; created when missing. Default: tigon-run."),
      TEXT("--preset", "tiny|small", &c->preset,
           "Size of the model and defaults of the next four options. Default: small.\n"
           "tiny trains in seconds, small in about two minutes on two cores."),
      INTEGER("--steps", "N", &c->steps, 1, 1e9, "Number of optimiser steps."),
      INTEGER("--batch", "N", &c->batch, 1, 65536, "Sequences a step."),
      INTEGER("--seq", "N", &c->length, 1, 1 << 20, "Tokens (bytes) a sequence."),
      REAL("--lr", "X", &c->rate, 0, 10, "Peak learning rate."),
      INTEGER("--seed", "N", &c->seed, 0, 1e15,
              "Seed of the initial weights and of the order of the text. Default: 1."),
      INTEGER("--threads", "N", &c->threads, 1, 1024,
              "Threads. Default: the processors that this process may use. Results do not depend on it."),
      INTEGER("--save-every", "N", &c->save_every, 1, 1e9,
              "Steps between checkpoints. Default: 500. The last step is always saved."),
      REAL("--time-limit", "SECONDS", &c->time_limit, 0, 1e9,
           "Training time after which the run is done, if it has not taken all steps by then; the learning rate\n"
           "follows whichever of steps and time is further. 0, the default: no limit. Where the limit ends a run,\n"
           "its result depends on the speed of the machine."),
      INTEGER("--stop-after", "N", &c->stop_after, 1, 1e9,
              "Save and stop after step N, as a signal would, for work in portions."),
      FLAG("--resume", &c->resume,
           "Go on from DIR/checkpoint.safetensors. The model, --batch, --seq and --seed are the checkpoint's, the\n"
           "data must be the same; --steps and --lr may be changed."),
      FLAG("--skip-validation", &c->skip_validation, "End without validation and summary."),
      {0},
  };
  memcpy(options, all, sizeof all);
}

static bool given(const option *options, const char *name) { return option_given(options, name); }

/* The state of a new run. */
static bool begin_new(const command_line *c, const option *options, run_state *s, int *status) {
  const preset *p = presets;
  while (p < presets + sizeof presets / sizeof *presets && strcmp(p->name, c->preset)) p++;
  if (p == presets + sizeof presets / sizeof *presets || !model_preset(c->preset, &s->config)) {
    *status = misuse("train", "--preset: expected tiny or small, got \"%s\"", c->preset);
    return false;
  }
  s->vocabulary = VOCABULARY;
  s->steps = given(options, "--steps") ? c->steps : p->steps;
  s->batch = given(options, "--batch") ? c->batch : p->batch;
  s->length = given(options, "--seq") ? c->length : p->length;
  s->rate = given(options, "--lr") ? c->rate : p->rate;
  s->seed = c->seed;
  char path[4096];
  struct stat existing;
  if (join_path(path, sizeof path, c->out, CHECKPOINT_NAME) && !lstat(path, &existing)) {
    failure failed;
    fail_with(&failed, "%s exists: go on from it with --resume, or choose another --out", path);
    *status = report("train", &failed);
    return false;
  }
  return true;
}

/* What the command line asks must agree with the checkpoint. */
static bool check_same(const command_line *c, const option *options, const checkpoint *from, failure *failed) {
  const run_state *s = &from->state;
  model_config config;
  if (given(options, "--preset") && (!model_preset(c->preset, &config) || memcmp(&config, &s->config, sizeof config)))
    return fail_with(failed,
                     "%s: holds another shape than --preset %s: %lld layers of width %lld, %lld experts of %lld",
                     from->path, c->preset, (long long)s->config.layers, (long long)s->config.width,
                     (long long)s->config.experts, (long long)s->config.hidden);
  const struct {
    const char *name;
    int64_t asked, held;
  } fixed[] = {{"--batch", c->batch, s->batch}, {"--seq", c->length, s->length}, {"--seed", c->seed, s->seed}};
  for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
    if (given(options, fixed[i].name) && fixed[i].asked != fixed[i].held)
      return fail_with(failed, "%s: was made with %s %lld, not %lld", from->path, fixed[i].name,
                       (long long)fixed[i].held, (long long)fixed[i].asked);
  return true;
}

static bool begin_again(const command_line *c, const option *options, checkpoint *from, run_state *s, int *status) {
  failure failed;
  if (!checkpoint_open(from, c->out, &failed) || !check_same(c, options, from, &failed)) {
    *status = report("train", &failed);
    return false;
  }
  *s = from->state;
  if (given(options, "--steps")) s->steps = c->steps;
  if (given(options, "--lr")) s->rate = c->rate;
  return true;
}

/* mkdir -p */
static bool make_directory(const char *path, failure *failed) {
  char part[4096];
  if (strlen(path) >= sizeof part) return fail_with(failed, "%s: the name is too long", path);
  for (size_t i = 1; i <= strlen(path); i++) {
    if (path[i] && path[i] != '/') continue;
    memcpy(part, path, i);
    part[i] = 0;
    struct stat status;
    if (mkdir(part, 0777) && (errno != EEXIST || stat(part, &status) || !S_ISDIR(status.st_mode)))
      return fail_with(failed, "%s: cannot make the directory: %s", path, strerror(errno));
  }
  return true;
}

static int run(const command_line *c, run_state *s, const checkpoint *from) {
  failure failed;
  text_data data;
  if (!text_read(&data, &c->data, &failed)) return report("train", &failed);
  bool ok = true;
  if (from && (data.size != s->data_bytes || data.hash != s->data_hash))
    ok = fail_with(&failed, "%s: was made with other data (%lld bytes; --data holds %lld)", from->path,
                   (long long)s->data_bytes, (long long)data.size);
  s->data_bytes = data.size;
  s->data_hash = data.hash;
  ok = ok && make_directory(c->out, &failed);
  const train_settings settings = {
      .out = c->out,
      .threads = c->threads ? (int)c->threads : (int)tigon_cpu_threads(),
      .save_every = c->save_every,
      .stop_after = c->stop_after,
      .time_limit = c->time_limit,
      .adamw = {.beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f, .clip = 1},
      .balance = 0.03,
      .evaluate = !c->skip_validation,
  };
  const int status = ok ? train_run(&settings, s, from, &data) : report("train", &failed);
  text_free(&data);
  return status;
}

int command_train(int argc, char **argv) {
  static const command_help help = {"train", "--data PATH... [OPTION...]", "train a language model on text",
                                    description, after};
  command_line c = {.preset = "small", .out = "tigon-run", .seed = 1, .save_every = 500};
  option options[OPTIONS];
  list_options(options, &c);
  int status;
  if (!options_parse(options, &help, argc, argv, &status)) return status;
  if (!c.data.count) return misuse("train", "--data is missing");
  if (!*c.out) return misuse("train", "--out: expected a directory, got \"\"");
  run_state state = {0};
  static checkpoint from;
  from.descriptor = -1;
  if (c.resume ? !begin_again(&c, options, &from, &state, &status) : !begin_new(&c, options, &state, &status))
    return status;
  status = run(&c, &state, c.resume ? &from : NULL);
  checkpoint_close(&from);
  return status;
}
