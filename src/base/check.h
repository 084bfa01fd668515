/*
 * Tensor checks. A checker keeps the first failure, so that an operation's checks read as a list:
 *
 *     tigon_checker check = {.op = "tigon_linear", .query = query};
 *     const tigon_view x = tigon_check_tensor(&check, "x", args->x, TIGON_FLOATS, 0, 2, (int64_t[]){-1, -1});
 *     const tigon_view w =
 *         tigon_check_tensor(&check, "weight", args->weight, TIGON_FLOATS, 0, 2, (int64_t[]){-1, x.shape[1]});
 *     if (check.status != TIGON_OK) return check.status;
 *
 * After a failure every further call returns an empty view at once.
 */
#ifndef TIGON_BASE_CHECK_H
#define TIGON_BASE_CHECK_H

#include <stdbool.h>

#include "base/dtype.h"
#include "tigon/base.h"

typedef struct tigon_checker {
  const char *op;
  bool query;      /* a size query: data pointers are not looked at */
  DLDevice device; /* of all tensors; all zero: the CPU */
  tigon_status status;
} tigon_checker;

/* A checked tensor. Dimensions past ndim have extent 1 and stride 0. */
typedef struct tigon_view {
  char *data; /* byte_offset applied; without elements some valid address, and all strides are 0 */
  tigon_kind kind;
  int ndim; /* 0: absent */
  int64_t shape[5];
  int64_t stride[5]; /* elements */
} tigon_view;

enum {
  TIGON_OPTIONAL = 1,  /* NULL gives an absent view */
  TIGON_OUTPUT = 2,    /* written: no two of its elements in one place */
  TIGON_ANY_STRIDE = 4 /* the last dimension need not be contiguous */
};

static inline bool tigon_present(const tigon_view *view) { return view->ndim > 0; }

static inline int64_t tigon_elements(const tigon_view *view) {
  return view->shape[0] * view->shape[1] * view->shape[2] * view->shape[3] * view->shape[4];
}

/* 0 for a type that no operation takes. */
tigon_kind tigon_kind_of(DLDataType type);

/* shape[i] < 0 accepts any extent. */
tigon_view tigon_check_tensor(tigon_checker *check, const char *name, const DLTensor *tensor, unsigned kinds,
                              unsigned flags, int ndim, const int64_t *shape);

/* Fails with TIGON_INVALID_ARGUMENT unless the condition holds; only then are the message's arguments computed. */
#define tigon_check_that(check, condition, name, ...) \
  ((condition) ? (void)0 : tigon_check_fail((check), (name), __VA_ARGS__))

void tigon_check_fail(tigon_checker *check, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));

/* Fails when an output shares memory with another tensor; absent and empty ones share none. */
void tigon_check_apart(tigon_checker *check, const char *name, const tigon_view *output, const char *other_name,
                       const tigon_view *other);

/* The same, but the output may be the other tensor itself: address, dtype, shape and strides. */
void tigon_check_same_or_apart(tigon_checker *check, const char *name, const tigon_view *output, const char *other_name,
                               const tigon_view *other);

/* Fails with TIGON_UNSUPPORTED when a team or a shard offset is given. */
void tigon_check_alone(tigon_checker *check, const tigon_team *team, const char *begin_name, int64_t begin);

/* Address of what stands at index i of the first dimension. */
static inline char *tigon_at(const tigon_view *view, int64_t i) {
  return view->data + i * view->stride[0] * tigon_kind_bytes(view->kind);
}

#endif
