// Lab cuda-rope: turn a step's queries and keys by their positions; one block per token.
//
// The seam is rotary_embedding of kernels/ops.py; every attention layer calls it once a step, between the projection to
// qkv and the KV write (RoFormer: Su et al. 2021, 2104.09864; NeoX layout: dimension i turns with i + rotary_dim / 2).
// vLLM: _custom_ops.py, rotary_embedding: in place, too, on query and key as two views.
//
//     qkv of a token   | query 0 | ... | query H - 1 | key 0 | ... | key K - 1 | value 0 | ... | value K - 1 |
//                      |<------- heads + kv_heads heads are turned ----------->|<----- keep their bits ----->|
//
//     a head           | x: rotary_dim / 2 | y: rotary_dim / 2 | head_dim - rotary_dim pass through |
//
//     with cos and sin of pair i from the row of the token's position:
//         x[i]' = x[i] cos[i] - y[i] sin[i]          y[i]' = y[i] cos[i] + x[i] sin[i]
//
// positions[t] is the position of token t in its own request: a step holds tokens of many requests, in any order, and
// positions repeat. Everything that is not turned keeps its bits. Errors up to 1e-6 of the length of a pair, sqrt(x^2 +
// y^2), are accepted.
//
// qkv        fp32 [tokens, heads + 2 kv_heads, head_dim], changed in place
// positions  int64 [tokens], each a row of table
// table      fp32 [max_position, rotary_dim]: cos of the rotary_dim / 2 pairs, then sin
//
// rotary_dim is a multiple of 8, head_dim of 4, so that a thread can move four numbers (16 bytes, float4) at once.
// Launched with one block of THREADS = 128 threads for each token: blockIdx.x is the token. A token may have more pairs
// than the block moves at once, or fewer. The result must not depend on the order in which threads run. common.cuh
// (kernels/cuda) has Pack<float, 4>, load<4>, store and more.
//
// Read and write no number beside an array. No two threads race: what one thread changes and another uses is ordered by a
// barrier, an exchange of the warp, or atomicAdd. The threads of a block share its work: none makes more than three times
// its share of the block's accesses to memory.
#include "common.cuh"

constexpr int THREADS = 128;

extern "C" __global__ void rotary_embedding(float* qkv, const int64_t* positions, const float* table, int heads,
                                            int kv_heads, int head_dim, int rotary_dim) {
    const int half = rotary_dim / 2, pieces = half / 4;  // of 16 bytes, in half a head
    const float *cos = table + positions[blockIdx.x] * rotary_dim, *sin = cos + half;
    qkv += int64_t(blockIdx.x) * (heads + 2 * kv_heads) * head_dim;
    // a thread reads both numbers of a pair before it writes them, and no other thread touches them
    for (int piece = threadIdx.x; piece < (heads + kv_heads) * pieces; piece += THREADS) {
        const int i = piece % pieces * 4;
        float* x = qkv + piece / pieces * head_dim + i;
        const Pack<float, 4> first = load<4>(x), second = load<4>(x + half), c = load<4>(cos + i), s = load<4>(sin + i);
        Pack<float, 4> turned[2];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            turned[0].at[k] = first.at[k] * c.at[k] - second.at[k] * s.at[k];
            turned[1].at[k] = second.at[k] * c.at[k] + first.at[k] * s.at[k];
        }
        store(x, turned[0]);
        store(x + half, turned[1]);
    }
}
