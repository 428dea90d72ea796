// y = x @ weight.T with int8 weights: x [rows, depth], y [rows, columns], weight[n, k] = code * scale[n]. x is rounded to
// int8 on the way in, each row with its own scale max|x| / 127.
//
//   y[t, n] = (sum over k of xq[t, k] * code[n, k]) * x_scale[t] * scale[n]
//
//   codes    panel p holds columns p * 32 .. p * 32 + 31 of the result (with 16 lanes), four depths after four depths: a
//            word for each column (`bytes.h`). A depth that 4 does not divide is filled up with zeros.
//   totals   [panels, 32], the sum of the codes of a column
//   scales   [panels, 32]
//
// The sum is over integers, exact in any order, so a row's result cannot depend on the batch.
#include <cmath>
#include <memory>

#include "bytes.h"
#include "gemm.h"
#include "graph.h"
#include "quantised.h"
#include "squares.h"

namespace {

constexpr int STEP = 4;  // depths of a word

// Rounded rows.
struct Block {
    const xbyte* x;
    int64_t x_stride;
    const float* x_scales;
    const int32_t *codes, *totals;
    const float* scales;
    FloatMatrix y;
    int64_t first_row, rows, depth, columns;

    int64_t num_panels() const { return (columns + PANEL - 1) / PANEL; }
};

struct Panels {
    static constexpr bool MAKES_SMALLER_TILES = true;

    template <int ROWS, int PANELS>
    static __attribute__((noinline)) void multiply(const Block& p, int64_t first, int64_t panel) {
        constexpr int VECTORS = 2 * PANELS;
        const int64_t panel_words = p.depth / STEP * PANEL;
        const xbyte* x = p.x + first * p.x_stride;
        const int32_t* codes = p.codes + panel * panel_words;
        vint sums[ROWS][VECTORS];
        p.y.prefetch(p.first_row + first, panel * PANEL, ROWS, VECTORS);
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) {
            const vuint total = (vuint)load_word(p.totals + panel * PANEL + v * LANES);
#pragma GCC unroll 16
            for (int row = 0; row < ROWS; row++) sums[row][v] = (vint)(total * -uint32_t{X_OFFSET});
        }
#if defined(__ARM_FEATURE_MATMUL_INT8)
        static_assert(X_OFFSET == 0, "the sums begin with 0");
        add_words<AddBytes>(sums, x, p.x_stride, p.depth / STEP, [&](int64_t word, int v) {
            const int32_t* from = codes + v / 2 * panel_words + word * PANEL + v % 2 * LANES;
            ask(reinterpret_cast<const char*>(from) + PREFETCH_BYTES);
            return load_word(from);
        });
#else
        for (int64_t k = 0; k < p.depth; k += STEP, codes += PANEL) {
            vint w[VECTORS];
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) {
                const int32_t* from = codes + v / 2 * panel_words + v % 2 * LANES;
                w[v] = load_word(from);
                ask(reinterpret_cast<const char*>(from) + PREFETCH_BYTES);
            }
#pragma GCC unroll 16
            for (int row = 0; row < ROWS; row++) {
                int32_t bytes;
                std::memcpy(&bytes, x + row * p.x_stride + k, sizeof bytes);
#pragma GCC unroll 8
                for (int v = 0; v < VECTORS; v++) sums[row][v] = add_bytes(sums[row][v], bytes, w[v]);
            }
        }
#endif
        vfloat y[ROWS][VECTORS];
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++)
                y[row][v] = __builtin_convertvector(sums[row][v], vfloat) * p.x_scales[first + row] *
                            load(p.scales + panel * PANEL + v * LANES);
        p.y.write(p.first_row + first, panel * PANEL, p.columns, y);
    }

    static ALWAYS_INLINE vint load_word(const int32_t* from) {
        vint words;
        std::memcpy(&words, from, sizeof words);
        return words;
    }
};

// max|x| / 127 of a row; NaN if it holds one. x is followed by zeros up to a whole vector.
float scale_of(const float* x, int64_t depth) {
    vfloat largest_yet{};
    vint nan{};
    for (int64_t k = 0; k < depth; k += LANES) {
        const vfloat at = load(x + k);
        const vfloat magnitude = (vfloat)((vint)at & 0x7fffffff);
        largest_yet = magnitude > largest_yet ? magnitude : largest_yet;
        nan |= at != at;
    }
    for (int i = 0; i < LANES; i++)
        if (nan[i]) return NAN;
    return largest(largest_yet) / 127.0f;
}

// To whole steps, half to even: adding 1.5 * 2^23 rounds, and leaves the integer in the low bits.
void round_steps(const float* x, int64_t depth, float scale, xbyte* xq) {
    for (int64_t k = 0; k < depth; k += LANES) {
        const vfloat steps = load(x + k) / scale;
        const vfloat below = steps < 127.0f ? steps : splat(127.0f);
        const vfloat shifted = (below > -127.0f ? below : splat(-127.0f)) + 12582912.0f;
        store_bytes(xq + k, (vint)shifted + X_OFFSET);
    }
}

struct Call {
    FloatMatrix x;
    const int32_t *codes, *totals;
    const float* scales;
    FloatMatrix y;
    int64_t rows, depth, columns;

    // What has no finite scale stays 0, and 0 times NaN is NaN.
    float round_row(int64_t row, float* numbers, xbyte* xq, int64_t width) const {
        x.read(row, 0, depth, numbers);
        const float scale = scale_of(numbers, width);
        if (scale > 0.0f && scale < INFINITY)
            round_steps(numbers, width, scale, xq);
        else
            std::fill(xq, xq + width, static_cast<xbyte>(X_OFFSET));
        return scale;
    }

    void multiply(int64_t first, int64_t count) const {
        const int64_t width = (depth + LANES - 1) / LANES * LANES, stride = stride_in_scratch(width, 1);
        const std::unique_ptr<xbyte[]> xq(new xbyte[count * stride]);
        const std::unique_ptr<float[]> x_scales(new float[count]);
        for_ranges(count, count * depth * 4 > WORTH_THREADS, [&](int64_t begin, int64_t end) {
            const std::unique_ptr<float[]> numbers(new float[width]());
            for (int64_t row = begin; row < end; row++)
                x_scales[row] = round_row(first + row, numbers.get(), xq.get() + row * stride, width);
        });
        const Block block{xq.get(), stride, x_scales.get(), codes, totals, scales, y, first, count,
                          (depth + STEP - 1) / STEP * STEP, columns};
        multiply_in_pieces<Panels>(block);
    }
};

}  // namespace

// Strides in elements; the dtypes are those of dtype.h; y is contiguous.
extern "C" void int8_linear(void* x, int64_t x_stride, int64_t x_dtype, const int32_t* codes, const int32_t* totals,
                            const float* scales, void* y, int64_t y_dtype, int64_t rows, int64_t depth,
                            int64_t columns) {
    const Call call{{x, x_dtype, x_stride}, codes, totals, scales, {y, y_dtype, columns}, rows, depth, columns};
    launch(QUANTISED_GEMM, [=] {
        for (int64_t first = 0; first < rows; first += ROWS_IN_SCRATCH)
            call.multiply(first, std::min(ROWS_IN_SCRATCH, rows - first));
    });
}
