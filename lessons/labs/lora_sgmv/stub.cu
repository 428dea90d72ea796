// Lab cuda-lora-sgmv: low-rank adapters, many in one batch: shrink and expand for the rows of each adapter.
//
// The seam is lora_shrink and lora_expand of kernels/ops.py, which every linear layer calls beside its own weight.
// LoRA: Hu et al. 2021 (2106.09685); SGMV: Punica, Chen et al. 2023 (2310.18547); S-LoRA: Sheng et al. 2023
// (2311.03285); vLLM: lora/ops/triton_ops/lora_shrink_op.py, lora_expand_op.py.
//
//     order    3  7 | 0  1  5 | 4           rows sorted by adapter: adapter s has the rows
//     starts   0      2     2       5  6    order[starts[s]] .. order[starts[s + 1] - 1], here 2, 0, 3 and 1 rows
//
//     shrink   low[t][r]  = sum over k of x[t][k] * a[s][r][k]                    for r < ranks[s]
//     expand   y[t][n]   += scaling[s] * sum over r of low[t][r] * b[s][r][n]     r < ranks[s]
//
// Rows in no list (here 2 and 6) have no adapter: their low and y keep their bits. All slots have room for max_rank;
// behind the rank of an adapter a and b hold what an earlier adapter left, also NaN, and low holds anything: read none
// of it, and leave low there as it was. Errors up to 1e-6 of the sum of the absolute terms are accepted.
//
// x      fp32 [tokens, depth]                 order    int32 [rows with an adapter], may be empty
// low    fp32 [tokens, max_rank]              starts   int32 [adapters + 1]
// y      fp32 [tokens, columns]               ranks    int32 [adapters], 1 to max_rank
// a      fp32 [adapters, max_rank, depth]     scaling  fp32 [adapters]
// b      fp32 [adapters, max_rank, columns]   (vLLM keeps b as [adapters, columns, max_rank])
//
// lora_shrink has a grid of (adapters, tiles, ceil(max_rank / WARPS)) blocks, lora_expand of (adapters, tiles,
// ceil(columns / (4 * THREADS))), each of THREADS = 128 threads. Block (s, i) does rows TILE * i .. TILE * i + TILE -
// 1 of adapter s. As in a captured graph the grid has room for the worst case, all rows with one adapter: most blocks
// have no row. depth, columns and all arrays are multiples of 4 numbers, so that a thread can move 16 bytes at once;
// max_rank is at most 128. A row's numbers must not depend on the rows beside it. The result must not depend on the order
// in which threads run. common.cuh (kernels/cuda) has load, store, reduce_lanes and more.
//
// A plan: in lora_shrink a warp takes one rank, reads its row of a once and multiplies it with all rows of the tile.
// In lora_expand a thread takes four neighbouring columns of all rows of the tile, and the tile's low waits in shared
// memory.
//
// Read and write no number beside an array. No two threads race: what one thread changes and another uses is ordered by a
// barrier, an exchange of the warp, or atomicAdd. The threads of a block share its work: none makes more than three times
// its share of the block's accesses to memory.
#include "common.cuh"

constexpr int THREADS = 128, WARPS = THREADS / WARP, TILE = 8, MAX_RANK = 128;

extern "C" __global__ void lora_shrink(const float* x, const float* a, const int* order, const int* starts,
                                       const int* ranks, float* low, int max_rank, int depth) {
#error "write it: lora_shrink and lora_expand"
}

extern "C" __global__ void lora_expand(const float* low, const float* b, const int* order, const int* starts,
                                       const int* ranks, const float* scaling, float* y, int max_rank, int columns) {
}
