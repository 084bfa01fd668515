/* A child process that is spoken to in lines over pipes, with a limit on how long an answer may take. */
#ifndef APPS_BENCH_CHILD_H
#define APPS_BENCH_CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { BENCH_CHILD_LINE = 1 << 16 };

typedef struct bench_child {
  pid_t pid;
  int to, from;
  size_t used;                 /* bytes read ahead */
  char line[BENCH_CHILD_LINE]; /* the last answer, then what was read ahead */
  size_t taken;                /* bytes of the last answer */
} bench_child;

/* Searches the PATH for argv[0]. shared becomes the child's descriptor 3; -1: none. Returns 0 or an error number. */
int bench_child_start(bench_child *child, const char *const *argv, char *const *environment, int shared);
bool bench_child_say(bench_child *child, const char *line);

typedef enum bench_heard { HEARD_LINE, HEARD_END, HEARD_NOTHING, HEARD_TOO_MUCH } bench_heard;
/* Waits for the next line; *line stays valid until the next call. */
bench_heard bench_child_listen(bench_child *child, double seconds, const char **line);

/* Closes the child's input, gives it a moment to end, ends it by force otherwise. Returns its wait status. */
int bench_child_end(bench_child *child, bool at_once);

#endif
