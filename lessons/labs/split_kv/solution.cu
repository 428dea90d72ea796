// Lab cuda-split-kv: attention over a long row in splits, and the reduction of (m, l, acc).
//
// The seam is paged_attention of kernels/ops.py, for decode: one query per row, keys and values in blocks of the cache.
// One long row leaves most of a GPU idle, so its tokens are split (Flash-Decoding: Dao et al. 2023; vLLM:
// v1/attention/ops/triton_unified_attention.py, reduce_segments).
//
//     row       |---- split 0 ----|---- split 1 ----|---- split 2 ----|--    split s: tokens from s * split_size on
//     window                            |<------------------------------>|   the last `window` tokens are seen; 0: all
//
//     decode_splits    for each row, head and split, over the tokens of the split that are seen:
//                          peak = max score   mass = sum exp(score - peak)   acc = sum exp(score - peak) * value
//                      without such a token: peak = -INFINITY, mass = 0; acc is not read, whatever it holds
//
//     merge_splits     for each row and head, with M the largest peak of its splits:
//                          out = sum exp(peak - M) * acc / sum exp(peak - M) * mass
//
//     row r has seq_lens[r] tokens; token t lies in block table[r][t / block_size], slot t % block_size
//     score(t) = scale * dot(query[r][h], key[t])           query head h reads kv head h / (heads / kv_heads)
//
// Papers call peak, mass and acc m, l and o. They depend on the row only, with the same bits alone and in a batch, and
// whatever `splits` is. Slots behind the last token hold NaN, so may acc of a split without a token; columns of the table
// behind a row's last block hold anything: read none of them. Scores may be as large as 1e4. Accepted errors: 2e-5 of the
// largest score for peak, of mass for mass, of mass times the row's largest value for acc, of that value for out.
//
// query, out  fp32 [rows, heads, head_dim]                       peak, mass  fp32 [rows, heads, splits]
// kv          fp32 [blocks, 2, kv_heads, block_size, head_dim]   acc         fp32 [rows, heads, splits, head_dim]
//             (0: keys, 1: values)                               table       int32 [rows, max_blocks]
// seq_lens    int32 [rows], each >= 1
//
// split_size is a multiple of block_size, and splits * split_size is at least each of seq_lens.
//
// Launched with THREADS = 128 threads in a block: decode_splits with a grid of (heads, rows, splits), merge_splits with
// (heads, rows). head_dim is 32, 64, 96 or 128, so that each lane of a warp holds up to four numbers of a vector. The
// result must not depend on the order in which threads run. common.cuh (kernels/cuda) has WARP, ALL_LANES, lane_id(),
// warp_id(), reduce_lanes and more.
//
// A plan: as in the lab cuda-paged-decode, four warps take turns with the keys of a split, and are merged in shared
// memory. A warp without any key has the peak -INFINITY, and exp(-INFINITY - -INFINITY) is NaN.
//
// Read and write no number beside an array. No two threads race: what one thread changes and another uses is ordered by a
// barrier, an exchange of the warp, or atomicAdd. The threads of a block share its work: none makes more than three times
// its share of the block's accesses to memory.
#include "common.cuh"

constexpr int THREADS = 128, WARPS = THREADS / WARP, MAX_PARTS = 4;

extern "C" __global__ void decode_splits(const float* query, const float* kv, const int* table, const int* seq_lens,
                                         float* peak, float* mass, float* acc, int heads, int kv_heads,
                                         int head_dim, int block_size, int max_blocks, int window, int splits,
                                         int split_size, float scale) {
    __shared__ float peaks[WARPS], masses[WARPS], outs[WARPS][MAX_PARTS * WARP];
    const int head = blockIdx.x, row = blockIdx.y, split = blockIdx.z, lane = lane_id(), warp = warp_id();
    const int kv_head = head / (heads / kv_heads), parts = head_dim / WARP;
    const int64_t page = int64_t(block_size) * head_dim, at = (int64_t(row) * heads + head) * splits + split;
    const int seen = window && seq_lens[row] > window ? seq_lens[row] - window : 0;
    const int begin = max(seen, split * split_size), end = min(seq_lens[row], (split + 1) * split_size);
    if (begin >= end) {  // the whole block
        if (threadIdx.x == 0) peak[at] = -INFINITY;
        if (threadIdx.x == 0) mass[at] = 0;
        return;
    }
    query += (int64_t(row) * heads + head) * head_dim;

    float q[MAX_PARTS], o[MAX_PARTS] = {0, 0, 0, 0}, m = -INFINITY, l = 0;
#pragma unroll
    for (int part = 0; part < MAX_PARTS; ++part) q[part] = part < parts ? query[part * WARP + lane] * scale : 0.0f;
    for (int token = begin + warp; token < end; token += WARPS) {
        const int64_t block = table[int64_t(row) * max_blocks + token / block_size];
        const float* key = kv + (block * 2 * kv_heads + kv_head) * page + int64_t(token % block_size) * head_dim;
        const float* value = key + kv_heads * page;
        float score = 0;
#pragma unroll
        for (int part = 0; part < MAX_PARTS; ++part)
            if (part < parts) score += q[part] * key[part * WARP + lane];
        score = reduce_lanes<WARP>(score, Sum());
        const float larger = fmaxf(m, score), shrink = expf(m - larger), weight = expf(score - larger);
        m = larger;
        l = l * shrink + weight;
#pragma unroll
        for (int part = 0; part < MAX_PARTS; ++part)
            if (part < parts) o[part] = o[part] * shrink + weight * value[part * WARP + lane];
    }

#pragma unroll
    for (int part = 0; part < MAX_PARTS; ++part) outs[warp][part * WARP + lane] = o[part];
    if (lane == 0) peaks[warp] = m;
    if (lane == 0) masses[warp] = l;
    __syncthreads();
    float highest = -INFINITY, total = 0;
    for (int w = 0; w < WARPS; ++w) highest = fmaxf(highest, peaks[w]);  // the split has a key, so it is finite
    for (int w = 0; w < WARPS; ++w) total += masses[w] * expf(peaks[w] - highest);
    for (int i = threadIdx.x; i < head_dim; i += THREADS) {
        float sum = 0;
        for (int w = 0; w < WARPS; ++w) sum += outs[w][i] * expf(peaks[w] - highest);
        acc[at * head_dim + i] = sum;
    }
    if (threadIdx.x == 0) peak[at] = highest;
    if (threadIdx.x == 0) mass[at] = total;
}

// A thread takes a dimension; neighbouring threads read neighbouring numbers of each split.
extern "C" __global__ void merge_splits(const float* peak, const float* mass, const float* acc, float* out,
                                        int heads, int splits, int head_dim) {
    const int64_t head = int64_t(blockIdx.y) * heads + blockIdx.x;
    peak += head * splits;
    mass += head * splits;
    acc += head * splits * head_dim;
    if (int(threadIdx.x) >= head_dim) return;  // no thread waits for another
    float highest = -INFINITY, total = 0, sum = 0;
    for (int split = 0; split < splits; ++split) highest = fmaxf(highest, peak[split]);
    for (int split = 0; split < splits; ++split) {
        if (peak[split] == -INFINITY) continue;
        const float weight = expf(peak[split] - highest);
        total += weight * mass[split];
        sum += weight * acc[int64_t(split) * head_dim + threadIdx.x];
    }
    out[head * head_dim + threadIdx.x] = sum / total;
}
