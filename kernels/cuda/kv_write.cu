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
constexpr int ROUNDS = ceil_div(HEAD_DIM, HALF_WARP * VEC);

__device__ inline float clamp(float x, float limit) {  // a NaN stays: every comparison with it is false
    return x > limit ? limit : x < -limit ? -limit : x;
}

// VEC values as the cache stores them.
__device__ inline Pack<CACHE, VEC> quantised(const Pack<SCALAR, VEC>& values, float scale) {
    if constexpr (same_type<SCALAR, CACHE>) return values;
    Pack<CACHE, VEC> stored;
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        const float x = to_float(values.at[i]);
#if CACHE_F8E4M3
        stored.at[i] = from_float<CACHE>(clamp(x / scale, 448.0f));
#elif CACHE_I8
        stored.at[i] = from_float<CACHE>(scale == 0 ? 0.0f : x / scale);
#else
        stored.at[i] = from_float<CACHE>(x);
#endif
    }
    return stored;
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

    Pack<SCALAR, VEC> row[ROUNDS];
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        const int column = (round * HALF_WARP + lane) * VEC;
        if (column < HEAD_DIM) row[round] = load<VEC>(from + column);
    }

    float scale = 1;
#if CACHE_F8E4M3
    scale = kv_scale[part];
#elif CACHE_I8
    float largest = 0;
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round)
        if ((round * HALF_WARP + lane) * VEC < HEAD_DIM)
#pragma unroll
            for (int i = 0; i < VEC; ++i) largest = Max()(largest, fabsf(to_float(row[round].at[i])));
    scale = reduce_lanes<HALF_WARP>(largest, Max()) / 127.0f;
    if (lane == 0) kv_scale[block * scale_block_stride + in_block] = scale;
#endif

#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        const int column = (round * HALF_WARP + lane) * VEC;
        if (column < HEAD_DIM) store(to + column, quantised(row[round], scale));
    }
}
