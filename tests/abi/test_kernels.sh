# shellcheck shell=sh
# Kernels: the wrapper of nvcc refuses what ptxas reports only as information, and PTX is assembled for devices that have no
# image of their own.
. "$TIGON_SOURCE_DIR/tests/abi/lib.sh"
nvcc=$(sed -n 's/^TIGON_NVCC:FILEPATH=//p' "$TIGON_BUILD_DIR/CMakeCache.txt")
if [ ! -x "$nvcc" ]; then
    echo "no CUDA compiler in this build: skipped"
    exit 77
fi
folder=$TIGON_BUILD_DIR/kernels
mkdir -p "$folder"

compile() {
    sh "$TIGON_SOURCE_DIR/cmake/nvcc.sh" "$nvcc" "$folder/$1.cu" "$folder/$1.fatbin" -gencode=arch=compute_90a,code=sm_90a \
        >"$folder/$1.txt" 2>&1
}
refused() {
    rm -f "$folder/$1.fatbin"
    ! compile "$1" && grep -q "$2" "$folder/$1.txt" && [ ! -e "$folder/$1.fatbin" ]
}

cat >"$folder/clean.cu" <<'CU'
extern "C" __global__ void clean(float *x) { x[threadIdx.x] *= 2; }
CU
cat >"$folder/spills.cu" <<'CU'
extern "C" __global__ void __launch_bounds__(1024, 2) spills(float *x, int n) {
  float kept[96];
#pragma unroll
  for (int i = 0; i < 96; i++) kept[i] = x[threadIdx.x + i * n];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 96; i++) x[threadIdx.x + i * n] = kept[95 - i] * kept[i];
}
CU
cat >"$folder/stack.cu" <<'CU'
extern "C" __global__ void stack(float *x, const int *at) {
  float kept[64];
  for (int i = 0; i < 64; i++) kept[at[i] & 63] = x[i];
  for (int i = 0; i < 64; i++) x[i] = kept[(at[i] + i) & 63];
}
CU
cat >"$folder/serialised.cu" <<'CU'
#define MULTIPLY                                                                                            \
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %4, 1, 1, 1, 0, 0;" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                             \
               : "l"(tile))
extern "C" __global__ void serialised(float *x, unsigned long long tile) {
  float d[4] = {x[0], x[1], x[2], x[3]};
  asm volatile("wgmma.fence.sync.aligned;");
  MULTIPLY;
  d[0] += 1; /* while the product is under way */
  MULTIPLY;
  asm volatile("wgmma.commit_group.sync.aligned;");
  asm volatile("wgmma.wait_group.sync.aligned 0;");
  for (int i = 0; i < 4; i++) x[threadIdx.x * 4 + i] = d[i];
}
CU
printf 'extern "C" __global__ void broken(float *x) { x = ; }\n' >"$folder/broken.cu"
check "a clean kernel compiles" compile clean
check "a kernel that spills is refused" refused spills "spill"
check "a kernel with a stack frame is refused" refused stack "stack frame"
check "a kernel whose wgmma is serialised is refused" refused serialised "C75"
check "an error of the compiler is shown" refused broken "error"

# What the driver would compile on Ampere and on consumer Blackwell devices.
for source in "$TIGON_SOURCE_DIR"/src/*/kernels/*.cu; do
    case $source in *_sm90a.cu) continue ;; esac # instructions that no other device has
    check "$(basename "$(dirname "$(dirname "$source")")")/$(basename "$source") assembles for sm_80 and sm_120" \
        "$nvcc" -std=c++17 -O3 "-I$TIGON_SOURCE_DIR/src" "-I$TIGON_SOURCE_DIR/include" --threads 0 -gencode=arch=compute_80,code=sm_80 \
        -gencode=arch=compute_80,code=sm_120 -fatbin -o "$folder/ptx.fatbin" "$source"
done
finish
