/* `tigon sample`: generates text byte by byte. The attention states are all that is kept of what was read, so memory
 * does not grow with the length. */
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
                                       "goes. The memory it needs does not depend on the length of the text.";

static const char *const after = "EXIT STATUS\n"
                                 "       0      Done.\n"
                                 "       1      It failed; a line on standard error says why.\n"
                                 "       2      The command line is wrong.\n"
                                 "\n"
                                 "EXAMPLES\n"
                                 "       tigon sample --checkpoint run --prompt \"And it came to pass\" --tokens 500\n"
                                 "       tigon sample --checkpoint run --temperature 0\n";

typedef struct command_line {
  const char *checkpoint, *prompt;
  int64_t tokens, seed, threads;
  double temperature;
} command_line;

enum { OPTIONS = 7 };

static void list_options(option options[OPTIONS], command_line *c) {
  const option all[OPTIONS] = {
      TEXT("--checkpoint", "DIR|FILE", &c->checkpoint,
           "The directory of a training run, or a checkpoint file. Required."),
      TEXT("--prompt", "TEXT", &c->prompt, "What the text begins with. Default: a new line."),
      INTEGER("--tokens", "N", &c->tokens, 0, 1e12, "Bytes to generate. Default: 400."),
      REAL("--temperature", "X", &c->temperature, 0, 100,
           "1 samples as the model expects, less is more careful, 0 takes the likeliest byte. Default: 0.8."),
      INTEGER("--seed", "N", &c->seed, 0, 1e15, "Another seed, another text. Default: 1."),
      INTEGER("--threads", "N", &c->threads, 1, 1024, "Threads. Default: 1, which is fastest for small models."),
      {0},
  };
  memcpy(options, all, sizeof all);
}

/* The next byte from the logits; -1 when they hold no number. */
static int choose(const float *logits, double temperature, random_stream *random) {
  int best = -1;
  for (int i = 0; i < VOCABULARY; i++)
    if (!isnan(logits[i]) && (best < 0 || logits[i] > logits[best])) best = i;
  if (best < 0 || !isfinite(logits[best])) return -1;
  if (temperature == 0) return best;
  double weights[VOCABULARY], sum = 0;
  for (int i = 0; i < VOCABULARY; i++) {
    weights[i] = isnan(logits[i]) ? 0 : exp(((double)logits[i] - (double)logits[best]) / temperature);
    sum += weights[i];
  }
  double mark = random_unit(random) * sum;
  for (int i = 0; i < VOCABULARY; i++) {
    mark -= weights[i];
    if (mark < 0) return i;
  }
  return best;
}

/* A terminal gets no control characters from a model. */
static bool print_byte(int byte, bool terminal) {
  if (terminal && (iscntrl(byte) && byte != '\n' && byte != '\t')) byte = '?';
  return putchar(byte) != EOF && !(terminal && fflush(stdout));
}

static bool read_byte(model *m, int byte, failure *failed) {
  m->tokens[0] = byte;
  forward(m);
  return !m->failed_op || fail_with(failed, "%s", tigon_last_error());
}

static bool generate(model *m, const command_line *c, failure *failed) {
  const bool terminal = isatty(STDOUT_FILENO);
  random_stream random = random_open((uint64_t)c->seed, UINT64_C(0x73616d706c65));
  for (const char *at = c->prompt; *at; at++) {
    if (!read_byte(m, (unsigned char)*at, failed)) return false;
    if (!print_byte((unsigned char)*at, terminal)) return fail_with(failed, "standard output: %s", strerror(errno));
  }
  if (!*c->prompt && !read_byte(m, '\n', failed)) return false;
  for (int64_t i = 0; i < c->tokens; i++) {
    const int byte = choose(m->next_logits, c->temperature, &random);
    if (byte < 0) return fail_with(failed, "%s: the model's output is not a number", c->checkpoint);
    if (!print_byte(byte, terminal)) return fail_with(failed, "standard output: %s", strerror(errno));
    if (!read_byte(m, byte, failed)) return false;
  }
  return !fflush(stdout) || fail_with(failed, "standard output: %s", strerror(errno));
}

int command_sample(int argc, char **argv) {
  static const command_help help = {"sample", "--checkpoint DIR|FILE [OPTION...]", "generate text with a trained model",
                                    description, after};
  command_line c = {.prompt = "", .tokens = 400, .seed = 1, .threads = 1, .temperature = 0.8};
  option options[OPTIONS];
  list_options(options, &c);
  int status;
  if (!options_parse(options, &help, argc, argv, &status)) return status;
  if (!c.checkpoint) return misuse("sample", "--checkpoint is missing");
  static checkpoint file;
  failure failed;
  if (!checkpoint_open(&file, c.checkpoint, &failed)) return report("sample", &failed);
  const model_settings settings = {.batch = 1, .length = 1, .threads = (int)c.threads, .training = false};
  model m;
  bool ok = model_create(&m, &file.shape, &settings, &failed);
  if (ok) {
    ok = checkpoint_read(&file, &m, &failed) && generate(&m, &c, &failed);
    if (ok && isatty(STDOUT_FILENO)) putchar('\n');
    model_destroy(&m);
  }
  checkpoint_close(&file);
  return ok ? EXIT_OK : report("sample", &failed);
}
