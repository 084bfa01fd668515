#include <time.h>

#include "tests/support/support.h"

typedef struct group {
  char output[32];
  tigon_kind kind;
  int64_t tensors;
  double worst, bound;   /* gate 1: beyond the rounding to storage */
  double error2, plain2; /* gate 2: sums of squares, each tensor scaled by its oracle's rms */
  int64_t elements;
} group;

static group groups[64];
static int group_count;
static int64_t cases;

static group *find_group(const char *output, tigon_kind kind) {
  for (int i = 0; i < group_count; i++)
    if (groups[i].kind == kind && strcmp(groups[i].output, output) == 0) return &groups[i];
  assert_true(group_count < (int)(sizeof groups / sizeof *groups));
  group *g = &groups[group_count++];
  snprintf(g->output, sizeof g->output, "%s", output);
  g->kind = kind;
  return g;
}

void test_count_case(void) {
  enum { ENOUGH_SECONDS = 2 };
  cases++;
  if (getenv("TIGON_TEST_REDUCED") && clock() > ENOUGH_SECONDS * CLOCKS_PER_SEC) skip();
}

/* NaN and infinities must match exactly; they take no part in the sums. */
static bool both_special(const char *output, int64_t i, double got, double oracle) {
  if (isfinite(oracle)) return false;
  if (isnan(oracle) ? !isnan(got) : got != oracle)
    fail_msg("%s[%lld]: expected %g, got %g", output, (long long)i, oracle, got);
  return true;
}

static double rms_of(const double *values, int64_t n) {
  double sum = 0;
  int64_t finite = 0;
  for (int64_t i = 0; i < n; i++)
    if (isfinite(values[i])) {
      sum += values[i] * values[i];
      finite++;
    }
  return finite ? sqrt(sum / (double)finite) : 0;
}

/* The rounding of a value to storage: half a unit in the last place at most. */
static double half_unit(tigon_kind kind, double value) {
  const double relative = kind == TIGON_BF16 ? 0x1p-8 : kind == TIGON_F16 ? 0x1p-11 : 0x1p-24;
  const double least = kind == TIGON_F16 ? 0x1p-25 : 0; /* of float16's subnormal numbers */
  return fmax(relative * fabs(value), least);
}

static void gate(const char *output, const test_tensor *got, const double *oracle, const double *plain, double bound,
                 bool pooled) {
  if (got->count == 0) return;
  group *g = find_group(output, got->kind);
  const double rms = rms_of(oracle, got->count);
  const double scale = rms > 0 ? rms : 1;
  if (rms == 0 && bound > 0x1p-20) bound = 0x1p-20; /* what is left where terms of size 1 cancel */
  double worst = 0, error2 = 0, plain2 = 0;
  int64_t n = 0;
  for (int64_t i = 0; i < got->count; i++) {
    const double value = test_tensor_get(got, i);
    if (both_special(output, i, value, oracle[i])) continue;
    const double error = fabs(value - oracle[i]) / scale;
    const double beyond = error - half_unit(got->kind, oracle[i]) / scale;
    if (!(beyond <= bound))
      fail_msg("%s[%lld] (%s): expected %.9g, got %.9g: error %.3g of rms %.3g is above %.3g and one rounding", output,
               (long long)i, test_kind_name(got->kind), oracle[i], value, error, rms, bound);
    if (beyond > worst) worst = beyond;
    error2 += error * error;
    if (plain) plain2 += (plain[i] - oracle[i]) * (plain[i] - oracle[i]) / (scale * scale);
    n++;
  }
  g->tensors++;
  if (worst > g->worst) g->worst = worst;
  if (bound > g->bound) g->bound = bound;
  if (!plain) return;
  const double floor2 = (double)n * 0x1p-48;
  if (!pooled && n >= 256 && error2 > 2.25 * plain2 + floor2)
    fail_msg("%s (%s): error is %.3g of the plain composition's (rms %.3g against %.3g), above 1.5", output,
             test_kind_name(got->kind), sqrt(error2 / plain2), sqrt(error2 / (double)n), sqrt(plain2 / (double)n));
  g->error2 += error2;
  g->plain2 += plain2;
  g->elements += n;
}

void test_gate(const char *output, const test_tensor *got, const double *oracle, const double *plain, double bound) {
  gate(output, got, oracle, plain, bound, false);
}

void test_gate_pooled(const char *output, const test_tensor *got, const double *oracle, const double *plain,
                      double bound) {
  gate(output, got, oracle, plain, bound, true);
}

int test_gate_report(const char *family, int failures) {
  printf("cases: %lld\n", (long long)cases);
  for (int i = 0; i < group_count; i++) {
    const group *g = &groups[i];
    const double floor2 = (double)g->elements * 0x1p-48;
    const double ratio = g->plain2 > 0 ? sqrt(g->error2 / g->plain2) : 0;
    printf("gate %s %s %s tensors=%lld worst=%.3g bound=%.3g ratio=%.3f limit=1.5\n", family, g->output,
           test_kind_name(g->kind), (long long)g->tensors, g->worst, g->bound, ratio);
    if (g->error2 > 2.25 * g->plain2 + floor2) {
      printf("gate %s %s %s FAILED: error above 1.5 times the plain composition's\n", family, g->output,
             test_kind_name(g->kind));
      failures++;
    }
  }
  return failures;
}
