# libtigon_ffi.so: the operations as TVM FFI functions, for python/tigon. It needs TVM FFI's headers only: its runtime is in
# the process already when Python loads the library. scikit-build-core installs both libraries into the package.
set(_python_missing "")
find_package(Python3 COMPONENTS Interpreter QUIET)
if(NOT TIGON_TVM_FFI_INCLUDE_DIR AND Python3_Interpreter_FOUND)
  execute_process(COMMAND ${Python3_EXECUTABLE} -m tvm_ffi.config --includedir OUTPUT_VARIABLE _includes RESULT_VARIABLE _failed
                  ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT _failed)
    set(TIGON_TVM_FFI_INCLUDE_DIR ${_includes} CACHE PATH "Directory that holds tvm/ffi/c_api.h and dlpack/dlpack.h" FORCE)
  endif()
endif()
mark_as_advanced(TIGON_TVM_FFI_INCLUDE_DIR)

if(NOT EXISTS "${TIGON_TVM_FFI_INCLUDE_DIR}/tvm/ffi/c_api.h")
  tigon_left_out("no libtigon_ffi.so for Python: TVM FFI's headers are missing (pip install apache-tvm-ffi, or set TIGON_TVM_FFI_INCLUDE_DIR)")
  return()
endif()

file(GLOB _ffi CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/ffi/*.c)
add_library(tigon_ffi SHARED ${_ffi})
target_include_directories(tigon_ffi SYSTEM BEFORE PRIVATE ${TIGON_TVM_FFI_INCLUDE_DIR})
target_include_directories(tigon_ffi PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(tigon_ffi PRIVATE tigon_shared)
set_target_properties(tigon_ffi PROPERTIES LINKER_LANGUAGE C INSTALL_RPATH $ORIGIN)

if(SKBUILD)
  install(FILES $<TARGET_FILE:tigon_shared> DESTINATION tigon RENAME $<TARGET_SONAME_FILE_NAME:tigon_shared>)
  install(TARGETS tigon_ffi LIBRARY DESTINATION tigon)
endif()
