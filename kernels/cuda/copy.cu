// Copy whole blocks of the KV cache on one device: target[b] = source[a] for every pair (a, b). Fork and defragmentation.
//
//     grid (pair, piece)      a piece is THREADS * UNROLL words, 16 KB; a block of the cache is some hundred KB
//
// All loads of a thread come before its stores, so UNROLL of them are in flight. Bound by bandwidth.
//
// Defines: WORD_BYTES (16 where alignment and size allow, else 8, 4, 2, 1), THREADS, UNROLL.
#include "common.cuh"

typedef Pack<uint8_t, WORD_BYTES> Word;

// pairs [n, 2]; strides in bytes, the size of a block in words.
extern "C" __global__ void copy_blocks(const uint8_t* source, uint8_t* target, const int64_t* __restrict__ pairs,
                                       int64_t source_stride, int64_t target_stride, int64_t words) {
    const uint8_t* from = source + pairs[blockIdx.x * 2] * source_stride;
    uint8_t* to = target + pairs[blockIdx.x * 2 + 1] * target_stride;
    const int64_t first = int64_t(blockIdx.y) * THREADS * UNROLL + threadIdx.x;
    Word values[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
        if (first + u * THREADS < words) values[u] = load<WORD_BYTES>(from + (first + u * THREADS) * WORD_BYTES);
#pragma unroll
    for (int u = 0; u < UNROLL; ++u)
        if (first + u * THREADS < words) store(to + (first + u * THREADS) * WORD_BYTES, values[u]);
}
