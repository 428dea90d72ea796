// Lab cuda-paged-decode: attention of one query per row over a paged cache, with online softmax.
//
// The seam is paged_attention of kernels/ops.py, for decode: one query per row, whose keys and values lie in blocks of the
// cache. Online softmax: Milakov and Gimelshein 2018 (1805.02867); PagedAttention: Kwon et al. 2023 (2309.06180); vLLM:
// csrc/attention/attention_kernels.cuh.
//
//     row r has seq_lens[r] tokens; token t lies in block table[r][t / block_size], slot t % block_size
//     score(t)  = scale * dot(query[r][h], key[t])          query head h reads kv head h / (heads / kv_heads)
//     out[r][h] = sum over t of exp(score(t) - max) / sum of exp * value[t]
//
//     chunk by chunk, with a running maximum m, mass l and output o:
//         m' = max(m, max s)    p = exp(s - m')    l = l exp(m - m') + sum p    o = o exp(m - m') + sum p value
//
// With a window w > 0 only the last w tokens are seen; 0 means no window. Slots behind the last token hold NaN, columns
// of the table behind a row's last block hold anything: read neither. Scores may be as large as 1e4. Errors up to 2e-5 of
// the largest value of the row are accepted.
//
// query, out  fp32 [rows, heads, head_dim]                             seq_lens  int32 [rows], each >= 1
// kv          fp32 [blocks, 2, kv_heads, block_size, head_dim]         table     int32 [rows, max_blocks]
//             (0: keys, 1: values)
//
// Launched with a grid of (heads, rows) blocks, each of THREADS = 128 threads, four warps: blockIdx.x is the query head,
// blockIdx.y the row. head_dim is 32, 64, 96 or 128, so that each lane of a warp holds up to four numbers of a vector. The
// result must not depend on the order in which threads run. common.cuh (kernels/cuda) has WARP, ALL_LANES, lane_id() and
// warp_id().
//
// A plan: every warp passes over its own share of the keys with its own m, l, o; at the end the four are merged in shared
// memory. A warp without any key has m = -INFINITY, and exp(-INFINITY - -INFINITY) is NaN.
//
// Read and write no number beside an array. No two threads race: what one thread changes and another uses is ordered by a
// barrier, an exchange of the warp, or atomicAdd. The threads of a block share its work: none makes more than three times
// its share of the block's accesses to memory.
#include "common.cuh"

constexpr int THREADS = 128, WARPS = THREADS / WARP, MAX_PARTS = 4;

// given up to here

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
