# shellcheck shell=sh
# The library builds for 64-bit ARM, warnings being errors, and exports the same names there.
. "$TIGON_SOURCE_DIR/tests/abi/lib.sh"
work=$TIGON_BUILD_DIR/aarch64
rm -rf "$work/include"
mkdir -p "$work/include"
dlpack=$(sed -n 's/^TIGON_DLPACK_INCLUDE_DIR:[A-Z]*=//p' "$TIGON_BUILD_DIR/CMakeCache.txt")
cp -r "$dlpack/dlpack" "$work/include/"

build() {
    cmake -S "$TIGON_SOURCE_DIR" -B "$work" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_SYSTEM_NAME=Linux \
        -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DTIGON_DLPACK_INCLUDE_DIR="$work/include" \
        -DTIGON_DEVELOPER=ON -DTIGON_PROGRAM=OFF -DTIGON_TESTS=OFF && ninja -C "$work"
}
exports() { nm -D --defined-only "$1/libtigon.so" | awk '$2 == "T" { print $3 }' | sort; }

check "aarch64-linux-gnu-gcc builds the library" build
same "the machine is AArch64" "$(readelf -h "$work/libtigon.so" | sed -n 's/ *Machine: *//p')" AArch64
same "the exports are the same" "$(exports "$work")" "$(exports "$TIGON_BUILD_DIR")"
finish
