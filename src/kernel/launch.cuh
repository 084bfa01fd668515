/* Programmatic dependent launch: the next kernel of the stream may start while this one ends. */
#ifndef TIGON_KERNEL_LAUNCH_CUH
#define TIGON_KERNEL_LAUNCH_CUH

/* Waits until the kernel before this one has ended and its writes are visible. Does nothing without a programmatic
 * launch, and in code for less than sm_90, which must not be launched so. */
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Lets the next kernel start its blocks where there is room. */
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

#endif
