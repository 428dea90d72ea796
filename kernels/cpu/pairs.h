// Two bf16 numbers in each 32-bit word of a vector, and the product that adds both to an fp32 lane.
//
//     a    | a0 a1 | a0 a1 | ...     one pair of a row, in every lane
//     b    | b0 b1 | c0 c1 | ...     the same two depths of a column per lane
//     sum  | + a1 b1, then + a0 b0 |
//
// AVX512-BF16 does this with one instruction (vdpbf16ps): twice the products of an fp32 multiply-add. It
// rounds to nearest even whatever the mode of the thread is, and takes subnormal numbers, below 1.2e-38, for 0.
// Elsewhere two multiply-adds do it in the same order; they round in the same places and keep subnormal numbers. ARM's
// bfdot adds a0 b0 + a1 b1, rounded to odd, and takes subnormal numbers for 0.
#pragma once

#include <algorithm>

#include "tile.h"

ALWAYS_INLINE vint load_pairs(const void* from) {
    vint pairs;
    std::memcpy(&pairs, from, sizeof pairs);
    return pairs;
}

// The first `count` numbers at `from`, at most those of a vector of pairs, and zeros behind them.
inline vint load_first_pairs(const bfloat16* from, int64_t count) {
    bfloat16 numbers[2 * LANES] = {};
    std::copy_n(from, std::max<int64_t>(0, std::min<int64_t>(count, 2 * LANES)), numbers);
    return load_pairs(numbers);
}

// Numbers first .. first + LANES - 1 of x, each in front of that of y.
template <int FIRST, size_t... I>
ALWAYS_INLINE vint interleaved(vint x, vint y, std::index_sequence<I...>) {
    typedef uint16_t vnumbers __attribute__((vector_size(4 * LANES)));
#if defined(__clang__)
    return (vint)__builtin_shufflevector((vnumbers)x, (vnumbers)y, (I % 2 * 2 * LANES + FIRST + I / 2)...);
#else
    return (vint)__builtin_shuffle((vnumbers)x, (vnumbers)y,
                                   vnumbers{static_cast<uint16_t>(I % 2 * 2 * LANES + FIRST + I / 2)...});
#endif
}
template <int FIRST>
ALWAYS_INLINE vint interleaved(vint x, vint y) {
    return interleaved<FIRST>(x, y, std::make_index_sequence<2 * LANES>{});
}

ALWAYS_INLINE vfloat even_of(vint pairs) {
    return (vfloat)(pairs << 16);
}
ALWAYS_INLINE vfloat odd_of(vint pairs) {
    return (vfloat)(pairs & static_cast<int32_t>(0xffff0000));
}

ALWAYS_INLINE vfloat add_products(vfloat sum, int32_t a, vint b) {
#if defined(__AVX512BF16__)
    return (vfloat)_mm512_dpbf16_ps((__m512)sum, (__m512bh)splat_int(a), (__m512bh)b);
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    return (vfloat)vbfdotq_f32((float32x4_t)sum, (bfloat16x8_t)splat_int(a), (bfloat16x8_t)b);
#else
    const vint pair = splat_int(a);
    return multiply_add(even_of(pair), even_of(b), multiply_add(odd_of(pair), odd_of(b), sum));
#endif
}

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
// For `squares.h`.
struct AddPairs {
    static ALWAYS_INLINE vfloat word(vfloat sum, int32_t a, vint b) { return add_products(sum, a, b); }
    static ALWAYS_INLINE vfloat square(vfloat square, vint a, vint b) {
        return (vfloat)vbfmmlaq_f32((float32x4_t)square, (bfloat16x8_t)a, (bfloat16x8_t)b);
    }
};
#endif

// tile.sums[row] += the pair at a + row * stride (in numbers) times b
template <int ROWS, int VECTORS>
ALWAYS_INLINE void add_pairs(Tile<ROWS, VECTORS>& tile, const bfloat16* a, int64_t stride,
                             const vint (&b)[VECTORS]) {
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; row++) {
        int32_t pair;
        std::memcpy(&pair, a + row * stride, sizeof pair);
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) tile.sums[row][v] = add_products(tile.sums[row][v], pair, b[v]);
    }
}

// The same where a row ends with the first number of the pair.
template <int ROWS, int VECTORS>
ALWAYS_INLINE void add_last(Tile<ROWS, VECTORS>& tile, const bfloat16* a, int64_t stride, const vint (&b)[VECTORS]) {
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++)
            tile.sums[row][v] = add_products(tile.sums[row][v], a[row * stride].bits, b[v]);
}
