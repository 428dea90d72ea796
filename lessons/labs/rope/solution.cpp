// Lab cpp-rope: turn a step's queries and keys by their positions (rotary position embedding).
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
// rotary_dim is even, 2 <= rotary_dim <= head_dim; head_dim is any size >= 2. Read and write no number beside an
// array, and free the memory that you allocate. One thread; -O3 -march=native -fopenmp-simd.
#include <cstdint>

extern "C" void rotary_embedding(float* qkv, const int64_t* positions, const float* table, int tokens, int heads,
                                 int kv_heads, int head_dim, int rotary_dim) {
    const int half = rotary_dim / 2;
    for (int token = 0; token < tokens; token++) {
        const float *cos = table + positions[token] * rotary_dim, *sin = cos + half;
        float* x = qkv + int64_t(token) * (heads + 2 * kv_heads) * head_dim;
        for (int head = 0; head < heads + kv_heads; head++, x += head_dim) {
#pragma omp simd
            for (int i = 0; i < half; i++) {
                const float first = x[i], second = x[half + i];
                x[i] = first * cos[i] - second * sin[i];
                x[half + i] = second * cos[i] + first * sin[i];
            }
        }
    }
}
