# shellcheck shell=sh
# Shared by the shell tests: the environment comes from CTest (cmake/TigonTests.cmake).
set -eu
: "${TIGON_SOURCE_DIR:?}" "${TIGON_BUILD_DIR:?}"
failures=0
cases=0

# check TITLE COMMAND...: one case, failed when the command fails.
check() {
    title=$1
    shift
    cases=$((cases + 1))
    if "$@"; then
        printf 'ok: %s\n' "$title"
    else
        printf 'FAILED: %s\n' "$title"
        failures=$((failures + 1))
    fi
}

# nothing TITLE LINES: one case, failed when there are lines; they are shown.
nothing() {
    check "$1" test -z "$2"
    [ -z "$2" ] || printf '%s\n' "$2"
}

# same TITLE ACTUAL EXPECTED: one case, failed when the lines differ; the differences are shown.
same() {
    folder=$(mktemp -d)
    printf '%s\n' "$2" >"$folder/actual"
    printf '%s\n' "$3" >"$folder/expected"
    check "$1" diff -U 0 "$folder/expected" "$folder/actual"
    rm -r "$folder"
}

# The version, from its one place.
header_version() { sed -n 's/^#define TIGON_VERSION_[A-Z]* //p' "$TIGON_SOURCE_DIR/include/tigon/version.h" | paste -s -d .; }

finish() {
    printf 'cases: %d\n' "$cases"
    [ "$failures" = 0 ]
}
