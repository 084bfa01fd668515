/*
 * Which files hold the data of a run.
 *
 * A word of --data is a file, a directory or, where nothing has that name, a pattern (* ? [) of files, in order of
 * name. A name that ends in .bin is a shard of tokens, any other file is text. A directory that holds shards is taken
 * for them alone; any other is searched for text, below it too: regular files whose name does not begin with a dot.
 * Shards whose name has the word "val" never train: without --validation they are the validation data, and so is the
 * shard beside one that trains whose name has "val" where that one has "train".
 */
#ifndef APPS_DATA_FILES_H
#define APPS_DATA_FILES_H

#include <stdint.h>

#include "failure.h"
#include "options.h"

typedef struct data_file {
  char *path;
  const char *directory; /* whose search for text found it, so that it may be left out; NULL: it must be read */
} data_file;

typedef struct file_list {
  data_file *items;
  int64_t count, room;
} file_list;

typedef struct data_files {
  file_list train, validation; /* no validation: it is a part of the training files */
  int64_t skipped;             /* entries of directories and patterns that were left out */
} data_files;

bool data_files_find(data_files *files, const text_list *data, const text_list *validation, failure *failed);
void data_files_free(data_files *files);

bool is_shard_name(const char *path);

#endif
