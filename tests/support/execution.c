#include "tests/support/support.h"

enum { GUARD = 4096 };

/* A thread's last workspace is kept for its next one: tables run thousands of small cases, whose time would go to fresh
 * pages. Not under AddressSanitizer, which sees reads past the end of a block of its own. */
static _Thread_local struct {
  unsigned char *block;
  size_t bytes;
} kept;

static void take_block(test_workspace *w) {
  if (kept.bytes >= w->block_bytes) {
    w->block = kept.block;
    w->capacity = kept.bytes;
  } else {
    free(kept.block);
    w->block = aligned_alloc(256, w->block_bytes);
    w->capacity = w->block_bytes;
  }
  kept.block = NULL;
  kept.bytes = 0;
}

static void give_block(test_workspace *w) {
#if defined(TEST_ADDRESS_SANITIZED)
  free(w->block);
#else
  free(kept.block);
  kept.block = w->block;
  kept.bytes = w->capacity;
#endif
}

void test_workspace_make(test_workspace *w, uint64_t bytes, int threads) {
  memset(w, 0, sizeof *w);
  w->block_bytes = (size_t)((bytes + 2 * GUARD + 255) / 256 * 256);
  take_block(w);
  assert_non_null(w->block);
  memset(w->block, 0xff, w->block_bytes);
  w->exec.size = sizeof w->exec;
  w->exec.num_threads = threads;
  w->exec.workspace = bytes ? w->block + GUARD : NULL;
  w->exec.workspace_bytes = bytes;
}

static void check_guard(const test_workspace *w, size_t begin, size_t end) {
  for (size_t i = begin; i < end; i++)
    if (w->block[i] != 0xff) fail_msg("byte %zd relative to the workspace was written", (ptrdiff_t)i - GUARD);
}

void test_workspace_free(test_workspace *w) {
  check_guard(w, 0, GUARD);
  check_guard(w, GUARD + w->exec.workspace_bytes, w->block_bytes);
  give_block(w);
  memset(w, 0, sizeof *w);
}

void test_expect_status(tigon_status got, tigon_status expected, const char *fragment) {
  if (got != expected)
    fail_msg("expected %s, got %s (%s)", tigon_status_string(expected), tigon_status_string(got), tigon_last_error());
  if (expected != TIGON_OK && fragment && !strstr(tigon_last_error(), fragment))
    fail_msg("expected an error about \"%s\", got \"%s\"", fragment, tigon_last_error());
}
