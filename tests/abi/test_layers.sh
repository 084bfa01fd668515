# shellcheck shell=sh
# What the design says of the sources: arrows point down, instructions stand in src/kernel, the library never prints or exits.
. "$TIGON_SOURCE_DIR/tests/abi/lib.sh"
cd "$TIGON_SOURCE_DIR"
families="rms_norm lightning_attention linear_cross_entropy moe linear"

sources() { find "$@" -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null || true; }
# lines_with PATTERN: of the files named on standard input.
lines_with() { xargs -r grep -HnE "$1" || true; }
# includes FOLDER NAME...: lines of FOLDER that include a header of the folders NAME.
includes() {
    folder=$1
    shift
    sources "src/$folder" | lines_with "#include +\"($(printf '%s' "$*" | tr ' ' '|'))/"
}

check "there are sources" test -n "$(sources src)"
for family in $families; do
    others=$(printf ' %s ' "$families" | sed "s/ $family / /")
    # shellcheck disable=SC2086
    nothing "src/$family includes no other family" "$(includes "$family" $others)"
done
# shellcheck disable=SC2086
nothing "src/base includes nothing above it" "$(includes base $families comm gpu kernel)"
# shellcheck disable=SC2086
nothing "src/gpu includes nothing above it" "$(includes gpu $families comm)"
# shellcheck disable=SC2086
nothing "src/comm includes no family" "$(includes comm $families)"
nothing "src includes nothing of the tests and programs" "$(sources src | lines_with '#include +"(\.\./|tests/|apps/|support/|reference/)')"
nothing "public headers include public headers only" "$(sources include | lines_with '#include +"' | grep -v '#include "tigon/')"
nothing "programs and examples include public headers only" "$(sources apps examples | lines_with '#include +["<](.*\.\./|src/|base/|comm/|gpu/|kernel/|rms_norm/|lightning_attention/|linear_cross_entropy/|moe/|linear/)')"
nothing "asm stands in src/kernel only" "$(sources src apps | grep -v '^src/kernel/' | lines_with '\b(asm|__asm__)\b *(volatile|__volatile__)? *\(')"
nothing "the library never prints, exits or aborts" "$(sources src | lines_with '\b(exit|_exit|abort|printf|fprintf|puts|putchar|perror|assert) *\(')"
nothing "no promises in place of code" "$(sources src include apps tests examples | lines_with '\b(TOD[O]|FIXM[E]|XX[X]|HAC[K]|not implemente[d]|for no[w])\b')"
nothing "no file is over 500 lines" "$(sources src apps include tests examples | xargs -r wc -l | awk '$2 != "total" && $1 > 500 { print $1, $2 }')"
finish
