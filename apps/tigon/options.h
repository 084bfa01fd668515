/*
 * Command lines: a table of options, from which arguments are read and the help text is printed.
 *
 * Accepts `--name VALUE` and `--name=VALUE`. A list takes all words up to the next option.
 */
#ifndef APPS_OPTIONS_H
#define APPS_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum option_kind { OPTION_INTEGER, OPTION_REAL, OPTION_TEXT, OPTION_LIST, OPTION_FLAG } option_kind;

typedef struct text_list {
  char **items;
  int count;
} text_list;

typedef struct option {
  const char *name;  /* "--steps"; NULL ends the table */
  const char *value; /* what the help calls the value: "N" */
  option_kind kind;
  void *target;     /* int64_t, double, const char *, text_list or bool */
  double min, max;  /* of numbers, inclusive */
  const char *help; /* may hold several lines */
  bool given;       /* set by options_parse */
} option;

/* Rows of the table: name, what the help calls the value, target, least and greatest value, help. */
#define INTEGER(n, v, t, low, high, h) \
  { .name = n, .value = v, .kind = OPTION_INTEGER, .target = t, .min = low, .max = high, .help = h }
#define REAL(n, v, t, low, high, h) \
  { .name = n, .value = v, .kind = OPTION_REAL, .target = t, .min = low, .max = high, .help = h }
#define TEXT(n, v, t, h) \
  { .name = n, .value = v, .kind = OPTION_TEXT, .target = t, .help = h }
#define LIST(n, v, t, h) \
  { .name = n, .value = v, .kind = OPTION_LIST, .target = t, .help = h }
#define FLAG(n, t, h) \
  { .name = n, .kind = OPTION_FLAG, .target = t, .help = h }

typedef struct command_help {
  const char *command;     /* "train" */
  const char *synopsis;    /* after "tigon train" */
  const char *summary;     /* one line */
  const char *description; /* paragraphs */
  const char *after;       /* sections after OPTIONS */
} command_help;

/* Reads argv[1..]. Returns true to go on. Otherwise *status is the exit status: EXIT_OK after --help, EXIT_MISUSED
 * after a message that names the argument. */
bool options_parse(option *options, const command_help *help, int argc, char **argv, int *status);

bool option_given(const option *options, const char *name);

/* "tigon COMMAND: TEXT" and where to find help, on standard error; returns EXIT_MISUSED. */
__attribute__((format(printf, 2, 3))) int misuse(const char *command, const char *format, ...);

#endif
