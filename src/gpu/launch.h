/*
 * Launching kernels. An operation's GPU part reads
 *
 *     TIGON_IMAGE(rms_norm_forward)
 *     static tigon_kernel kernel = TIGON_KERNEL(rms_norm_forward, "rms_norm_forward_any");
 *
 *     tigon_gpu_call call;
 *     tigon_status status = tigon_gpu_begin(op, exec, &call);
 *     if (status != TIGON_OK) return status;
 *     status = tigon_gpu_launch(&call, &kernel, (tigon_grid){.blocks = 132, .threads = 256}, &params);
 *     return tigon_gpu_end(&call, status);
 */
#ifndef TIGON_GPU_LAUNCH_H
#define TIGON_GPU_LAUNCH_H

#include <stdatomic.h>
#include <stdbool.h>

#include "gpu/device.h"

/* A compiled .cu file, embedded in the library with an image for each architecture; the driver picks. It is loaded at
 * its first use and serves all devices and contexts of the process. */
typedef struct tigon_image {
  const void *data;
  CUlibrary library; /* written under the loader's lock */
} tigon_image;

/* Defines the static variable name_image. */
#define TIGON_IMAGE(name)                          \
  extern const unsigned char tigon_image_##name[]; \
  static tigon_image name##_image = {.data = tigon_image_##name};
#define TIGON_KERNEL(of_image, called) \
  { .image = &of_image##_image, .name = called }

/* A kernel takes one parameter, a struct. */
typedef struct tigon_kernel {
  tigon_image *image;
  const char *name;
  CUkernel handle;            /* written under the loader's lock, before the first bit of ready */
  atomic_uint_fast64_t ready; /* bit d: its attributes are set on device d */
} tigon_kernel;

typedef struct tigon_grid {
  int64_t blocks;
  int threads;
  int shared_bytes; /* dynamic */
  int cluster;      /* blocks of a cluster; 0 = 1 */
  bool overlaps;    /* may start while the stream's previous kernel ends; the kernel waits itself */
} tigon_grid;

typedef struct tigon_gpu_call {
  const char *op;
  const tigon_driver *driver;
  const tigon_device_facts *device;
  CUstream stream;
  bool pushed, in_primary; /* in_primary: the device's primary context is current */
} tigon_gpu_call;

/* Makes the stream's context current: its own, or for the default streams the thread's current context where that is on
 * exec->device, and the device's primary one where not. */
tigon_status tigon_gpu_begin(const char *op, const tigon_exec *exec, tigon_gpu_call *call);

/* Loads the image at first use, also while the stream is captured. Never waits for the device. */
tigon_status tigon_gpu_launch(const tigon_gpu_call *call, tigon_kernel *kernel, tigon_grid grid, void *params);

/* Puts the thread's context back; returns status. */
tigon_status tigon_gpu_end(const tigon_gpu_call *call, tigon_status status);

#endif
