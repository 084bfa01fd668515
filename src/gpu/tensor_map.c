#include "gpu/tensor_map.h"

tigon_status tigon_tensor_map_make(const tigon_gpu_call *call, const tigon_tensor_map *from, CUtensorMap *map) {
  enum { RANK = 3, ELEMENT = 2, BOX_WIDTH = 64 };
  const cuuint64_t extents[RANK] = {(cuuint64_t)from->extent[0], (cuuint64_t)from->extent[1],
                                    (cuuint64_t)from->extent[2]};
  const cuuint64_t strides[RANK - 1] = {(cuuint64_t)from->stride[0] * ELEMENT, (cuuint64_t)from->stride[1] * ELEMENT};
  const cuuint32_t box[RANK] = {BOX_WIDTH, (cuuint32_t)from->box[0], (cuuint32_t)from->box[1]};
  const cuuint32_t steps[RANK] = {1, 1, 1};
  const CUresult result = call->driver->cuTensorMapEncodeTiled(
      map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, RANK, (void *)(uintptr_t)from->data, extents, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? TIGON_OK
                                : tigon_driver_fail(call->driver, call->op, "cuTensorMapEncodeTiled", result);
}
