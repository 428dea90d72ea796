// Solution of lab cpp-rope. The first comment of the stub states the contract.
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
