// The bf16 product on AMX's tiles (`amx.h`), with the panels of `gemm_bf16.cpp`: sixteen pairs of a panel are two tiles.
//
//                       weight: tiles 6 and 7, 16 pairs x 16 columns each
//     x: tile 4         sums 0   sums 1
//        tile 5         sums 2   sums 3
//
// Every sum runs over the depth in the order of the instruction, 16 pairs after 16 pairs, whatever the number of rows.
// That is another order than `pairs.h` has, so one process uses one of them for all products.
#pragma once

#include "amx.h"
#include "gemm.h"

#if HAS_AMX

namespace {

class AmxTiles {
    static constexpr int SIDE = 16;           // rows of a tile, pairs of its depth
    static constexpr int STEP = 2 * SIDE;     // numbers of a row that one instruction takes, and rows at once
    static_assert(LANES == SIDE, "processors with AMX have vectors of 512 bits");

    static void set_rows(int64_t rows) {
        TileShapes shapes;
        const auto shape = [&](int tile, int64_t tile_rows) {
            shapes.rows[tile] = static_cast<uint8_t>(std::max<int64_t>(0, std::min<int64_t>(tile_rows, SIDE)));
            shapes.row_bytes[tile] = shapes.rows[tile] ? 64 : 0;
        };
        for (int tile : {0, 1, 4}) shape(tile, rows);
        for (int tile : {2, 3, 5}) shape(tile, rows - SIDE);
        for (int tile : {6, 7}) shape(tile, SIDE);
        asm volatile("" ::: "memory");  // GCC 12 takes it for an instruction that reads eight bytes
        load_tile_shapes(&shapes);
    }

    // strides in bytes
    static void add(const bfloat16* x, int64_t x_stride, const int32_t* pairs, bool is_tall) {
        constexpr int64_t pairs_stride = PANEL * sizeof(int32_t);
        load_tile(6, pairs, pairs_stride);
        load_tile(7, pairs + SIDE, pairs_stride);
        load_tile(4, x, x_stride);
        add_tile_product(0, 4, 6);
        add_tile_product(1, 4, 7);
        if (!is_tall) return;
        load_tile(5, reinterpret_cast<const char*>(x) + SIDE * x_stride, x_stride);
        add_tile_product(2, 5, 6);
        add_tile_product(3, 5, 7);
    }

    // The last numbers of the rows and the last pairs of the panel, with zeros behind them.
    static void add_last(const bfloat16* x, int64_t x_stride, int64_t rows, int64_t numbers, const int32_t* pairs) {
        bfloat16 last_x[STEP][STEP] = {};
        int32_t last_pairs[SIDE][PANEL] = {};
        for (int64_t row = 0; row < rows; row++) std::copy_n(x + row * x_stride, numbers, last_x[row]);
        std::copy_n(pairs, (numbers + 1) / 2 * PANEL, last_pairs[0]);
        asm volatile("" ::: "memory");  // a tile is loaded behind the compiler's back
        add(last_x[0], sizeof last_x[0], last_pairs[0], rows > SIDE);
    }

    template <typename Y>
    static void store(const Product<bfloat16, Y>& p, int64_t first, int64_t rows, int64_t panel) {
        alignas(64) float sums[4][SIDE][SIDE];
        save_tile(0, sums[0], sizeof sums[0][0]);
        save_tile(1, sums[1], sizeof sums[1][0]);
        if (rows > SIDE) {
            save_tile(2, sums[2], sizeof sums[2][0]);
            save_tile(3, sums[3], sizeof sums[3][0]);
        }
        asm volatile("" ::: "memory");
        for (int64_t row = 0; row < rows; row++) {
            const auto& left = sums[row / SIDE * 2], & right = sums[row / SIDE * 2 + 1];
            const Tile<1, 2> tile{{{load(left[row % SIDE]), load(right[row % SIDE])}}};
            p.store_tile(tile, first + row, panel);
        }
    }

    template <typename Y>
    static void multiply(const Product<bfloat16, Y>& p, int64_t first, int64_t rows, int64_t panel) {
        const int64_t num_pairs = (p.depth + 1) / 2;
        const bfloat16* x = p.x + first * p.x_stride;
        const int32_t* pairs = static_cast<const int32_t*>(p.panels) + panel * num_pairs * PANEL;
        asm volatile("" ::: "memory");  // x may have been written just before
        zero_tile(0);
        zero_tile(1);
        if (rows > SIDE) {
            zero_tile(2);
            zero_tile(3);
        }
        int64_t depth = 0;
        for (; depth + STEP <= p.depth; depth += STEP)
            add(x + depth, p.x_stride * sizeof(bfloat16), pairs + depth / 2 * PANEL, rows > SIDE);
        if (depth < p.depth) add_last(x + depth, p.x_stride, rows, p.depth - depth, pairs + depth / 2 * PANEL);
        store(p, first, rows, panel);
    }

   public:
    // Rows row_begin .. row_end - 1 of y in panels begin .. end - 1; found by `multiply_in_pieces`.
    template <typename Y>
    friend void multiply_block(AmxTiles, const Product<bfloat16, Y>& p, int64_t row_begin, int64_t row_end,
                               int64_t begin, int64_t end) {
        for (int64_t block = row_begin; block < row_end; block += ROWS_AT_ONCE) {
            const int64_t block_rows = std::min<int64_t>(ROWS_AT_ONCE, row_end - block);
            const int64_t whole = block_rows - block_rows % STEP;
            if (whole) set_rows(STEP);
            for (int64_t panel = begin; panel < end; panel++)
                for (int64_t row = 0; row < whole; row += STEP) multiply(p, block + row, STEP, panel);
            if (whole == block_rows) continue;
            set_rows(block_rows - whole);
            for (int64_t panel = begin; panel < end; panel++) multiply(p, block + whole, block_rows - whole, panel);
        }
        release_tiles();
    }
};

}  // namespace

#endif
