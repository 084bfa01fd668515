# shellcheck shell=sh
# A user's way: install into a prefix, find it with pkg-config, compile the README's example and run it, shared and static.
. "$TIGON_SOURCE_DIR/tests/abi/lib.sh"
work=$TIGON_BUILD_DIR/abi
prefix="$work/a prefix"
rm -rf "$work"
mkdir -p "$work"

cmake --install "$TIGON_BUILD_DIR" --prefix "$prefix" >"$work/install.log"
pc=$(find "$prefix" -name tigon.pc)
check "tigon.pc is installed" test -n "$pc"
# The prefix moves, as a package's staging folder does: tigon.pc finds the prefix from where it lies.
mv "$prefix" "$work/moved"
prefix=$work/moved
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name tigon.pc)")
export PKG_CONFIG_PATH
libdir=$(pkg-config --variable=libdir tigon)
version=$(header_version)
soname=libtigon.so.${version%%.*}

check "pkg-config tells the header's version" test "$(pkg-config --modversion tigon)" = "$version"
for file in bin/tigon include/tigon/tigon.h; do check "$file is installed" test -e "$prefix/$file"; done
check "libtigon.so.$version is installed" test -e "$libdir/libtigon.so.$version"
check "libtigon.a is installed" test -e "$libdir/libtigon.a"
check "the licence is installed" test -n "$(find "$prefix" -name LICENSE)"

# The first C block of the README is the example, and examples/ holds the same text.
awk '/^```c$/ { inside = 1; next } /^```/ { if (inside) exit } inside' "$TIGON_SOURCE_DIR/README.md" >"$work/example.c"
check "the README has a C example" test -s "$work/example.c"
check "examples/rms_norm.c is the README's example" cmp "$work/example.c" "$TIGON_SOURCE_DIR/examples/rms_norm.c"

# shellcheck disable=SC2046
build_shared() { $1 -std=c11 -Wall -Wextra -Werror "$work/example.c" $(pkg-config --cflags --libs tigon) -o "$work/shared"; }
build_static() {
    # shellcheck disable=SC2046
    $1 -std=c11 -Wall -Wextra -Werror "$work/example.c" $(pkg-config --cflags tigon) -L"$libdir" -l:libtigon.a \
        $(pkg-config --static --libs-only-l --libs-only-other tigon | sed 's/-ltigon//') -o "$work/static"
}
expected=$(sed -n 's/.*prints: \(.*[^ ]\) \*\/.*/\1/p' "$work/example.c")
check "the example says what it prints" test -n "$expected"
for compiler in gcc clang; do
    check "$compiler links the shared library" build_shared $compiler
    check "and the example prints \"$expected\"" test "$(LD_LIBRARY_PATH=$libdir "$work/shared")" = "$expected"
    check "and needs $soname" test -n "$(readelf -d "$work/shared" | grep "NEEDED.*$soname")"
    check "$compiler links the static library" build_static $compiler
    check "and the example prints \"$expected\"" test "$("$work/static")" = "$expected"
done
check "the installed program runs" "$prefix/bin/tigon" --help >"$work/help.txt"
finish
