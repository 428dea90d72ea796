// How a product y = x @ weight.T (+ bias) is cut into pieces, whatever the numbers are stored as: x [rows, depth],
// weight [columns, depth] packed into panels, y [rows, columns]. `gemm.cpp` and `gemm_bf16.cpp` draw their panels.
//
// Work is cut into panels for few rows (each thread reads its own part of the weights once), into rows for many.
// A thread takes ROWS_AT_ONCE rows at a time through its panels, so that they stay in its L2 cache.
#pragma once

#include <algorithm>
#include <vector>

#include "activation.h"
#include "dtype.h"
#include "threads.h"
#include "tile.h"

constexpr int PANEL = 2 * LANES;  // columns
constexpr int MAX_TILE_ROWS = VECTOR_REGISTERS >= 32 ? 12 : 6;  // 2 * rows + 3 registers
constexpr int ROWS_AT_ONCE = 192;
// How many bytes ahead of its use a panel is asked for, in tiles of several panels: those have few rows, and wait for
// the memory.
constexpr int64_t BYTES_AHEAD = 1024;
constexpr int64_t WORTH_THREADS = 1 << 20;  // multiply-adds: some ten microseconds; waking a thread takes two or more

// Which columns of the weight a panel holds, and what becomes of them. A gated weight is two matrices of columns / 2, gate
// and up. Each panel has LANES columns of the one and the same columns of the other, so that a tile can compute
// silu(gate) * up before it is stored:
//
//     PLAIN        c .. c + 15 | c + 16 .. c + 31               columns c .. of y [rows, columns]
//     GATED        gate c .. c + 15 | up c .. c + 15            columns c .. and columns / 2 + c ..
//     ACTIVATED    gate c .. c + 15 | up c .. c + 15            silu(gate) * up: columns c .. of y [rows, columns / 2]
enum Form : int64_t { PLAIN = 0, GATED = 1, ACTIVATED = 2 };

template <typename X, typename Y>
struct Product {
    const X* x;
    int64_t x_stride;
    const void* panels;
    const X* bias;
    Y* y;
    int64_t y_stride, rows, depth, columns, form;

    int64_t num_panels() const {
        return form == PLAIN ? (columns + PANEL - 1) / PANEL : (columns / 2 + LANES - 1) / LANES;
    }

    // The lines that a tile of the result goes to: they arrive while it is computed.
    template <int ROWS, int VECTORS>
    ALWAYS_INLINE void prefetch_tile(int64_t first, int64_t panel) const {
        for (int row = 0; row < ROWS; row++)
            for (int v = 0; v < VECTORS; v++)
                __builtin_prefetch(y + (first + row) * y_stride + start_of(panel, v), 1);
    }

    // The column of y that vector v of a tile starts with.
    ALWAYS_INLINE int64_t start_of(int64_t panel, int v) const {
        if (form == PLAIN) return panel * PANEL + v * LANES;
        return (panel + v / 2) * LANES + (form == GATED && v % 2 ? columns / 2 : 0);
    }

    ALWAYS_INLINE vfloat plus_bias(vfloat sums, int64_t column, int64_t count) const {
        if (!bias) return sums;
        return sums + (count >= LANES ? load(bias + column) : load_first(bias + column, count));
    }

    ALWAYS_INLINE void put(int64_t row, int64_t column, vfloat result, int64_t count) const {
        Y* to = y + row * y_stride + column;
        if (count >= LANES)
            store(to, result);
        else
            store_first(to, result, std::max<int64_t>(0, count));
    }

    template <int ROWS, int VECTORS>
    ALWAYS_INLINE void store_tile(const Tile<ROWS, VECTORS>& tile, int64_t first, int64_t panel) const {
        if (form == ACTIVATED) return store_activated(tile, first, panel);
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) {
                const int64_t column = start_of(panel, v);
                const int64_t count = (form == GATED && v % 2 == 0 ? columns / 2 : columns) - column;
                put(first + row, column, plus_bias(tile.sums[row][v], column, count), count);
            }
    }

    // Gate and up are rounded as if they were stored in between: the same bits as in two steps.
    template <int ROWS, int VECTORS>
    ALWAYS_INLINE void store_activated(const Tile<ROWS, VECTORS>& tile, int64_t first, int64_t panel) const {
        const int64_t half = columns / 2;
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v += 2) {
                const int64_t column = start_of(panel, v), count = half - column;
                const vfloat gate = plus_bias(tile.sums[row][v], column, count);
                const vfloat up = plus_bias(tile.sums[row][v + 1], half + column, count);
                put(first + row, column, silu(rounded<Y>(gate)) * rounded<Y>(up), count);
            }
    }
};

// Panels::multiply<ROWS, PANELS>(product, first, panel) computes rows first .. first + ROWS - 1 of y in PANELS panels.
// A tile of few rows takes several panels at once: about eight sums must be under way to hide the
// latency of a multiply-add. Panels that are left over are one smaller tile if MAKES_SMALLER_TILES, where a tile of one
// panel would be slower than the memory; otherwise tiles of one, so that the compiler has less to do.
template <int ROWS, int PANELS, typename Panels, typename P>
void multiply_tiles(const P& p, int64_t first, int64_t panel, int64_t end) {
    for (; panel + PANELS <= end; panel += PANELS) Panels::template multiply<ROWS, PANELS>(p, first, panel);
    if constexpr (PANELS > 1)
        multiply_tiles<ROWS, Panels::MAKES_SMALLER_TILES ? PANELS - 1 : 1, Panels>(p, first, panel, end);
}

template <int ROWS, typename Panels, typename P>
void multiply_panels(const P& p, int64_t first, int64_t begin, int64_t end) {
    multiply_tiles<ROWS, std::max(1, std::min(4, MAX_TILE_ROWS / ROWS)), Panels>(p, first, begin, end);
}

template <int ROWS, typename Panels, typename P>
void multiply_rows(int rows, const P& p, int64_t first, int64_t begin, int64_t end) {
    if constexpr (ROWS > 0) {
        if (rows == ROWS)
            multiply_panels<ROWS, Panels>(p, first, begin, end);
        else
            multiply_rows<ROWS - 1, Panels>(rows, p, first, begin, end);
    }
}

// Rows row_begin .. row_end - 1 of y in panels begin .. end - 1.
template <typename Panels, typename P>
void multiply_block(Panels, const P& p, int64_t row_begin, int64_t row_end, int64_t begin, int64_t end) {
    for (int64_t block = row_begin; block < row_end; block += ROWS_AT_ONCE) {
        const int64_t block_rows = std::min<int64_t>(ROWS_AT_ONCE, row_end - block);
        const int64_t num_tiles = (block_rows + MAX_TILE_ROWS - 1) / MAX_TILE_ROWS;
        const int64_t width = num_tiles > 1 ? 1 : end - begin;  // several tiles take turns on each panel
        for (int64_t panel = begin; panel < end; panel += width)
            for (int64_t tile = 0; tile < num_tiles; tile++) {  // of equal size, rather than a small last one
                const int64_t first = block_rows * tile / num_tiles, last = block_rows * (tile + 1) / num_tiles;
                multiply_rows<MAX_TILE_ROWS, Panels>(static_cast<int>(last - first), p, block + first, panel,
                                                     panel + width);
            }
    }
}

template <typename P>
bool is_worth_threads(const P& p) {
    return p.rows * p.depth * p.columns > WORTH_THREADS;
}

template <typename P>
bool is_cut_into_rows(const P& p) {
    const int64_t threads = num_threads();
    return p.rows >= threads * PIECES_PER_THREAD * ROWS_AT_ONCE || p.num_panels() < 2 * threads;
}

template <typename Panels, typename P>
void multiply_in_pieces(const P& p) {
    if (is_cut_into_rows(p))
        for_ranges(p.rows, is_worth_threads(p), [&](int64_t begin, int64_t end) {
            multiply_block(Panels{}, p, begin, end, 0, p.num_panels());
        });
    else
        for_ranges(p.num_panels(), is_worth_threads(p), [&](int64_t begin, int64_t end) {
            multiply_block(Panels{}, p, 0, p.rows, begin, end);
        });
}

// Rows that lie a multiple of 4 KiB apart share one set of the L1 cache and push each other out: they are moved first.
template <typename X>
int64_t stride_apart(int64_t depth) {
    return depth + 64 / sizeof(X);
}

template <typename Panels, typename X, typename Y>
void multiply_all(Product<X, Y> product) {
    std::vector<X> apart;
    if (product.rows > 4 && product.x_stride * sizeof(X) % 4096 == 0) {
        const int64_t stride = stride_apart<X>(product.depth);
        apart.resize(product.rows * stride);
        for (int64_t row = 0; row < product.rows; row++)
            std::copy_n(product.x + row * product.x_stride, product.depth, apart.data() + row * stride);
        product.x = apart.data();
        product.x_stride = stride;
    }
    multiply_in_pieces<Panels>(product);
}
