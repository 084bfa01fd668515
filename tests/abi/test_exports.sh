# shellcheck shell=sh
# The libraries show tigon_* names only, need the C library only, and leave the process and its output alone.
. "$TIGON_SOURCE_DIR/tests/abi/lib.sh"
shared=$TIGON_BUILD_DIR/libtigon.so
static=$TIGON_BUILD_DIR/libtigon.a
check "both libraries are there" ls "$shared" "$static"
version=$(header_version)
node=TIGON_${version%.*}
soname=libtigon.so.${version%%.*}
names() { awk '{ sub(/@.*/, "", $NF); print $NF }' | sort; }

exported=$(nm -D --defined-only "$shared" | awk '$2 != "A"' | names)
archived=$(nm -g --defined-only "$static" | awk 'NF == 3' | names)
declared=$(cat "$TIGON_SOURCE_DIR"/include/tigon/*.h | tr '\n' ' ' | grep -o 'TIGON_API [^;(#]*(' |
    sed -n 's/.*[ *]\(tigon_[a-z0-9_]*\)($/\1/p' | sort)
needed=$(readelf -d "$shared" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
called=$(nm -D --undefined-only "$shared" | names)

check "the headers declare functions" test -n "$declared"
same "libtigon.so exports what the headers declare" "$exported" "$declared"
same "libtigon.a defines what the headers declare" "$archived" "$declared"
nothing "only tigon_* is exported" "$(printf '%s\n' "$exported" "$archived" | grep -v '^tigon_')"
nothing "every export has the version $node" "$(nm -D --defined-only "$shared" | grep -v "@@$node\$" | grep -v ' A ')"
same "libtigon.a holds one object" "$(ar t "$static" | wc -l)" 1
nothing "libtigon.so needs libc, libm and libpthread only" "$(printf '%s\n' "$needed" | grep -v -E '^(libc|libm|libpthread)\.so')"
same "the SONAME is $soname" "$(readelf -d "$shared" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')" "$soname"
nothing "no executable stack" "$(readelf -lW "$shared" | grep 'GNU_STACK.*RWE')"
same "it stays mapped after dlclose, where its workers run" "$(readelf -d "$shared" | grep -c NODELETE)" 1
nothing "no text relocations" "$(readelf -d "$shared" | grep TEXTREL)"
nothing "libtigon.so calls nothing that ends the process or prints" "$(printf '%s\n' "$called" |
    grep -x -E '_?_?(exit|_exit|_Exit|quick_exit|abort|assert_fail|v?f?printf(_chk)?|f?puts|f?putc|putchar|perror|raise|kill)')"
finish
