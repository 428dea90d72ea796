// y = x @ weight.T (+ bias) with bf16 numbers and fp32 sums: x [rows, depth], weight [columns, depth] in panels.
//
//   panel p holds columns p * 32 .. p * 32 + 31 of the result (with 16 lanes), two depths after two depths:
//
//       pair 0:  w[c+0][0] w[c+0][1]  w[c+1][0] w[c+1][1] ... w[c+31][1],   pair 1: w[c+0][2] w[c+0][3] ...
//
// The depth of every sum is one loop over pairs (`pairs.h`), for one row as for many. An odd depth ends with a pair
// whose second number is 0. The sum is rounded once, to the type of y.
#include "gemm.h"
#include "graph.h"
#include "pairs.h"

namespace {

struct Pairs {
    template <int ROWS, int PANELS, typename Y>
    static __attribute__((noinline)) void multiply(const Product<bfloat16, Y>& p, int64_t first, int64_t panel) {
        Tile<ROWS, 2 * PANELS> tile;
        tile.zero();
        const int64_t num_pairs = (p.depth + 1) / 2, whole = p.depth / 2;
        const bfloat16* x = p.x + first * p.x_stride;
        const int32_t* panels = static_cast<const int32_t*>(p.panels) + panel * num_pairs * PANEL;
        p.template prefetch_tile<ROWS, 2 * PANELS>(first, panel);
        vint w[2 * PANELS];
        const auto read = [&](int64_t pair) {
#pragma GCC unroll 8
            for (int v = 0; v < 2 * PANELS; v++)
                w[v] = load_pairs(panels + (v / 2 * num_pairs + pair) * PANEL + v % 2 * LANES);
        };
        for (int64_t pair = 0; pair < whole; pair++) {
            read(pair);
            add_pairs(tile, x + 2 * pair, p.x_stride, w);
        }
        if (whole < num_pairs) {
            read(whole);
            add_last(tile, x + 2 * whole, p.x_stride, w);
        }
        p.store_tile(tile, first, panel);
    }
};

}  // namespace

// x_stride and y_stride in numbers; bias may be null; y holds fp32 if `wide`, otherwise bf16; form: see `gemm.h`.
extern "C" void gemm_bf16(const bfloat16* x, int64_t x_stride, const void* panels, const bfloat16* bias, void* y,
                          int64_t wide, int64_t y_stride, int64_t rows, int64_t depth, int64_t columns,
                          int64_t form) {
    launch(GEMM, [=] {
        const auto multiply = [&](auto* to) {
            using Y = std::remove_pointer_t<decltype(to)>;
            multiply_all<Pairs>(
                Product<bfloat16, Y>{x, x_stride, panels, bias, to, y_stride, rows, depth, columns, form});
        };
        if (wide)
            multiply(static_cast<float*>(y));
        else
            multiply(static_cast<bfloat16*>(y));
    });
}
