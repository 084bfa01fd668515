/*
 * What every test of an operation needs: tensors with poisoned surroundings, random values, guarded workspaces, and the
 * two gates that compare an output with the float64 oracle (DESIGN: numerics).
 */
#ifndef TIGON_TESTS_SUPPORT_H
#define TIGON_TESTS_SUPPORT_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/dtype.h"
#include "tigon/tigon.h"

/* Sanitizers change times and memory, so tests of those only assert without them. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TEST_SANITIZED 1
#endif
#if __has_feature(address_sanitizer)
#define TEST_ADDRESS_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define TEST_ADDRESS_SANITIZED 1
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_SANITIZED 1
#endif

/* --- random numbers: the same on every machine ------------------------------------------------------------------ */

typedef struct test_rng {
  uint64_t state;
} test_rng;

uint64_t test_random(test_rng *rng);
int64_t test_random_range(test_rng *rng, int64_t low, int64_t high); /* low <= result <= high */
double test_random_uniform(test_rng *rng);                           /* [0, 1) */
double test_random_normal(test_rng *rng);

/* --- tensors ---------------------------------------------------------------------------------------------------- */

/* How a tensor lies in memory: row_pad elements after each row (all leading dimensions are laid out with it), offset
 * elements before the first, and dimension 0 expanded with stride 0. vector_stride > 1 spaces the elements of a 1-D
 * tensor. All zero: compact. */
typedef struct test_layout {
  int64_t row_pad;
  int64_t offset;
  int64_t vector_stride;
  bool expand;
} test_layout;

typedef struct test_tensor {
  tigon_tensor tensor; /* pass &t.tensor.dl */
  tigon_kind kind;
  int64_t count; /* elements */
  unsigned char *block;
  size_t bytes;
} test_tensor;

/* All bytes, elements and surroundings, are 0xff: NaN in every float kind, -1 in integers. */
void test_tensor_make(test_tensor *t, tigon_kind kind, int ndim, const int64_t *shape, test_layout layout);
void test_tensor_free(test_tensor *t);
/* Elements by dense row-major index. set rounds to the kind. */
double test_tensor_get(const test_tensor *t, int64_t i);
void test_tensor_set(test_tensor *t, int64_t i, double value);
void test_tensor_fill_normal(test_tensor *t, test_rng *rng, double scale);
void test_tensor_fill_value(test_tensor *t, double value);
/* A malloc'd dense copy of the elements as doubles. */
double *test_tensor_values(const test_tensor *t);
/* Fails when a byte outside the elements is no longer 0xff. */
void test_tensor_check_surroundings(const test_tensor *t);
/* Fails unless both have the same bytes. */
void test_tensor_check_same(const char *what, const test_tensor *a, const test_tensor *b);
const char *test_kind_name(tigon_kind kind);
DLDataType test_dtype(tigon_kind kind);

/* --- execution -------------------------------------------------------------------------------------------------- */

/* A workspace of exactly `bytes`, filled with 0xff, between guard zones. */
typedef struct test_workspace {
  tigon_exec exec; /* size, workspace, workspace_bytes and num_threads are set; context is the caller's to set */
  unsigned char *block;
  size_t block_bytes, capacity;
} test_workspace;

void test_workspace_make(test_workspace *w, uint64_t bytes, int threads);
/* Checks the guard zones and frees. */
void test_workspace_free(test_workspace *w);

/* Fails unless status is the expected one and, for failures, tigon_last_error() contains `fragment`. */
void test_expect_status(tigon_status got, tigon_status expected, const char *fragment);

/* --- gates ------------------------------------------------------------------------------------------------------ */

/*
 * Gate 1: |got - oracle| <= bound * rms(oracle) + the rounding of that element to its dtype. Gate 2: rms(got - oracle)
 * <= 1.5 rms(plain - oracle), where plain is the fp32 composition that rounds where the header does; checked for each
 * tensor of 256 elements or more, and over all tensors of a group (output and dtype) in test_gate_report, with a floor
 * of one fp32 rounding (2^-24 rms(oracle)). Where the oracle is NaN or infinite the output must be the same. plain
 * NULL: gate 1 only.
 */
void test_gate(const char *output, const test_tensor *got, const double *oracle, const double *plain, double bound);

/* The same with gate 2 over the group alone: for tensors whose elements repeat a few errors, so that one is no
 * sample. */
void test_gate_pooled(const char *output, const test_tensor *got, const double *oracle, const double *plain,
                      double bound);

/* Counts a case that the run's summary reports. With TIGON_TEST_REDUCED (an emulated processor) a program that has used
 * some seconds leaves each further test here, after one case. */
void test_count_case(void);

/* Prints "cases: N" and one line per group, "gate FAMILY OUTPUT DTYPE tensors= worst= bound= ratio= limit=1.5", and
 * fails when a group misses gate 2. Call at the end of main: return test_gate_report("rms_norm",
 * cmocka_run_group_tests(...)); */
int test_gate_report(const char *family, int failures);

#endif
