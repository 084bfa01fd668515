/*
 * Calls of Tigon's operations in TVM FFI's convention: positional arguments in a packed array of TVMFFIAny.
 *
 * The first argument of every operation is a context (an integer from tigon_context_create, or None), the others are
 * the members of its args struct in their order. Absent tensors and blocks are None; integers and floats may be None,
 * which is 0. Device and stream are those of the first tensor; workspace is allocated here, on a GPU by the caller's
 * framework.
 */
#ifndef TIGON_FFI_MARSHAL_H
#define TIGON_FFI_MARSHAL_H

#include <stdbool.h>
#include <tigon/tigon.h>
#include <tvm/ffi/c_api.h>

/*
 * An operation's args struct, one letter a member behind `size`:
 *
 *     i int32_t    l int64_t    f float    d DLDataType    t tensor    s block: pointer and bytes, from one tensor
 *     r tensor of rows: any number of leading dimensions, folded to one or two (rows.h)
 *     v tensor with one value a row: the leading dimensions of the rows
 *     n NULL pointer and z zero int32_t: members that take no argument
 *
 * Members lie at the next offset that suits their type, as C lays out structs.
 */
typedef struct ffi_operation {
  const char *op; /* "tigon_moe" */
  const char *codes;
  const char *names; /* of the members that take an argument, separated by spaces */
  uint32_t size;     /* of the args struct */
  bool try_without;  /* seldom needs workspace: runs without it first */
  tigon_status (*run)(const tigon_exec *exec, const void *args);
  tigon_status (*workspace)(const tigon_exec *exec, const void *args, uint64_t *bytes);
} ffi_operation;

/* Runs the operation. 0, or -1 with a raised error. */
int ffi_call(const ffi_operation *operation, const TVMFFIAny *args, int32_t count);

/* Answers a query with the operation's arguments. */
int ffi_query(const ffi_operation *operation, const TVMFFIAny *args, int32_t count, TVMFFIAny *result,
              tigon_status (*query)(const tigon_exec *exec, const void *args, uint64_t *bytes));

/* Threads of CPU operations that are called from here; 0: all. */
void ffi_set_threads(int32_t threads);

#endif
