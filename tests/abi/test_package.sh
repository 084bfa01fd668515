# shellcheck shell=sh
# A user's CMake project finds Tigon in a prefix that has moved, or has it as a subdirectory: in C and in C++, shared and
# static; a version that the library is not compatible with is refused. The examples build as such a project, and run.
. "$TIGON_SOURCE_DIR/tests/abi/lib.sh"
consumer=$TIGON_SOURCE_DIR/tests/abi/consumer
work=$TIGON_BUILD_DIR/package
rm -rf "$work"
mkdir -p "$work"
cmake --install "$TIGON_BUILD_DIR" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$work/a moved prefix"
prefix="$work/a moved prefix"
version=$(header_version)
major=${version%%.*}
minor=${version#*.}
minor=${minor%%.*}

# configure NAME LANGUAGE [OPTION...]: in the folder of that name.
configure() {
    name=$1
    language=$2
    shift 2
    cmake -S "$consumer" -B "$work/$name" -G Ninja -DCONSUMER_LANGUAGE="$language" "$@" >"$work/$name.log" 2>&1
}
build() { cmake --build "$1" >"$1.build" 2>&1 || { tail -n 20 "$1.build" && false; }; }
prints_version() { test "$("$1")" = "$version"; }
# refused NAME OPTION...: configuring fails for the version.
refused() {
    name=$1
    shift
    ! configure "$name" C "$@" && grep -q "considered but not accepted" "$work/$name.log"
}
# uses NAME LANGUAGE OPTION...
uses() {
    check "$1: configures" configure "$@"
    check "$1: builds" build "$work/$1"
    check "$1: the shared library runs" prints_version "$work/$1/with_tigon"
    check "$1: the static library runs" prints_version "$work/$1/with_tigon_static"
}

found="-DCMAKE_PREFIX_PATH=$prefix"
uses c-prefix C "$found" -DCONSUMER_VERSION="$major.$minor"
uses cxx-prefix CXX "$found" -DCONSUMER_VERSION="$major.$minor"
uses c-subdirectory C -DCONSUMER_SUBDIRECTORY="$TIGON_SOURCE_DIR" -DCMAKE_BUILD_TYPE=Debug
nothing "a subdirectory installs nothing and has no program and tests of its own" \
    "$(find "$work/c-subdirectory/tigon" \( -name tigon -o -name 'tigon.pc' -o -name '*_test_*' \) -type f)"
same "with_tigon needs the shared library" "$(readelf -d "$work/c-prefix/with_tigon" | grep -c "NEEDED.*libtigon.so.$major\]")" 1
nothing "with_tigon_static does not" "$(readelf -d "$work/c-prefix/with_tigon_static" | grep libtigon)"

check "an older minor version is accepted" configure older C "$found" -DCONSUMER_VERSION="$major.0"
check "a newer minor version is refused" refused newer "$found" -DCONSUMER_VERSION="$major.$((minor + 1))"
check "another major version is refused" refused other "$found" -DCONSUMER_VERSION="$((major + 1)).0"

# Without DLPack the message names what is missing.
without_dlpack() {
    ! configure dlpack C "$found" -DCMAKE_FIND_ROOT_PATH="$prefix" -DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY &&
        grep -q "dlpack/dlpack.h is missing" "$work/dlpack.log"
}
check "a missing DLPack is named" without_dlpack
nothing "the package files name no folder of this build" "$(grep -rlF -e "$TIGON_BUILD_DIR" -e "$TIGON_SOURCE_DIR" "$prefix/lib" --include='*.cmake' --include='*.pc')"

for library in tigon tigon_static; do
    folder=$work/examples-$library
    check "the examples configure with Tigon::$library" cmake -S "$TIGON_SOURCE_DIR/examples" -B "$folder" -G Ninja \
        -DCMAKE_PREFIX_PATH="$prefix" -DEXAMPLES_LIBRARY="Tigon::$library" -DCMAKE_C_FLAGS="-Wall -Wextra -Werror"
    check "they build" build "$folder"
    check "they run" ctest --test-dir "$folder" --no-tests=error --output-on-failure
done
finish
