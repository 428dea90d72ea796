// y = x @ weight.T (+ bias) with bf16 numbers and fp32 sums: x [rows, depth], weight [columns, depth] in panels.
//
//   panel p holds columns p * 32 .. p * 32 + 31 of the result (with 16 lanes), two depths after two depths:
//
//       pair 0:  w[c+0][0] w[c+0][1]  w[c+1][0] w[c+1][1] ... w[c+31][1],   pair 1: w[c+0][2] w[c+0][3] ...
//
// The depth of every sum is one loop over pairs (`pairs.h`), for one row as for many. An odd depth ends with a pair
// whose second number is 0. The sum is rounded once, to the type of y. A processor with AMX takes the same panels as
// tiles (`gemm_amx.h`).
#include "gemm.h"
#include "gemm_amx.h"
#include "graph.h"
#include "norm_gemm.h"
#include "pairs.h"
#include "squares.h"

namespace {

struct Pairs {
    static constexpr bool MAKES_SMALLER_TILES = false;

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
            for (int v = 0; v < 2 * PANELS; v++) {
                const int32_t* from = panels + (v / 2 * num_pairs + pair) * PANEL + v % 2 * LANES;
                w[v] = load_pairs(from);
                if (PANELS > 1) ask(from + BYTES_AHEAD / sizeof *from);
            }
        };
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
        // Without prefetches, whose use on ARM was not measured.
        add_words<AddPairs>(tile.sums, x, p.x_stride * sizeof *x, whole, [&](int64_t pair, int v) {
            return load_pairs(panels + (v / 2 * num_pairs + pair) * PANEL + v % 2 * LANES);
        });
#else
        for (int64_t pair = 0; pair < whole; pair++) {
            read(pair);
            add_pairs(tile, x + 2 * pair, p.x_stride, w);
        }
#endif
        if (whole < num_pairs) {
            read(whole);
            add_last(tile, x + 2 * whole, p.x_stride, w);
        }
        p.store_tile(tile, first, panel);
    }
};

#if HAS_AMX

// A small product by `Panels`: every number of x and of the weight is a small whole number, so all sums are exact.
template <typename Panels>
std::vector<float> small_product() {
    constexpr int64_t ROWS = 19, DEPTH = 71, NUM_PAIRS = (DEPTH + 1) / 2;
    std::vector<bfloat16> x(ROWS * DEPTH), panel(NUM_PAIRS * PANEL * 2);
    std::vector<float> y(ROWS * PANEL);
    for (size_t i = 0; i < x.size(); i++) x[i] = from_float<bfloat16>(static_cast<float>(i * 7 % 23) - 11);
    for (size_t i = 0; i < panel.size(); i++) panel[i] = from_float<bfloat16>(static_cast<float>(i * 5 % 19) - 9);
    for (int64_t i = 1; i < 2 * PANEL; i += 2) panel[(NUM_PAIRS - 1) * PANEL * 2 + i] = from_float<bfloat16>(0);
    const Product<bfloat16, float> p{x.data(), DEPTH, panel.data(), nullptr, y.data(), PANEL, ROWS, DEPTH, PANEL, PLAIN};
    multiply_block(Panels{}, p, 0, ROWS, 0, 1);
    return y;
}

// Decided once, as a process must not change the order of its sums. A virtual machine may show instructions that do not
// work: the result of a small product decides.
bool use_amx() {
    static const bool works = enable_amx() && small_product<AmxTiles>() == small_product<Pairs>();
    return works;
}

#endif

}  // namespace

// x_stride and y_stride in numbers; bias may be null; y holds fp32 if `wide`, otherwise bf16; form: see `gemm.h`.
extern "C" void gemm_bf16(const bfloat16* x, int64_t x_stride, const void* panels, const bfloat16* bias, void* y,
                          int64_t wide, int64_t y_stride, int64_t rows, int64_t depth, int64_t columns,
                          int64_t form) {
    launch(GEMM, [=] {
        const auto multiply = [&](auto* to) {
            using Y = std::remove_pointer_t<decltype(to)>;
            const Product<bfloat16, Y> p{x, x_stride, panels, bias, to, y_stride, rows, depth, columns, form};
#if HAS_AMX
            if (use_amx()) return multiply_all<AmxTiles>(p);
#endif
            multiply_all<Pairs>(p);
        };
        if (wide)
            multiply(static_cast<float*>(y));
        else
            multiply(static_cast<bfloat16*>(y));
    });
}

// As `norm_gemm` (`gemm.cpp`), with y in bf16.
extern "C" void norm_gemm_bf16(const bfloat16* x, int64_t x_stride, const bfloat16* residual, int64_t residual_stride,
                               const bfloat16* norm_weight, float eps, bfloat16* total, const void* panels,
                               const bfloat16* bias, bfloat16* y, int64_t y_stride, int64_t rows, int64_t depth,
                               int64_t columns, int64_t form, const float* cos, int64_t cos_stride, const float* sin,
                               int64_t sin_stride, int64_t heads, int64_t head_dim, int64_t half) {
    launch(GEMM, [=] {
        const Norm<bfloat16> norm{x, x_stride, residual, residual_stride, norm_weight, total, depth, eps};
        const Rotary rotary{cos, sin, cos_stride, sin_stride, heads, head_dim, half};
        const Product<bfloat16, bfloat16> p{nullptr, 0, panels, bias, y, y_stride, rows, depth, columns, form};
#if HAS_AMX
        if (use_amx()) return multiply_normed<AmxTiles>(norm, p, rotary);
#endif
        multiply_normed<Pairs>(norm, p, rotary);
    });
}
