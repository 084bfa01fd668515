#include "shard.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_BYTES = 256 * 4, HEADERS = 2, FIRST_MAGIC = 20240000, LAST_MAGIC = 20249999 };

static const struct {
  int64_t magic, version;
  int token_bytes;
} headers[HEADERS] = {{20240520, 1, 2}, {20240801, 7, 4}};

int64_t read_range(int descriptor, void *to, int64_t bytes, int64_t offset) {
  int64_t done = 0;
  while (done < bytes) {
    const ssize_t got = pread(descriptor, (uint8_t *)to + done, (size_t)(bytes - done), offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    done += got;
  }
  return done;
}

static int64_t int32_at(const uint8_t *at) {
  return (int32_t)((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
}

static bool with_header(shard_layout *layout, const uint8_t *start, int64_t size, const char *path, failure *failed) {
  const int64_t magic = int32_at(start);
  int kind = 0;
  while (kind < HEADERS && headers[kind].magic != magic) kind++;
  if (kind == HEADERS)
    return fail_with(failed,
                     "%s: is no shard of tokens: its magic number is %lld, expected %lld (uint16) or %lld (uint32)",
                     path, (long long)magic, (long long)headers[0].magic, (long long)headers[1].magic);
  if (size < HEADER_BYTES)
    return fail_with(failed, "%s: is truncated: it holds %lld of the %d bytes of its header", path, (long long)size,
                     HEADER_BYTES);
  const int64_t version = int32_at(start + 4), count = int32_at(start + 8);
  if (version != headers[kind].version)
    return fail_with(failed, "%s: has version %lld, expected %lld for magic number %lld", path, (long long)version,
                     (long long)headers[kind].version, (long long)magic);
  if (count <= 0) return fail_with(failed, "%s: holds no tokens: its header says %lld", path, (long long)count);
  *layout = (shard_layout){HEADER_BYTES, count, headers[kind].token_bytes};
  const int64_t expected = HEADER_BYTES + count * layout->token_bytes;
  return size == expected ||
         fail_with(failed, "%s: is %s: %lld tokens of %d bytes and the header are %lld bytes, the file has %lld", path,
                   size < expected ? "truncated" : "too long", (long long)count, layout->token_bytes,
                   (long long)expected, (long long)size);
}

bool shard_layout_read(shard_layout *layout, int descriptor, const char *path, failure *failed) {
  struct stat status;
  uint8_t start[12] = {0};
  if (fstat(descriptor, &status)) return fail_with(failed, "%s: %s", path, strerror(errno));
  if (!S_ISREG(status.st_mode)) return fail_with(failed, "%s: is no regular file", path);
  if (status.st_size == 0) return fail_with(failed, "%s: is empty", path);
  if (read_range(descriptor, start, sizeof start, 0) < 0)
    return fail_with(failed, "%s: cannot read: %s", path, strerror(errno));
  const int64_t magic = int32_at(start);
  if (magic >= FIRST_MAGIC && magic <= LAST_MAGIC) return with_header(layout, start, status.st_size, path, failed);
  if (status.st_size % 2)
    return fail_with(failed, "%s: has an odd number of bytes, %lld, but uint16 tokens (it has no header)", path,
                     (long long)status.st_size);
  *layout = (shard_layout){0, status.st_size / 2, 2};
  return true;
}
