/* `tigon train`: the command line, what it may and may not change of a checkpoint, and the run. */
#include <string.h>
#include <sys/stat.h>

#include "commands.h"
#include "options.h"
#include "paths.h"
#include "train.h"

static const char *const description =
    "Trains a decoder-only language model over bytes or token ids: lightning attention with an output gate, and a\n"
    "mixture of SwiGLU experts, in every layer. Without data for validation the last 5 % (at least 100 000 tokens, at\n"
    "most a fifth) are kept for it; the rest is visited in windows of --seq tokens, each once a pass, in random "
    "order.\n"
    "AdamW with linear warm-up and cosine decay; the gradient is clipped. At the end the validation loss is shown, "
    "that\n"
    "of text beside its own n-gram models.\n"
    "\n"
    "The first SIGINT (Ctrl-C), SIGTERM or SIGHUP finishes the step, saves and ends the run; the second ends it at\n"
    "once. A run that was stopped goes on with --resume and has then the same bits as one that was not, whatever\n"
    "--threads.";

static const char *const after =
    "FILES\n"
    "       DIR/checkpoint.safetensors\n"
    "              Weights, optimiser and position. It is replaced in one piece: whatever happens, it is whole.\n"
    "       DIR/metrics.jsonl\n"
    "              One JSON object a step: step, loss (nats a token), lr, grad_norm, tokens_per_second, balance (1 is\n"
    "              even), busiest_expert (1 is an even share), tokens, seconds.\n"
    "       DIR/summary.json\n"
    "              Validation loss, n-gram losses of text, speed and time; written when all steps are done.\n"
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
    "       tigon train --data 'fineweb_train_*.bin' --validation fineweb_val_000000.bin --out tokens\n"
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
  text_list data, validation;
  const char *preset;
  int64_t steps, batch, length, seed, threads, save_every, stop_after, vocabulary, validation_limit;
  double rate, time_limit;
  const char *out;
  bool resume, skip_validation;
} command_line;

enum { OPTIONS = 19 };

static void list_options(option options[OPTIONS], command_line *c) {
  const option all[OPTIONS] = {
      LIST("--data", "PATH...", &c->data,
           "What to learn. Names that end in .bin are shards of tokens (of llm.c: uint16 or uint32; of nanoGPT:\n"
           "uint16 without a header); other files are text, whose bytes are the tokens. A directory with shards gives\n"
           "these; any other all files of text in it and below, in order of name, but for those that are hidden,\n"
           "empty, or binary (hold a NUL byte). A name with * ? [ that is no file is a pattern. Required."),
      LIST("--validation", "PATH...", &c->validation,
           "Data for validation, named as above. Default: shards of --data with the word val in their name or beside\n"
           "one whose name has the word train in its place; without any, the end of --data."),
      INTEGER("--vocab", "N", &c->vocabulary, 1, MAX_VOCABULARY,
              "Vocabulary of shards: ids are less than N. Default: 50257 (GPT-2) for uint16, 128256 (Llama 3) for\n"
              "uint32. Text has 256."),
      TEXT("--out", "DIR", &c->out, "Where the run's files go; created when missing. Default: tigon-run."),
      TEXT("--preset", "tiny|small", &c->preset,
           "Size of the model and defaults of the next four options. Default: small.\n"
           "tiny trains in seconds, small in a minute and a half on two cores."),
      INTEGER("--steps", "N", &c->steps, 1, 1e9, "Number of optimiser steps."),
      INTEGER("--batch", "N", &c->batch, 1, 65536, "Sequences a step."),
      INTEGER("--seq", "N", &c->length, 1, 1 << 20, "Tokens a sequence."),
      REAL("--lr", "X", &c->rate, 0, 10, "Peak learning rate."),
      INTEGER("--seed", "N", &c->seed, 0, 1e15,
              "Seed of the initial weights and of the order of the data. Default: 1."),
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
      INTEGER("--validation-tokens", "N", &c->validation_limit, 1, 1e15,
              "Tokens (bytes of text) that are scored at the end, the first ones. Default: 1000000."),
      FLAG("--resume", &c->resume,
           "Go on from DIR/checkpoint.safetensors. The model, --batch, --seq, --seed and --vocab are those of the\n"
           "checkpoint, the data must be the same; --steps and --lr may be changed."),
      FLAG("--skip-validation", &c->skip_validation, "End without validation and summary."),
      {0},
  };
  memcpy(options, all, sizeof all);
}

static bool given(const option *options, const char *name) { return option_given(options, name); }

/* What --preset names. */
static const preset *find_preset(const char *name, model_config *config) {
  for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
    if (!strcmp(presets[i].name, name) && model_preset(name, config)) return &presets[i];
  return NULL;
}

/* The state of a new run, all but what the data decide. */
static bool begin_new(const command_line *c, const option *options, const preset *p, run_state *s, failure *failed) {
  s->steps = given(options, "--steps") ? c->steps : p->steps;
  s->batch = given(options, "--batch") ? c->batch : p->batch;
  s->length = given(options, "--seq") ? c->length : p->length;
  s->rate = given(options, "--lr") ? c->rate : p->rate;
  s->seed = c->seed;
  char path[4096];
  struct stat existing;
  if (join_path(path, sizeof path, c->out, CHECKPOINT_NAME) && !lstat(path, &existing))
    return fail_with(failed, "%s exists: go on from it with --resume, or choose another --out", path);
  return true;
}

/* What the command line asks must agree with the checkpoint. */
static bool check_same(const command_line *c, const option *options, const model_config *asked, const checkpoint *from,
                       failure *failed) {
  const run_state *s = &from->state;
  model_config config = *asked;
  config.vocabulary = s->config.vocabulary;
  if (given(options, "--preset") && memcmp(&config, &s->config, sizeof config))
    return fail_with(failed,
                     "%s: holds another shape than --preset %s: %lld layers of width %lld, %lld experts of %lld",
                     from->path, c->preset, (long long)s->config.layers, (long long)s->config.width,
                     (long long)s->config.experts, (long long)s->config.hidden);
  const struct {
    const char *name;
    int64_t asked, held;
  } fixed[] = {{"--batch", c->batch, s->batch},
               {"--seq", c->length, s->length},
               {"--seed", c->seed, s->seed},
               {"--vocab", c->vocabulary, s->config.vocabulary}};
  for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
    if (given(options, fixed[i].name) && fixed[i].asked != fixed[i].held)
      return fail_with(failed, "%s: was made with %s %lld, not %lld", from->path, fixed[i].name,
                       (long long)fixed[i].held, (long long)fixed[i].asked);
  return true;
}

static bool begin_again(const command_line *c, const option *options, const model_config *asked, checkpoint *from,
                        run_state *s, failure *failed) {
  if (!checkpoint_open(from, c->out, failed) || !check_same(c, options, asked, from, failed)) return false;
  *s = from->state;
  if (given(options, "--steps")) s->steps = c->steps;
  if (given(options, "--lr")) s->rate = c->rate;
  return true;
}

/* The data of the checkpoint and no others. */
static bool check_same_data(const checkpoint *from, const dataset *data, failure *failed) {
  const run_state *s = &from->state;
  const long long bytes = (long long)data->size * data->token_bytes;
  if (dataset_kind(data) != s->kind)
    return fail_with(failed, "%s: was made with %s, but --data holds %s", from->path, data_kind_names[s->kind],
                     data_kind_names[dataset_kind(data)]);
  return (bytes == s->data_bytes && data->hash == s->data_hash) ||
         fail_with(failed, "%s: was made with other data (%lld bytes; --data and --validation hold %lld)", from->path,
                   (long long)s->data_bytes, bytes);
}

static int run(const command_line *c, run_state *s, const checkpoint *from) {
  failure failed;
  dataset data;
  const int64_t vocabulary = from && s->kind == DATA_TOKENS ? s->config.vocabulary : c->vocabulary;
  if (!dataset_open(&data, &c->data, &c->validation, vocabulary, &failed)) return report("train", &failed);
  bool ok = !from || check_same_data(from, &data, &failed);
  if (!from && c->vocabulary && data.vocabulary != c->vocabulary)
    ok = fail_with(&failed, "%s: is text, whose vocabulary is %d: --vocab is for shards of tokens (.bin)",
                   data.parts[0].path, TEXT_VOCABULARY);
  s->kind = dataset_kind(&data);
  s->config.vocabulary = data.vocabulary;
  s->data_bytes = data.size * data.token_bytes;
  s->data_hash = data.hash;
  const train_settings settings = {
      .out = c->out,
      .threads = c->threads ? (int)c->threads : (int)tigon_cpu_threads(),
      .save_every = c->save_every,
      .stop_after = c->stop_after,
      .time_limit = c->time_limit,
      .adamw = {.beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f, .clip = 1},
      .balance = 0.03,
      .evaluate = !c->skip_validation,
      .validation_limit = c->validation_limit,
  };
  const int status = ok ? train_run(&settings, s, from, &data) : report("train", &failed);
  dataset_close(&data);
  return status;
}

int command_train(int argc, char **argv) {
  static const command_help help = {"train", "--data PATH... [OPTION...]", "train a language model on text or tokens",
                                    description, after};
  command_line c = {.preset = "small", .out = "tigon-run", .seed = 1, .save_every = 500, .validation_limit = 1000000};
  option options[OPTIONS];
  list_options(options, &c);
  int status;
  if (!options_parse(options, &help, argc, argv, &status)) return status;
  if (!c.data.count) return misuse("train", "--data is missing");
  if (!*c.out) return misuse("train", "--out: expected a directory, got \"\"");
  run_state state = {0};
  const preset *p = find_preset(c.preset, &state.config);
  if (!p) return misuse("train", "--preset: expected tiny or small, got \"%s\"", c.preset);
  static checkpoint from;
  failure failed;
  from.descriptor = -1;
  const model_config asked = state.config;
  const bool ok =
      c.resume ? begin_again(&c, options, &asked, &from, &state, &failed) : begin_new(&c, options, p, &state, &failed);
  status = ok ? run(&c, &state, c.resume ? &from : NULL) : report("train", &failed);
  checkpoint_close(&from);
  return status;
}
