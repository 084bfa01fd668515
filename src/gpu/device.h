/* What the library knows of each CUDA device, read once. */
#ifndef TIGON_GPU_DEVICE_H
#define TIGON_GPU_DEVICE_H

#include <stdbool.h>

#include "gpu/driver.h"

enum { TIGON_MOST_DEVICES = 64 };

typedef struct tigon_device_facts {
  int id;
  CUdevice handle;
  CUcontext primary; /* retained for the life of the process */
  int major, minor;  /* compute capability */
  const char *image; /* the architecture of the code that the driver takes for it, which is the closest; "" for none */
  bool hopper_code; /* that code has clusters and programmatic launches; PTX for compute_80 has not, wherever it runs */
  uint64_t memory_bytes;
  int multiprocessors;
  int shared_bytes; /* of a block, at most */
  int multiprocessor_shared_bytes;
} tigon_device_facts;

/* Fails with TIGON_UNAVAILABLE where there is no such device. */
tigon_status tigon_device_get(const char *op, const char *name, DLDevice device, const tigon_device_facts **facts);

#endif
