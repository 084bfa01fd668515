/* The program `tigon`: trains, samples and measures with the library, as a client of its public headers. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <tigon/tigon.h>
#include <unistd.h>

#include "commands.h"
#include "failure.h"

static const struct {
  const char *name;
  int (*run)(int argc, char **argv);
  const char *summary;
} commands[] = {
    {"train", command_train, "train a language model on text or tokens"},
    {"sample", command_sample, "generate text or tokens with a trained model"},
    {"bench", command_bench, "measure the speed of each family"},
    {"info", command_info, "what this build and this machine offer"},
};

enum { COMMANDS = sizeof commands / sizeof *commands };

static void usage(FILE *to) {
  fprintf(to, "usage: tigon COMMAND [OPTION...]\n\n");
  for (int i = 0; i < COMMANDS; i++) fprintf(to, "  %-8s %s\n", commands[i].name, commands[i].summary);
  fprintf(to, "\n`tigon COMMAND --help` is the manual of a command; `tigon --version` prints the version.\n"
              "exit status: 0 done, 1 failed, 2 wrong command line, 128 + N stopped by signal N after saving\n");
}

static int misused(const char *what, const char *word) {
  failure clean;
  fail_with(&clean, "%s \"%.60s\" (see `tigon --help`)", what, word);
  fprintf(stderr, "tigon: %s\n", clean.text);
  return EXIT_MISUSED;
}

static int run(int argc, char **argv) {
  if (argc < 2) {
    usage(stderr);
    return EXIT_MISUSED;
  }
  const bool help = !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help");
  if (help || !strcmp(argv[1], "--version")) {
    if (argc > 2) return misused("unexpected argument", argv[2]);
    if (help)
      usage(stdout);
    else
      printf("tigon %s\n", tigon_version());
    return EXIT_OK;
  }
  for (int i = 0; i < COMMANDS; i++)
    if (!strcmp(argv[1], commands[i].name)) return commands[i].run(argc - 1, argv + 1);
  return misused("unknown command", argv[1]);
}

/* Where the caller closed a standard stream, the next file opened would take its number and what is printed. Writes to
 * these, opened for reading, fail instead. */
static void fill_standard_streams(void) {
  int descriptor;
  do descriptor = open("/dev/null", O_RDONLY);
  while (descriptor >= 0 && descriptor <= STDERR_FILENO);
  if (descriptor >= 0) close(descriptor);
}

int main(int argc, char **argv) {
  fill_standard_streams();
  /* A file that grows past the limit of its size is an error of that write, like a full disk. */
  signal(SIGXFSZ, SIG_IGN);
  const int status = run(argc, argv);
  errno = 0;
  const bool printed = !fflush(stdout) && !ferror(stdout);
  if (printed || status != EXIT_OK) return status;
  fprintf(stderr, "tigon: cannot write to standard output%s%s\n", errno ? ": " : "", errno ? strerror(errno) : "");
  return EXIT_FAILED;
}
