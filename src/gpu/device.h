/* What the library knows of each CUDA device, read once. */
#ifndef TIGON_GPU_DEVICE_H
#define TIGON_GPU_DEVICE_H

#include "gpu/driver.h"

enum { TIGON_MOST_DEVICES = 64 };

typedef struct tigon_device_facts {
  int id;
  CUdevice handle;
  CUcontext primary; /* retained for the life of the process */
  int major, minor;  /* compute capability */
  int multiprocessors;
  int shared_bytes; /* of a block, at most */
  int multiprocessor_shared_bytes;
} tigon_device_facts;

/* Fails with TIGON_UNAVAILABLE where there is no such device. */
tigon_status tigon_device_get(const char *op, DLDevice device, const tigon_device_facts **facts);

#endif
