#include "tests/gpu/mirror.h"

enum { GUARD = 1024 };

DLDevice mirror_device(void) {
  const char *id = getenv("TIGON_TEST_GPU");
  return (DLDevice){kDLCUDA, id ? atoi(id) : 0};
}

void mirror_add(mirror *m, DLTensor **place, bool output) {
  if (!*place) return;
  assert_true(m->tensors < MIRROR_TENSORS);
  const int i = m->tensors++;
  m->original[i] = *place;
  m->copy[i] = **place;
  m->copy[i].device = mirror_device();
  m->output[i] = output;
  *place = &m->copy[i];
}

/* The bytes that the tensor reaches; false where it has none. */
static bool reach(const DLTensor *t, uintptr_t *begin, uintptr_t *end) {
  int64_t low = 0, high = 0, compact = 1;
  if (!t->data) return false;
  for (int d = t->ndim - 1; d >= 0; d--) {
    const int64_t stride = t->strides ? t->strides[d] : compact, extent = t->shape[d];
    if (extent <= 0) return false;
    *(stride < 0 ? &low : &high) += stride * (extent - 1);
    compact *= extent;
  }
  const int64_t bytes = t->dtype.bits / 8;
  const uintptr_t first = (uintptr_t)t->data + t->byte_offset;
  *begin = first + (uintptr_t)(low * bytes);
  *end = first + (uintptr_t)((high + 1) * bytes);
  return true;
}

static void add_segment(mirror *m, uintptr_t begin, uintptr_t end) {
  for (int i = 0; i < m->segments;) {
    mirror_segment *s = &m->segment[i];
    if (begin < s->end && s->begin < end) { /* joins the new one, which is looked at again from the start */
      begin = s->begin < begin ? s->begin : begin;
      end = s->end > end ? s->end : end;
      *s = m->segment[--m->segments];
      i = 0;
    } else {
      i++;
    }
  }
  m->segment[m->segments++] = (mirror_segment){.begin = begin, .end = end};
}

static const mirror_segment *segment_of(const mirror *m, uintptr_t address) {
  for (int i = 0; i < m->segments; i++)
    if (address >= m->segment[i].begin && address < m->segment[i].end) return &m->segment[i];
  fail_msg("no mirror of %p", (void *)address);
  return NULL;
}

static void push_segment(mirror_segment *s) {
  const size_t bytes = s->end - s->begin, shift = s->begin % 256;
  s->block = gpu_alloc(bytes + shift + 2 * GUARD);
  s->device = s->block + GUARD + shift;
  GPU(cuMemcpyHtoD(s->device, (void *)s->begin, bytes));
}

void mirror_start(mirror *m, const tigon_exec *exec, bool data) {
  if (exec) m->exec = *exec;
  m->exec.size = sizeof m->exec;
  m->exec.device = mirror_device();
  if (!data) return;
  uintptr_t begin, end;
  gpu_use(mirror_device().device_id);
  for (int i = 0; i < m->tensors; i++)
    if (reach(m->original[i], &begin, &end)) add_segment(m, begin, end);
  for (int i = 0; i < m->segments; i++) push_segment(&m->segment[i]);
  for (int i = 0; i < m->tensors; i++)
    if (reach(m->original[i], &begin, &end)) {
      const mirror_segment *s = segment_of(m, begin);
      const uintptr_t first = (uintptr_t)m->original[i]->data + m->original[i]->byte_offset;
      m->copy[i].data = (void *)(s->device + (first - s->begin));
      m->copy[i].byte_offset = 0;
    }
  if (!m->exec.workspace) return;
  m->workspace_block = gpu_alloc(m->exec.workspace_bytes + 2 * GUARD);
  m->exec.workspace = (void *)(m->workspace_block + GUARD);
}

static void check_poison(CUdeviceptr from, size_t bytes, const char *what) {
  unsigned char guard[GUARD + 256];
  assert_true(bytes <= sizeof guard);
  GPU(cuMemcpyDtoH(guard, from, bytes));
  for (size_t i = 0; i < bytes; i++)
    if (guard[i] != 0xff) fail_msg("device memory beside %s was written", what);
}

void mirror_end(mirror *m) {
  GPU(cuCtxSynchronize());
  for (int i = 0; i < m->tensors; i++) {
    uintptr_t begin, end;
    if (!m->output[i] || !reach(m->original[i], &begin, &end)) continue;
    const mirror_segment *s = segment_of(m, begin);
    GPU(cuMemcpyDtoH((void *)begin, s->device + (begin - s->begin), end - begin));
  }
  for (int i = 0; i < m->segments; i++) {
    const mirror_segment *s = &m->segment[i];
    check_poison(s->block, (size_t)(s->device - s->block), "a tensor");
    check_poison(s->device + (s->end - s->begin), GUARD, "a tensor");
    gpu_free(s->block);
  }
  if (!m->workspace_block) return;
  check_poison(m->workspace_block, GUARD, "the workspace");
  check_poison(m->workspace_block + GUARD + m->exec.workspace_bytes, GUARD, "the workspace");
  gpu_free(m->workspace_block);
}
