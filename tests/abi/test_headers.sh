# shellcheck shell=sh
# Every public header compiles alone, as C and as C++, with gcc and clang, against each DLPack header that is there.
. "$TIGON_SOURCE_DIR/tests/abi/lib.sh"
warnings="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Werror -fsyntax-only"

# compile COMPILER LANGUAGE STANDARD HEADER [INCLUDE OPTION...]
compile() {
    compiler=$1
    language=$2
    standard=$3
    header=$4
    shift 4
    # shellcheck disable=SC2086
    printf '#include <tigon/%s>\n#include <tigon/%s>\nextern int a_declaration;\n' "$header" "$header" |
        $compiler $warnings -std="$standard" -x "$language" "$@" -I"$TIGON_SOURCE_DIR/include" -
}

all_headers() {
    dlpack=$1
    shift
    for path in "$TIGON_SOURCE_DIR"/include/tigon/*.h; do
        header=${path##*/}
        for standard in c11 c17; do
            check "$header: gcc $standard, $dlpack" compile gcc c $standard "$header" "$@"
            check "$header: clang $standard, $dlpack" compile clang c $standard "$header" "$@"
        done
        for standard in c++17 c++20; do
            check "$header: g++ $standard, $dlpack" compile g++ c++ $standard "$header" "$@"
            check "$header: clang++ $standard, $dlpack" compile clang++ c++ $standard "$header" "$@"
        done
    done
}

all_headers "installed DLPack"
dlpack_1=$TIGON_SOURCE_DIR/build/dlpack-1/include
if [ -e "$dlpack_1/dlpack/dlpack.h" ]; then
    check "the second DLPack is a 1.x" grep -q 'define DLPACK_MAJOR_VERSION 1' "$dlpack_1/dlpack/dlpack.h"
    all_headers "DLPack 1.x" -isystem "$dlpack_1"
else
    printf 'no DLPack 1.x header here (./bootstrap test fetches it): checked against the installed one only\n'
fi
finish
