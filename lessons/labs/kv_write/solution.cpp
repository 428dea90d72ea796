// Lab cpp-kv-write: write a step's keys and values to their slots of the paged cache.
//
// The seam is reshape_and_cache of kernels/ops.py; every attention layer calls it once a step, before it attends. vLLM:
// csrc/cache_kernels.cu, reshape_and_cache_flash.
//
//     slot = slots[t] = block * block_size + offset       where token t of this step goes
//     kv[block][0][h][offset] = key[t][h]                 h: kv head, a vector of head_dim numbers
//     kv[block][1][h][offset] = value[t][h]
//
// A slot of -1 is padding: it writes nothing, in particular not the last block. All other slots of kv keep their bits.
// Slots of one call differ, in any order.
//
// key, value  fp32 [tokens, kv_heads, head_dim]; token t begins at t * stride: they are views of one qkv tensor
// kv          fp32 [blocks, 2, kv_heads, block_size, head_dim], contiguous
// slots       int64 [tokens]
//
// stride >= kv_heads * head_dim, in numbers. head_dim is any size >= 1. Read and write no number beside an array, and
// free the memory that you allocate. One thread; -O3 -march=native -fopenmp-simd.
#include <cstdint>
#include <cstring>

extern "C" void reshape_and_cache(const float* key, const float* value, float* kv, const int64_t* slots, int tokens,
                                  int stride, int kv_heads, int head_dim, int block_size) {
    const int64_t page = int64_t(block_size) * head_dim;  // of one head
    const size_t bytes = sizeof(float) * head_dim;
    for (int token = 0; token < tokens; token++) {
        const int64_t slot = slots[token];
        if (slot < 0) continue;
        float* to = kv + slot / block_size * 2 * kv_heads * page + slot % block_size * head_dim;
        const int64_t from = int64_t(token) * stride;
        for (int head = 0; head < kv_heads; head++) {
            std::memcpy(to + head * page, key + from + head * head_dim, bytes);
            std::memcpy(to + (kv_heads + head) * page, value + from + head * head_dim, bytes);
        }
    }
}
