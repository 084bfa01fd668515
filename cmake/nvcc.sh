# shellcheck shell=sh
# sh nvcc.sh NVCC SOURCE IMAGE FLAG...: compiles a .cu file to a fat binary of the architectures that the flags name. What
# ptxas reports only as information is an error here: stack frames and spills of the images that are machine code, and
# wgmma that it has to serialise.
set -eu
nvcc=$1 source=$2 image=$3
shift 3
log=$image.log
mkdir -p "$(dirname "$image")"
if ! "$nvcc" -std=c++17 -O3 -Xptxas -v --threads 0 --compress-mode=size "$@" -fatbin -o "$image" "$source" >"$log" 2>&1; then
    grep -v -E '^ptxas info|^ +[0-9]+ bytes' "$log" >&2 || true
    exit 1
fi
bad=$(grep -n -E 'C7508|C7510|C7511|C7514|C7515|[Ww]arning|[1-9][0-9]* bytes (stack frame|spill)' "$log" || true)
if [ -n "$bad" ]; then
    rm -f "$image"
    printf '%s: the kernels compile, but not cleanly:\n%s\n(whole report: %s)\n' "$source" "$bad" "$log" >&2
    exit 1
fi
