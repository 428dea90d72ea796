// What both ways to attend in a decode share (CUDA cores: paged_fma.cuh, tensor cores: paged_mma.cuh): the problem, and
// what becomes of the warps' results.
//
//     score[token] = scale * q . k[token]
//
// Online softmax (Milakov & Gimelshein 2018), for each query head, over some of the tokens:
//     m = max score     l = sum exp2(score - m)     acc = sum exp2(score - m) * v
// and two such triples (over different tokens) merge into one:
//     m = max(m1, m2)   l = l1 exp2(m1 - m) + l2 exp2(m2 - m)   acc likewise
// Scores carry a factor of log2(e), so that exp2 does.
#pragma once
#include "common.cuh"

constexpr int THREADS = WARPS * WARP;
constexpr float LOG2_E = 1.44269504f;
#define NOTHING (-INFINITY)  // the maximum over no tokens

// What a launch is about; the same for every block. (Kernels take it in pieces: cuda.core passes no structs.)
struct Problem {
    const SCALAR* query;         // [tokens, heads, HEAD_DIM], strided
    const CACHE* kv;             // [blocks, 2, kv_heads, BLOCK_SIZE, HEAD_DIM], blocks strided
    const float* kv_scale;       // fp8: [2]; int8: [blocks, 2, kv_heads, BLOCK_SIZE], blocks strided
    const int32_t* query_start;  // [sequences + 1]
    const int32_t* seq_lens;     // [sequences]
    const int32_t* block_table;  // [sequences, ...], strided
    int64_t query_token_stride, query_head_stride, block_stride, scale_block_stride, table_stride;
    int num_tokens, num_sequences, num_heads, num_kv_heads;
    int window;  // 0: none
    float scale;
};

#define PROBLEM_PARAMETERS                                                                                        \
    const SCALAR *query, const CACHE *kv, const float *kv_scale, const int32_t *query_start,                     \
        const int32_t *seq_lens, const int32_t *block_table, int64_t query_token_stride,                          \
        int64_t query_head_stride, int64_t block_stride, int64_t scale_block_stride, int64_t table_stride,        \
        int num_tokens, int num_sequences, int num_heads, int num_kv_heads, int window, float scale
#define PROBLEM                                                                                                   \
    Problem {                                                                                                     \
        query, kv, kv_scale, query_start, seq_lens, block_table, query_token_stride, query_head_stride,          \
            block_stride, scale_block_stride, table_stride, num_tokens, num_sequences, num_heads, num_kv_heads,  \
            window, scale                                                                                         \
    }

// exp2(a - b), and 0 where a has seen no token: -inf - -inf would be NaN.
__device__ inline float decay(float a, float b) { return a == NOTHING ? 0.0f : exp2f(a - b); }

// The factor of the scores. The fp8 cache has one scale for all keys.
__device__ inline float score_scale(const Problem& p) {
    float scale = p.scale * LOG2_E;
#if CACHE_F8E4M3
    scale *= p.kv_scale[0];
#endif
    return scale;
}

// What the warps leave for each other. It takes the place of the queue, which is empty by then.
struct WarpResults {
    float m[WARPS][GROUP], l[WARPS][GROUP], acc[WARPS][GROUP][HEAD_DIM];
};

// Merge the warps for one head and dimension, in their order.
__device__ inline void merge_warps(const WarpResults& results, int g, int column, float& m, float& l, float& acc) {
    m = NOTHING, l = 0, acc = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) m = fmaxf(m, results.m[warp][g]);
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) {
        const float weight = decay(results.m[warp][g], m);
        l += results.l[warp][g] * weight;
        acc += results.acc[warp][g][column] * weight;
    }
}

// The result of one element. The fp8 cache has one scale for all values, which can wait until here.
__device__ inline SCALAR finish(const Problem& p, float l, float acc) {
    float value = l == 0 ? 0.0f : acc / l;
#if CACHE_F8E4M3
    value *= p.kv_scale[1];
#endif
    return from_float<SCALAR>(value);
}

// The first token that the query, which is the last of seq_len tokens, can see.
__device__ inline int first_visible(const Problem& p, int seq_len) {
    return p.window > 0 && seq_len > p.window ? seq_len - p.window : 0;
}

// The query token of a sequence, or -1 if it has none in this step.
__device__ inline int64_t token_of(const Problem& p, int sequence) {
    if (sequence >= p.num_sequences) return -1;
    const int token = p.query_start[sequence];
    return token < p.query_start[sequence + 1] ? token : -1;
}

// Tokens behind the last sequence are padding and get zeros: block x of the grid clears heads of token x.
__device__ inline void clear_padding(const Problem& p, SCALAR* out, int token, int first_head, int heads) {
    if (token >= p.num_tokens || token < p.query_start[p.num_sequences]) return;
    for (int i = threadIdx.x; i < heads * HEAD_DIM; i += blockDim.x)
        out[(int64_t(token) * p.num_heads + first_head) * HEAD_DIM + i] = from_float<SCALAR>(0);
}
