# Toolchain file: the library and its tests in C for 64-bit ARM, run by qemu-user. The tests use the header in
# tests/abi/cross in place of cmocka, which distributions have for their own processor only.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
set(TIGON_CMOCKA_INCLUDE_DIR ${CMAKE_CURRENT_LIST_DIR}/../tests/abi/cross CACHE PATH "Stands in for cmocka")
set(TIGON_CMOCKA_LIBRARY c CACHE STRING "None: the header is all")
