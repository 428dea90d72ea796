// Solution of lab cuda-lora-sgmv. The first comment of the stub states the contract.
#include "common.cuh"

constexpr int THREADS = 128, WARPS = THREADS / WARP, TILE = 8, MAX_RANK = 128;

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
