# Kernels: each src/<family>/kernels/<name>.cu becomes one fat binary (sm_90a, sm_100f, PTX for compute_80), which an
# assembler file embeds as tigon_image_<name>. cmake/nvcc.sh compiles, and fails on spills and on serialised wgmma.
#
# Result: TIGON_CUDA (whether there is a CUDA compiler), TIGON_CUDA_INCLUDE_DIR (cuda.h), TIGON_CUDA_IMAGES (assembler files).
find_program(TIGON_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin PATHS /usr/local/cuda/bin)
find_path(TIGON_CUDA_INCLUDE_DIR cuda.h HINTS $ENV{CUDA_HOME}/include PATHS /usr/local/cuda/include)
mark_as_advanced(TIGON_NVCC TIGON_CUDA_INCLUDE_DIR)
set(TIGON_CUDA OFF)
if(TIGON_NVCC AND TIGON_CUDA_INCLUDE_DIR AND NOT TIGON_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
  set(TIGON_CUDA ON)
endif()

set(TIGON_CUDA_IMAGES "")
if(TIGON_CUDA)
  enable_language(ASM)
  file(GLOB _kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*/kernels/*.cu)
  file(GLOB_RECURSE _device_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/kernel/*.cuh ${PROJECT_SOURCE_DIR}/src/*/kernels/*.cuh
       ${PROJECT_SOURCE_DIR}/src/*/kernels/*.h)
  foreach(_source ${_kernels})
    get_filename_component(_name ${_source} NAME_WE)
    get_filename_component(_folder ${_source} DIRECTORY)
    get_filename_component(_folder ${_folder} DIRECTORY)
    get_filename_component(_family ${_folder} NAME)
    set(_image ${PROJECT_BINARY_DIR}/images/${_family}_${_name}.fatbin)
    set(TIGON_IMAGE_NAME tigon_image_${_family}_${_name})
    set(TIGON_IMAGE_FILE ${_image})
    set(_assembly ${PROJECT_BINARY_DIR}/images/${_family}_${_name}.S)
    configure_file(${PROJECT_SOURCE_DIR}/cmake/image.S.in ${_assembly} @ONLY)
    add_custom_command(
      OUTPUT ${_image}
      COMMAND sh ${PROJECT_SOURCE_DIR}/cmake/nvcc.sh ${TIGON_NVCC} ${_source} ${_image} -I${PROJECT_SOURCE_DIR}/src
      DEPENDS ${_source} ${_device_headers} ${PROJECT_SOURCE_DIR}/cmake/nvcc.sh
      VERBATIM
      COMMENT "Compiling kernels ${_family}/${_name}")
    set_source_files_properties(${_assembly} PROPERTIES OBJECT_DEPENDS ${_image})
    list(APPEND TIGON_CUDA_IMAGES ${_assembly})
  endforeach()
endif()
