#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

#include "tigon/base.h"

/* One tigon_parallel call. It lives on the caller's stack; the pool's lock guards the members up to next. */
typedef struct job {
  int threads;         /* places, the caller's included */
  int joined;          /* places taken so far; also the next slot */
  _Atomic int running; /* workers inside work(); written with the lock held */
  struct job *next;    /* list of jobs that may still have chunks */
  tigon_task task;
  void *context;
  int64_t chunks;
  _Atomic int64_t claimed; /* next chunk to start */
} job;

static struct {
  pthread_mutex_t lock;
  pthread_cond_t work_ready; /* a job was listed */
  pthread_cond_t job_left;   /* a worker left a job */
  job *jobs;
  int workers;             /* started threads */
  _Atomic unsigned posted; /* counts listed jobs: idle workers watch it before they sleep */
  bool fork_handled;
} pool = {
    .lock = PTHREAD_MUTEX_INITIALIZER, .work_ready = PTHREAD_COND_INITIALIZER, .job_left = PTHREAD_COND_INITIALIZER};

static void work(job *j, int slot) {
  for (;;) {
    const int64_t chunk = atomic_fetch_add_explicit(&j->claimed, 1, memory_order_relaxed);
    if (chunk >= j->chunks) return;
    j->task(j->context, chunk, slot);
  }
}

/* With the lock held. */
static job *job_with_place(void) {
  for (job *j = pool.jobs; j; j = j->next)
    if (j->joined < j->threads && atomic_load_explicit(&j->claimed, memory_order_relaxed) < j->chunks) return j;
  return NULL;
}

/* Waking a sleeping thread costs tens of microseconds, so threads watch for about that long before they sleep: a worker
 * for the next job, a caller for the last workers of its own. */
enum { WATCH_TURNS = 2000 };

static void pause_turn(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

static void watch_for_job(unsigned seen) {
  for (int i = 0; i < WATCH_TURNS && atomic_load_explicit(&pool.posted, memory_order_relaxed) == seen; i++)
    pause_turn();
}

static void watch_for_end(job *j) {
  for (int i = 0; i < WATCH_TURNS && atomic_load_explicit(&j->running, memory_order_acquire) > 0; i++) pause_turn();
}

static void *worker_main(void *unused) {
  (void)unused;
  pthread_mutex_lock(&pool.lock);
  for (;;) {
    job *j = job_with_place();
    if (!j) {
      const unsigned seen = atomic_load_explicit(&pool.posted, memory_order_relaxed);
      pthread_mutex_unlock(&pool.lock);
      watch_for_job(seen);
      pthread_mutex_lock(&pool.lock);
      if (atomic_load_explicit(&pool.posted, memory_order_relaxed) == seen)
        pthread_cond_wait(&pool.work_ready, &pool.lock);
      continue;
    }
    const int slot = j->joined++;
    atomic_fetch_add_explicit(&j->running, 1, memory_order_relaxed);
    pthread_mutex_unlock(&pool.lock);
    work(j, slot);
    pthread_mutex_lock(&pool.lock);
    /* The caller may return, and the job with it, as soon as this is 0. */
    if (atomic_fetch_sub_explicit(&j->running, 1, memory_order_release) == 1) pthread_cond_broadcast(&pool.job_left);
  }
  return NULL;
}

static void before_fork(void) { pthread_mutex_lock(&pool.lock); }
static void after_fork_parent(void) { pthread_mutex_unlock(&pool.lock); }

/* The child has only the forking thread: no worker, no job of another thread. */
static void after_fork_child(void) {
  pool.workers = 0;
  pool.jobs = NULL;
  pthread_cond_init(&pool.work_ready, NULL);
  pthread_cond_init(&pool.job_left, NULL);
  pthread_mutex_unlock(&pool.lock);
}

/* With the lock held. Fewer workers than wanted is no failure: the callers do what is left. Workers take no signals:
 * the handlers of the program run on its own threads. */
static void start_workers(int wanted) {
  if (!pool.fork_handled) pool.fork_handled = pthread_atfork(before_fork, after_fork_parent, after_fork_child) == 0;
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  while (pool.workers < wanted && pthread_create(&thread, &attributes, worker_main, NULL) == 0) pool.workers++;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
}

void tigon_parallel(int threads, int64_t chunks, tigon_task task, void *context) {
  if (threads > chunks) threads = (int)chunks;
  if (threads <= 1) {
    for (int64_t chunk = 0; chunk < chunks; chunk++) task(context, chunk, 0);
    return;
  }
  job j = {.threads = threads, .joined = 1, .task = task, .context = context, .chunks = chunks};
  pthread_mutex_lock(&pool.lock);
  if (pool.workers < threads - 1) start_workers(threads - 1);
  j.next = pool.jobs;
  pool.jobs = &j;
  atomic_fetch_add_explicit(&pool.posted, 1, memory_order_relaxed);
  pthread_cond_broadcast(&pool.work_ready);
  pthread_mutex_unlock(&pool.lock);

  work(&j, 0);

  pthread_mutex_lock(&pool.lock);
  job **link = &pool.jobs;
  while (*link != &j) link = &(*link)->next;
  *link = j.next;
  pthread_mutex_unlock(&pool.lock);

  watch_for_end(&j);
  if (atomic_load_explicit(&j.running, memory_order_acquire) == 0) return;
  pthread_mutex_lock(&pool.lock);
  while (atomic_load_explicit(&j.running, memory_order_acquire) > 0) pthread_cond_wait(&pool.job_left, &pool.lock);
  pthread_mutex_unlock(&pool.lock);
}

int32_t tigon_cpu_threads(void) {
  cpu_set_t set;
  int count = 0;
  if (sched_getaffinity(0, sizeof set, &set) == 0) count = CPU_COUNT(&set);
  if (count < 1) count = (int)sysconf(_SC_NPROCESSORS_ONLN);
  if (count < 1) count = 1;
  return count < TIGON_MAX_THREADS ? count : TIGON_MAX_THREADS;
}
