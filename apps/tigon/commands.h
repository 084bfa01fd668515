/* The commands of the program and the exit statuses that they share. argv[0] is the command's name. */
#ifndef APPS_COMMANDS_H
#define APPS_COMMANDS_H

enum {
  EXIT_OK = 0,
  EXIT_FAILED = 1,     /* a file, the data or the machine did not allow it */
  EXIT_MISUSED = 2,    /* the command line is wrong */
  EXIT_SIGNALLED = 128 /* plus the signal's number: interrupted, after saving */
};

int command_train(int argc, char **argv);
int command_sample(int argc, char **argv);
int command_info(int argc, char **argv);
int command_bench(int argc, char **argv);

#endif
