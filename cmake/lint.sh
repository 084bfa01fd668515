# shellcheck shell=sh
# Static checks of C sources (clang-tidy, .clang-tidy) and shell scripts (shellcheck); any finding is an error. For `make lint`.
set -eu
build=build/release
cmake -S . -B $build -G Ninja -DTIGON_DEVELOPER=ON >/dev/null

scripts=$(find bootstrap .ci/run cmake apps tests -name '*.sh' -o -name bootstrap -o -path .ci/run)
printf '%s\n' "$scripts" | xargs shellcheck -x
echo "lint: $(printf '%s\n' "$scripts" | wc -l) shell scripts are clean"

# A CPU source stands in the compile database once for each instruction set; the last one is looked at.
mkdir -p build/lint
awk 'BEGIN { RS = "}" }
     match($0, /"file": "[^"]*"/) { file = substr($0, RSTART, RLENGTH); sub(/^[^{]*/, ""); command[file] = $0 "}" }
     END { separator = "[\n"; for (file in command) { printf "%s%s", separator, command[file]; separator = ",\n" } print "\n]" }' \
    $build/compile_commands.json >build/lint/compile_commands.json

sources=$(find src apps -name '*.c')
if ! printf '%s\n' "$sources" |
    xargs -n 1 -P "$(nproc)" clang-tidy --quiet -p build/lint >build/lint/findings.txt 2>build/lint/errors.txt; then
    cat build/lint/findings.txt
    grep -v 'warnings\{0,1\} generated' build/lint/errors.txt
    echo "lint: clang-tidy has findings" >&2
    exit 1
fi
echo "lint: $(printf '%s\n' "$sources" | wc -l) C sources are clean"
