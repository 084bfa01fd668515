/* Names of files and directories. */
#ifndef APPS_PATHS_H
#define APPS_PATHS_H

#include <stddef.h>

#include "failure.h"

/* directory/name; false when that is too long. */
bool join_path(char *path, size_t size, const char *directory, const char *name);

/* mkdir -p */
bool make_directory(const char *path, failure *failed);

#endif
