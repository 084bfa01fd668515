#include "data.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data_files.h"
#include "shard.h"

const char *const data_kind_names[DATA_KINDS] = {"text", "tokens"};

enum { PIECE = 1 << 16 }; /* bytes that are read at once; a multiple of the size of any token */

static uint32_t decode(const uint8_t *at, int token_bytes) {
  if (token_bytes == 1) return at[0];
  const uint32_t low = (uint32_t)at[0] | (uint32_t)at[1] << 8;
  return token_bytes == 2 ? low : low | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static bool refuse_token(const dataset *d, const char *path, int64_t at, uint32_t token, failure *failed) {
  return fail_with(failed, "%s: token %lld is %lu, expected less than the vocabulary of %lld (--vocab)", path,
                   (long long)at, (unsigned long)token, (long long)d->vocabulary);
}

/* --- opening: every token is read once ---------------------------------------------------------------------------- */

/* Reads until the piece is full or the file ends. */
static int64_t read_piece(int descriptor, uint8_t *piece) {
  int64_t done = 0;
  while (done < PIECE) {
    const ssize_t got = read(descriptor, piece + done, (size_t)(PIECE - done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    done += got;
  }
  return done;
}

static bool write_piece(int descriptor, const uint8_t *piece, int64_t bytes) {
  while (bytes) {
    const ssize_t put = write(descriptor, piece, (size_t)bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return false;
    piece += put;
    bytes -= put;
  }
  return true;
}

/* Adds the tokens of a piece to the hash (FNV-1a over tokens), after their check. */
static bool take_piece(dataset *d, const data_part *part, const uint8_t *piece, int64_t count, failure *failed) {
  uint64_t hash = d->hash;
  for (int64_t i = 0; i < count; i++) {
    const uint32_t token = decode(piece + i * d->token_bytes, d->token_bytes);
    if (token >= d->vocabulary) return refuse_token(d, part->path, part->count + i, token, failed);
    hash = (hash ^ token) * UINT64_C(0x100000001b3);
  }
  d->hash = hash;
  return true;
}

/* The whole file, whatever its size was said to be. *binary: a byte of it is 0. */
static bool scan_text(dataset *d, data_part *part, int descriptor, bool *binary, failure *failed) {
  uint8_t piece[PIECE];
  for (;;) {
    const int64_t got = read_piece(descriptor, piece);
    if (got < 0) return fail_with(failed, "%s: cannot read: %s", part->path, strerror(errno));
    if (got == 0) return true;
    if (part->copy >= 0 && !write_piece(part->copy, piece, got))
      return fail_with(failed, "%s: cannot copy to a temporary file: %s", part->path, strerror(errno));
    if (memchr(piece, 0, (size_t)got)) *binary = true;
    if (!take_piece(d, part, piece, got, failed)) return false;
    part->count += got;
  }
}

static bool scan_shard(dataset *d, data_part *part, int descriptor, int64_t count, failure *failed) {
  uint8_t piece[PIECE];
  while (part->count < count) {
    const int64_t left = count - part->count, most = PIECE / d->token_bytes, now = left < most ? left : most;
    const int64_t bytes = now * d->token_bytes;
    const int64_t got = read_range(descriptor, piece, bytes, part->begin + part->count * d->token_bytes);
    if (got < 0) return fail_with(failed, "%s: cannot read: %s", part->path, strerror(errno));
    if (got < bytes) return fail_with(failed, "%s: became shorter while it was read", part->path);
    if (!take_piece(d, part, piece, now, failed)) return false;
    part->count += now;
  }
  return true;
}

/* The first file decides on the kind of the data. */
static bool agree_on_kind(dataset *d, const char *path, int token_bytes, failure *failed) {
  static const char *const kinds[] = {[1] = "text", [2] = "uint16 tokens", [4] = "uint32 tokens"};
  if (!d->token_bytes) {
    d->token_bytes = token_bytes;
    if (token_bytes == 1)
      d->vocabulary = TEXT_VOCABULARY;
    else if (!d->vocabulary)
      d->vocabulary = token_bytes == 2 ? 50257 : 128256;
  }
  return d->token_bytes == token_bytes || fail_with(failed, "%s: holds %s, but %s holds %s", path, kinds[token_bytes],
                                                    d->parts[0].path, kinds[d->token_bytes]);
}

/* An unnamed file, which goes with its descriptor. */
static int temporary_file(void) {
  FILE *file = tmpfile();
  const int descriptor = file ? fcntl(fileno(file), F_DUPFD_CLOEXEC, 3) : -1;
  if (file) fclose(file);
  return descriptor;
}

static bool scan_open_file(dataset *d, data_part *part, int descriptor, bool *binary, failure *failed) {
  struct stat status;
  if (is_shard_name(part->path)) {
    shard_layout layout;
    if (!shard_layout_read(&layout, descriptor, part->path, failed) ||
        !agree_on_kind(d, part->path, layout.token_bytes, failed))
      return false;
    part->begin = layout.begin;
    return scan_shard(d, part, descriptor, layout.count, failed);
  }
  if (!agree_on_kind(d, part->path, 1, failed)) return false;
  if (!fstat(descriptor, &status) && S_ISFIFO(status.st_mode) && (part->copy = temporary_file()) < 0)
    return fail_with(failed, "%s: cannot copy to a temporary file: %s", part->path, strerror(errno));
  return scan_text(d, part, descriptor, binary, failed);
}

/* Appends a file. One that a search for text found is left out when it is empty or binary, or not for this user to
 * read; other errors are no reason to train on less. */
static bool append(dataset *d, data_file *file, failure *failed) {
  data_part *part = &d->parts[d->count];
  *part = (data_part){.path = file->path, .copy = -1, .first = d->size};
  const uint64_t hash = d->hash;
  bool binary = false;
  const int descriptor = open(part->path, O_RDONLY | O_CLOEXEC);
  const bool denied = descriptor < 0 && errno == EACCES;
  bool ok = descriptor >= 0 || fail_with(failed, "%s: cannot open: %s", part->path, strerror(errno));
  ok = ok && scan_open_file(d, part, descriptor, &binary, failed);
  if (descriptor >= 0) close(descriptor);
  const bool searched = file->directory && !is_shard_name(part->path), empty = ok && !part->count;
  if (ok && !empty && !(binary && searched)) {
    file->path = NULL; /* the part's now */
    d->size += part->count;
    d->count++;
    return true;
  }
  if (part->copy >= 0) close(part->copy);
  d->hash = hash;
  d->skipped++;
  if (empty && !searched) return fail_with(failed, "%s: is empty", part->path);
  return searched && (ok || denied);
}

/* A directory of the command line must give something. */
static bool append_all(dataset *d, const file_list *files, failure *failed) {
  int64_t before = d->count;
  for (int64_t i = 0; i < files->count; i++) {
    data_file *file = &files->items[i];
    if (i == 0 || file->directory != files->items[i - 1].directory) before = d->count;
    if (!append(d, file, failed)) return false;
    const bool last = i + 1 == files->count || files->items[i + 1].directory != file->directory;
    if (last && file->directory && d->count == before)
      return fail_with(failed, "%s: the directory holds no text (%lld files are hidden, binary, empty or unreadable)",
                       file->directory, (long long)d->skipped);
  }
  return true;
}

static bool split(dataset *d, failure *failed) {
  const int64_t least = 100000;
  int64_t validation = d->size / 20;
  if (validation < least) validation = d->size / 5 < least ? d->size / 5 : least;
  d->train_size = d->size - validation;
  return validation > 0 || fail_with(failed, "%s: the data are too short: %lld %s leave none for validation",
                                     d->parts[0].path, (long long)d->size, d->token_bytes == 1 ? "bytes" : "tokens");
}

static bool append_files(dataset *d, const data_files *files, failure *failed) {
  d->skipped = files->skipped;
  d->hash = UINT64_C(0xcbf29ce484222325);
  d->parts = calloc((size_t)(files->train.count + files->validation.count), sizeof *d->parts);
  if (!d->parts) return fail_with(failed, "no memory for a list of %lld files", (long long)files->train.count);
  if (!append_all(d, &files->train, failed)) return false;
  if (!files->validation.count) return split(d, failed);
  d->train_size = d->size;
  d->hash = (d->hash ^ (uint64_t)d->train_size) * UINT64_C(0x100000001b3);
  return append_all(d, &files->validation, failed);
}

bool dataset_open(dataset *d, const text_list *paths, const text_list *validation, int64_t vocabulary,
                  failure *failed) {
  *d = (dataset){.vocabulary = vocabulary, .descriptor = -1};
  data_files files;
  if (!data_files_find(&files, paths, validation, failed)) return false;
  const bool ok = append_files(d, &files, failed);
  data_files_free(&files);
  if (!ok) dataset_close(d);
  return ok;
}

void dataset_close(dataset *d) {
  for (int64_t i = 0; i < d->count; i++) {
    free(d->parts[i].path);
    if (d->parts[i].copy >= 0) close(d->parts[i].copy);
  }
  free(d->parts);
  if (d->descriptor >= 0) close(d->descriptor);
  *d = (dataset){.descriptor = -1};
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

static const data_part *part_of(const dataset *d, int64_t token) {
  int64_t low = 0, high = d->count - 1;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (d->parts[middle].first <= token)
      low = middle;
    else
      high = middle - 1;
  }
  return &d->parts[low];
}

/* One file stays open, however many there are. */
static bool open_part(dataset *d, const data_part *part, failure *failed) {
  if (d->open_part == part) return true;
  if (d->descriptor >= 0) close(d->descriptor);
  d->open_part = NULL;
  d->descriptor =
      part->copy >= 0 ? fcntl(part->copy, F_DUPFD_CLOEXEC, 3) : open(part->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (d->descriptor < 0) return fail_with(failed, "%s: cannot open again: %s", part->path, strerror(errno));
  d->open_part = part;
  return true;
}

static bool read_part(dataset *d, const data_part *part, int64_t at, int64_t count, int32_t *tokens, failure *failed) {
  uint8_t piece[PIECE];
  const int64_t bytes = count * d->token_bytes;
  if (!open_part(d, part, failed)) return false;
  const int64_t got = read_range(d->descriptor, piece, bytes, part->begin + at * d->token_bytes);
  if (got < 0) return fail_with(failed, "%s: cannot read: %s", part->path, strerror(errno));
  if (got < bytes) return fail_with(failed, "%s: became shorter since the run began", part->path);
  for (int64_t i = 0; i < count; i++) {
    const uint32_t token = decode(piece + i * d->token_bytes, d->token_bytes);
    if (token >= d->vocabulary) return refuse_token(d, part->path, at + i, token, failed); /* changed since */
    tokens[i] = (int32_t)token;
  }
  return true;
}

bool dataset_read(dataset *d, int64_t begin, int64_t count, int32_t *tokens, failure *failed) {
  while (count) {
    const data_part *part = part_of(d, begin);
    const int64_t at = begin - part->first, most = PIECE / d->token_bytes;
    int64_t now = part->count - at < most ? part->count - at : most;
    if (now > count) now = count;
    if (!read_part(d, part, at, now, tokens, failed)) return false;
    begin += now;
    tokens += now;
    count -= now;
  }
  return true;
}
