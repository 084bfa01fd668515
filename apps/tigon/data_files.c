#include "data_files.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "paths.h"

enum { MAX_DEPTH = 32 };

/* Where the files of one word of the command line go. */
typedef struct search {
  data_files *files;
  file_list *list;
  bool training;
  bool validation_given;
} search;

static const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

bool is_shard_name(const char *path) {
  const size_t length = strlen(path);
  return length > 4 && !strcmp(path + length - 4, ".bin");
}

/* The word in the name, with no letter beside it. */
static const char *find_word(const char *name, const char *word) {
  for (const char *at = strstr(name, word); at; at = strstr(at + 1, word))
    if ((at == name || !isalpha((unsigned char)at[-1])) && !isalpha((unsigned char)at[strlen(word)])) return at;
  return NULL;
}

static bool add(file_list *list, const char *path, const char *directory, failure *failed) {
  if (list->count == list->room) {
    const int64_t room = list->room ? 2 * list->room : 16;
    data_file *items = realloc(list->items, (size_t)room * sizeof *items);
    if (!items) return fail_with(failed, "%s: no memory for the names of the files", path);
    list->items = items;
    list->room = room;
  }
  char *copy = strdup(path);
  if (!copy) return fail_with(failed, "%s: no memory for the names of the files", path);
  list->items[list->count++] = (data_file){copy, directory};
  return true;
}

static bool add_file(const search *s, const char *path, failure *failed) {
  const bool kept_apart = s->training && is_shard_name(path) && find_word(base_name(path), "val");
  if (!kept_apart) return add(s->list, path, NULL, failed);
  if (!s->validation_given) return add(&s->files->validation, path, NULL, failed);
  s->files->skipped++;
  return true;
}

static bool holds_shards(const char *path, struct dirent **entries, int count) {
  for (int i = 0; i < count; i++) {
    char child[4096];
    struct stat status;
    if (entries[i]->d_name[0] != '.' && is_shard_name(entries[i]->d_name) &&
        join_path(child, sizeof child, path, entries[i]->d_name) && !stat(child, &status) && S_ISREG(status.st_mode))
      return true;
  }
  return false;
}

static bool search_directory(const search *s, const char *path, const char *top, int depth, failure *failed);

static bool take_entry(const search *s, const char *path, const char *name, const char *top, bool shards, int depth,
                       failure *failed) {
  char child[4096];
  struct stat status;
  const bool known = name[0] != '.' && join_path(child, sizeof child, path, name) &&
                     !(shards ? stat(child, &status) : lstat(child, &status));
  if (known && shards && S_ISREG(status.st_mode) && is_shard_name(name)) return add_file(s, child, failed);
  if (known && !shards && S_ISDIR(status.st_mode) && depth < MAX_DEPTH)
    return search_directory(s, child, top, depth + 1, failed);
  if (known && !shards && S_ISREG(status.st_mode) && !is_shard_name(name)) return add(s->list, child, top, failed);
  s->files->skipped++;
  return true;
}

/* `top` is the directory of the command line. */
static bool search_directory(const search *s, const char *path, const char *top, int depth, failure *failed) {
  struct dirent **entries;
  const int count = scandir(path, &entries, NULL, alphasort);
  if (count < 0) return fail_with(failed, "%s: cannot list: %s", path, strerror(errno));
  const bool shards = depth == 0 && holds_shards(path, entries, count);
  bool ok = true;
  for (int i = 0; i < count; i++) {
    const char *name = entries[i]->d_name;
    if (ok && strcmp(name, ".") && strcmp(name, "..")) ok = take_entry(s, path, name, top, shards, depth, failed);
    free(entries[i]);
  }
  free(entries);
  return ok;
}

static int64_t listed(const data_files *files) { return files->train.count + files->validation.count; }

static bool match_pattern(const search *s, const char *pattern, failure *failed) {
  glob_t matches = {0};
  const int result = glob(pattern, 0, NULL, &matches);
  bool ok = true;
  if (result == GLOB_NOSPACE)
    ok = fail_with(failed, "%s: no memory for the names of the files", pattern);
  else if (result)
    ok = fail_with(failed, "%s: no file has such a name", pattern);
  for (size_t i = 0; ok && i < matches.gl_pathc; i++) {
    struct stat status;
    if (!stat(matches.gl_pathv[i], &status) && S_ISREG(status.st_mode))
      ok = add_file(s, matches.gl_pathv[i], failed);
    else
      s->files->skipped++;
  }
  globfree(&matches);
  return ok;
}

static bool take_word(const search *s, const char *path, failure *failed) {
  struct stat status;
  if (stat(path, &status)) {
    if (errno == ENOENT && strpbrk(path, "*?[")) return match_pattern(s, path, failed);
    return fail_with(failed, "%s: %s", path, strerror(errno));
  }
  if (S_ISREG(status.st_mode) || S_ISFIFO(status.st_mode)) return add_file(s, path, failed);
  if (!S_ISDIR(status.st_mode))
    return fail_with(failed, "%s: is neither a file nor a directory", path); /* a device may never end */
  const int64_t before = listed(s->files), skipped = s->files->skipped;
  if (!search_directory(s, path, path, 0, failed)) return false;
  return listed(s->files) > before ||
         fail_with(failed, "%s: the directory holds no text and no shards (%lld entries are hidden or no such files)",
                   path, (long long)(s->files->skipped - skipped));
}

static bool take_words(search s, const text_list *words, failure *failed) {
  for (int i = 0; i < words->count; i++)
    if (!take_word(&s, words->items[i], failed)) return false;
  return true;
}

/* The shards for validation that lie beside those for training. */
static bool find_siblings(data_files *files, failure *failed) {
  for (int64_t i = 0; i < files->train.count; i++) {
    const char *path = files->train.items[i].path;
    const char *word = is_shard_name(path) ? find_word(base_name(path), "train") : NULL;
    if (!word) continue;
    char sibling[4096];
    struct stat status;
    const int length = snprintf(sibling, sizeof sibling, "%.*sval%s", (int)(word - path), path, word + 5);
    if (length < (int)sizeof sibling && !stat(sibling, &status) && S_ISREG(status.st_mode) &&
        !add(&files->validation, sibling, NULL, failed))
      return false;
  }
  return true;
}

bool data_files_find(data_files *files, const text_list *data, const text_list *validation, failure *failed) {
  *files = (data_files){0};
  const bool given = validation->count > 0;
  bool ok = take_words((search){files, &files->train, true, given}, data, failed) &&
            take_words((search){files, &files->validation, false, given}, validation, failed);
  if (ok && !files->train.count)
    ok = fail_with(failed, "%s: there are no shards to train with: a name with the word \"val\" is for validation",
                   data->items[0]);
  if (ok && !files->validation.count) ok = find_siblings(files, failed);
  if (!ok) data_files_free(files);
  return ok;
}

static void free_list(file_list *list) {
  for (int64_t i = 0; i < list->count; i++) free(list->items[i].path);
  free(list->items);
}

void data_files_free(data_files *files) {
  free_list(&files->train);
  free_list(&files->validation);
  *files = (data_files){0};
}
