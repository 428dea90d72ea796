// Solution of lab cuda-rms-norm. The first comment of the stub states the contract.
#include "common.cuh"

constexpr int THREADS = 128;

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
