/*
 * A peer: a child process that runs other implementations (its providers) of the same rows, in turns with ours.
 *
 * One JSON object a line each way; descriptor 3 of the child is a file in memory through which tensors go, one at a
 * time.
 *     after its start, the peer   {"peer": "PyTorch", "version": "2.4.1", "threads": 2}
 *     {"do": "prepare", "family": ..., "dtype": ..., "scale": ...}                   forgets the last row
 *     {"do": "input", "name": ..., "dtype": ..., "shape": [...], "bytes": n}         the file holds that tensor
 *     {"do": "ready"}                                          {"providers": ["eager", ...], "left_out": ["name: why"]}
 *     {"do": "peak", "provider": ..., "which": "forward"}             {"peak_bytes": n}     after a run to get warm
 *     {"do": "run", "provider": ..., "which": "forward"}              {"seconds": s}
 *     {"do": "output", ..., "name": ..., "dtype": ..., "shape": [...], "bytes": n}   writes that output to the file
 * Other answers have no named member; {"error": "..."} answers a request that failed. The peer ends with its input.
 *
 * A peer that dies, stays silent past the limit or answers anything else is ended; a line says so, and rows go on
 * alone.
 */
#ifndef APPS_BENCH_PEER_H
#define APPS_BENCH_PEER_H

#include "bench_case.h"

typedef struct bench_peer_settings {
  const char *python, *script;
  int threads;
  double limit;  /* seconds for an answer */
  bool required; /* the user named the interpreter or the script: without it the run fails */
} bench_peer_settings;

/* NULL where there is none, after a line that says why; *failed is set where that is an error. */
bench_peer *bench_peer_open(const bench_peer_settings *settings, bool *failed);
/* NULL is allowed in these four. */
void bench_peer_close(bench_peer *peer);
bool bench_peer_failed(const bench_peer *peer);   /* at any time */
int bench_peer_providers(const bench_peer *peer); /* of the present case; 0 once it has failed */
bool bench_peer_prepare(bench_peer *peer, bench_case *c);

const char *bench_peer_provider(const bench_peer *peer, int provider); /* "PyTorch eager" */
const char *bench_peer_name(const bench_peer *peer);
const char *bench_peer_version(const bench_peer *peer);

/* Each returns false after a failure, which was printed. */
bool bench_peer_peak(bench_peer *peer, int provider, const char *pass, int64_t *bytes);
bool bench_peer_run(bench_peer *peer, int provider, const char *pass, double *seconds);
/* Its output takes the place of ours. */
bool bench_peer_fetch(bench_peer *peer, int provider, const char *pass, const char *name, DLTensor *tensor);

#endif
