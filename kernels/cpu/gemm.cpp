// y = x @ weight.T (+ bias) in fp32: x [rows, depth], weight [columns, depth] packed into panels, y [rows, columns].
//
//   panel p holds columns p * 32 .. p * 32 + 31 of the result (with 16 lanes), depth after depth:
//
//       fp32 panel    k = 0: w[c+0][0] w[c+1][0] ... w[c+31][0],  k = 1: w[c+0][1] ...
//       bf16 panel    the same in half the space: word j of k holds column c + j in its low and c + 16 + j in
//                     its high half, so that a shift and a mask give the two vectors
//
// A matrix that was stored as bf16 loses nothing in a bf16 panel: the products are those of fp32, bit for
// bit. Few rows are bound by reading the weights, and read half as much.
//
// Work is cut into panels for few rows (each thread reads its own part of the weights once), into rows for many.
// A thread takes ROWS_AT_ONCE rows at a time through its panels, so that they stay in its L2 cache.
#include <algorithm>
#include <vector>

#include "graph.h"
#include "threads.h"
#include "tile.h"

namespace {

constexpr int PANEL = 2 * LANES;
constexpr int MAX_TILE_ROWS = VECTOR_REGISTERS >= 32 ? 12 : 6;  // 2 * rows + 3 registers
constexpr int ROWS_AT_ONCE = 192;
constexpr int64_t WORTH_THREADS = 1 << 20;  // multiply-adds: some ten microseconds; waking a thread takes two or more

struct Product {
    const float* x;
    int64_t x_stride;
    const void* panels;
    const float* bias;
    float* y;
    int64_t y_stride, rows, depth, columns;

    int64_t num_panels() const { return (columns + PANEL - 1) / PANEL; }
};

struct Float32Panels {
    const float* data;
    int64_t depth;

    ALWAYS_INLINE void read(int64_t panel, int64_t k, vfloat& low, vfloat& high) const {
        const float* from = data + (panel * depth + k) * PANEL;
        low = load(from);
        high = load(from + LANES);
    }
};

struct BFloat16Panels {
    const int32_t* data;
    int64_t depth;

    ALWAYS_INLINE void read(int64_t panel, int64_t k, vfloat& low, vfloat& high) const {
        vint words;
        std::memcpy(&words, data + (panel * depth + k) * LANES, sizeof words);
        low = (vfloat)(words << 16);
        high = (vfloat)(words & static_cast<int32_t>(0xffff0000));
    }
};

// Rows first .. first + ROWS - 1 of y in PANELS panels. The depth is one loop: no partial sums, no second order.
template <int ROWS, int PANELS, typename Panels>
__attribute__((noinline)) void multiply(const Product& p, const Panels& panels, int64_t first, int64_t panel) {
    Tile<ROWS, 2 * PANELS> tile;
    tile.zero();
    const float* x = p.x + first * p.x_stride;
    for (int row = 0; row < ROWS; row++)  // the lines that the result goes to: they arrive while it is computed
        for (int v = 0; v < 2 * PANELS; v++)
            __builtin_prefetch(p.y + (first + row) * p.y_stride + panel * PANEL + v * LANES, 1);
    for (int64_t k = 0; k < p.depth; k++) {
        vfloat w[2 * PANELS];
#pragma GCC unroll 4
        for (int i = 0; i < PANELS; i++) panels.read(panel + i, k, w[2 * i], w[2 * i + 1]);
        tile.multiply_add(x + k, p.x_stride, w);
    }
    for (int row = 0; row < ROWS; row++)
        for (int v = 0; v < 2 * PANELS; v++) {
            const int64_t column = panel * PANEL + v * LANES;
            float* y = p.y + (first + row) * p.y_stride + column;
            vfloat sums = tile.sums[row][v];
            if (column + LANES <= p.columns) {
                store(y, p.bias ? sums + load(p.bias + column) : sums);
            } else {
                for (int64_t i = 0; i < p.columns - column; i++) y[i] = sums[i] + (p.bias ? p.bias[column + i] : 0);
            }
        }
}

// A tile of few rows takes several panels at once: about eight sums must be under way to hide the
// latency of a multiply-add.
template <int ROWS, typename Panels>
void multiply_panels(const Product& p, const Panels& panels, int64_t first, int64_t begin, int64_t end) {
    constexpr int AT_ONCE = std::max(1, std::min(4, MAX_TILE_ROWS / ROWS));
    int64_t panel = begin;
    for (; panel + AT_ONCE <= end; panel += AT_ONCE) multiply<ROWS, AT_ONCE>(p, panels, first, panel);
    for (; panel < end; panel++) multiply<ROWS, 1>(p, panels, first, panel);
}

template <int ROWS, typename Panels>
void multiply_rows(int rows, const Product& p, const Panels& panels, int64_t first, int64_t begin, int64_t end) {
    if constexpr (ROWS > 0) {
        if (rows == ROWS)
            multiply_panels<ROWS>(p, panels, first, begin, end);
        else
            multiply_rows<ROWS - 1>(rows, p, panels, first, begin, end);
    }
}

// Rows row_begin .. row_end - 1 of y in panels begin .. end - 1.
template <typename Panels>
void multiply_block(const Product& p, const Panels& panels, int64_t row_begin, int64_t row_end, int64_t begin,
                    int64_t end) {
    for (int64_t block = row_begin; block < row_end; block += ROWS_AT_ONCE) {
        const int64_t block_rows = std::min<int64_t>(ROWS_AT_ONCE, row_end - block);
        const int64_t num_tiles = (block_rows + MAX_TILE_ROWS - 1) / MAX_TILE_ROWS;
        const int64_t width = num_tiles > 1 ? 1 : end - begin;  // several tiles take turns on each panel
        for (int64_t panel = begin; panel < end; panel += width)
            for (int64_t tile = 0; tile < num_tiles; tile++) {  // of equal size, rather than a small last one
                const int64_t first = block_rows * tile / num_tiles, last = block_rows * (tile + 1) / num_tiles;
                multiply_rows<MAX_TILE_ROWS>(static_cast<int>(last - first), p, panels, block + first, panel,
                                             panel + width);
            }
    }
}

template <typename Panels>
void multiply_panels_of(const Product& p) {
    const Panels panels{static_cast<decltype(Panels::data)>(p.panels), p.depth};
    const bool worth_threads = p.rows * p.depth * p.columns > WORTH_THREADS;
    const int64_t threads = num_threads();
    if (p.rows >= threads * PIECES_PER_THREAD * ROWS_AT_ONCE || p.num_panels() < 2 * threads)
        for_ranges(p.rows, worth_threads, [&](int64_t begin, int64_t end) {
            multiply_block(p, panels, begin, end, 0, p.num_panels());
        });
    else
        for_ranges(p.num_panels(), worth_threads, [&](int64_t begin, int64_t end) {
            multiply_block(p, panels, 0, p.rows, begin, end);
        });
}

// Rows that lie a multiple of 4 KiB apart share one set of the L1 cache and push each other out.
bool rows_collide(const Product& p) {
    return p.rows > 4 && p.x_stride * sizeof(float) % 4096 == 0;
}

void multiply_all(Product product, bool bf16) {
    std::vector<float> apart;
    if (rows_collide(product)) {
        const int64_t stride = product.depth + LANES;
        apart.resize(product.rows * stride);
        for (int64_t row = 0; row < product.rows; row++)
            std::copy_n(product.x + row * product.x_stride, product.depth, apart.data() + row * stride);
        product.x = apart.data();
        product.x_stride = stride;
    }
    if (bf16)
        multiply_panels_of<BFloat16Panels>(product);
    else
        multiply_panels_of<Float32Panels>(product);
}

}  // namespace

// x_stride and y_stride in numbers; bias may be null; bf16: what the panels hold.
extern "C" void gemm(const float* x, int64_t x_stride, const void* panels, int64_t bf16, const float* bias, float* y,
                     int64_t y_stride, int64_t rows, int64_t depth, int64_t columns) {
    launch(GEMM, [=] { multiply_all({x, x_stride, panels, bias, y, y_stride, rows, depth, columns}, bf16); });
}

// Lanes of a vector: the width of a panel depends on it.
extern "C" int64_t gemm_lanes() {
    return LANES;
}
