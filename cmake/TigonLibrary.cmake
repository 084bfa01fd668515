# libtigon.so and libtigon.a, from sources that are compiled once (core) and sources that are compiled once for each
# instruction set with -DTIGON_ISA=<name> (src/*/cpu*.c and the GEMM micro-kernels).
file(GLOB _core CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*/*.c)
list(FILTER _core EXCLUDE REGEX "/src/ffi/") # a library of its own
set(_isa ${_core})
list(FILTER _isa INCLUDE REGEX "/(cpu[^/]*|base/gemm_kernel)\\.c$")
list(FILTER _core EXCLUDE REGEX "/(cpu[^/]*|base/gemm_kernel)\\.c$")
if(TIGON_CUDA)
  list(APPEND _core ${TIGON_CUDA_IMAGES})
else() # contexts know of CUDA only where it is
  list(FILTER _core EXCLUDE REGEX "/(gpu/(driver|device|launch|tensor_map)|[a-z_]+/gpu[a-z_]*)\\.c$")
endif()

set(_objects "")
function(tigon_add_objects target)
  add_library(${target} OBJECT ${ARGN})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src ${TIGON_DLPACK_EXTRA})
  target_link_libraries(${target} PRIVATE Threads::Threads)
endfunction()

if(_core)
  tigon_add_objects(tigon_core ${_core})
  list(APPEND _objects $<TARGET_OBJECTS:tigon_core>)
endif()
if(TIGON_CUDA)
  target_compile_definitions(tigon_core PRIVATE TIGON_HAVE_CUDA)
  target_include_directories(tigon_core SYSTEM PRIVATE ${TIGON_CUDA_INCLUDE_DIR})
  target_link_libraries(tigon_core PRIVATE ${CMAKE_DL_LIBS})
endif()
if(TIGON_BF16_OPTIONS)
  tigon_add_objects(tigon_gemm_bf16 ${PROJECT_SOURCE_DIR}/src/base/gemm_kernel.c)
  target_compile_definitions(tigon_gemm_bf16 PRIVATE TIGON_ISA=avx512_bf16 TIGON_GEMM_PAIRS)
  target_compile_options(tigon_gemm_bf16 PRIVATE ${TIGON_BF16_OPTIONS})
  list(APPEND _objects $<TARGET_OBJECTS:tigon_gemm_bf16>)
  target_compile_definitions(tigon_core PRIVATE TIGON_HAVE_AVX512_BF16)
endif()
if(TIGON_AMX_OPTIONS)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/base/gemm_amx.c PROPERTIES COMPILE_OPTIONS "${TIGON_AMX_OPTIONS}")
  target_compile_definitions(tigon_core PRIVATE TIGON_HAVE_AMX)
endif()
if(_isa)
  foreach(isa ${TIGON_ISAS})
    tigon_add_objects(tigon_isa_${isa} ${_isa})
    target_compile_definitions(tigon_isa_${isa} PRIVATE TIGON_ISA=${isa})
    target_compile_options(tigon_isa_${isa} PRIVATE ${TIGON_ISA_OPTIONS_${isa}})
    list(APPEND _objects $<TARGET_OBJECTS:tigon_isa_${isa}>)
  endforeach()
endif()
if(NOT _objects)
  message(WARNING "src/ has no sources")
  return()
endif()

# libtigon.so exports what src/tigon.map.in names. It stays mapped after dlclose: its workers run in it to the end.
set(_map ${PROJECT_BINARY_DIR}/tigon.map)
configure_file(${PROJECT_SOURCE_DIR}/src/tigon.map.in ${_map} @ONLY)
add_library(tigon_shared SHARED ${_objects})
set_target_properties(tigon_shared PROPERTIES OUTPUT_NAME tigon VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
                                              LINKER_LANGUAGE C LINK_DEPENDS ${_map})
target_link_options(tigon_shared PRIVATE -Wl,--version-script=${_map} -Wl,--as-needed -Wl,-z,nodelete)
if(NOT TIGON_SANITIZE)
  target_link_options(tigon_shared PRIVATE -Wl,--no-undefined)
endif()
target_link_libraries(tigon_shared PRIVATE m Threads::Threads)
target_include_directories(tigon_shared INTERFACE ${PROJECT_SOURCE_DIR}/include ${TIGON_DLPACK_EXTRA})

# libtigon.a holds one relocatable object whose hidden symbols are local, so that it defines public names only.
set(_relocatable ${PROJECT_BINARY_DIR}/tigon_relocatable.o)
set(_archive ${PROJECT_BINARY_DIR}/libtigon.a)
add_custom_command(
  OUTPUT ${_archive}
  COMMAND ${CMAKE_LINKER} -r -o ${_relocatable} ${_objects}
  COMMAND ${CMAKE_OBJCOPY} --localize-hidden ${_relocatable}
  COMMAND ${CMAKE_COMMAND} -E rm -f ${_archive}
  COMMAND ${CMAKE_AR} qcs ${_archive} ${_relocatable}
  DEPENDS ${_objects}
  COMMAND_EXPAND_LISTS VERBATIM
  COMMENT "Linking one relocatable object into libtigon.a")
add_custom_target(tigon_archive ALL DEPENDS ${_archive})
add_library(tigon_static STATIC IMPORTED GLOBAL)
set_target_properties(tigon_static PROPERTIES IMPORTED_LOCATION ${_archive}
                                              INTERFACE_INCLUDE_DIRECTORIES "${PROJECT_SOURCE_DIR}/include;${TIGON_DLPACK_EXTRA}"
                                              INTERFACE_LINK_LIBRARIES "m;Threads::Threads")
add_dependencies(tigon_static tigon_archive)

# The names that find_package(Tigon) gives, for a project that has Tigon as a subdirectory.
add_library(Tigon::tigon ALIAS tigon_shared)
add_library(Tigon::tigon_static ALIAS tigon_static)

# The same objects with their hidden symbols, for tests of internals.
add_library(tigon_internal STATIC EXCLUDE_FROM_ALL ${_objects})
set_target_properties(tigon_internal PROPERTIES LINKER_LANGUAGE C)
target_link_libraries(tigon_internal PUBLIC m Threads::Threads)
