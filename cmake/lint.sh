# shellcheck shell=sh
# Static checks of C sources (clang-tidy, .clang-tidy) and shell scripts (shellcheck); any finding is an error. For `make lint`.
set -eu
build=build/release
[ -e $build/compile_commands.json ] || cmake -S . -B $build -G Ninja -DTIGON_DEVELOPER=ON >/dev/null

scripts=$(find bootstrap .ci/run cmake apps tests -name '*.sh' -o -name bootstrap -o -path .ci/run)
printf '%s\n' "$scripts" | xargs shellcheck -x
echo "lint: $(printf '%s\n' "$scripts" | wc -l) shell scripts are clean"

sources=$(find src apps -name '*.c')
if ! printf '%s\n' "$sources" | xargs -n 1 -P "$(nproc)" clang-tidy --quiet -p $build >build/lint.txt 2>build/lint-errors.txt; then
    cat build/lint.txt
    grep -v 'warnings\{0,1\} generated' build/lint-errors.txt
    echo "lint: clang-tidy has findings" >&2
    exit 1
fi
echo "lint: $(printf '%s\n' "$sources" | wc -l) C sources are clean"
