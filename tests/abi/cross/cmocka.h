/*
 * What the tests use of cmocka, for runs on a processor that no cmocka is installed for (cmake/aarch64.cmake). A failed
 * check ends its test; the others go on.
 */
#ifndef TIGON_TESTS_CROSS_CMOCKA_H
#define TIGON_TESTS_CROSS_CMOCKA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

typedef void (*CMUnitTestFunction)(void **state);

struct CMUnitTest {
  const char *name;
  CMUnitTestFunction test_func;
};

#define cmocka_unit_test(function) \
  { #function, function }

/* Where the running test is left: one for all files of a program. */
__attribute__((weak)) jmp_buf cross_test_end;
enum { CROSS_FAILED = 1, CROSS_SKIPPED = 2 };

__attribute__((noreturn, format(printf, 3, 4))) static inline void cross_fail(const char *file, int line,
                                                                              const char *format, ...) {
  va_list args;
  va_start(args, format);
  fprintf(stderr, "%s:%d: ", file, line);
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  va_end(args);
  longjmp(cross_test_end, CROSS_FAILED);
}

#define print_message(...)           fprintf(stderr, __VA_ARGS__)
#define fail_msg(...)                cross_fail(__FILE__, __LINE__, __VA_ARGS__)
#define fail()                       fail_msg("failed")
#define skip()                       longjmp(cross_test_end, CROSS_SKIPPED)

#define cross_check(condition, text) ((condition) ? (void)0 : fail_msg("expected %s", text))
#define assert_true(x)               cross_check(x, #x)
#define assert_false(x)              cross_check(!(x), "not " #x)
#define assert_null(x)               cross_check((x) == NULL, #x " to be NULL")
#define assert_non_null(x)           cross_check((x) != NULL, #x " not to be NULL")
#define assert_ptr_equal(a, b)       cross_check((const void *)(a) == (const void *)(b), #a " == " #b)
#define assert_string_equal(a, b)    cross_check(strcmp(a, b) == 0, #a " to be the text " #b)
#define assert_memory_equal(a, b, n) cross_check(memcmp(a, b, n) == 0, #a " to have the bytes of " #b)
#define assert_int_equal(a, b)       cross_int_equal((uintmax_t)(a), (uintmax_t)(b), #a " == " #b, __FILE__, __LINE__)
#define assert_int_not_equal(a, b)   cross_check((uintmax_t)(a) != (uintmax_t)(b), #a " != " #b)
#define assert_in_range(a, low, high) \
  cross_check((uintmax_t)(a) >= (uintmax_t)(low) && (uintmax_t)(a) <= (uintmax_t)(high), #a " in " #low " .. " #high)
#define assert_float_equal(a, b, epsilon) \
  cross_check((a) - (b) <= (epsilon) && (b) - (a) <= (epsilon), #a " to be within " #epsilon " of " #b)

static inline void cross_int_equal(uintmax_t a, uintmax_t b, const char *text, const char *file, int line) {
  if (a != b) cross_fail(file, line, "expected %s, got %jd and %jd", text, (intmax_t)a, (intmax_t)b);
}

/* Left out, because emulation is slow: what has nothing to do with the processor, and what is left after some
 * seconds. */
static inline bool cross_leave_out(const char *test) {
  enum { MOST_SECONDS = 4 };
  static const char *const parts[] = {"same_bits", "finite_differences", "concurrent", "workspace"};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    if (strstr(test, parts[i])) return true;
  return clock() > MOST_SECONDS * CLOCKS_PER_SEC;
}

static inline int cross_run_tests(const struct CMUnitTest *tests, size_t count) {
  volatile int failures = 0;
  for (volatile size_t i = 0; i < count; i++) {
    void *state = NULL;
    volatile int end = CROSS_SKIPPED;
    if (!cross_leave_out(tests[i].name)) {
      end = setjmp(cross_test_end);
      if (end == 0) tests[i].test_func(&state);
    }
    failures += end == CROSS_FAILED;
    printf("%s: %s\n", end == CROSS_FAILED ? "FAILED" : end == CROSS_SKIPPED ? "skipped" : "ok", tests[i].name);
    fflush(stdout);
  }
  return failures;
}

/* No test has a set-up or tear-down of its group. */
#define cmocka_run_group_tests(tests, setup, teardown) \
  ((void)(setup), (void)(teardown), cross_run_tests(tests, sizeof(tests) / sizeof *(tests)))

#endif
