// The two products of attention, q k and p v, of few rows to some dozens: tiles of sums that stay in registers.
#pragma once

#include <algorithm>
#include <type_traits>

#include "pairs.h"

constexpr int TILE_SUMS = VECTOR_REGISTERS >= 32 ? 24 : 12;  // vectors of sums that fit in registers

// What the two products multiply: `Number`, of which a lane of a vector takes PER_WORD, one `Word`.
struct WideFactors {
    using Number = float;
    using Word = float;
    static constexpr int PER_WORD = 1;
};
struct PairFactors {
    using Number = bfloat16;
    using Word = int32_t;
    static constexpr int PER_WORD = 2;
};
template <typename Q, typename T>
using FactorsOf = std::conditional_t<std::is_same_v<Q, bfloat16> && std::is_same_v<T, bfloat16>, PairFactors,
                                     WideFactors>;

// The rows of a factor: a stride apart, or each anywhere.
template <typename Word>
struct RowsApart {
    const Word* first;
    int64_t stride;
    const Word* operator()(int64_t k) const { return first + k * stride; }
};
template <typename Word>
struct RowsListed {
    const Word* const* rows;
    const Word* operator()(int64_t k) const { return rows[k]; }
};

// Adds a word of every row of a times a row of b.
template <int ROWS, int VECTORS>
ALWAYS_INLINE void add_word(Tile<ROWS, VECTORS>& tile, const float* a, int64_t a_stride, const vfloat (&b)[VECTORS]) {
    tile.add(a, a_stride, b);
}
template <int ROWS, int VECTORS>
ALWAYS_INLINE void add_word(Tile<ROWS, VECTORS>& tile, const bfloat16* a, int64_t a_stride,
                            const vfloat (&b)[VECTORS]) {
    vint pairs[VECTORS];
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) pairs[v] = (vint)b[v];
    add_pairs(tile, a, a_stride, pairs);
}

// The tile at c, rows c_stride apart, each times its factor.
template <int ROWS, int VECTORS>
ALWAYS_INLINE void load_scaled_rows(Tile<ROWS, VECTORS>& tile, const float* c, int64_t c_stride, const float* factors) {
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) tile.sums[row][v] = load(c + row * c_stride + v * LANES) * factors[row];
}
template <int ROWS, int VECTORS>
ALWAYS_INLINE void store_rows(const Tile<ROWS, VECTORS>& tile, float* c, int64_t c_stride) {
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) store(c + row * c_stride + v * LANES, tile.sums[row][v]);
}

// c [rows, columns] = a [rows, depth] @ b [depth, columns], or that plus c times a factor for each row; the depth counted
// in words. a and c have rows of the given strides (in numbers), row k of b begins at b(k). factors: null, then c is new.
template <int ROWS, int VECTORS, typename Number, typename RowOf>
void multiply_tile(const Number* a, int64_t a_stride, RowOf b, int64_t depth, const float* factors, float* c,
                   int64_t c_stride) {
    constexpr int PER_WORD = sizeof(float) / sizeof(Number);
    Tile<ROWS, VECTORS> tile;
    if (factors)
        load_scaled_rows(tile, c, c_stride, factors);
    else
        tile.zero();
    for (int64_t k = 0; k < depth; k++) {
        vfloat row_of_b[VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) std::memcpy(&row_of_b[v], b(k) + v * LANES, sizeof(vfloat));
        add_word(tile, a + k * PER_WORD, a_stride, row_of_b);
    }
    store_rows(tile, c, c_stride);
}

// Call with the number of rows, 1 .. MOST, as a constant.
template <int MOST, typename Call>
void with_rows(int64_t rows, const Call& call) {
    if constexpr (MOST > 0) {
        if (rows == MOST)
            call(std::integral_constant<int, MOST>{});
        else
            with_rows<MOST - 1>(rows, call);
    }
}

template <int VECTORS, typename Number, typename RowOf>
void multiply_columns(int64_t rows, const Number* a, int64_t a_stride, RowOf b, int64_t depth, const float* factors,
                      float* c, int64_t c_stride) {
    constexpr int ROWS = TILE_SUMS / std::max(VECTORS, 2);
    const int64_t num_tiles = (rows + ROWS - 1) / ROWS;
    for (int64_t tile = 0; tile < num_tiles; tile++) {  // of equal size, rather than a small last one
        const int64_t first = rows * tile / num_tiles, last = rows * (tile + 1) / num_tiles;
        with_rows<ROWS>(last - first, [&](auto tile_rows) {
            multiply_tile<tile_rows, VECTORS>(a + first * a_stride, a_stride, b, depth,
                                              factors ? factors + first : nullptr, c + first * c_stride, c_stride);
        });
    }
}

template <typename Number, typename RowOf>
void multiply(int64_t rows, const Number* a, int64_t a_stride, RowOf b, int64_t columns, int64_t depth,
              const float* factors, float* c) {
    const auto from = [&](int64_t column) { return [=](int64_t k) { return b(k) + column; }; };
    int64_t at = 0;
    for (; at + 4 * LANES <= columns; at += 4 * LANES)
        multiply_columns<4>(rows, a, a_stride, from(at), depth, factors, c + at, columns);
    for (; at + 2 * LANES <= columns; at += 2 * LANES)
        multiply_columns<2>(rows, a, a_stride, from(at), depth, factors, c + at, columns);
    for (; at < columns; at += LANES)
        multiply_columns<1>(rows, a, a_stride, from(at), depth, factors, c + at, columns);
}
