#include "paths.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

bool join_path(char *path, size_t size, const char *directory, const char *name) {
  const int length = snprintf(path, size, "%s/%s", directory, name);
  return length >= 0 && (size_t)length < size;
}

bool make_directory(const char *path, failure *failed) {
  char part[4096];
  if (strlen(path) >= sizeof part) return fail_with(failed, "%s: the name is too long", path);
  for (size_t i = 1; i <= strlen(path); i++) {
    if (path[i] && path[i] != '/') continue;
    memcpy(part, path, i);
    part[i] = 0;
    struct stat status;
    if (mkdir(part, 0777) && (errno != EEXIST || stat(part, &status) || !S_ISDIR(status.st_mode)))
      return fail_with(failed, "%s: cannot make the directory: %s", path, strerror(errno));
  }
  return true;
}
