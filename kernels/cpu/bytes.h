// Four bytes in each 32-bit word of a vector, and the product that adds all four to an int32 lane.
//
//     x    | x0 x1 x2 x3 | x0 x1 x2 x3 | ...     four depths of a row, in every lane
//     w    | w0 w1 w2 w3 | v0 v1 v2 v3 | ...     the same four depths of a column per lane
//     sum  | + x0 w0 + x1 w1 + x2 w2 + x3 w3 |
//
// ARM's sdot does this with one instruction. So does VNNI, in which the bytes of x must be unsigned. So x is stored as
// x + X_OFFSET there, and what is too much, X_OFFSET times the sum of the w of a column, is known in advance. Sums wrap
// around modulo 2^32, and the difference is right.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "tile.h"

#if (defined(__AVX512VNNI__) && defined(__AVX512F__)) || (defined(__AVXVNNI__) && !defined(__AVX512F__))
typedef uint8_t xbyte;
constexpr int X_OFFSET = 128;
#else
typedef int8_t xbyte;  // -127 to 127
constexpr int X_OFFSET = 0;
#endif

ALWAYS_INLINE vint add_bytes(vint sum, int32_t x, vint w) {
#if defined(__AVX512VNNI__) && defined(__AVX512F__)
    return (vint)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)splat_int(x), (__m512i)w);
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
    return (vint)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)splat_int(x), (__m256i)w);
#elif defined(__AVX2__) && !defined(__AVX512F__)
    // |w| * (x with the sign of w), added in pairs: at most 2 * 128 * 127, which 16 bits hold.
    const __m256i magnitude = _mm256_abs_epi8((__m256i)w);
    const __m256i signed_x = _mm256_sign_epi8((__m256i)splat_int(x), (__m256i)w);
    return sum + (vint)_mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, signed_x), _mm256_set1_epi16(1));
#elif defined(__ARM_FEATURE_DOTPROD)
    return (vint)vdotq_s32((int32x4_t)sum, (int8x16_t)splat_int(x), (int8x16_t)w);
#else
#pragma GCC unroll 4
    for (int shift = 0; shift < 32; shift += 8) {
        const int32_t depth = static_cast<int32_t>(static_cast<uint32_t>(x) << (24 - shift)) >> 24;
        sum += (w << (24 - shift) >> 24) * depth;
    }
    return sum;
#endif
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
// For `squares.h`.
struct AddBytes {
    static ALWAYS_INLINE vint word(vint sum, int32_t x, vint w) { return add_bytes(sum, x, w); }
    static ALWAYS_INLINE vint square(vint square, vint x, vint w) {
        return (vint)vmmlaq_s32((int32x4_t)square, (int8x16_t)x, (int8x16_t)w);
    }
};
#endif
