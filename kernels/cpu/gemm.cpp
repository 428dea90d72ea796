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
#include "gemm.h"
#include "graph.h"
#include "norm_gemm.h"

namespace {

using Float32Product = Product<float, float>;

struct ReadFloat32 {
    using Word = float;
    static constexpr int WORDS = PANEL;  // of one depth

    static ALWAYS_INLINE void read(const float* from, vfloat& low, vfloat& high) {
        low = load(from);
        high = load(from + LANES);
    }
};

struct ReadBFloat16 {
    using Word = int32_t;
    static constexpr int WORDS = LANES;

    static ALWAYS_INLINE void read(const int32_t* from, vfloat& low, vfloat& high) {
        vint words;
        std::memcpy(&words, from, sizeof words);
        low = (vfloat)(words << 16);
        high = (vfloat)(words & static_cast<int32_t>(0xffff0000));
    }
};

// The depth is one loop: no partial sums, no second order.
template <typename Reader>
struct Panels {
    static constexpr bool MAKES_SMALLER_TILES = false;

    template <int ROWS, int PANELS>
    static __attribute__((noinline)) void multiply(const Float32Product& p, int64_t first, int64_t panel) {
        Tile<ROWS, 2 * PANELS> tile;
        tile.zero();
        const float* x = p.x + first * p.x_stride;
        const auto* panels = static_cast<const typename Reader::Word*>(p.panels) + panel * p.depth * Reader::WORDS;
        p.prefetch_tile<ROWS, 2 * PANELS>(first, panel);
        for (int64_t k = 0; k < p.depth; k++) {
            vfloat w[2 * PANELS];
#pragma GCC unroll 4
            for (int i = 0; i < PANELS; i++) {
                const auto* from = panels + (i * p.depth + k) * Reader::WORDS;
                Reader::read(from, w[2 * i], w[2 * i + 1]);
                // One line of a depth; of an fp32 panel, the other one comes as quickly without asking.
                if (PANELS > 1) ask(from + BYTES_AHEAD / sizeof *from);
            }
            tile.add(x + k, p.x_stride, w);
        }
        p.store_tile(tile, first, panel);
    }
};

}  // namespace

// x_stride and y_stride in numbers; bias may be null; bf16: what the panels hold; form: see `gemm.h`.
extern "C" void gemm(const float* x, int64_t x_stride, const void* panels, int64_t bf16, const float* bias, float* y,
                     int64_t y_stride, int64_t rows, int64_t depth, int64_t columns, int64_t form) {
    launch(GEMM, [=] {
        const Float32Product product{x, x_stride, panels, bias, y, y_stride, rows, depth, columns, form};
        if (bf16)
            multiply_all<Panels<ReadBFloat16>>(product);
        else
            multiply_all<Panels<ReadFloat32>>(product);
    });
}

// y = norm(x + residual) @ weight.T (+ bias) and total = x + residual, see `norm_gemm.h`; residual may be null. The first
// `heads` heads of y are rotated, none if it is 0.
extern "C" void norm_gemm(const float* x, int64_t x_stride, const float* residual, int64_t residual_stride,
                          const float* norm_weight, float eps, float* total, const void* panels, int64_t bf16,
                          const float* bias, float* y, int64_t y_stride, int64_t rows, int64_t depth, int64_t columns,
                          int64_t form, const float* cos, int64_t cos_stride, const float* sin, int64_t sin_stride,
                          int64_t heads, int64_t head_dim, int64_t half) {
    launch(GEMM, [=] {
        const Norm<float> norm{x, x_stride, residual, residual_stride, norm_weight, total, depth, eps};
        const Rotary rotary{cos, sin, cos_stride, sin_stride, heads, head_dim, half};
        const Float32Product product{nullptr, 0, panels, bias, y, y_stride, rows, depth, columns, form};
        if (bf16)
            multiply_normed<Panels<ReadBFloat16>>(norm, product, rotary);
        else
            multiply_normed<Panels<ReadFloat32>>(norm, product, rotary);
    });
}

// Lanes of a vector: the width of a panel depends on it.
extern "C" int64_t gemm_lanes() {
    return LANES;
}
