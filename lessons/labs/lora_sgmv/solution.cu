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

// given up to here

// The rows of a block: how many, and the place of the first in `order`.
struct Tile {
    int first, count;

    __device__ Tile(const int* starts) {
        first = starts[blockIdx.x] + int(blockIdx.y) * TILE;
        count = min(TILE, starts[blockIdx.x + 1] - first);  // 0 or less: nothing to do
    }
};

extern "C" __global__ void lora_shrink(const float* x, const float* a, const int* order, const int* starts,
                                       const int* ranks, float* low, int max_rank, int depth) {
    const int adapter = blockIdx.x, rank = blockIdx.z * WARPS + warp_id();
    const Tile tile(starts);
    if (tile.count <= 0 || rank >= ranks[adapter]) return;  // the whole warp; no barrier follows
    a += (int64_t(adapter) * max_rank + rank) * depth;
    int64_t rows[TILE];
    float sums[TILE] = {};
#pragma unroll
    for (int i = 0; i < TILE; ++i) rows[i] = order[tile.first + min(i, tile.count - 1)];  // the last row again, unused
    for (int k = lane_id() * 4; k < depth; k += WARP * 4) {
        const auto of_a = load<4>(a + k);
#pragma unroll
        for (int i = 0; i < TILE; ++i) {
            if (i >= tile.count) continue;
            const auto of_x = load<4>(x + rows[i] * depth + k);
#pragma unroll
            for (int j = 0; j < 4; ++j) sums[i] += of_x.at[j] * of_a.at[j];
        }
    }
#pragma unroll
    for (int i = 0; i < TILE; ++i) {
        const float total = reduce_lanes<WARP>(sums[i], Sum());
        if (i < tile.count && lane_id() == 0) low[rows[i] * max_rank + rank] = total;
    }
}

extern "C" __global__ void lora_expand(const float* low, const float* b, const int* order, const int* starts,
                                       const int* ranks, const float* scaling, float* y, int max_rank, int columns) {
    __shared__ float factors[TILE][MAX_RANK];
    const int adapter = blockIdx.x, rank = ranks[adapter];
    const Tile tile(starts);
    if (tile.count <= 0) return;  // the whole block
    for (int i = threadIdx.x; i < TILE * rank; i += THREADS) {
        const int row = i / rank, r = i % rank;
        factors[row][r] = row < tile.count ? low[int64_t(order[tile.first + row]) * max_rank + r] : 0.0f;
    }
    __syncthreads();
    const int column = (blockIdx.z * THREADS + threadIdx.x) * 4;
    if (column >= columns) return;  // behind the only barrier
    b += int64_t(adapter) * max_rank * columns + column;
    float sums[TILE][4] = {};
    for (int r = 0; r < rank; ++r) {
        const auto of_b = load<4>(b + int64_t(r) * columns);
#pragma unroll
        for (int i = 0; i < TILE; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) sums[i][j] += factors[i][r] * of_b.at[j];
    }
#pragma unroll
    for (int i = 0; i < TILE; ++i) {
        if (i >= tile.count) continue;
        float* to = y + int64_t(order[tile.first + i]) * columns + column;
        auto value = load<4>(to);
#pragma unroll
        for (int j = 0; j < 4; ++j) value.at[j] += scaling[adapter] * sums[i][j];
        store(to, value);
    }
}
