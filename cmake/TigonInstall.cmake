# `cmake --install`: headers, both libraries, the program, package files for CMake and pkg-config, and the licence. The
# package files find the prefix from where they lie.
include(CMakePackageConfigHelpers)

install(TARGETS tigon_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${PROJECT_BINARY_DIR}/libtigon.a DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/tigon DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(TARGET tigon)
  install(TARGETS tigon RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(FILES ${PROJECT_SOURCE_DIR}/bench/peers/torch_cpu.py DESTINATION ${CMAKE_INSTALL_DATADIR}/tigon/bench/peers)
endif()

# What has one SONAME is compatible; a newer minor version than the installed one is not.
set(_package ${CMAKE_INSTALL_LIBDIR}/cmake/Tigon)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/TigonConfig.cmake.in ${PROJECT_BINARY_DIR}/TigonConfig.cmake
                              INSTALL_DESTINATION ${_package} PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/TigonConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TigonConfig.cmake ${PROJECT_BINARY_DIR}/TigonConfigVersion.cmake DESTINATION ${_package})

file(RELATIVE_PATH TIGON_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" TIGON_PC_PREFIX ${TIGON_PC_PREFIX})
set(TIGON_PC_DLPACK "")
if(TIGON_DLPACK_EXTRA)
  set(TIGON_PC_DLPACK " -I${TIGON_DLPACK_EXTRA}")
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/tigon.pc.in ${PROJECT_BINARY_DIR}/tigon.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tigon.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
