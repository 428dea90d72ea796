// One layer of the paged KV cache, in any of the types it can be stored in.
//
//     kv[block][part][head][slot][dim]     part 0 holds keys, part 1 values; any stride between blocks, the rest
//                                          is contiguous; slot number of a token = block * block_size + slot
#pragma once

#include <algorithm>
#include <cmath>

#include "dtype.h"

struct float8_e4m3 {
    uint8_t bits;
};

inline float to_float(int8_t x) {
    return x;
}

// Sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinities, 0x7f is NaN; the largest number is 448.
inline float to_float(float8_e4m3 x) {
    const int exponent = (x.bits >> 3) & 15, mantissa = x.bits & 7;
    const float magnitude = (x.bits & 127) == 127 ? NAN
                            : exponent == 0       ? std::ldexp(static_cast<float>(mantissa), -9)
                                                  : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    return x.bits & 128 ? -magnitude : magnitude;
}
template <>
inline float8_e4m3 from_float<float8_e4m3>(float x) {
    const uint8_t sign = std::signbit(x) ? 128 : 0;
    const float magnitude = std::fabs(x);
    if (magnitude != magnitude) return {static_cast<uint8_t>(sign | 127)};
    if (magnitude >= 448) return {static_cast<uint8_t>(sign | 126)};
    const int exponent = std::max(-6, std::ilogb(std::max(magnitude, 1e-30f)));  // of the spacing; -6: subnormal
    const int steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));  // half to even
    return {static_cast<uint8_t>(sign | (steps + ((exponent + 6) << 3)))};
}

// As `with_float_type`, for everything that a cache can hold.
template <typename Call>
inline void with_cache_type(int64_t dtype, Call call) {
    with_float_type(dtype, call);
    if (dtype == FLOAT8_E4M3) call(float8_e4m3{});
    if (dtype == INT8) call(int8_t{});
}

struct CacheLayer {
    void* data;
    int64_t block_stride, heads, block_size, head_dim;
    float* scale;  // fp8: [2]; int8: [block][part][head][slot]; otherwise null
    int64_t scale_block_stride;

    int64_t offset(int64_t block, int64_t part, int64_t head, int64_t slot) const {
        return block * block_stride + ((part * heads + head) * block_size + slot) * head_dim;
    }
    float* slot_scale(int64_t block, int64_t part, int64_t head, int64_t slot) const {
        return scale + block * scale_block_stride + (part * heads + head) * block_size + slot;
    }
};
