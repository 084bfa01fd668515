/* What fuzz_args.c draws from its input: extents, and tensors with the memory behind them. */
#ifndef TIGON_TESTS_FUZZ_ARGS_TENSORS_H
#define TIGON_TESTS_FUZZ_ARGS_TENSORS_H

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args_ops.h"

enum { MOST_DIMS = 8, MOST_TENSORS = 24, MOST_ELEMENTS = 1 << 14, MOST_WORKSPACE = 1 << 24 };

static void require(bool condition, const char *op, const char *what) {
  if (condition) return;
  fprintf(stderr, "%s: %s (last error: %s)\n", op, what, tigon_last_error());
  abort();
}

static void *take(size_t bytes) {
  void *block = malloc(bytes);
  if (!block) abort();
  return block;
}

/* --- choices ---------------------------------------------------------------------------------------------------- */

typedef struct chooser {
  const uint8_t *data;
  size_t size, at;
  uint64_t noise; /* for contents */
} chooser;

/* The next byte of the input; 0 after its end. 0 is always the ordinary choice. */
static unsigned next(chooser *c) { return c->at < c->size ? c->data[c->at++] : 0; }

static uint64_t noise(chooser *c) {
  c->noise ^= c->noise << 13;
  c->noise ^= c->noise >> 7;
  c->noise ^= c->noise << 17;
  return c->noise;
}

static int64_t odd_number(chooser *c) {
  static const int64_t numbers[] = {0,         1,         -1,        2,         INT64_C(1) << 31, INT64_C(1) << 32,
                                    INT64_MAX, INT64_MIN, INT32_MAX, INT32_MIN, INT64_C(1) << 50, -100};
  const unsigned choice = next(c);
  return choice < 12 ? numbers[choice] : (int64_t)choice - 128;
}

static float odd_real(chooser *c) {
  static const float numbers[] = {0, 1, 0.5f, 0.1f, 1e-6f, 30, -1, NAN, INFINITY, -INFINITY, FLT_MAX, FLT_MIN};
  const unsigned choice = next(c);
  return choice < 12 ? numbers[choice] : (float)choice / 64;
}

/* --- a call ----------------------------------------------------------------------------------------------------- */

typedef struct tensor {
  const member *member;
  DLTensor dl;
  int64_t shape[MOST_DIMS], strides[MOST_DIMS];
  unsigned char *block, *before; /* its memory (NULL: none of its own), and a copy from before the call */
  size_t bytes;
} tensor;

typedef struct call {
  chooser c;
  const operation *op;
  int64_t extent[128];
  bool packed, pool, pair, heads, checkpoints, ragged;
  bool wild; /* contents are any bits */
  bool aliased;
  unsigned base_float, base_index; /* kinds of most tensors */
  int mutated;                     /* the tensor that is damaged; -1: none */
  tensor tensors[MOST_TENSORS];
  int count;
  unsigned char *args, *saved, *workspace;
  size_t saved_bytes, workspace_bytes;
  tigon_exec *exec;
} call;

static void draw_extents(call *f) {
  static const char letters[] = "MHTDNVBKEIAG";
  static const int64_t small[] = {1, 2, 3, 4, 1, 2, 5, 3, 1, 2, 4, 6, 7, 8, 9, 0};
  static const int64_t large[] = {16, 17, 31, 33, 63, 64, 65, 129};
  int64_t *e = f->extent;
  for (int i = 0; letters[i]; i++) e[(int)letters[i]] = small[next(&f->c) & 15];
  const unsigned choice = next(&f->c), modes = next(&f->c), more = next(&f->c);
  if (choice & 128) e[(int)letters[choice % 12]] = large[choice / 12 & 7];
  f->packed = modes & 1, f->pool = modes & 2, f->pair = modes & 4, f->heads = modes & 8;
  f->checkpoints = modes & 16, f->ragged = f->checkpoints && f->packed;
  if (f->packed)
    e['B'] = 1;
  else
    e['N'] = e['B'];
  e['W'] = e['H'] * (1 + e['G'] % 4);
  e['U'] = modes & 32 ? e['W'] : e['H'];
  e['P'] = e['N'] + 1;
  e['S'] = f->pool ? e['N'] + more % 3 : e['N'];
  e['e'] = f->checkpoints ? 64 : 0;
  e['Q'] = e['N'] * (e['T'] / 64) + more / 3 % 2;
  e['b'] = more / 6 % 3;
  e['C'] = e['V'] + e['b'] + more / 18 % 2;
  e['l'] = modes & 64 ? 1 : 0;
  e['x'] = e['l'] ? e['D'] : e['I'], e['y'] = e['l'] ? e['I'] : e['D'];
  e['X'] = e['l'] ? e['D'] : 2 * e['I'], e['Y'] = e['l'] ? 2 * e['I'] : e['D'];
  e['g'] = more / 36 % 3;
  if (e['A'] > e['E'] && modes & 128) e['A'] = e['E'];
  for (int digit = 0; digit < 10; digit++) e['0' + digit] = digit;
}

static bool is_given(call *f, presence given) {
  switch (given) {
  case ALWAYS:
    return true;
  case IF_PACKED:
    return f->packed;
  case IF_POOL:
    return f->pool;
  case IF_PAIR:
    return f->pair;
  case IF_JOINED:
    return !f->pair;
  case IF_CHECKPOINTS:
    return f->checkpoints;
  case IF_RAGGED:
    return f->ragged;
  default:
    return next(&f->c) & 1;
  }
}

/* --- tensors ---------------------------------------------------------------------------------------------------- */

static unsigned draw_kind(call *f, unsigned kinds) {
  const unsigned choice = next(&f->c), usual = kinds & FLOATS ? f->base_float : f->base_index;
  if (choice < 192 && (usual & kinds)) return usual;
  unsigned kind = 1u << choice % 6;
  while (!(kind & kinds)) kind = kind == U8 ? F32 : kind << 1;
  return kind;
}

static DLDataType dtype_of(unsigned kind) {
  switch (kind) {
  case F16:
    return tigon_f16();
  case BF16:
    return tigon_bf16();
  case I32:
    return tigon_i32();
  case I64:
    return tigon_i64();
  case U8:
    return tigon_dtype((uint8_t)kDLUInt, 8);
  default:
    return tigon_f32();
  }
}

static int64_t bytes_of(DLDataType type) {
  const int64_t bytes = (int64_t)type.bits * type.lanes / 8;
  return bytes < 1 ? 1 : bytes > 64 ? 64 : bytes;
}

static void describe(call *f, tensor *t) {
  t->dl.device.device_type = kDLCPU;
  t->dl.dtype = dtype_of(draw_kind(f, t->member->kinds));
  t->dl.shape = t->shape;
  t->dl.strides = t->strides;
  for (const char *letter = t->member->shape; *letter; letter++)
    if (*letter != 'n')
      t->shape[t->dl.ndim++] = f->extent[(int)*letter];
    else if (f->heads)
      t->shape[t->dl.ndim++] = f->extent['N'];
  const unsigned layout = next(&f->c);
  int64_t stride = layout & 1 && t->dl.ndim == 1 ? 2 : 1;
  for (int i = t->dl.ndim - 1; i >= 0; i--) {
    t->strides[i] = stride;
    stride *= t->shape[i] > 0 ? t->shape[i] : 1;
    if (i == t->dl.ndim - 1 && layout & 2) stride += 3;
  }
  if (t->dl.ndim && layout & 4 && t->member->type == INPUT) t->strides[0] = 0;
  if (t->dl.ndim > 1 && layout & 8) t->strides[0] = -t->strides[0];
  if (layout & 16) t->dl.byte_offset = (uint64_t)(bytes_of(t->dl.dtype) * (1 + layout % 7));
  if (layout == 32) t->dl.strides = NULL;
}

static void damage(call *f, tensor *t) {
  const unsigned what = next(&f->c), where = next(&f->c) % MOST_DIMS;
  switch (what % 9) {
  case 0:
    t->shape[where % (unsigned)(t->dl.ndim ? t->dl.ndim : 1)] = odd_number(&f->c);
    break;
  case 1:
    t->strides[where % (unsigned)(t->dl.ndim ? t->dl.ndim : 1)] = odd_number(&f->c);
    break;
  case 2:
    t->dl.ndim = (int)odd_number(&f->c);
    break;
  case 3:
    t->dl.dtype = (DLDataType){(uint8_t)next(&f->c), (uint8_t)next(&f->c), (uint16_t)next(&f->c)};
    break;
  case 4:
    t->dl.device.device_type = (DLDeviceType)(next(&f->c) % 20);
    break;
  case 5:
    t->dl.byte_offset = (uint64_t)odd_number(&f->c);
    break;
  case 6:
    t->dl.shape = NULL;
    break;
  case 7:
    t->dl.strides = NULL;
    break;
  default: /* all extents move by one */
    for (int i = 0; i < t->dl.ndim; i++) t->shape[i]++;
    break;
  }
}

/* Bytes from the lowest to the end of the highest element, and how far the first lies above the lowest. False where
 * there is no memory to give: no elements, too many, or too far apart. */
static bool span_of(const tensor *t, int64_t *bytes, int64_t *above) {
  const int64_t width = bytes_of(t->dl.dtype);
  int64_t elements = 1, low = 0, high = 0;
  if (t->dl.ndim < 0 || t->dl.ndim > MOST_DIMS || !t->dl.shape) return false;
  int64_t compact = 1;
  for (int i = t->dl.ndim - 1; i >= 0; i--) {
    const int64_t extent = t->shape[i], stride = t->dl.strides ? t->strides[i] : compact;
    int64_t reach;
    if (extent <= 0 || extent > MOST_ELEMENTS) return false;
    if (__builtin_mul_overflow(extent - 1, stride, &reach) || llabs(reach / 16) > MOST_ELEMENTS) return false;
    elements *= extent;
    compact *= extent;
    if (elements > MOST_ELEMENTS) return false;
    if (reach < 0)
      low += reach;
    else
      high += reach;
  }
  *bytes = (high - low + 1) * width;
  *above = -low * width;
  return true;
}

/* A view into an earlier tensor's memory, or that tensor once more. */
static bool share(call *f, tensor *t, int64_t bytes, int64_t above) {
  const unsigned which = next(&f->c), shift = next(&f->c);
  if (f->count == 0) return false;
  tensor *other = &f->tensors[which % (unsigned)f->count];
  if (!other->block) return false;
  f->aliased = true;
  if (shift == 0 && strcmp(other->member->shape, t->member->shape) == 0) {
    t->dl = other->dl;
    return true;
  }
  if ((int64_t)other->bytes < bytes) return false;
  const int64_t at = (int64_t)shift * bytes_of(t->dl.dtype) % ((int64_t)other->bytes - bytes + 1);
  t->dl.data = (void *)((uintptr_t)other->block + (uintptr_t)(at + above) - t->dl.byte_offset);
  return true;
}

static void fill(call *f, const tensor *t, unsigned char *data) {
  const int64_t width = bytes_of(t->dl.dtype);
  const bool index = t->dl.dtype.code == kDLInt;
  const char *shape = t->member->shape;
  if (t->member->type == OUTPUT && next(&f->c) & 1) memset(data, 0xff, t->bytes);
  for (int64_t i = 0; i < (int64_t)t->bytes / width; i++) {
    uint64_t bits = noise(&f->c);
    if (!f->wild && index)
      bits = shape[0] == 'P'   ? (uint64_t)(i * f->extent['T'] / (f->extent['N'] ? f->extent['N'] : 1))
             : shape[0] == 'N' ? (uint64_t)i
                               : bits % 5 - (bits % 97 == 0);
    else if (!f->wild && t->dl.dtype.code == kDLBfloat)
      bits = (bits & 0x807f) | 0x3f00;
    else if (!f->wild && width == 2)
      bits = (bits & 0x83ff) | 0x3800;
    else if (!f->wild)
      bits = (bits & 0x807fffff) | 0x3f000000;
    memcpy(data + i * width, &bits, (size_t)(width < 8 ? width : 8));
  }
}

static void provide(call *f, tensor *t) {
  enum { SHARED = 1, NOTHING = 2, MISALIGNED = 3 };
  const unsigned choice = next(&f->c);
  int64_t bytes, above;
  if (!span_of(t, &bytes, &above)) {
    t->dl.data = choice & 1 ? (void *)(uintptr_t)8 : NULL;
    if (t->dl.ndim >= 0 && t->dl.ndim <= MOST_DIMS && t->dl.shape) /* only what has no element may point nowhere */
      for (int i = 0; i < t->dl.ndim; i++) {
        if (t->shape[i] == 0) return;
      }
    t->dl.data = NULL;
    return;
  }
  if (choice == NOTHING) return;
  if (choice == SHARED && share(f, t, bytes, above)) return;
  const size_t off = choice == MISALIGNED;
  t->bytes = (size_t)bytes + off;
  t->block = take(t->bytes);
  fill(f, t, t->block);
  t->dl.data = (void *)((uintptr_t)t->block + (uintptr_t)above + off - t->dl.byte_offset);
}

#endif
