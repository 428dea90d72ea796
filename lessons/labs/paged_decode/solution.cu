// Solution of lab cuda-paged-decode. The first comment of the stub states the contract.
#include "common.cuh"

constexpr int THREADS = 128, WARPS = THREADS / WARP, MAX_PARTS = 4;

// The sum over the warp, in every lane.
__device__ float warp_sum(float value) {
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(ALL_LANES, value, distance);
    return value;
}

extern "C" __global__ void paged_decode(const float* query, const float* kv, const int* table, const int* seq_lens,
                                        float* out, int heads, int kv_heads, int head_dim, int block_size,
                                        int max_blocks, int window, float scale) {
    __shared__ float peaks[WARPS], masses[WARPS], outs[WARPS][MAX_PARTS * WARP];
    const int head = blockIdx.x, row = blockIdx.y, lane = lane_id(), warp = warp_id();
    const int kv_head = head / (heads / kv_heads), parts = head_dim / WARP;
    const int64_t page = int64_t(block_size) * head_dim;
    query += (int64_t(row) * heads + head) * head_dim;

    float q[MAX_PARTS], o[MAX_PARTS] = {0, 0, 0, 0}, m = -INFINITY, l = 0;
#pragma unroll
    for (int part = 0; part < MAX_PARTS; ++part) q[part] = part < parts ? query[part * WARP + lane] * scale : 0.0f;

    const int end = seq_lens[row], begin = window && end > window ? end - window : 0;
    for (int token = begin + warp; token < end; token += WARPS) {
        const int64_t block = table[int64_t(row) * max_blocks + token / block_size];
        const float* key = kv + (block * 2 * kv_heads + kv_head) * page + int64_t(token % block_size) * head_dim;
        const float* value = key + kv_heads * page;
        float score = 0;
#pragma unroll
        for (int part = 0; part < MAX_PARTS; ++part)
            if (part < parts) score += q[part] * key[part * WARP + lane];
        score = warp_sum(score);
        const float larger = fmaxf(m, score), shrink = expf(m - larger), weight = expf(score - larger);
        m = larger;
        l = l * shrink + weight;
#pragma unroll
        for (int part = 0; part < MAX_PARTS; ++part)
            if (part < parts) o[part] = o[part] * shrink + weight * value[part * WARP + lane];
    }

#pragma unroll
    for (int part = 0; part < MAX_PARTS; ++part) outs[warp][part * WARP + lane] = o[part];
    if (lane == 0) {
        peaks[warp] = m;
        masses[warp] = l;
    }
    __syncthreads();
    float peak = -INFINITY, mass = 0;
    for (int w = 0; w < WARPS; ++w) peak = fmaxf(peak, peaks[w]);  // a row has a key, so it is finite
    for (int w = 0; w < WARPS; ++w) mass += masses[w] * expf(peaks[w] - peak);
    for (int i = threadIdx.x; i < head_dim; i += THREADS) {
        float sum = 0;
        for (int w = 0; w < WARPS; ++w) sum += outs[w][i] * expf(peaks[w] - peak);
        out[(int64_t(row) * heads + head) * head_dim + i] = sum / mass;
    }
}
