/* `tigon sample`: generates text byte by byte, or token ids. The attention states are all that is kept of what was
 * read, so memory does not grow with the length. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint.h"
#include "commands.h"
#include "forward.h"
#include "options.h"
#include "random.h"

static const char *const description = "Reads the prompt and goes on with the text, as the model of a checkpoint "
                                       "expects it, byte by byte. It prints as it\n"
                                       "goes. A model of token ids reads and prints ids, with a space between them: "
                                       "turning them into text takes\n"
                                       "the tokenizer that made the shards. The memory it needs does not depend on "
                                       "the length.";

static const char *const after = "EXIT STATUS\n"
                                 "       0      Done.\n"
                                 "       1      It failed; a line on standard error says why.\n"
                                 "       2      The command line is wrong.\n"
                                 "\n"
                                 "EXAMPLES\n"
                                 "       tigon sample --checkpoint run --prompt \"And it came to pass\" --tokens 500\n"
                                 "       tigon sample --checkpoint tokens --prompt-tokens \"464 3290\" --tokens 100\n"
                                 "       tigon sample --checkpoint run --temperature 0\n";

typedef struct command_line {
  const char *checkpoint, *prompt, *prompt_tokens;
  int64_t tokens, seed, threads;
  double temperature;
} command_line;

enum { OPTIONS = 8 };

static void list_options(option options[OPTIONS], command_line *c) {
  const option all[OPTIONS] = {
      TEXT("--checkpoint", "DIR|FILE", &c->checkpoint,
           "The directory of a training run, or a checkpoint file. Required."),
      TEXT("--prompt", "TEXT", &c->prompt, "What the text begins with. Default: a new line."),
      TEXT(
          "--prompt-tokens", "\"N N ...\"", &c->prompt_tokens,
          "What a model of token ids goes on from: ids with spaces or commas between them. Required for such a model,\n"
          "which takes no --prompt."),
      INTEGER("--tokens", "N", &c->tokens, 0, 1e12, "Bytes or ids to generate. Default: 400."),
      REAL("--temperature", "X", &c->temperature, 0, 100,
           "1 samples as the model expects, less is more careful, 0 takes the likeliest. Default: 0.8."),
      INTEGER("--seed", "N", &c->seed, 0, 1e15, "Another seed, another text. Default: 1."),
      INTEGER("--threads", "N", &c->threads, 1, 1024, "Threads. Default: 1, which is fastest for small models."),
      {0},
  };
  memcpy(options, all, sizeof all);
}

static double weight_of(float logit, float best, double temperature) {
  return isnan(logit) ? 0 : exp(((double)logit - (double)best) / temperature);
}

/* The next token from the logits; -1 when they hold no number. */
static int32_t choose(const float *logits, int64_t vocabulary, double temperature, random_stream *random) {
  int32_t best = -1;
  for (int32_t i = 0; i < vocabulary; i++)
    if (!isnan(logits[i]) && (best < 0 || logits[i] > logits[best])) best = i;
  if (best < 0 || !isfinite(logits[best])) return -1;
  if (temperature == 0) return best;
  double sum = 0;
  for (int32_t i = 0; i < vocabulary; i++) sum += weight_of(logits[i], logits[best], temperature);
  double mark = random_unit(random) * sum;
  for (int32_t i = 0; i < vocabulary; i++) {
    mark -= weight_of(logits[i], logits[best], temperature);
    if (mark < 0) return i;
  }
  return best;
}

typedef struct output {
  data_kind kind;
  bool terminal, begun;
} output;

/* A terminal gets no control characters from a model. */
static bool print_token(output *out, int32_t token, failure *failed) {
  bool ok;
  if (out->kind == DATA_TOKENS)
    ok = printf(out->begun ? " %d" : "%d", (int)token) > 0;
  else
    ok = putchar(out->terminal && iscntrl(token) && token != '\n' && token != '\t' ? '?' : token) != EOF;
  out->begun = true;
  ok = ok && !(out->terminal && fflush(stdout));
  return ok || fail_with(failed, "standard output: %s", strerror(errno));
}

static bool read_token(model *m, int32_t token, failure *failed) {
  m->tokens[0] = token;
  forward(m);
  return !m->failed_op || fail_with(failed, "%s", tigon_last_error());
}

static bool read_text(model *m, const char *prompt, output *out, failure *failed) {
  for (const char *at = prompt; *at; at++)
    if (!read_token(m, (unsigned char)*at, failed) || !print_token(out, (unsigned char)*at, failed)) return false;
  return *prompt || read_token(m, '\n', failed);
}

/* The next of the ids with spaces and commas between them. -1: there is none; -2: it is no id of the vocabulary. */
static int32_t next_id(const char **text, int64_t vocabulary) {
  static const char between[] = " ,\t\n";
  const char *at = *text + strspn(*text, between);
  int64_t id = 0;
  *text = at;
  if (!*at) return -1;
  for (; isdigit((unsigned char)*at) && id < vocabulary; at++) id = 10 * id + *at - '0';
  if ((*at && !strchr(between, *at)) || id >= vocabulary) return -2;
  *text = at;
  return (int32_t)id;
}

/* All are checked before one is read. */
static bool read_ids(model *m, const char *prompt, output *out, failure *failed) {
  const int64_t vocabulary = m->shape->config.vocabulary;
  const char *at = prompt;
  int32_t id;
  int64_t count = 0;
  while ((id = next_id(&at, vocabulary)) >= 0) count++;
  if (id == -2)
    return fail_with(failed, "--prompt-tokens: expected token ids from 0 to %lld, got \"%.*s\"",
                     (long long)vocabulary - 1, (int)strcspn(at, " ,\t\n"), at);
  if (!count) return fail_with(failed, "--prompt-tokens: holds no id");
  for (at = prompt; (id = next_id(&at, vocabulary)) >= 0;)
    if (!read_token(m, id, failed) || !print_token(out, id, failed)) return false;
  return true;
}

/* Which prompt the model can read. */
static bool check_prompt(const command_line *c, const checkpoint *file, failure *failed) {
  if (file->state.kind == DATA_TEXT)
    return !c->prompt_tokens ||
           fail_with(failed, "%s: is a model of text: give --prompt in place of --prompt-tokens", file->path);
  if (c->prompt)
    return fail_with(failed,
                     "%s: is a model of token ids and no tokenizer is here: give --prompt-tokens in place of --prompt",
                     file->path);
  return c->prompt_tokens ||
         fail_with(failed, "%s: is a model of token ids: --prompt-tokens must say what to go on from", file->path);
}

static bool generate(model *m, const command_line *c, output *out, failure *failed) {
  random_stream random = random_open((uint64_t)c->seed, UINT64_C(0x73616d706c65));
  const bool ok = out->kind == DATA_TEXT ? read_text(m, c->prompt ? c->prompt : "", out, failed)
                                         : read_ids(m, c->prompt_tokens, out, failed);
  if (!ok) return false;
  for (int64_t i = 0; i < c->tokens; i++) {
    const int32_t token = choose(m->next_logits, m->shape->config.vocabulary, c->temperature, &random);
    if (token < 0) return fail_with(failed, "%s: the model's output is not a number", c->checkpoint);
    if (!print_token(out, token, failed) || !read_token(m, token, failed)) return false;
  }
  if (out->terminal || out->kind == DATA_TOKENS) putchar('\n');
  return !fflush(stdout) || fail_with(failed, "standard output: %s", strerror(errno));
}

int command_sample(int argc, char **argv) {
  static const command_help help = {"sample", "--checkpoint DIR|FILE [OPTION...]",
                                    "generate text or tokens with a trained model", description, after};
  command_line c = {.tokens = 400, .seed = 1, .threads = 1, .temperature = 0.8};
  option options[OPTIONS];
  list_options(options, &c);
  int status;
  if (!options_parse(options, &help, argc, argv, &status)) return status;
  if (!c.checkpoint) return misuse("sample", "--checkpoint is missing");
  static checkpoint file;
  failure failed;
  if (!checkpoint_open(&file, c.checkpoint, &failed)) return report("sample", &failed);
  const model_settings settings = {.batch = 1, .length = 1, .threads = (int)c.threads, .training = false};
  output out = {.kind = file.state.kind, .terminal = isatty(STDOUT_FILENO)};
  model m;
  bool ok = check_prompt(&c, &file, &failed) && model_create(&m, &file.shape, &settings, &failed);
  if (ok) {
    ok = checkpoint_read(&file, &m, &failed) && generate(&m, &c, &out, &failed);
    model_destroy(&m);
  }
  checkpoint_close(&file);
  return ok ? EXIT_OK : report("sample", &failed);
}
