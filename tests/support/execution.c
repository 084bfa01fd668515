#include "tests/support/support.h"

enum { GUARD = 4096 };

void test_workspace_make(test_workspace *w, uint64_t bytes, int threads) {
  memset(w, 0, sizeof *w);
  w->block_bytes = (size_t)((bytes + 2 * GUARD + 255) / 256 * 256);
  w->block = aligned_alloc(256, w->block_bytes);
  assert_non_null(w->block);
  memset(w->block, 0xff, w->block_bytes);
  w->exec.size = sizeof w->exec;
  w->exec.num_threads = threads;
  w->exec.workspace = bytes ? w->block + GUARD : NULL;
  w->exec.workspace_bytes = bytes;
}

void test_workspace_free(test_workspace *w) {
  for (size_t i = 0; i < w->block_bytes; i++)
    if ((i < GUARD || i >= GUARD + w->exec.workspace_bytes) && w->block[i] != 0xff)
      fail_msg("byte %zd relative to the workspace was written", (ptrdiff_t)i - GUARD);
  free(w->block);
  memset(w, 0, sizeof *w);
}

void test_expect_status(tigon_status got, tigon_status expected, const char *fragment) {
  if (got != expected)
    fail_msg("expected %s, got %s (%s)", tigon_status_string(expected), tigon_status_string(got), tigon_last_error());
  if (expected != TIGON_OK && fragment && !strstr(tigon_last_error(), fragment))
    fail_msg("expected an error about \"%s\", got \"%s\"", fragment, tigon_last_error());
}
