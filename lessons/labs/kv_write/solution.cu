// Lab cuda-kv-write: write a step's keys and values to their slots of the paged cache.
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
// stride >= kv_heads * head_dim, in numbers. head_dim is a multiple of 4, stride and all arrays too, so that a thread can
// move four numbers (16 bytes, float4) at once. Launched with one block of THREADS = 128 threads for each token:
// blockIdx.x is the token. kv_heads * head_dim may be smaller or larger than 4 * THREADS. common.cuh (kernels/cuda) has
// ceil_div and more.
//
// Read and write no number beside an array. No two threads race: what one thread changes and another uses is ordered by a
// barrier, an exchange of the warp, or atomicAdd. The threads of a block share its work: none makes more than three times
// its share of the block's accesses to memory.
#include "common.cuh"

constexpr int THREADS = 128;

extern "C" __global__ void reshape_and_cache(const float* key, const float* value, float* kv, const int64_t* slots,
                                             int stride, int kv_heads, int head_dim, int block_size) {
    const int64_t slot = slots[blockIdx.x];
    if (slot < 0) return;  // the whole block: no thread waits for another
    const int64_t page = int64_t(block_size) * head_dim;
    float* to = kv + slot / block_size * 2 * kv_heads * page + slot % block_size * head_dim;
    key += int64_t(blockIdx.x) * stride;
    value += int64_t(blockIdx.x) * stride;
    // neighbouring threads move neighbouring pieces of 16 bytes
    for (int i = threadIdx.x * 4; i < kv_heads * head_dim; i += THREADS * 4) {
        const int head = i / head_dim, column = i % head_dim;
        store(to + head * page + column, load<4>(key + i));
        store(to + (kv_heads + head) * page + column, load<4>(value + i));
    }
}
