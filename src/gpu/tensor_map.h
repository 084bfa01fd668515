/* Descriptions of tensors for the device's bulk copies (kernel/tma.cuh). */
#ifndef TIGON_GPU_TENSOR_MAP_H
#define TIGON_GPU_TENSOR_MAP_H

#include "gpu/launch.h"

/* A bf16 tensor of three dimensions, the fastest first: extents, the strides in elements of all but the first,
 * and the box of a copy, which is 64 wide in the first under the 128-byte swizzle. Address and strides are multiples of
 * 16 bytes. */
typedef struct tigon_tensor_map {
  const void *data;
  int64_t extent[3], stride[2];
  int box[2]; /* in the second and third dimension */
} tigon_tensor_map;

tigon_status tigon_tensor_map_make(const tigon_gpu_call *call, const tigon_tensor_map *from, CUtensorMap *map);

#endif
