/* x (T, D) in sorted order on Hopper, by bulk copies: a token's row is read once and stored wherever its routes go, to
 * sorted (rows, D); padding rows become zeros. A warp works on a piece of a row, and has the next one under way. Bound by
 * memory: Qwen3's layer at 8192 tokens reads 34 MB and writes 268 MB, 63 us of an H200's 4.8 TB/s. */
#include "kernel/tma.cuh"
#include "moe/kernels/params.h"

enum { WARPS = MOE_SCATTER_THREADS / 32, PIECE = 4096 };
static_assert(MOE_ALIGN % 32 == 0, "a warp looks at 32 rows");

struct scatter_shared {
  char buffer[WARPS][2][PIECE];
  char zeros[PIECE];
  uint64_t full[WARPS][2]; /* by the warp's lane 0 and its bulk load; all its lanes wait */
};

__device__ __forceinline__ int piece_bytes(const moe_scatter_params &p, int64_t begin) {
  return (int)min((int64_t)PIECE, p.row_bytes - begin);
}

/* Each lane looks at a row. */
__device__ __forceinline__ void clear_padding(const moe_scatter_params &p, const scatter_shared &s, int warp,
                                              int warps) {
  const int rows = *p.last_row;
  for (int row = warp * 32 + (int)threadIdx.x % 32; row < rows; row += warps * 32) {
    if (p.row_token[row] >= 0) continue;
    for (int64_t begin = 0; begin < p.row_bytes; begin += PIECE)
      bulk_store(p.sorted + row * p.row_bytes + begin, s.zeros, piece_bytes(p, begin));
    tma_store_commit();
  }
}

extern "C" __global__ void __launch_bounds__(MOE_SCATTER_THREADS)
    moe_scatter(const __grid_constant__ moe_scatter_params p) {
  __shared__ alignas(128) scatter_shared s;
  const int lane = (int)threadIdx.x % 32, here = (int)threadIdx.x / 32;
  const int warp = (int)blockIdx.x * WARPS + here, warps = (int)gridDim.x * WARPS;
  for (int i = (int)threadIdx.x * 16; i < PIECE; i += MOE_SCATTER_THREADS * 16) *(uint4 *)(s.zeros + i) = uint4();
  if (threadIdx.x < WARPS * 2) mbarrier_init(&s.full[threadIdx.x / 2][threadIdx.x % 2], 1);
  mbarrier_fence_init();
  fence_async_shared();
  __syncthreads();

  const int64_t pieces = (p.row_bytes + PIECE - 1) / PIECE, units = p.tokens * pieces;
  auto load = [&](int64_t unit, int turn) {
    if (unit >= units || lane > 0) return;
    const int64_t token = unit / pieces, begin = (unit - token * pieces) * PIECE;
    const int bytes = piece_bytes(p, begin);
    mbarrier_arrive_expect(&s.full[here][turn], bytes);
    bulk_load(s.buffer[here][turn], p.x + token * p.x_row_bytes + begin, bytes, &s.full[here][turn]);
  };
  load(warp, 0);
  clear_padding(p, s, warp, warps);
  int turn = 0, parity = 0;
  for (int64_t unit = warp; unit < units; unit += warps) {
    tma_store_wait_read<0>(); /* of the piece before, whose buffer is the next one's */
    __syncwarp();
    load(unit + warps, turn ^ 1);
    const int64_t token = unit / pieces, begin = (unit - token * pieces) * PIECE;
    const int row = lane < p.choices ? p.row_of[token * p.choices + lane] : -1;
    mbarrier_wait(&s.full[here][turn], parity);
    if (row >= 0) bulk_store(p.sorted + row * p.row_bytes + begin, s.buffer[here][turn], piece_bytes(p, begin));
    tma_store_commit();
    parity ^= turn;
    turn ^= 1;
  }
  tma_store_wait_all();
}
