// Lab cuda-rms-norm: the residual added, then RMSNorm; one block per row.
//
// The seam is fused_add_rms_norm of kernels/ops.py; a transformer layer calls it twice (Zhang and Sennrich 2019,
// 1910.07467). vLLM: csrc/layernorm_kernels.cu.
//
//     total = x + residual                                       [rows, hidden], what the next layer adds to
//     out   = total / sqrt(mean(total^2) + eps) * weight         [rows, hidden], mean over the row
//
//     thread   0    1   ...  127 |   0    1   ...  127 | ...     neighbouring threads read neighbouring columns
//
// Launched with one block of THREADS = 128 threads (four warps) for each row: blockIdx.x is the row. All arrays are fp32
// and contiguous; they do not overlap. hidden is any size >= 1, also below 128. Numbers may be as large as 1e4. Errors up
// to 1e-5 of the largest number of a row are accepted. The result must not depend on the order in which threads run.
// common.cuh (kernels/cuda) has WARP, ALL_LANES, lane_id() and warp_id(); everything else is yours.
//
// Read and write no number beside an array. No two threads race: what one thread changes and another uses is ordered by a
// barrier, an exchange of the warp, or atomicAdd. The threads of a block share its work: none makes more than three times
// its share of the block's accesses to memory.
#include "common.cuh"

constexpr int THREADS = 128;

// given up to here

// The sum over the block, in every thread.
__device__ float block_sum(float value) {
    __shared__ float sums[THREADS / WARP];
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(ALL_LANES, value, distance);
    if (lane_id() == 0) sums[warp_id()] = value;
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < THREADS / WARP; ++warp) sum += sums[warp];
    return sum;
}

extern "C" __global__ void fused_add_rms_norm(const float* x, const float* residual, const float* weight, float* out,
                                              float* total, int hidden, float eps) {
    const int64_t start = int64_t(blockIdx.x) * hidden;
    float squares = 0;
    for (int column = threadIdx.x; column < hidden; column += THREADS) {
        const float both = x[start + column] + residual[start + column];
        total[start + column] = both;
        squares += both * both;
    }
    const float scale = rsqrtf(block_sum(squares) / hidden + eps);
    // a thread reads back only what it wrote itself
    for (int column = threadIdx.x; column < hidden; column += THREADS)
        out[start + column] = total[start + column] * scale * weight[column];
}
