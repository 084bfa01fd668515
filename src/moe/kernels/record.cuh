/* The context's record of bad values, which lies in pinned host memory. */
#ifndef TIGON_MOE_KERNELS_RECORD_CUH
#define TIGON_MOE_KERNELS_RECORD_CUH

#include "tigon/base.h"

/* Keeps the event unless the record has one. The code is written last. Calls on two streams that meet bad values at one
 * time may both write; the host reads the record after it has waited for them. */
__device__ __forceinline__ void note(tigon_record *record, const tigon_record &event, int64_t index, int64_t value) {
  if (*(volatile const int32_t *)&record->code != TIGON_OK) return;
  tigon_record made = event;
  made.index = index;
  made.value = value;
  made.code = TIGON_OK;
  *record = made;
  __threadfence_system();
  *(volatile int32_t *)&record->code = event.code;
}

#endif
