# Flags for every C source, and the instruction sets that the CPU sources are compiled for.
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo) # here only: a project around this one keeps its own
endif()
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O3 -g")

# -fno-math-errno and -fno-trapping-math let loops with sqrtf and selections vectorise; neither changes a result. Fused
# multiply-adds are written where they are wanted (base/vec.h): what compilers fuse varies with the surroundings.
add_compile_definitions(_GNU_SOURCE)
add_compile_options(-fno-math-errno -fno-trapping-math -ffp-contract=off)

if(TIGON_DEVELOPER)
  add_compile_options(-Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wvla)
  # gcc's sanitizer instrumentation makes its flow warnings (maybe-uninitialized, stringop) guess wrong.
  if(NOT (TIGON_SANITIZE AND CMAKE_C_COMPILER_ID STREQUAL "GNU"))
    add_compile_options(-Werror)
  endif()
endif()

if(TIGON_FUZZ)
  if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "TIGON_FUZZ needs clang (-DCMAKE_C_COMPILER=clang), not ${CMAKE_C_COMPILER_ID}")
  endif()
  set(TIGON_SANITIZE address)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
if(TIGON_SANITIZE STREQUAL "address")
  set(_sanitize -fsanitize=address,undefined -fno-sanitize-recover=all)
elseif(TIGON_SANITIZE STREQUAL "thread")
  set(_sanitize -fsanitize=thread)
elseif(TIGON_SANITIZE)
  message(FATAL_ERROR "TIGON_SANITIZE is \"${TIGON_SANITIZE}\"; expected address, thread or nothing")
endif()
if(TIGON_SANITIZE)
  set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -g")
  if(TIGON_FUZZ) # three instrumentations at once: beyond -O1 the compiler takes minutes
    set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O1 -gline-tables-only")
  endif()
  add_compile_options(${_sanitize} -fno-omit-frame-pointer)
  add_link_options(${_sanitize})
endif()

set(TIGON_ISAS generic)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  list(APPEND TIGON_ISAS avx2 avx512)
endif()
# Products of bfloat16 alone have kernels that are called beside the AVX-512 ones: on dot products of pairs
# (base/gemm_kernel.c with TIGON_GEMM_PAIRS) and on the matrix unit (base/gemm_amx.c).
set(TIGON_BF16_OPTIONS "")
set(TIGON_AMX_OPTIONS "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  include(CheckCCompilerFlag)
  check_c_compiler_flag("-mamx-tile -mamx-bf16" TIGON_HAVE_AMX)
  check_c_compiler_flag("-mavx512bf16" TIGON_HAVE_AVX512_BF16)
  if(TIGON_HAVE_AVX512_BF16)
    set(TIGON_BF16_OPTIONS -march=x86-64-v4 -mprefer-vector-width=512 -mavx512bf16)
  endif()
  if(TIGON_HAVE_AMX)
    set(TIGON_AMX_OPTIONS -march=x86-64-v4 -mprefer-vector-width=512 -mamx-tile -mamx-bf16)
    if(TIGON_SANITIZE STREQUAL "address") # a minute of compilation, for unrolled loops of intrinsics
      list(APPEND TIGON_AMX_OPTIONS -O1 -fno-sanitize=undefined)
    endif()
  endif()
endif()
set(TIGON_ISA_OPTIONS_generic "")
set(TIGON_ISA_OPTIONS_avx2 -march=x86-64-v3)
set(TIGON_ISA_OPTIONS_avx512 -march=x86-64-v4 -mprefer-vector-width=512)

# One compilation, for what this machine has: fuzz targets are slow to build.
if(TIGON_FUZZ)
  if("avx2" IN_LIST TIGON_ISAS)
    set(TIGON_ISA_OPTIONS_generic -march=native)
  endif()
  set(TIGON_ISAS generic)
  set(TIGON_BF16_OPTIONS "")
  set(TIGON_AMX_OPTIONS "")
  add_compile_definitions(TIGON_ONE_ISA)
endif()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_path(TIGON_DLPACK_INCLUDE_DIR dlpack/dlpack.h DOC "Directory that holds dlpack/dlpack.h")
if(NOT TIGON_DLPACK_INCLUDE_DIR)
  message(FATAL_ERROR "dlpack/dlpack.h is missing: install libdlpack-dev, or set TIGON_DLPACK_INCLUDE_DIR")
endif()

# The include directory of DLPack where the compiler does not look by itself. A cross compiler may take the host's header,
# but nothing beside it.
set(TIGON_DLPACK_EXTRA "")
if(CMAKE_CROSSCOMPILING)
  set(TIGON_DLPACK_EXTRA ${PROJECT_BINARY_DIR}/dlpack)
  file(COPY ${TIGON_DLPACK_INCLUDE_DIR}/dlpack DESTINATION ${TIGON_DLPACK_EXTRA})
elseif(NOT TIGON_DLPACK_INCLUDE_DIR IN_LIST CMAKE_C_IMPLICIT_INCLUDE_DIRECTORIES)
  set(TIGON_DLPACK_EXTRA ${TIGON_DLPACK_INCLUDE_DIR})
endif()
