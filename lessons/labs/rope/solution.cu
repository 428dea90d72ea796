// Solution of lab cuda-rope. The first comment of the stub states the contract.
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
