/* `tigon info`: what this build and this machine offer. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tigon/tigon.h>
#include <unistd.h>

#include "commands.h"
#include "options.h"

static const char *const description =
    "Prints the version, the backends of this build, the instruction set and number of threads that the CPU backend\n"
    "uses here and why, and the environment variables that Tigon reads.";

static const char *const after = "EXIT STATUS\n"
                                 "       0      Printed.\n"
                                 "       2      The command line is wrong.\n";

static void print_cpu(void) {
  const char *used = tigon_cpu_isa(), *asked = getenv("TIGON_CPU_ISA");
  printf("cpu backend:  rms_norm, lightning_attention, linear_cross_entropy, moe, linear (forward and backward)\n");
  printf("cpu path:     %s (%s)", used,
         asked && !strcmp(asked, used) ? "TIGON_CPU_ISA asks for it"
                                       : "the best that processor, system and build offer");
  printf("\nthreads:      %d (processors that this process may run on; the machine has %ld)\n",
         (int)tigon_cpu_threads(), sysconf(_SC_NPROCESSORS_ONLN));
}

static void print_device(int id, const tigon_device_info *info) {
  printf("gpu %d:        %s, compute capability %d.%d, %d multiprocessors; ", id, info->name, (int)info->compute_major,
         (int)info->compute_minor, (int)info->multiprocessors);
  if (info->image[0])
    printf("runs the image for %s, the closest in this build\n", info->image);
  else
    printf("too old for every image of this build (compute capability 8.0 is the least)\n");
}

static void print_gpu(void) {
  tigon_device_info info = {.size = sizeof info};
  int id = 0;
  tigon_status status;
  for (; (status = tigon_device_query((DLDevice){kDLCUDA, id}, &info)) == TIGON_OK; id++) {
    if (id == 0)
      printf("gpu backend:  rms_norm, and on Hopper the experts of moe in bfloat16; driver for CUDA %d.%d, %d.%d or "
             "later is needed\n",
             info.driver_version / 1000, info.driver_version % 1000 / 10, info.oldest_driver_version / 1000,
             info.oldest_driver_version % 1000 / 10);
    print_device(id, &info);
  }
  if (id == 0)
    printf("gpu backend:  none: %s\n", status == TIGON_UNSUPPORTED ? "this library was built without a CUDA compiler"
                                       : status == TIGON_UNAVAILABLE
                                           ? "no CUDA driver, a driver that is too old, or no device"
                                           : "the CUDA driver reports an error");
  printf("processes:    one: this version has no communication backend\n");
}

static void print_variable(const char *name, const char *meaning) {
  const char *value = getenv(name);
  printf("  %s=%s  %s\n", name, value ? value : "", meaning);
}

int command_info(int argc, char **argv) {
  static const command_help help = {"info", "", "what this build and this machine offer", description, after};
  option options[1] = {{0}};
  int status;
  if (!options_parse(options, &help, argc, argv, &status)) return status;
  printf("tigon %s\n", tigon_version());
#if defined(DLPACK_MAJOR_VERSION)
  printf("dlpack:       %d.%d (tensor layout of the interface)\n", DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION);
#else
  printf("dlpack:       0.%d (tensor layout of the interface)\n", DLPACK_VERSION / 10);
#endif
  print_cpu();
  print_gpu();
  printf("environment:\n");
  print_variable("TIGON_CPU_ISA", "(amx, avx512_bf16, avx512, avx2 or generic: the most that the CPU backend may use)");
  return EXIT_OK;
}
