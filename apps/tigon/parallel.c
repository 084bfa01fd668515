#include "parallel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

struct workers {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int helpers;
  int busy;            /* helpers that have not finished the current loop */
  unsigned generation; /* counts loops */
  bool stopping;
  loop_body body;
  void *context;
  int64_t count, piece;
  _Atomic int64_t next;
  pthread_t threads[];
};

static void take_pieces(workers *crew) {
  for (;;) {
    const int64_t begin = atomic_fetch_add_explicit(&crew->next, crew->piece, memory_order_relaxed);
    if (begin >= crew->count) return;
    const int64_t end = begin + crew->piece < crew->count ? begin + crew->piece : crew->count;
    crew->body(crew->context, begin, end);
  }
}

static void *helper(void *argument) {
  workers *crew = argument;
  unsigned seen = 0;
  pthread_mutex_lock(&crew->lock);
  for (;;) {
    while (crew->generation == seen && !crew->stopping) pthread_cond_wait(&crew->changed, &crew->lock);
    if (crew->stopping) break;
    seen = crew->generation;
    pthread_mutex_unlock(&crew->lock);
    take_pieces(crew);
    pthread_mutex_lock(&crew->lock);
    if (--crew->busy == 0) pthread_cond_broadcast(&crew->changed);
  }
  pthread_mutex_unlock(&crew->lock);
  return NULL;
}

workers *workers_create(int threads) {
  workers *crew = calloc(1, sizeof *crew + (size_t)(threads > 1 ? threads - 1 : 0) * sizeof(pthread_t));
  if (!crew) return NULL;
  pthread_mutex_init(&crew->lock, NULL);
  pthread_cond_init(&crew->changed, NULL);
  for (int i = 0; i < threads - 1; i++) {
    if (pthread_create(&crew->threads[i], NULL, helper, crew)) {
      workers_destroy(crew);
      return NULL;
    }
    crew->helpers++;
  }
  return crew;
}

void workers_destroy(workers *crew) {
  if (!crew) return;
  pthread_mutex_lock(&crew->lock);
  crew->stopping = true;
  pthread_cond_broadcast(&crew->changed);
  pthread_mutex_unlock(&crew->lock);
  for (int i = 0; i < crew->helpers; i++) pthread_join(crew->threads[i], NULL);
  pthread_cond_destroy(&crew->changed);
  pthread_mutex_destroy(&crew->lock);
  free(crew);
}

void parallel_for(workers *crew, int64_t count, int64_t piece, loop_body body, void *context) {
  if (!crew || !crew->helpers || count <= piece) {
    for (int64_t begin = 0; begin < count; begin += piece)
      body(context, begin, begin + piece < count ? begin + piece : count);
    return;
  }
  pthread_mutex_lock(&crew->lock);
  crew->body = body;
  crew->context = context;
  crew->count = count;
  crew->piece = piece;
  atomic_store_explicit(&crew->next, 0, memory_order_relaxed);
  crew->busy = crew->helpers;
  crew->generation++;
  pthread_cond_broadcast(&crew->changed);
  pthread_mutex_unlock(&crew->lock);
  take_pieces(crew);
  pthread_mutex_lock(&crew->lock);
  while (crew->busy) pthread_cond_wait(&crew->changed, &crew->lock);
  pthread_mutex_unlock(&crew->lock);
}
