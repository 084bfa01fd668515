/* Reading of checkpoints: what was written comes back, and a damaged or hostile file ends in one line. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "checkpoint.h"
#include "paths.h"
#include "random.h"

static const model_config config = {
    .layers = 1, .width = 8, .heads = 2, .experts = 2, .top_k = 1, .hidden = 4, .vocabulary = 256};

typedef struct fixture {
  char directory[64], path[128];
  model_shape shape;
  model m;
  run_state state;
  uint8_t *file; /* a whole checkpoint */
  size_t size, header;
} fixture;

static fixture f;

static void write_file(const uint8_t *bytes, size_t size) {
  FILE *file = fopen(f.path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, size, file), size);
  assert_int_equal(fclose(file), 0);
}

static int set_up(void **state) {
  (void)state;
  failure failed;
  strcpy(f.directory, "/tmp/tigon_checkpoint_XXXXXX");
  if (!mkdtemp(f.directory)) return 1;
  join_path(f.path, sizeof f.path, f.directory, CHECKPOINT_NAME);
  const model_settings settings = {1, 4, 1, true};
  model_shape_init(&f.shape, &config);
  if (!model_create(&f.m, &f.shape, &settings, &failed)) return 1;
  model_init(&f.m, 3);
  for (int64_t i = 0; i < f.shape.elements; i++) {
    f.m.moment[i] = (float)i;
    f.m.variance[i] = 1 / (float)(i + 1);
  }
  f.state = (run_state){.config = config,
                        .step = 12,
                        .at = {3, 4},
                        .batch = 5,
                        .length = 6,
                        .steps = 70,
                        .seed = 8,
                        .rate = 0.1,
                        .seconds = 1.25,
                        .data_bytes = INT64_C(5000000000),
                        .data_hash = UINT64_C(0xfedcba9876543210)};
  if (!checkpoint_write(f.directory, &f.state, &f.m, &failed)) return 1;
  FILE *file = fopen(f.path, "rb");
  if (!file) return 1;
  f.file = malloc(1 << 20);
  f.size = fread(f.file, 1, 1 << 20, file);
  fclose(file);
  for (int i = 0; i < 8; i++) f.header |= (size_t)f.file[i] << 8 * i;
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  model_destroy(&f.m);
  free(f.file);
  unlink(f.path);
  return rmdir(f.directory);
}

static void what_was_written_comes_back(void **state) {
  (void)state;
  failure failed;
  static checkpoint file;
  write_file(f.file, f.size);
  assert_true(checkpoint_open(&file, f.directory, &failed));
  assert_memory_equal(&file.state.config, &config, sizeof config);
  const run_state *s = &file.state;
  assert_true(s->step == 12 && s->at.epoch == 3 && s->at.index == 4 && s->batch == 5 && s->length == 6 &&
              s->steps == 70);
  assert_true(s->seed == 8 && s->rate == 0.1 && s->seconds == 1.25 && s->data_bytes == INT64_C(5000000000));
  assert_true(s->data_hash == UINT64_C(0xfedcba9876543210));
  model m;
  const model_settings settings = {1, 4, 1, true};
  assert_true(model_create(&m, &f.shape, &settings, &failed));
  assert_true(checkpoint_read(&file, &m, &failed));
  for (int i = 0; i < f.shape.count; i++) {
    const parameter *p = &f.shape.parameters[i];
    const size_t bytes = (size_t)p->count * sizeof(float);
    assert_memory_equal(m.weights + p->offset, f.m.weights + p->offset, bytes);
    assert_memory_equal(m.moment + p->offset, f.m.moment + p->offset, bytes);
    assert_memory_equal(m.variance + p->offset, f.m.variance + p->offset, bytes);
  }
  model_destroy(&m);
  checkpoint_close(&file);
  assert_int_equal((8 + f.header) % 8, 0); /* safetensors wants aligned data */
}

/* Opens what is in the file now. An error must be one line that names the file. */
static bool opens(failure *failed) {
  static checkpoint file;
  memset(failed, 0, sizeof *failed);
  if (checkpoint_open(&file, f.path, failed)) {
    checkpoint_close(&file);
    return true;
  }
  assert_non_null(strstr(failed->text, CHECKPOINT_NAME));
  assert_null(strchr(failed->text, '\n'));
  return false;
}

static void refused(const uint8_t *bytes, size_t size, const char *what, const char *expected) {
  failure failed;
  write_file(bytes, size);
  if (opens(&failed)) fail_msg("%s: was taken", what);
  if (!strstr(failed.text, expected)) fail_msg("%s: expected \"%s\", got \"%s\"", what, expected, failed.text);
}

/* The whole file with another header. */
static void refused_header(const char *header, size_t length, const char *what, const char *expected) {
  const size_t size = 8 + length + f.size - 8 - f.header;
  uint8_t *bytes = malloc(size);
  for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)((uint64_t)length >> 8 * i);
  memcpy(bytes + 8, header, length);
  memcpy(bytes + 8 + length, f.file + 8 + f.header, f.size - 8 - f.header);
  refused(bytes, size, what, expected);
  free(bytes);
}

/* The header with the first `from` replaced by `to`. */
static char *edit(const char *from, const char *to) {
  char *header = malloc(f.header + 200000);
  memcpy(header, f.file + 8, f.header);
  header[f.header] = 0;
  char *at = strstr(header, from);
  if (!at) fail_msg("the header does not hold %s", from);
  memmove(at + strlen(to), at + strlen(from), strlen(at + strlen(from)) + 1);
  memcpy(at, to, strlen(to));
  return header;
}

static const struct {
  const char *from, *to, *expected;
} edits[] = {
    {"\"F32\"", "\"F16\"", "\"embedding\": expected dtype F32, got F16"},
    {"\"F32\"", "32", "dtype"},
    {"[256,8]", "[8,256]", "\"embedding\" has another shape"},
    {"[256,8]", "[256,8,1]", "another shape"},
    {"[256,8]", "[2048]", "another shape"},
    {"[256,8]", "[256,-8]", "another shape"},
    {"[256,8]", "[256,8.5]", "another shape"},
    {"[256,8]", "[256,1e300]", "another shape"},
    {"[256,8]", "[256,\"8\"]", "another shape"},
    {"[256,8]", "{}", "another shape"},
    {"[0,8192]", "[0,8188]", "\"embedding\" has bad data_offsets"},
    {"[0,8192]", "[8192,0]", "bad data_offsets"},
    {"[0,8192]", "[-8192,0]", "bad data_offsets"},
    {"[0,8192]", "[4,8196]", "overlap"},
    {"[0,8192]", "[8192,16384]", "overlap"},
    {"[0,8192]", "[9007199254732800,9007199254740992]", "overlap"},
    {"[0,8192]", "[1e308,1e309]", "bad data_offsets"},
    {"[0,8192]", "[0.5,8192.5]", "bad data_offsets"},
    {"[0,8192]", "[0]", "bad data_offsets"},
    {"[0,8192]", "null", "bad data_offsets"},
    {"\"embedding\"", "\"embeddinG\"", "\"embedding\" is missing"},
    {"\"moment.output\"", "\"moment.Output\"", "\"moment.output\" is missing"},
    {"\"embedding\"", "\"more\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},\"embedding\"",
     "unknown or duplicate"},
    {"\"embedding\"", "\"embedding\":{\"dtype\":\"F32\",\"shape\":[256,8],\"data_offsets\":[0,8192]},\"embedding\"",
     "unknown or duplicate"},
    {"\"embedding\":{", "\"embedding\":[{\"a\":1}],\"b\":{", "\"embedding\""},
    {"tigon checkpoint 1", "tigon checkpoint 2", "is no checkpoint of this program"},
    {"\"format\"", "\"formal\"", "is no checkpoint of this program"},
    {"\"__metadata__\"", "\"__meta__\"", "is no checkpoint of this program"},
    {"\"layers\":\"1\"", "\"layers\":\"0\"", "\"layers\" is bad"},
    {"\"layers\":\"1\"", "\"layers\":\"65\"", "layers: expected 1 to 64, got 65"},
    {"\"layers\":\"1\"", "\"layers\":\"2\"", "is missing"},
    {"\"layers\":\"1\"", "\"layers\":\"99999999999999999999\"", "\"layers\" is bad"},
    {"\"layers\":\"1\"", "\"layers\":1", "\"layers\" is missing"},
    {"\"layers\":\"1\"", "\"layers\":\"1 \"", "\"layers\" is bad"},
    {"\"width\":\"8\"", "\"width\":\"9\"", "heads: 9 channels cannot be split"},
    {"\"width\":\"8\"", "\"width\":\"9223372036854775807\"", "width: expected"},
    {"\"heads\":\"2\"", "\"heads\":\"16\"", "heads: expected 1 to 8"},
    {"\"top_k\":\"1\"", "\"top_k\":\"3\"", "top_k: expected 1 to 2"},
    {"\"vocabulary\":\"256\"", "\"vocabulary\":\"257\"", "expected 256 for text, got 257"},
    {"\"vocabulary\":\"256\"", "\"vocabulary\":\"0\"", "\"vocabulary\" is bad"},
    {"\"vocabulary\":\"256\"", "\"vocabulary\":\"99999999\"", "expected 256"},
    {"\"data\":\"text\"", "\"data\":\"image\"", "\"data\" is bad"},
    {"\"data\":\"text\"", "\"data\":0", "\"data\" is missing"},
    {"\"position\":\"4\"", "\"position\":\"9223372036854775807\"", "\"position\" is bad"},
    {"\"step\":\"12\"", "\"step\":\"-1\"", "\"step\" is bad"},
    {"\"seq\":\"6\"", "\"seq\":\"0\"", "\"seq\" is bad"},
    {"\"lr\":\"0.1", "\"lr\":\"nan", "\"lr\" is bad"},
    {"\"data_hash\":\"fedc", "\"data_hash\":\"xedc", "\"data_hash\" is bad"},
    {"{", "[", "no valid JSON"},
    {"{", "{{", "no valid JSON"},
    {"}", "", "no valid JSON"},
};

static void hostile_headers(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
    char *header = edit(edits[i].from, edits[i].to);
    refused_header(header, strlen(header), edits[i].to, edits[i].expected);
    free(header);
  }
  char *deep = malloc(200000);
  memset(deep, '[', 200000);
  refused_header(deep, 200000, "200000 brackets", "no valid JSON");
  free(deep);
  refused_header("{} {}", 5, "two objects", "no valid JSON");
  refused_header("[]", 2, "an array", "no JSON object");
  refused_header("\0\0\0\0", 4, "NUL bytes", "no valid JSON");
  printf("cases: %zu\n", sizeof edits / sizeof *edits + 4);
}

static void bad_lengths(void **state) {
  (void)state;
  uint8_t *bytes = malloc(f.size + 8);
  memcpy(bytes, f.file, f.size);
  for (size_t size = 0; size < f.size; size += size < 2 * f.header ? 1 : 509)
    refused(bytes, size, "a truncated file", "");
  refused(bytes, f.size - 1, "all but one byte", "is truncated");
  memset(bytes + f.size, 0, 8);
  refused(bytes, f.size + 4, "4 bytes more", "is too long");
  const uint64_t lengths[] = {0,
                              1,
                              f.header - 1,
                              f.header + 1,
                              f.size - 8,
                              f.size,
                              UINT64_C(1) << 31,
                              UINT64_C(1) << 32,
                              UINT64_C(1) << 63,
                              UINT64_MAX,
                              UINT64_MAX - 7};
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    for (int j = 0; j < 8; j++) bytes[j] = (uint8_t)(lengths[i] >> 8 * j);
    refused(bytes, f.size, "another header length", "");
  }
  free(bytes);
}

/* Damage at random: it may go unnoticed in data and spaces, but never crashes and never changes the shape. */
static void random_damage(void **state) {
  (void)state;
  uint8_t *bytes = malloc(f.size);
  random_stream random = random_open(1, 1);
  int taken = 0;
  for (int i = 0; i < 4000; i++) {
    memcpy(bytes, f.file, f.size);
    for (uint64_t flips = 1 + random_below(&random, 4); flips > 0; flips--)
      bytes[random_below(&random, 8 + f.header)] = (uint8_t)random_below(&random, 256);
    failure failed;
    write_file(bytes, f.size);
    taken += opens(&failed);
  }
  assert_true(taken < 1000);
  free(bytes);
  printf("cases: 4000\n");
}

static void numbers_may_be_anything(void **state) {
  (void)state;
  uint8_t *bytes = malloc(f.size);
  memcpy(bytes, f.file, f.size);
  memset(bytes + 8 + f.header, 0xff, f.size - 8 - f.header); /* NaN */
  write_file(bytes, f.size);
  failure failed;
  assert_true(opens(&failed));
  free(bytes);
}

static void not_a_file(void **state) {
  (void)state;
  static checkpoint file;
  failure failed;
  assert_false(checkpoint_open(&file, "/dev/zero", &failed));
  assert_non_null(strstr(failed.text, "no regular file"));
  assert_false(checkpoint_open(&file, "/nowhere/at/all", &failed));
  assert_non_null(strstr(failed.text, "/nowhere/at/all: No such file"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_was_written_comes_back),
      cmocka_unit_test(hostile_headers),
      cmocka_unit_test(bad_lengths),
      cmocka_unit_test(random_damage),
      cmocka_unit_test(numbers_may_be_anything),
      cmocka_unit_test(not_a_file),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
