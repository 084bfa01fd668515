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

# -fno-math-errno and -fno-trapping-math let loops with sqrtf and selections vectorise; neither changes a result.
add_compile_definitions(_GNU_SOURCE)
add_compile_options(-fno-math-errno -fno-trapping-math)

if(TIGON_DEVELOPER)
  add_compile_options(-Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wvla)
  # gcc's sanitizer instrumentation makes its flow warnings (maybe-uninitialized, stringop) guess wrong.
  if(NOT (TIGON_SANITIZE AND CMAKE_C_COMPILER_ID STREQUAL "GNU"))
    add_compile_options(-Werror)
  endif()
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
  add_compile_options(${_sanitize} -fno-omit-frame-pointer)
  add_link_options(${_sanitize})
endif()

set(TIGON_ISAS generic)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  list(APPEND TIGON_ISAS avx2 avx512)
endif()
set(TIGON_ISA_OPTIONS_generic "")
set(TIGON_ISA_OPTIONS_avx2 -march=x86-64-v3)
set(TIGON_ISA_OPTIONS_avx512 -march=x86-64-v4 -mprefer-vector-width=512)

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_path(TIGON_DLPACK_INCLUDE_DIR dlpack/dlpack.h DOC "Directory that holds dlpack/dlpack.h")
if(NOT TIGON_DLPACK_INCLUDE_DIR)
  message(FATAL_ERROR "dlpack/dlpack.h is missing: install libdlpack-dev, or set TIGON_DLPACK_INCLUDE_DIR")
endif()

# The include directory of DLPack where the compiler does not look by itself.
set(TIGON_DLPACK_EXTRA "")
if(NOT TIGON_DLPACK_INCLUDE_DIR IN_LIST CMAKE_C_IMPLICIT_INCLUDE_DIRECTORIES)
  set(TIGON_DLPACK_EXTRA ${TIGON_DLPACK_INCLUDE_DIR})
endif()
