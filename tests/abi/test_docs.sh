# shellcheck shell=sh
# What the pages name exists: files and folders of this repository, links, functions of the headers, options of the program
# and of the build, make targets and tests. Blocks of code that are whole programs stand in examples/ instead.
. "$TIGON_SOURCE_DIR/tests/abi/lib.sh"
cd "$TIGON_SOURCE_DIR"
pages=$(find README.md CONTRIBUTING.md docs -name '*.md' | sort)

# mentions PATTERN: what the pages match, one a line, each once.
mentions() { printf '%s\n' "$pages" | xargs grep -hoE "$1" | sort -u; }
# absent COMMAND: the lines of standard input for which the command fails.
absent() {
    while read -r line; do
        "$1" "$line" >/dev/null 2>&1 || printf '%s\n' "$line"
    done
}
# Placeholders such as <family> stand for any name.
path_exists() {
    pattern=$(printf '%s' "$1" | sed 's/<[^>]*>/*/g; s/[.,:;]*$//')
    # shellcheck disable=SC2086
    ls -d $pattern
}
link_exists() {
    target=${1#*](}
    target=${target%%[)#]*}
    test -z "$target" || test -e "$(dirname "${1%%:*}")/$target"
}
links() { printf '%s\n' "$pages" | xargs grep -HoE '\]\([^)]*\)' | grep -v -E '\]\((https?|mailto):'; }
is_name() { grep -rqwF -- "$1" include src apps cmake CMakeLists.txt bootstrap Makefile tests; }
# An option of the program, or of what the pages call besides it.
is_option() { grep -rqF -- "\"$1\"" apps || printf '%s\n' --cflags --libs --output-on-failure --test-dir | grep -qxF -- "$1"; }
is_target() { grep -q "^$1:" Makefile; }
# folder/program, or folder/program:function
is_covered() {
    for file in tests/"${1%%:*}".*; do
        case $1 in
        *:*) grep -qwF -- "${1##*:}" "$file" ;;
        *) test -f "$file" ;;
        esac && return 0
    done
    return 1
}
is_test() { test -n "$(find tests -path "tests/$1.*")"; }

nothing "paths exist" "$(mentions '\b(include|src|apps|tests|examples|docs|cmake|bench)/[A-Za-z0-9_<>*./-]+' | grep -v '^tests/[a-z_]*_test_' | absent path_exists)"
nothing "links lead to files" "$(links | absent link_exists)"
nothing "functions, types and macros exist" "$(mentions '\b(tigon|TIGON)_[A-Za-z0-9_]*[A-Za-z0-9]\b' | grep -v '^TIGON_[0-9]' | absent is_name)"
nothing "options exist" "$(mentions '[ `]--[a-z][a-z-]+' | tr -d ' `' | sort -u | absent is_option)"
nothing "make targets exist" "$(mentions '`make [a-z-]+' | sed 's/.* //' | sort -u | absent is_target)"
nothing "programs of tests exist" "$(mentions '\btests/[a-z_]+_test_[a-z_]+' | sed 's,tests/\([a-z_]*\)_test_,\1/test_,' | absent is_test)"
nothing "tests of faults exist" "$(grep -hoE '[a-z_]+/(test|fuzz)_[a-z0-9_]+(:[a-z0-9_]+)?' docs/faults.md | absent is_covered)"
nothing "whole programs stand in examples, which the tests run" "$(printf '%s\n' "$pages" | grep -v '^README.md$' | xargs grep -Hn 'int main')"
finish
