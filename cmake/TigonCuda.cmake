# Kernels: each src/<family>/kernels/<name>.cu becomes one fat binary (sm_90a, sm_100f, PTX for compute_80; sm_90a alone where
# the name ends in _sm90a), which an assembler file embeds as tigon_image_<family>_<name>. cmake/nvcc.sh compiles, and fails on spills and on serialised wgmma.
#
# Result: TIGON_CUDA (whether there is a CUDA compiler), TIGON_CUDA_INCLUDE_DIR (cuda.h), TIGON_CUDA_IMAGES (assembler files).
set(_cuda_homes /usr/local/cuda)
if(DEFINED ENV{CUDA_HOME})
  set(_cuda_homes $ENV{CUDA_HOME})
endif()
list(TRANSFORM _cuda_homes APPEND /bin)
find_program(TIGON_NVCC nvcc HINTS ${_cuda_homes})
mark_as_advanced(TIGON_NVCC)
set(TIGON_CUDA OFF)
set(TIGON_CUDA_MISSING "no nvcc was found")
if(TIGON_NVCC)
  # Its own cuda.h: the two say together which driver the images need.
  file(REAL_PATH ${TIGON_NVCC} _nvcc)
  get_filename_component(_nvcc ${_nvcc} DIRECTORY)
  find_path(TIGON_CUDA_INCLUDE_DIR cuda.h HINTS ${_nvcc}/../include NO_DEFAULT_PATH)
  mark_as_advanced(TIGON_CUDA_INCLUDE_DIR)
  execute_process(COMMAND ${TIGON_NVCC} --version OUTPUT_VARIABLE _version ERROR_QUIET)
  if(NOT _version MATCHES "release (1[3-9]|[2-9][0-9])\\.")
    set(TIGON_CUDA_MISSING "${TIGON_NVCC} is older than CUDA 13")
  elseif(NOT TIGON_CUDA_INCLUDE_DIR)
    set(TIGON_CUDA_MISSING "there is no cuda.h beside ${TIGON_NVCC}")
  elseif(NOT TIGON_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
    set(TIGON_CUDA ON)
  endif()
endif()

set(TIGON_CUDA_IMAGES "")
if(TIGON_CUDA)
  enable_language(ASM)
  set(_architectures -gencode=arch=compute_90a,code=sm_90a -gencode=arch=compute_100f,code=sm_100f -gencode=arch=compute_80,code=compute_80)
  file(GLOB _kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*/kernels/*.cu)
  file(GLOB_RECURSE _device_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/kernel/*.cuh ${PROJECT_SOURCE_DIR}/src/*/kernels/*.cuh
       ${PROJECT_SOURCE_DIR}/src/*/kernels/*.h ${PROJECT_SOURCE_DIR}/src/kernel/*.h)
  set(_dlpack "")
  if(TIGON_DLPACK_EXTRA)
    set(_dlpack -I${TIGON_DLPACK_EXTRA})
  endif()
  foreach(_source ${_kernels})
    get_filename_component(_name ${_source} NAME_WE)
    get_filename_component(_folder ${_source} DIRECTORY)
    get_filename_component(_folder ${_folder} DIRECTORY)
    get_filename_component(_family ${_folder} NAME)
    set(_for ${_architectures})
    if(_name MATCHES "_sm90a$")
      set(_for -gencode=arch=compute_90a,code=sm_90a)
    endif()
    set(_image ${PROJECT_BINARY_DIR}/images/${_family}_${_name}.fatbin)
    set(TIGON_IMAGE_NAME tigon_image_${_family}_${_name})
    set(TIGON_IMAGE_FILE ${_image})
    set(_assembly ${PROJECT_BINARY_DIR}/images/${_family}_${_name}.S)
    configure_file(${PROJECT_SOURCE_DIR}/cmake/image.S.in ${_assembly} @ONLY)
    add_custom_command(
      OUTPUT ${_image}
      COMMAND sh ${PROJECT_SOURCE_DIR}/cmake/nvcc.sh ${TIGON_NVCC} ${_source} ${_image} ${_for} -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/include ${_dlpack}
      DEPENDS ${_source} ${_device_headers} ${PROJECT_SOURCE_DIR}/cmake/nvcc.sh
      VERBATIM
      COMMENT "Compiling kernels ${_family}/${_name}")
    set_source_files_properties(${_assembly} PROPERTIES OBJECT_DEPENDS ${_image})
    list(APPEND TIGON_CUDA_IMAGES ${_assembly})
  endforeach()
endif()
