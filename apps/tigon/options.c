#include "options.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "failure.h"

int misuse(const char *command, const char *format, ...) {
  failure clean;
  va_list arguments;
  va_start(arguments, format);
  fail_with_list(&clean, format, arguments);
  va_end(arguments);
  fprintf(stderr, "tigon %s: %s (see `tigon %s --help`)\n", command, clean.text, command);
  return EXIT_MISUSED;
}

/* Text of several lines, each indented. */
static void print_indented(const char *text, int indent) {
  while (*text) {
    const int length = (int)strcspn(text, "\n");
    if (length) printf("%*s%.*s", indent, "", length, text);
    putchar('\n');
    text += length + (text[length] == '\n');
  }
}

static void print_help(const option *options, const command_help *help) {
  printf("NAME\n       tigon %s - %s\n\nSYNOPSIS\n       tigon %s %s\n\nDESCRIPTION\n", help->command, help->summary,
         help->command, help->synopsis);
  print_indented(help->description, 7);
  printf("\nOPTIONS\n");
  for (const option *o = options; o->name; o++) {
    printf("       %s%s%s\n", o->name, o->value ? " " : "", o->value ? o->value : "");
    print_indented(o->help, 14);
    putchar('\n');
  }
  printf("       --help\n              Print this text.\n\n");
  print_indented(help->after, 0);
}

static bool read_integer(const option *o, const char *text) {
  char *end;
  errno = 0;
  const long long value = strtoll(text, &end, 10);
  if (end == text || *end || errno || (double)value < o->min || (double)value > o->max) return false;
  *(int64_t *)o->target = value;
  return true;
}

static bool read_real(const option *o, const char *text) {
  char *end;
  errno = 0;
  const double value = strtod(text, &end);
  if (end == text || *end || errno == ERANGE || !isfinite(value) || value < o->min || value > o->max) return false;
  *(double *)o->target = value;
  return true;
}

static bool read_value(option *o, char *text, const char *command, int *status) {
  if (o->kind == OPTION_TEXT) {
    *(const char **)o->target = text;
  } else if (o->kind == OPTION_INTEGER && !read_integer(o, text)) {
    *status = misuse(command, "%s: expected an integer from %.0f to %.0f, got \"%s\"", o->name, o->min, o->max, text);
    return false;
  } else if (o->kind == OPTION_REAL && !read_real(o, text)) {
    *status = misuse(command, "%s: expected a number from %g to %g, got \"%s\"", o->name, o->min, o->max, text);
    return false;
  }
  return true;
}

static option *find(option *options, const char *name, size_t length) {
  for (option *o = options; o->name; o++)
    if (strlen(o->name) == length && !memcmp(o->name, name, length)) return o;
  return NULL;
}

static bool is_option(const char *word) { return word[0] == '-' && word[1] == '-'; }

/* The words of a list stay where they are in argv. */
static int read_list(const option *o, char **words) {
  text_list *list = o->target;
  list->items = words;
  list->count = 0;
  while (words[list->count] && !is_option(words[list->count])) list->count++;
  return list->count;
}

bool options_parse(option *options, const command_help *help, int argc, char **argv, int *status) {
  *status = EXIT_MISUSED;
  for (int i = 1; i < argc; i++) {
    char *word = argv[i];
    if (!strcmp(word, "--help") || !strcmp(word, "-h")) {
      print_help(options, help);
      *status = EXIT_OK;
      return false;
    }
    char *equals = is_option(word) ? strchr(word, '=') : NULL;
    option *o = find(options, word, equals ? (size_t)(equals - word) : strlen(word));
    if (!o) {
      misuse(help->command, is_option(word) ? "unknown option \"%s\"" : "unexpected argument \"%s\"", word);
      return false;
    }
    if (o->given) {
      misuse(help->command, "%s is given twice", o->name);
      return false;
    }
    o->given = true;
    if (o->kind == OPTION_FLAG) {
      if (equals) {
        misuse(help->command, "%s takes no value", o->name);
        return false;
      }
      *(bool *)o->target = true;
    } else if (equals && o->kind != OPTION_LIST) {
      if (!read_value(o, equals + 1, help->command, status)) return false;
    } else if (equals) {
      argv[i] = equals + 1;
      i += read_list(o, argv + i) - 1;
    } else if (!argv[i + 1] || (is_option(argv[i + 1]) && o->kind == OPTION_LIST)) {
      misuse(help->command, "%s needs a value", o->name);
      return false;
    } else if (o->kind == OPTION_LIST) {
      i += read_list(o, argv + i + 1);
    } else {
      if (!read_value(o, argv[++i], help->command, status)) return false;
    }
  }
  return true;
}

bool option_given(const option *options, const char *name) {
  for (const option *o = options; o->name; o++)
    if (!strcmp(o->name, name)) return o->given;
  return false;
}
