#include "ffi/marshal.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <tvm/ffi/extra/c_env_api.h>

#include "ffi/errors.h"
#include "ffi/rows.h"

enum { MAX_ARGS_BYTES = 512, WORKSPACE_ALIGNMENT = 64 };

static _Atomic int32_t threads;

void ffi_set_threads(int32_t count) { atomic_store_explicit(&threads, count, memory_order_relaxed); }

/* A call in the making: the args struct is filled member by member. */
typedef struct ffi_frame {
  const ffi_operation *operation;
  const TVMFFIAny *next; /* argument of the next member */
  const char *name;      /* of the next member that takes one */
  int length;
  uint32_t offset;
  tigon_exec exec;
  int row_count;
  ffi_row_tensor rows[FFI_MAX_ROW_TENSORS];
  _Alignas(8) unsigned char block[MAX_ARGS_BYTES];
} ffi_frame;

/* Room for a member of the args struct. */
static void *place(ffi_frame *frame, uint32_t size) {
  frame->offset = (frame->offset + size - 1) / size * size;
  void *at = frame->block + frame->offset;
  frame->offset += size;
  return at;
}

static void put_pointer(ffi_frame *frame, const void *pointer) {
  memcpy(place(frame, sizeof pointer), &pointer, sizeof pointer);
}

static int wrong_type(const ffi_frame *frame, const char *expected) {
  return ffi_fail("TypeError", frame->operation->op, frame->name, frame->length,
                  "expected %s, got an object of TVM FFI type %d", expected, (int)frame->next->type_index);
}

static int put_integer(ffi_frame *frame, uint32_t size) {
  const TVMFFIAny *any = frame->next;
  if (any->type_index != kTVMFFIInt && any->type_index != kTVMFFIBool && any->type_index != kTVMFFINone)
    return wrong_type(frame, "an integer");
  const int64_t wide = any->type_index == kTVMFFINone ? 0 : any->v_int64;
  if (size == sizeof wide) {
    memcpy(place(frame, size), &wide, size);
    return 0;
  }
  if (wide < INT32_MIN || wide > INT32_MAX)
    return ffi_fail("ValueError", frame->operation->op, frame->name, frame->length, "expected 32 bits, got %lld",
                    (long long)wide);
  const int32_t narrow = (int32_t)wide;
  memcpy(place(frame, size), &narrow, size);
  return 0;
}

static int put_float(ffi_frame *frame) {
  const TVMFFIAny *any = frame->next;
  float value = 0;
  if (any->type_index == kTVMFFIFloat)
    value = (float)any->v_float64;
  else if (any->type_index == kTVMFFIInt || any->type_index == kTVMFFIBool)
    value = (float)any->v_int64;
  else if (any->type_index != kTVMFFINone)
    return wrong_type(frame, "a number");
  memcpy(place(frame, sizeof value), &value, sizeof value);
  return 0;
}

static int put_dtype(ffi_frame *frame) {
  DLDataType type = {0};
  if (frame->next->type_index == kTVMFFIDataType)
    type = frame->next->v_dtype;
  else if (frame->next->type_index != kTVMFFINone)
    return wrong_type(frame, "a dtype");
  memcpy(place(frame, sizeof type), &type, sizeof type);
  return 0;
}

/* The tensor of the next argument, NULL for None. The first tensor says where the call runs. */
static int read_tensor(ffi_frame *frame, const DLTensor **tensor) {
  const TVMFFIAny *any = frame->next;
  *tensor = NULL;
  if (any->type_index == kTVMFFITensor)
    *tensor = (const DLTensor *)(any->v_obj + 1); /* TVM FFI's layout: the DLTensor follows the object's header */
  else if (any->type_index == kTVMFFIDLTensorPtr)
    *tensor = any->v_ptr;
  else if (any->type_index != kTVMFFINone)
    return wrong_type(frame, "a tensor or None");
  if (*tensor && !frame->exec.device.device_type) frame->exec.device = (*tensor)->device;
  return 0;
}

static int put_tensor(ffi_frame *frame) {
  const DLTensor *tensor;
  if (read_tensor(frame, &tensor)) return -1;
  put_pointer(frame, tensor);
  return 0;
}

static int put_rows(ffi_frame *frame, bool per_row) {
  const DLTensor *tensor;
  if (read_tensor(frame, &tensor)) return -1;
  put_pointer(frame, tensor);
  if (!tensor) return 0;
  ffi_row_tensor *row = &frame->rows[frame->row_count++];
  row->tensor = tensor;
  row->name = frame->name;
  row->length = frame->length;
  row->per_row = per_row;
  row->offset = frame->offset - (uint32_t)sizeof(void *);
  return 0;
}

static int put_block(ffi_frame *frame) {
  const DLTensor *tensor;
  if (read_tensor(frame, &tensor)) return -1;
  uint64_t bytes = 0;
  if (tensor) {
    if (tensor->ndim != 1 || tensor->dtype.bits != 8 || (tensor->strides && tensor->strides[0] != 1))
      return ffi_fail("ValueError", frame->operation->op, frame->name, frame->length,
                      "expected a contiguous vector of bytes");
    bytes = (uint64_t)tensor->shape[0];
  }
  put_pointer(frame, tensor ? (const unsigned char *)tensor->data + tensor->byte_offset : NULL);
  memcpy(place(frame, sizeof bytes), &bytes, sizeof bytes);
  return 0;
}

static int put_member(ffi_frame *frame, char code) {
  switch (code) {
  case 'i':
    return put_integer(frame, sizeof(int32_t));
  case 'l':
    return put_integer(frame, sizeof(int64_t));
  case 'f':
    return put_float(frame);
  case 'd':
    return put_dtype(frame);
  case 't':
    return put_tensor(frame);
  case 's':
    return put_block(frame);
  default:
    return put_rows(frame, code == 'v');
  }
}

/* Members without an argument stay zero. */
static bool skip_member(ffi_frame *frame, char code) {
  if (code != 'n' && code != 'z') return false;
  (void)place(frame, code == 'n' ? sizeof(void *) : sizeof(int32_t));
  return true;
}

static void next_name(ffi_frame *frame) {
  frame->name += frame->length;
  frame->name += *frame->name == ' ';
  frame->length = (int)strcspn(frame->name, " ");
}

static int fold_rows(ffi_frame *frame) {
  if (!frame->row_count || frame->rows[0].per_row) return 0;
  if (ffi_fold_rows(frame->operation->op, frame->rows, frame->row_count)) return -1;
  for (int i = 0; i < frame->row_count; i++) {
    const DLTensor *view = &frame->rows[i].view;
    memcpy(frame->block + frame->rows[i].offset, &view, sizeof(void *));
  }
  return 0;
}

static int read_context(ffi_frame *frame, const TVMFFIAny *any) {
  if (any->type_index == kTVMFFIInt || any->type_index == kTVMFFIOpaquePtr)
    frame->exec.context = any->v_ptr;
  else if (any->type_index != kTVMFFINone)
    return ffi_fail("TypeError", frame->operation->op, "context", 7,
                    "expected a handle or None, got an object of TVM FFI type %d", (int)any->type_index);
  return 0;
}

static int count_arguments(const char *codes) {
  int count = 1;
  for (const char *code = codes; *code; code++) count += *code != 'n' && *code != 'z';
  return count;
}

static int fill(ffi_frame *frame, const ffi_operation *operation, const TVMFFIAny *args, int32_t count) {
  memset(frame->block, 0, operation->size);
  frame->operation = operation;
  frame->name = operation->names;
  frame->length = (int)strcspn(frame->name, " ");
  frame->offset = sizeof(uint32_t);
  frame->row_count = 0;
  frame->exec = (tigon_exec){.size = sizeof frame->exec};
  const int expected = count_arguments(operation->codes);
  if (count != expected)
    return ffi_fail("TypeError", operation->op, "arguments", 9, "expected %d, got %d", expected, (int)count);
  if (read_context(frame, args)) return -1;
  frame->next = args + 1;
  for (const char *code = operation->codes; *code; code++) {
    if (skip_member(frame, *code)) continue;
    if (put_member(frame, *code)) return -1;
    frame->next++;
    next_name(frame);
  }
  if ((frame->offset + 7) / 8 * 8 != operation->size)
    return ffi_fail("RuntimeError", operation->op, "codes", 5, "describe %u bytes, but the args struct has %u",
                    (unsigned)frame->offset, (unsigned)operation->size);
  memcpy(frame->block, &operation->size, sizeof operation->size);
  if (fold_rows(frame)) return -1;
  frame->exec.num_threads = atomic_load_explicit(&threads, memory_order_relaxed);
  const DLDevice device = frame->exec.device;
  if (device.device_type == kDLCUDA)
    frame->exec.stream = TVMFFIEnvGetStream((int32_t)device.device_type, device.device_id);
  return 0;
}

/* On a GPU the memory is the framework's, whose allocator orders its reuse by the stream. */
static int run_on_device(ffi_frame *frame, uint64_t bytes) {
  int64_t shape[1] = {(int64_t)bytes};
  DLTensor prototype = {.device = frame->exec.device, .ndim = 1, .dtype = {kDLUInt, 8, 1}, .shape = shape};
  TVMFFIObjectHandle handle = NULL;
  if (TVMFFIEnvTensorAlloc(&prototype, &handle)) return -1;
  const DLTensor *tensor = (const DLTensor *)((const TVMFFIObject *)handle + 1);
  frame->exec.workspace = (unsigned char *)tensor->data + tensor->byte_offset;
  frame->exec.workspace_bytes = bytes;
  const tigon_status status = frame->operation->run(&frame->exec, frame->block);
  const int failed = ffi_status(status);
  TVMFFIObjectDecRef(handle);
  return failed;
}

static int run_on_cpu(ffi_frame *frame, uint64_t bytes) {
  if (bytes) {
    frame->exec.workspace = aligned_alloc(WORKSPACE_ALIGNMENT, bytes);
    if (!frame->exec.workspace)
      return ffi_fail("MemoryError", frame->operation->op, "workspace", 9, "no memory for %llu bytes",
                      (unsigned long long)bytes);
    frame->exec.workspace_bytes = bytes;
  }
  const tigon_status status = frame->operation->run(&frame->exec, frame->block);
  free(frame->exec.workspace);
  return ffi_status(status);
}

int ffi_call(const ffi_operation *operation, const TVMFFIAny *args, int32_t count) {
  ffi_frame frame;
  if (fill(&frame, operation, args, count)) return -1;
  if (operation->try_without) {
    const tigon_status status = operation->run(&frame.exec, frame.block);
    if (status != TIGON_WORKSPACE) return ffi_status(status);
  }
  uint64_t bytes = 0;
  if (ffi_status(operation->workspace(&frame.exec, frame.block, &bytes))) return -1;
  if (bytes && frame.exec.device.device_type == kDLCUDA) return run_on_device(&frame, bytes);
  return run_on_cpu(&frame, bytes);
}

int ffi_query(const ffi_operation *operation, const TVMFFIAny *args, int32_t count, TVMFFIAny *result,
              tigon_status (*query)(const tigon_exec *exec, const void *args, uint64_t *bytes)) {
  ffi_frame frame;
  uint64_t bytes = 0;
  if (fill(&frame, operation, args, count) || ffi_status(query(&frame.exec, frame.block, &bytes))) return -1;
  result->type_index = kTVMFFIInt;
  result->v_int64 = (int64_t)bytes;
  return 0;
}
