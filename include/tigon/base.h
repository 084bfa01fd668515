/*
 * Tigon base interface: status codes, errors, execution settings, contexts.
 *
 * Every operation has the shape
 *
 *     tigon_status tigon_<op>(const tigon_exec *exec, const tigon_<op>_args *args);
 *     tigon_status tigon_<op>_workspace(const tigon_exec *exec, const tigon_<op>_args *args, uint64_t *bytes);
 *
 * Contracts that hold for all of them:
 * - The caller owns all memory. An operation never allocates, never synchronises with a device, never prints and never
 *   ends the process. Scratch memory comes from exec->workspace; its size comes from the _workspace query.
 * - Queries read shapes, dtypes, strides and options, never data: data pointers may be NULL in them. The answer is a
 *   multiple of 256 bytes, 0 when nothing is needed, and never shrinks when the number of tokens grows.
 * - Arguments are checked in full before anything is written. On failure nothing was written and tigon_last_error()
 *   says which argument, what was expected and what came.
 * - Values that only the data shows (an expert id out of range, say) are no failure: the operation returns TIGON_OK,
 *   its header defines the result for those rows, and the context's record keeps the first such event.
 * - Results have the same bits whatever the number of threads.
 * - Operations may run concurrently from several threads, each with its own workspace.
 * - Struct growth: the first member of every struct is its size in bytes, set by the caller to sizeof. Members past
 *   that size read as zero, and zero always means the default. A larger size whose extra bytes are not all zero is
 *   refused: the caller asks for something that this library does not know.
 */
#ifndef TIGON_BASE_H
#define TIGON_BASE_H

#include <dlpack/dlpack.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef TIGON_API
#define TIGON_API __attribute__((visibility("default")))
#endif

typedef enum tigon_status {
  TIGON_OK = 0,
  TIGON_INVALID_ARGUMENT = 1, /* an argument breaks a rule of its header */
  TIGON_UNSUPPORTED = 2,      /* valid, but this build or backend has no implementation of it */
  TIGON_UNAVAILABLE = 3,      /* needs a device, driver or library that is not here */
  TIGON_WORKSPACE = 4,        /* exec->workspace is missing, too small or not 64-byte aligned */
  TIGON_DRIVER = 5,           /* the device driver reported an error */
  TIGON_COMM = 6,             /* a peer failed or a transport broke */
  TIGON_TIMEOUT = 7,          /* a wait for a peer ended without it */
  TIGON_OUT_OF_MEMORY = 8,    /* tigon_context_create could not allocate */
  TIGON_INTERNAL = 9          /* a defect of Tigon; please report it */
} tigon_status;

/* The status' name, such as "INVALID_ARGUMENT". Never NULL. */
TIGON_API const char *tigon_status_string(tigon_status status);

/* One line about the calling thread's last failure: "tigon_rms_norm: weight: expected shape (64), got (63)". Empty when
 * no call failed yet (or its 512 bytes, taken at a thread's first failure, could not be had). Valid until the thread's
 * next failing call. */
TIGON_API const char *tigon_last_error(void);

/* "0.1.0" */
TIGON_API const char *tigon_version(void);

/* The instruction set that the CPU backend runs: "amx", "avx512_bf16", "avx512", "avx2" or "generic". It is the best
 * one that processor and operating system offer; TIGON_CPU_ISA in the environment may name a lesser one. Chosen at the
 * first call. "avx512_bf16" is AVX-512, and products of bfloat16 with bfloat16 may run on its dot products of pairs,
 * which take subnormal numbers as zero. "amx" is AVX-512, and products of bfloat16 with bfloat16 or float32 may run on
 * the matrix unit, which does so too. A float32 number is a sum of bfloat16 parts there, so that its product with an
 * infinite bfloat16 number may be NaN in place of infinite. */
TIGON_API const char *tigon_cpu_isa(void);

/* The number of threads that num_threads = 0 stands for: the processors this process may run on. */
TIGON_API int32_t tigon_cpu_threads(void);

/* What is known of a device. */
typedef struct tigon_device_info {
  uint32_t size;                 /* sizeof(tigon_device_info), set by the caller */
  int32_t driver_version;        /* CUDA: 1000 major + 10 minor of what the driver serves; CPU: 0 */
  int32_t oldest_driver_version; /* CUDA: the oldest that runs this build's images */
  int32_t compute_major, compute_minor;
  int32_t multiprocessors;
  int64_t memory_bytes; /* CUDA: of the device, in all */
  char image[16]; /* which code runs there: "sm_90a", "sm_100f", "compute_80" (compiled by the driver), "" for none; on
                   * the CPU tigon_cpu_isa() */
  char name[128];
} tigon_device_info;

/* Opens the CUDA driver for a CUDA device. TIGON_UNSUPPORTED: this build has no code for devices of that type;
 * TIGON_UNAVAILABLE: no driver, a driver that is too old, or no such device. */
TIGON_API tigon_status tigon_device_query(DLDevice device, tigon_device_info *info);

/* A context owns what outlives a call: the record of bad values. Create one a device, before a stream is captured; it
 * may be shared by threads. Kernels and facts of devices are loaded at first use and kept by the process. */
typedef struct tigon_context tigon_context;

/* device: all zero or the CPU, or a CUDA device, whose record lies in pinned host memory. */
TIGON_API tigon_status tigon_context_create(DLDevice device, tigon_context **context);
/* NULL is allowed. No operation may still use the context. */
TIGON_API void tigon_context_destroy(tigon_context *context);

/* The first bad value that an operation met in its data. */
typedef struct tigon_record {
  tigon_status code; /* TIGON_OK: nothing was recorded */
  int32_t pe;        /* processing element that saw it, 0 without a team */
  int64_t index;     /* position of the value in its tensor, in elements of a compact tensor */
  int64_t value;     /* the value itself */
  char op[40];       /* "tigon_moe" */
  char argument[24]; /* "topk_ids" */
} tigon_record;

/* Copies the context's record. Returns its code, so TIGON_OK means that nothing was recorded. Thread-safe. What a GPU
 * operation met is there once the caller has synchronised with its stream. */
TIGON_API tigon_status tigon_check(tigon_context *context, tigon_record *record);
/* Forgets the record, so that the next event is kept. */
TIGON_API void tigon_clear(tigon_context *context);

/* How and where an operation runs. NULL in place of a tigon_exec means all defaults: CPU, all threads, no workspace,
 * no record.
 *
 * On a CUDA device all tensors and the workspace lie in memory of that device. The operation runs on the stream in the
 * stream's own context; on a default stream (NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD) in the thread's current
 * context where that is on the device, else in the device's primary one. It may be captured into a graph, also as the
 * first use of the library. Operations without a GPU kernel fail with TIGON_UNSUPPORTED, processes forked after the
 * first use of CUDA with TIGON_UNAVAILABLE. */
typedef struct tigon_exec {
  uint32_t size;            /* sizeof(tigon_exec) */
  int32_t num_threads;      /* CPU: 0 = tigon_cpu_threads() */
  DLDevice device;          /* all zero = CPU; kDLCUDA and its number */
  void *stream;             /* GPU stream; NULL on the CPU */
  void *workspace;          /* 64-byte aligned; contents are undefined before and after a call */
  uint64_t workspace_bytes; /* at least the _workspace query's answer for the same exec and args */
  tigon_context *context;   /* of the device; keeps the record. NULL: bad values are not recorded, but handled alike */
} tigon_exec;

/* An ordered group of processing elements. This version runs on one, so args take NULL; anything else is refused with
 * TIGON_UNSUPPORTED. */
typedef struct tigon_team tigon_team;

#ifdef __cplusplus
}
#endif
#endif
