// Products of two rows and two columns in one instruction: bfmmla and smmla of ARM, with the words of `pairs.h` and
// `bytes.h`.
//
//     x       | row 0: word k, word k + 1 | row 1: word k, word k + 1 |
//     w       | column 0: k, k + 1        | column 1: k, k + 1        |     words k and k + 1 of a panel, interleaved
//     square  | row 0: column 0, column 1 | row 1: column 0, column 1 |
//
// A square has the bits of the sums of word k and then word k + 1, so a last row or word can be added by itself: of
// integers in any case, of bf16 numbers because bfmmla is defined as two bfdot (Arm ARM, BFMatMulAdd).
#pragma once

#include "tile.h"

#if defined(__aarch64__)

ALWAYS_INLINE int32_t word_at(const char* from) {
    int32_t word;
    std::memcpy(&word, from, sizeof word);
    return word;
}

// sums [ROWS, VECTORS], all 0, become those of x [ROWS, num_words] with `stride` bytes between rows, and of
// read(word, vector).
// Add::word(sum, x, w) adds the product of one word, Add::square(square, x, w) those of two rows and columns.
template <typename Add, int ROWS, int VECTORS, typename Sum, typename Read>
ALWAYS_INLINE void add_words(Sum (&sums)[ROWS][VECTORS], const void* x, int64_t stride, int64_t num_words, Read read) {
    constexpr int TWICE = ROWS / 2;
    const char* const rows = static_cast<const char*>(x);
    Sum squares[TWICE + 1][VECTORS][2] = {};
    int64_t word = 0;
    for (; word + 2 <= num_words; word += 2) {
        const char* const at = rows + 4 * word;
        vint w[VECTORS][2];
        for (int v = 0; v < VECTORS; v++) {
            w[v][0] = read(word, v);
            w[v][1] = read(word + 1, v);
        }
        if (ROWS % 2)
            for (int v = 0; v < VECTORS; v++)
                for (int i = 0; i < 2; i++)
                    sums[ROWS - 1][v] = Add::word(sums[ROWS - 1][v], word_at(at + (ROWS - 1) * stride + 4 * i), w[v][i]);
#pragma GCC unroll 6
        for (int pair = 0; pair < TWICE; pair++) {
            vint two;
            std::memcpy(&two, at + 2 * pair * stride, 8);
            std::memcpy(reinterpret_cast<char*>(&two) + 8, at + (2 * pair + 1) * stride, 8);
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) {
                const auto a = (int32x4_t)w[v][0], b = (int32x4_t)w[v][1];
                squares[pair][v][0] = Add::square(squares[pair][v][0], two, (vint)vzip1q_s32(a, b));
                squares[pair][v][1] = Add::square(squares[pair][v][1], two, (vint)vzip2q_s32(a, b));
            }
        }
    }
    for (int pair = 0; pair < TWICE; pair++)
        for (int v = 0; v < VECTORS; v++) {
            const auto a = (int64x2_t)squares[pair][v][0], b = (int64x2_t)squares[pair][v][1];
            sums[2 * pair][v] = (Sum)vzip1q_s64(a, b);
            sums[2 * pair + 1][v] = (Sum)vzip2q_s64(a, b);
        }
    for (; word < num_words; word++)
        for (int row = 0; row < ROWS; row++)
            for (int v = 0; v < VECTORS; v++)
                sums[row][v] = Add::word(sums[row][v], word_at(rows + row * stride + 4 * word), read(word, v));
}

#endif
