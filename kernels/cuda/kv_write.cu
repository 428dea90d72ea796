// Store a step's keys and values in their slots of the paged cache, quantised on the way if the cache is.
//
// One warp takes one head of one token: lanes 0-15 its key, lanes 16-31 its value. Both halves do the same work on
// neighbouring memory, and a head of 128 bf16 is one 16-byte load for each of 16 lanes.
//
//     slot = slot_mapping[token]              -1: padding, nothing is written
//     block = slot / BLOCK_SIZE, offset = slot % BLOCK_SIZE
//     kv[block, part, head, offset, :] = key or value                part 0: keys, 1: values
//
//     f8e4m3   stored = clamp(x / scale[part], -448, 448)            scale given
//     i8       scale = max|x| / 127, stored = round(x / scale)       scale written beside: [blocks, 2, heads, BLOCK_SIZE]
//
// Bound by bandwidth: every byte once in, once out.
//
// Defines: SCALAR, CACHE (storage types), CACHE_F8E4M3 or CACHE_I8 (1 if CACHE is that), VEC, HEAD_DIM, BLOCK_SIZE.
#include "common.cuh"

constexpr int HALF_WARP = 16;

__device__ inline float clamp(float x, float limit) {  // a NaN stays: every comparison with it is false
    return x > limit ? limit : x < -limit ? -limit : x;
}

// VEC values as a cache of type To stores them.
template <class To, class From>
__device__ inline Pack<To, VEC> quantised(const Pack<From, VEC>& values, float scale) {
    if constexpr (same_type<From, To>) {
        return values;
    } else {
        Pack<To, VEC> stored;
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            float x = to_float(values.at[i]);
#if CACHE_F8E4M3
            x = clamp(x / scale, 448.0f);
#elif CACHE_I8
            x = scale == 0 ? 0.0f : x / scale;
#endif
            stored.at[i] = from_float<To>(x);
        }
        return stored;
    }
}

extern "C" __global__ void kv_write(const SCALAR* __restrict__ key, const SCALAR* __restrict__ value,
                                    CACHE* __restrict__ kv, const int64_t* __restrict__ slot_mapping,
                                    float* __restrict__ kv_scale, int64_t key_token_stride, int64_t key_head_stride,
                                    int64_t value_token_stride, int64_t value_head_stride, int64_t block_stride,
                                    int64_t scale_block_stride, int num_heads) {
    const int64_t token = blockIdx.x;
    const int64_t slot = slot_mapping[token];
    const int head = blockIdx.y * (blockDim.x / WARP) + warp_id();
    if (slot < 0 || head >= num_heads) return;

    const int part = lane_id() / HALF_WARP, lane = lane_id() % HALF_WARP;
    const int64_t block = slot / BLOCK_SIZE;
    const int in_block = (part * num_heads + head) * BLOCK_SIZE + int(slot % BLOCK_SIZE);
    const SCALAR* from = part == 0 ? key + token * key_token_stride + head * key_head_stride
                                   : value + token * value_token_stride + head * value_head_stride;
    CACHE* to = kv + block * block_stride + int64_t(in_block) * HEAD_DIM;

    float scale = 1;
#if CACHE_F8E4M3
    scale = kv_scale[part];
#elif CACHE_I8
    float largest = 0;
#pragma unroll
    for (int column = lane * VEC; column < HEAD_DIM; column += HALF_WARP * VEC) {
        const auto values = load<VEC>(from + column);  // again from the L1 below
#pragma unroll
        for (int i = 0; i < VEC; ++i) largest = Max()(largest, fabsf(to_float(values.at[i])));
    }
    scale = reduce_lanes<HALF_WARP>(largest, Max()) / 127.0f;
    if (lane == 0) kv_scale[block * scale_block_stride + in_block] = scale;
#endif

#pragma unroll
    for (int column = lane * VEC; column < HEAD_DIM; column += HALF_WARP * VEC)
        store(to + column, quantised<CACHE>(load<VEC>(from + column), scale));
}
