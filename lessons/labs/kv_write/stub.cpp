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
#error "write it: reshape_and_cache"
}
