# libtigon_ffi.so: the operations as TVM FFI functions, for python/tigon. It needs TVM FFI's headers only: its runtime is in
# the process already when Python loads the library. scikit-build-core installs both libraries into the package.
if(NOT EXISTS "${TIGON_TVM_FFI_INCLUDE_DIR}/tvm/ffi/c_api.h")
  set(_text "no libtigon_ffi.so for Python: TVM FFI's headers are missing (pip install apache-tvm-ffi, or set TIGON_TVM_FFI_INCLUDE_DIR)")
  if(SKBUILD)
    message(FATAL_ERROR "${_text}")
  endif()
  tigon_left_out("${_text}")
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
