#include "bench_peer.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench_child.h"
#include "failure.h"

struct bench_peer {
  bench_child child;
  bool alive, failed;
  double limit;
  int shared; /* the file in memory */
  char label[512], name[64], version[64];
  char provider[BENCH_MOST_PROVIDERS][64], title[BENCH_MOST_PROVIDERS][130];
  int providers;
};

extern char **environ;

/* One line, whatever a peer sent. */
__attribute__((format(printf, 2, 3))) static void say(const bench_peer *peer, const char *format, ...) {
  char text[400];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  failure clean;
  fail_with(&clean, "the peer (%.200s) %.280s", peer->label, text);
  fflush(stdout);
  fprintf(stderr, "tigon bench: %s\n", clean.text);
}

static void complain(bench_peer *peer, const char *why) {
  say(peer, "%s", why);
  peer->failed = true;
}

static void give_up(bench_peer *peer, const char *why) {
  peer->alive = false;
  peer->providers = 0;
  bench_child_end(&peer->child, true);
  say(peer, "%s: rows go on without it", why);
  peer->failed = true;
}

static void give_up_ended(bench_peer *peer) {
  char why[80];
  const int status = bench_child_end(&peer->child, false);
  peer->alive = false;
  peer->providers = 0;
  if (WIFSIGNALED(status))
    snprintf(why, sizeof why, "was ended by signal %d", WTERMSIG(status));
  else
    snprintf(why, sizeof why, "ended with status %d", WEXITSTATUS(status));
  say(peer, "%s: rows go on without it", why);
  peer->failed = true;
}

/* The next answer; NULL once the peer had to be given up. */
static cJSON *listen_to(bench_peer *peer) {
  const char *line;
  char why[160];
  switch (bench_child_listen(&peer->child, peer->limit, &line)) {
  case HEARD_END:
    give_up_ended(peer);
    return NULL;
  case HEARD_NOTHING:
    snprintf(why, sizeof why, "did not answer within %g s", peer->limit);
    give_up(peer, why);
    return NULL;
  case HEARD_TOO_MUCH:
    give_up(peer, "answered more than a line may hold");
    return NULL;
  case HEARD_LINE:
    break;
  }
  cJSON *answer = cJSON_ParseWithOpts(line, NULL, 1);
  if (cJSON_IsObject(answer)) return answer;
  cJSON_Delete(answer);
  snprintf(why, sizeof why, "answered \"%.60s\", which is no JSON object", line);
  give_up(peer, why);
  return NULL;
}

/* Asks and frees the question. NULL after a failure, which was printed. */
static cJSON *ask(bench_peer *peer, cJSON *question) {
  char *text = question ? cJSON_PrintUnformatted(question) : NULL;
  cJSON_Delete(question);
  if (!peer->alive) {
    cJSON_free(text);
    return NULL;
  }
  const bool said = text && bench_child_say(&peer->child, text);
  cJSON_free(text);
  if (!said) {
    give_up_ended(peer);
    return NULL;
  }
  cJSON *answer = listen_to(peer);
  const cJSON *error = cJSON_GetObjectItemCaseSensitive(answer, "error");
  if (!error) return answer;
  complain(peer, cJSON_IsString(error) ? error->valuestring : "reports an error");
  cJSON_Delete(answer);
  return NULL;
}

static cJSON *question(const char *what) {
  cJSON *object = cJSON_CreateObject();
  cJSON_AddStringToObject(object, "do", what);
  return object;
}

static cJSON *question_of(const bench_peer *peer, const char *what, int provider, const char *pass) {
  cJSON *object = question(what);
  cJSON_AddStringToObject(object, "provider", peer->provider[provider]);
  cJSON_AddStringToObject(object, "which", pass);
  return object;
}

static bool done(cJSON *answer) {
  cJSON_Delete(answer);
  return answer != NULL;
}

/* A number that an answer must have. */
static bool number(bench_peer *peer, cJSON *answer, const char *name, double *value) {
  if (!answer) return false;
  const cJSON *member = cJSON_GetObjectItemCaseSensitive(answer, name);
  const bool good = cJSON_IsNumber(member) && member->valuedouble >= 0;
  if (good) *value = member->valuedouble;
  cJSON_Delete(answer);
  if (good) return true;
  char why[80];
  snprintf(why, sizeof why, "answered without a number \"%s\"", name);
  give_up(peer, why);
  return false;
}

/* The environment for best speed: our number of threads, no wrong guesses about the processor for OpenBLAS, and memory
 * that is kept from call to call and lies on huge pages, as ours does. NULL where there is no memory. */
static char **child_environment(int threads) {
  static char settings[8][64];
  static const char *const formats[] = {"OMP_NUM_THREADS=%d",       "MKL_NUM_THREADS=%d",
                                        "OPENBLAS_NUM_THREADS=%d",  "THP_MEM_ALLOC_ENABLE=1",
                                        "MALLOC_MMAP_MAX_=0",       "MALLOC_TRIM_THRESHOLD_=1099511627776",
                                        "MALLOC_TOP_PAD_=67108864", "PYTHONDONTWRITEBYTECODE=1"};
  enum { SETTINGS = sizeof formats / sizeof *formats };
  static const char *const dropped[] = {"OPENBLAS_CORETYPE=", "OPENBLAS_L2_SIZE="};
  int count = 0, kept = 0;
  while (environ[count]) count++;
  char **all = malloc(((size_t)count + SETTINGS + 1) * sizeof *all);
  if (!all) return NULL;
  for (int i = 0; i < SETTINGS; i++) {
    snprintf(settings[i], sizeof settings[i], formats[i], threads);
    all[kept++] = settings[i];
  }
  for (int i = 0; i < count; i++) {
    bool replaced = false;
    for (int j = 0; j < SETTINGS && !replaced; j++)
      replaced = !strncmp(environ[i], settings[j], strcspn(settings[j], "=") + 1);
    for (size_t j = 0; j < sizeof dropped / sizeof *dropped && !replaced; j++)
      replaced = !strncmp(environ[i], dropped[j], strlen(dropped[j]));
    if (!replaced) all[kept++] = environ[i];
  }
  all[kept] = NULL;
  return all;
}

/* What the peer says after its start: who it is, or why it cannot work. */
static bool introduce(bench_peer *peer) {
  cJSON *hello = listen_to(peer);
  if (!hello) return false;
  const cJSON *error = cJSON_GetObjectItemCaseSensitive(hello, "error");
  const cJSON *name = cJSON_GetObjectItemCaseSensitive(hello, "peer");
  const cJSON *version = cJSON_GetObjectItemCaseSensitive(hello, "version");
  const bool good = !error && cJSON_IsString(name) && cJSON_IsString(version);
  if (good) {
    snprintf(peer->name, sizeof peer->name, "%s", name->valuestring);
    snprintf(peer->version, sizeof peer->version, "%s", version->valuestring);
  } else if (error && cJSON_IsString(error)) {
    fprintf(stderr, "tigon bench: no peer: %.300s\n", error->valuestring);
    bench_child_end(&peer->child, true);
    peer->alive = false;
  } else {
    give_up(peer, "did not say its name and version");
  }
  cJSON_Delete(hello);
  return good;
}

bench_peer *bench_peer_open(const bench_peer_settings *settings, bool *failed) {
  bench_peer *peer = calloc(1, sizeof *peer);
  char threads[16];
  snprintf(threads, sizeof threads, "%d", settings->threads);
  const char *const argv[] = {settings->python, settings->script, threads, NULL};
  char **environment = child_environment(settings->threads);
  const int shared = memfd_create("tigon-bench", MFD_CLOEXEC);
  int error = ENOMEM;
  if (peer && environment) error = shared < 0 ? errno : bench_child_start(&peer->child, argv, environment, shared);
  free(environment);
  bool good = false;
  if (error) {
    fprintf(stderr, "tigon bench: no peer: cannot run %s: %s\n", settings->python, strerror(error));
  } else {
    snprintf(peer->label, sizeof peer->label, "%s %s", settings->python, settings->script);
    peer->alive = true;
    peer->limit = settings->limit;
    peer->shared = shared;
    good = introduce(peer);
  }
  if (good) return peer;
  *failed = settings->required || (peer && peer->failed);
  if (shared >= 0) close(shared);
  free(peer);
  return NULL;
}

void bench_peer_close(bench_peer *peer) {
  if (!peer) return;
  if (peer->alive) bench_child_end(&peer->child, false);
  close(peer->shared);
  free(peer);
}

bool bench_peer_failed(const bench_peer *peer) { return peer && peer->failed; }
int bench_peer_providers(const bench_peer *peer) { return peer ? peer->providers : 0; }
const char *bench_peer_provider(const bench_peer *peer, int provider) { return peer->title[provider]; }
const char *bench_peer_name(const bench_peer *peer) { return peer->name; }
const char *bench_peer_version(const bench_peer *peer) { return peer->version; }

static cJSON *describe(cJSON *object, const char *name, const DLTensor *tensor) {
  cJSON_AddStringToObject(object, "name", name);
  cJSON_AddStringToObject(object, "dtype", bench_dtype_name(tensor->dtype));
  cJSON *shape = cJSON_AddArrayToObject(object, "shape");
  for (int i = 0; i < tensor->ndim; i++) cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)tensor->shape[i]));
  cJSON_AddNumberToObject(object, "bytes", (double)bench_tensor_bytes(tensor));
  return object;
}

typedef ssize_t transfer_function(int file, void *memory, size_t bytes, off_t at);

static ssize_t put(int file, void *memory, size_t bytes, off_t at) { return pwrite(file, memory, bytes, at); }

static bool transfer(bench_peer *peer, transfer_function *function, DLTensor *tensor) {
  const uint64_t bytes = bench_tensor_bytes(tensor);
  for (uint64_t at = 0; at < bytes;) {
    const ssize_t n = function(peer->shared, (char *)tensor->data + at, (size_t)(bytes - at), (off_t)at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      complain(peer, "and this program cannot pass a tensor through a file in memory");
      return false;
    }
    at += (uint64_t)n;
  }
  return true;
}

static bool give_inputs(bench_peer *peer, bench_case *c) {
  for (int i = 0; i < c->tensors.count; i++) {
    DLTensor *tensor = &c->tensors.tensor[i].dl;
    if (!c->tensors.input[i]) continue;
    if (!transfer(peer, put, tensor)) return false;
    if (!done(ask(peer, describe(question("input"), c->tensors.name[i], tensor)))) return false;
    if (ftruncate(peer->shared, 0)) return false; /* its memory goes back */
  }
  return true;
}

/* Names of providers, and a line for each that cannot run here. */
static bool take_providers(bench_peer *peer, const bench_case *c, cJSON *answer) {
  if (!answer) return false;
  const cJSON *names = cJSON_GetObjectItemCaseSensitive(answer, "providers"), *item;
  bool good = cJSON_IsArray(names) && cJSON_GetArraySize(names) <= BENCH_MOST_PROVIDERS;
  if (good) cJSON_ArrayForEach(item, names) good = good && cJSON_IsString(item) && strlen(item->valuestring) < 60;
  if (good) {
    cJSON_ArrayForEach(item, names) {
      const int at = peer->providers++;
      snprintf(peer->provider[at], sizeof peer->provider[at], "%s", item->valuestring);
      snprintf(peer->title[at], sizeof peer->title[at], "%s %s", peer->name, item->valuestring);
    }
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(answer, "left_out")) if (cJSON_IsString(item))
        say(peer, "leaves out of %s %s: %.200s", c->family, c->dtype, item->valuestring);
  }
  cJSON_Delete(answer);
  if (!good) give_up(peer, "answered without a list of providers");
  return good;
}

bool bench_peer_prepare(bench_peer *peer, bench_case *c) {
  if (!peer || !peer->alive) return false;
  peer->providers = 0;
  cJSON *row = question("prepare");
  cJSON_AddStringToObject(row, "family", c->family);
  cJSON_AddStringToObject(row, "dtype", c->dtype);
  cJSON_AddNumberToObject(row, "scale", c->scale);
  return done(ask(peer, row)) && give_inputs(peer, c) && take_providers(peer, c, ask(peer, question("ready")));
}

bool bench_peer_peak(bench_peer *peer, int provider, const char *pass, int64_t *bytes) {
  double value;
  if (!number(peer, ask(peer, question_of(peer, "peak", provider, pass)), "peak_bytes", &value)) return false;
  *bytes = (int64_t)value;
  return true;
}

bool bench_peer_run(bench_peer *peer, int provider, const char *pass, double *seconds) {
  return number(peer, ask(peer, question_of(peer, "run", provider, pass)), "seconds", seconds);
}

bool bench_peer_fetch(bench_peer *peer, int provider, const char *pass, const char *name, DLTensor *tensor) {
  if (ftruncate(peer->shared, (off_t)bench_tensor_bytes(tensor))) return false;
  const bool good = done(ask(peer, describe(question_of(peer, "output", provider, pass), name, tensor)));
  return good && transfer(peer, pread, tensor) && !ftruncate(peer->shared, 0);
}
