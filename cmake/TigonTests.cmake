# Tests. tests/<folder>/test_<subject>.c is one cmocka program, target <folder>_test_<subject>, ctest <folder>/test_<subject>.
# tests/<folder>/test_<subject>.py and .sh run through pytest and sh. All may use tests/support and tests/reference.
set(_tests ${PROJECT_SOURCE_DIR}/tests)
file(GLOB _support CONFIGURE_DEPENDS ${_tests}/support/*.c)
file(GLOB _reference CONFIGURE_DEPENDS ${_tests}/reference/*.c)
file(GLOB _c_tests CONFIGURE_DEPENDS ${_tests}/*/test_*.c)
file(GLOB_RECURSE _python_tests CONFIGURE_DEPENDS ${_tests}/test_*.py)
file(GLOB _shell_tests CONFIGURE_DEPENDS ${_tests}/*/test_*.sh)
# An emulated processor is slow: tests with long tables take part of them, and checks of arguments, which do not depend on
# the processor, are left out.
if(CMAKE_CROSSCOMPILING)
  set(_emulated TIGON_TEST_REDUCED=1)
  list(FILTER _c_tests EXCLUDE REGEX "arguments\\.c$")
endif()
if(NOT TARGET tigon_program)
  list(FILTER _c_tests EXCLUDE REGEX "/tests/program/")
endif()
list(FILTER _support EXCLUDE REGEX "/test_[^/]*\\.c$")
list(FILTER _reference EXCLUDE REGEX "/test_[^/]*\\.c$")

find_path(TIGON_CMOCKA_INCLUDE_DIR cmocka.h)
find_library(TIGON_CMOCKA_LIBRARY cmocka)
mark_as_advanced(TIGON_CMOCKA_INCLUDE_DIR TIGON_CMOCKA_LIBRARY)

set(_environment TIGON_SOURCE_DIR=${PROJECT_SOURCE_DIR} TIGON_BUILD_DIR=${PROJECT_BINARY_DIR} TIGON_LIBRARY=$<TARGET_FILE:tigon_shared>
                 CC=${CMAKE_C_COMPILER} PYTHONDONTWRITEBYTECODE=1 ${_emulated})
# A child that is forked from a process with threads goes on under the thread sanitizer too.
if(TIGON_SANITIZE)
  list(APPEND _environment UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=die_after_fork=0)
endif()
if(TARGET tigon)
  list(APPEND _environment TIGON_PROGRAM=$<TARGET_FILE:tigon>)
endif()

# The oracles, and the helpers of the tests; an oracle is computed as written, so without contraction.
function(tigon_test_target target)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}
                                               ${PROJECT_SOURCE_DIR}/tests ${TIGON_DLPACK_EXTRA})
  if(TIGON_CMOCKA_INCLUDE_DIR)
    target_include_directories(${target} PRIVATE ${TIGON_CMOCKA_INCLUDE_DIR})
  endif()
  target_compile_options(${target} PRIVATE -ffp-contract=off)
  target_link_libraries(${target} PRIVATE m Threads::Threads)
endfunction()

function(tigon_register file)
  get_filename_component(_name ${file} NAME_WE)
  get_filename_component(_directory ${file} DIRECTORY)
  file(RELATIVE_PATH _folder ${PROJECT_SOURCE_DIR}/tests ${_directory})
  add_test(NAME ${_folder}/${_name} COMMAND ${ARGN} WORKING_DIRECTORY ${PROJECT_BINARY_DIR})
  set_tests_properties(${_folder}/${_name} PROPERTIES ENVIRONMENT "${_environment}" LABELS ${_folder} TIMEOUT 900)
endfunction()

if(_reference)
  # The oracles start no thread: watching them would only slow the thread sanitizer down.
  if(TIGON_SANITIZE STREQUAL "thread")
    set_source_files_properties(${_reference} PROPERTIES COMPILE_OPTIONS -fno-sanitize=thread)
  endif()
  add_library(tigon_reference SHARED ${_reference})
  tigon_test_target(tigon_reference)
  set_target_properties(tigon_reference PROPERTIES C_VISIBILITY_PRESET default)
  target_link_libraries(tigon_reference PRIVATE tigon_internal)
  list(APPEND _environment TIGON_REFERENCE_LIBRARY=$<TARGET_FILE:tigon_reference>)
endif()

if(NOT TIGON_CMOCKA_INCLUDE_DIR OR NOT TIGON_CMOCKA_LIBRARY)
  tigon_left_out("no C tests: cmocka is missing (Debian and Ubuntu: libcmocka-dev)")
elseif(_c_tests)
  set(_helpers "")
  if(_support OR _reference)
    add_library(tigon_test_support STATIC ${_support} ${_reference})
    tigon_test_target(tigon_test_support)
    set(_helpers tigon_test_support)
  endif()
  foreach(file ${_c_tests})
    get_filename_component(_name ${file} NAME_WE)
    get_filename_component(_directory ${file} DIRECTORY)
    get_filename_component(_folder ${_directory} NAME)
    set(_target ${_folder}_${_name})
    add_executable(${_target} ${file})
    tigon_test_target(${_target})
    set_target_properties(${_target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    if(_folder STREQUAL "program")
      target_include_directories(${_target} PRIVATE ${PROJECT_SOURCE_DIR}/apps/tigon)
      target_link_libraries(${_target} PRIVATE tigon_program)
    endif()
    target_link_libraries(${_target} PRIVATE ${_helpers} tigon_internal ${TIGON_CMOCKA_LIBRARY} m Threads::Threads)
    tigon_register(${file} ${_target})
  endforeach()
endif()

# The examples, as their readers build them: with the public headers and one library.
set(EXAMPLES_LIBRARY Tigon::tigon_static)
add_subdirectory(${PROJECT_SOURCE_DIR}/examples ${PROJECT_BINARY_DIR}/examples)

# A sanitized library needs its runtime loaded first, so it is not for an ordinary Python; ABI checks are about the release.
if(NOT TIGON_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
  foreach(file ${_shell_tests})
    tigon_register(${file} sh ${file})
  endforeach()

  if(_python_tests)
    find_package(Python3 COMPONENTS Interpreter)
    set(_missing "no python3")
    if(Python3_Interpreter_FOUND)
      execute_process(
        COMMAND ${Python3_EXECUTABLE} -c
                "from importlib.util import find_spec; print(' '.join('no ' + m for m in ('pytest', 'numpy', 'torch') if not find_spec(m)))"
        OUTPUT_VARIABLE _missing OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    endif()
    if(_missing)
      tigon_left_out("no Python tests: ${_missing} (./bootstrap test installs all that tests need)")
    else()
      foreach(file ${_python_tests})
        tigon_register(${file} ${Python3_EXECUTABLE} -m pytest -q -p no:cacheprovider ${file})
      endforeach()
    endif()
  endif()
endif()
