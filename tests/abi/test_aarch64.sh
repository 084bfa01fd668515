# shellcheck shell=sh
# The library builds for 64-bit ARM, warnings being errors, and exports the same names there.
. "$TIGON_SOURCE_DIR/tests/abi/lib.sh"
work=$TIGON_BUILD_DIR/aarch64

build() {
    cmake -S "$TIGON_SOURCE_DIR" -B "$work" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$TIGON_SOURCE_DIR/cmake/aarch64.cmake" \
        -DCMAKE_BUILD_TYPE=Debug -DTIGON_DEVELOPER=ON -DTIGON_PROGRAM=OFF -DTIGON_TESTS=OFF && ninja -C "$work"
}
exports() { nm -D --defined-only "$1/libtigon.so" | awk '$2 == "T" { print $3 }' | sort; }

check "aarch64-linux-gnu-gcc builds the library" build
same "the machine is AArch64" "$(readelf -h "$work/libtigon.so" | sed -n 's/ *Machine: *//p')" AArch64
same "the exports are the same" "$(exports "$work")" "$(exports "$TIGON_BUILD_DIR")"
finish
