# TIGON_TVM_FFI_INCLUDE_DIR: the headers of TVM FFI, as the package apache-tvm-ffi of Python3_EXECUTABLE has them. DLPack's header
# lies there too, and is taken from there where the system has none.
find_package(Python3 COMPONENTS Interpreter QUIET)
if(NOT TIGON_TVM_FFI_INCLUDE_DIR AND Python3_Interpreter_FOUND)
  execute_process(COMMAND ${Python3_EXECUTABLE} -m tvm_ffi.config --includedir OUTPUT_VARIABLE _includes RESULT_VARIABLE _failed
                  ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT _failed)
    set(TIGON_TVM_FFI_INCLUDE_DIR ${_includes} CACHE PATH "Directory that holds tvm/ffi/c_api.h and dlpack/dlpack.h" FORCE)
  endif()
endif()
mark_as_advanced(TIGON_TVM_FFI_INCLUDE_DIR)
if(TIGON_TVM_FFI_INCLUDE_DIR)
  find_path(TIGON_DLPACK_INCLUDE_DIR dlpack/dlpack.h PATHS ${TIGON_TVM_FFI_INCLUDE_DIR} DOC "Directory that holds dlpack/dlpack.h")
endif()
