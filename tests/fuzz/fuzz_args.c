/*
 * Random calls of every operation: struct sizes, options, tensors (dimensions, extents, strides, dtypes, devices,
 * offsets, overlap), execution settings and workspaces. Most calls are nearly right, so that many compute. The memory
 * behind each tensor, struct and workspace is exactly what it says, so that the address sanitizer sees a step too far.
 * Beyond that: a call that fails leaves all memory as it was and says why, inputs are never written, and what a query
 * accepts and answers is what the call needs.
 */
#include "args_tensors.h"

/* --- structs ---------------------------------------------------------------------------------------------------- */

/* A copy in memory of exactly the size that its first member tells. */
static unsigned char *sized_copy(chooser *c, const void *from, size_t bytes) {
  const unsigned choice = next(c);
  uint32_t size = (uint32_t)bytes;
  if (choice >= 240) size = choice - 240; /* no version has such a size */
  if (choice >= 200 && choice < 220) size -= (uint32_t)(8 * (choice - 199)) % (uint32_t)bytes;
  if (choice >= 220 && choice < 240) size += 8 * (choice - 219);
  unsigned char *copy = take(size < sizeof size ? sizeof size : size);
  memset(copy, choice >= 230 && choice < 240 ? 1 : 0, size);
  memcpy(copy, from, size < bytes ? size : bytes);
  memcpy(copy, &size, sizeof size);
  return copy;
}

static void set_number(call *f, const member *m, unsigned char *to) {
  const unsigned choice = next(&f->c);
  int64_t number = m->shape ? f->extent[(int)m->shape[0]] : choice & 1;
  float real = choice < 128 ? (float)(choice % 4) / 4 : 0;
  DLDataType type = {0, 0, 0};
  if (choice >= 224) {
    number = odd_number(&f->c);
    real = odd_real(&f->c);
  }
  if (choice % 4 == 3) type = dtype_of(1u << choice / 4 % 6);
  const int32_t narrow = (int32_t)number;
  if (m->type == INT32) memcpy(to, &narrow, sizeof narrow);
  if (m->type == INT64) memcpy(to, &number, sizeof number);
  if (m->type == REAL) memcpy(to, &real, sizeof real);
  if (m->type == DTYPE) memcpy(to, &type, sizeof type);
}

static void build_args(call *f) {
  unsigned char *all = take(f->op->bytes);
  memset(all, 0, f->op->bytes);
  for (int i = 0; i < f->op->count; i++) {
    const member *m = &f->op->members[i];
    if (m->type == INPUT || m->type == OUTPUT) {
      if (!is_given(f, m->given)) continue;
      tensor *t = &f->tensors[f->count];
      t->member = m;
      describe(f, t);
      if (f->mutated == f->count) damage(f, t);
      provide(f, t);
      f->count++;
      DLTensor *dl = &t->dl;
      memcpy(all + m->offset, &dl, sizeof dl);
    } else if (m->type == TEAM) {
      const void *team = next(&f->c) == 255 ? f : NULL;
      memcpy(all + m->offset, &team, sizeof team);
    } else {
      set_number(f, m, all + m->offset);
    }
  }
  f->args = sized_copy(&f->c, all, f->op->bytes);
  free(all);
}

static int64_t bytes_of_x(const call *f) {
  for (int i = 0; i < f->count; i++)
    if (strcmp(f->tensors[i].member->name, "x") == 0) return bytes_of(f->tensors[i].dl.dtype);
  return 0;
}

/* The block that forward fills and backward reads: a query tells its size, or (backward) the formula of the header. */
static void add_saved(call *f) {
  uint32_t size;
  memcpy(&size, f->args, sizeof size);
  for (int i = 0; i < f->op->count; i++) {
    const member *m = &f->op->members[i];
    if (m->type != BLOCK || size < m->offset + 2 * sizeof(uint64_t) || next(&f->c) % 4 == 3) continue;
    uint64_t bytes = m->kinds ? 4 : (uint64_t)bytes_of_x(f);
    for (const char *letter = m->shape; *letter; letter++) bytes *= (uint64_t)f->extent[(int)*letter];
    if (f->op->saved && f->op->saved(NULL, f->args, &bytes) != TIGON_OK) return;
    if (bytes > MOST_WORKSPACE) return;
    const unsigned less = next(&f->c);
    const uint64_t given = less == 255 ? bytes / 2 : bytes - (bytes && less == 254);
    if (posix_memalign((void **)&f->saved, 64, given + !given) != 0) abort();
    memset(f->saved, 0x3c, given);
    f->saved_bytes = given;
    memcpy(f->args + m->offset, &f->saved, sizeof f->saved);
    memcpy(f->args + m->offset + sizeof f->saved, &given, sizeof given);
  }
}

static tigon_context *context;

static void build_exec(call *f) {
  static const int32_t threads[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 3, 0, -1, 1 << 20};
  const unsigned choice = next(&f->c);
  if (choice == 255) return; /* NULL: all defaults */
  tigon_exec exec = {.num_threads = threads[choice % 16], .context = choice & 16 ? context : NULL};
  if (choice >= 240) exec.device.device_type = (DLDeviceType)(choice - 240);
  f->exec = (tigon_exec *)(void *)sized_copy(&f->c, &exec, sizeof exec);
}

/* Bytes at each end of the workspace that are looked at: products ask for megabytes. */
static size_t watched(const call *f) { return f->workspace_bytes < 4096 ? f->workspace_bytes : 4096; }

/* Gives what the query asked for, or now and then less; true where it is enough. */
static bool add_workspace(call *f, uint64_t bytes) {
  enum { SHORT = 1, MISALIGNED = 2, NOTHING = 3 };
  const unsigned choice = next(&f->c);
  if (bytes == 0) return true;
  if (!f->exec || f->exec->size < offsetof(tigon_exec, context) || bytes > MOST_WORKSPACE || choice == NOTHING)
    return false;
  const size_t off = choice == MISALIGNED ? 8 : 0;
  f->workspace_bytes = bytes - (choice == SHORT) + off;
  if (posix_memalign((void **)&f->workspace, 64, f->workspace_bytes) != 0) abort();
  memset(f->workspace, 0xff, watched(f));
  memset(f->workspace + f->workspace_bytes - watched(f), 0xff, watched(f));
  f->exec->workspace = f->workspace + off;
  f->exec->workspace_bytes = f->workspace_bytes - off;
  return choice != SHORT && choice != MISALIGNED;
}

/* --- the call and what it promises ------------------------------------------------------------------------------- */

static void remember(call *f) {
  for (int i = 0; i < f->count; i++) {
    tensor *t = &f->tensors[i];
    if (!t->block) continue;
    t->before = take(t->bytes);
    memcpy(t->before, t->block, t->bytes);
  }
}

static void check_memory(const call *f, tigon_status status) {
  for (int i = 0; i < f->count; i++) {
    const tensor *t = &f->tensors[i];
    const bool fixed = status != TIGON_OK || (t->member->type == INPUT && !f->aliased);
    if (t->block && fixed) require(memcmp(t->block, t->before, t->bytes) == 0, f->op->name, t->member->name);
  }
  if (status == TIGON_OK) return;
  for (size_t i = 0; i < watched(f); i++)
    require(f->workspace[i] == 0xff && f->workspace[f->workspace_bytes - 1 - i] == 0xff, f->op->name,
            "the workspace was written by a call that failed");
  for (size_t i = 0; i < f->saved_bytes; i++)
    require(f->saved[i] == 0x3c, f->op->name, "saved was written by a call that failed");
}

static void check_error(const call *f, tigon_status status) {
  const size_t length = strlen(f->op->name);
  require(status == TIGON_OK || status == TIGON_INVALID_ARGUMENT || status == TIGON_UNSUPPORTED ||
              status == TIGON_WORKSPACE,
          f->op->name, "an unexpected status");
  if (status != TIGON_OK)
    require(strncmp(tigon_last_error(), f->op->name, length) == 0 && tigon_last_error()[length] == ':', f->op->name,
            "the error does not begin with the operation's name");
}

static void make_call(call *f) {
  build_args(f);
  add_saved(f);
  build_exec(f);
  uint64_t bytes = 1;
  const tigon_status asked = f->op->workspace(f->exec, f->args, &bytes);
  check_error(f, asked);
  if (asked == TIGON_OK) require(bytes % 256 == 0, f->op->name, "the workspace is no multiple of 256 bytes");
  const bool enough = asked == TIGON_OK && add_workspace(f, bytes);
  remember(f);
  const tigon_status status = f->op->run(f->exec, f->args);
  check_error(f, status);
  check_memory(f, status);
  if (asked != TIGON_OK) require(status != TIGON_OK, f->op->name, "ran what its query refuses");
  if (asked == TIGON_OK)
    require(enough ? status != TIGON_WORKSPACE : status != TIGON_OK, f->op->name, "the query's answer is wrong");
}

static void release(call *f) {
  for (int i = 0; i < f->count; i++) {
    free(f->tensors[i].block);
    free(f->tensors[i].before);
  }
  free(f->args);
  free(f->exec);
  free(f->saved);
  free(f->workspace);
}

static void slopes(chooser *c) {
  const int32_t kind = (int32_t)(next(c) % 3);
  int64_t numbers[5];
  for (int i = 0; i < 5; i++) numbers[i] = next(c) & 1 ? odd_number(c) : (int64_t)next(c);
  const bool room = numbers[4] > 0 && numbers[4] <= MOST_ELEMENTS;
  float *out = room ? take((size_t)numbers[4] * sizeof *out) : NULL;
  (void)tigon_lightning_attention_slopes(kind, numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], out);
  free(out);
}

/* Every member of every struct stands in its table. */
static void check_tables(void) {
  for (int i = 0; i < OPERATIONS; i++) {
    size_t bytes = sizeof(uint32_t);
    for (int m = 0; m < operations[i].count; m++) bytes += operations[i].members[m].bytes;
    require(bytes <= operations[i].bytes && operations[i].bytes - bytes < 8, operations[i].name,
            "args_ops.h does not have all members");
  }
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc;
  (void)argv;
  check_tables();
  return tigon_context_create((DLDevice){kDLCPU, 0}, &context) == TIGON_OK ? 0 : 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static call f;
  memset(&f, 0, sizeof f);
  f.c = (chooser){.data = data, .size = size, .noise = 0x9e3779b97f4a7c15u};
  const unsigned which = next(&f.c) % (OPERATIONS + 1), contents = next(&f.c), damaged = next(&f.c);
  f.c.noise += contents;
  if (which == OPERATIONS) {
    slopes(&f.c);
    return 0;
  }
  f.op = &operations[which];
  f.wild = contents & 1;
  f.base_float = 1u << contents / 2 % 3;
  f.base_index = contents & 8 ? I64 : I32;
  f.mutated = damaged & 1 ? (int)(damaged / 2 % MOST_TENSORS) : -1;
  draw_extents(&f);
  make_call(&f);
  release(&f);
  tigon_record record;
  (void)tigon_check(context, &record);
  tigon_clear(context);
  return 0;
}
