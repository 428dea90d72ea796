// y = x @ weight.T with weights of four bits: x [rows, depth], y [rows, columns], weight[n, k] = (nibble - zero) * scale,
// where a group of depths of a column shares a scale and a zero point.
//
//   codes     panel p holds columns p * 32 .. p * 32 + 31 of the result (with 16 lanes), 8 depths after 8 depths, in one
//             word for each column. A group that 8 does not divide is filled up with nibbles of 8, which stand for 0.
//
//                 bits    31..28 27..24 23..20 19..16   15..12 11..8  7..4   3..0
//                 depth      7      5      3      1        6      4     2      0
//
//             so that the lowest nibbles of both halves of the word, shifted by 4 * j, are depths 2 * j and 2 * j + 1
//   scales    [panels, groups, 32]
//   offsets   [panels, groups, 32], 8 - zero
//
// A nibble becomes the number nibble - 8 by a look-up in a register, and that is exact in bf16 as well. Scales and zero
// points wait until the end of a group, in fp32:
//
//   y = sum over groups of scale * (offset * sum of x + sum of (nibble - 8) * x)
//
// bf16 inputs are multiplied in pairs (`pairs.h`) where there is an instruction for it, otherwise x becomes fp32 first.
// Every tile of rows decodes the panel anew: that takes two instructions for a vector of weights, of which each row
// needs a product. All sums run over the depth in order, whatever the number of rows.
#include <memory>

#include "gemm.h"
#include "graph.h"
#include "pairs.h"
#include "quantised.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace {

constexpr int STEP = 8;  // depths of a word

// x in the type that is multiplied, a whole number of steps for each group, and the sum of x in each group.
template <typename X>
struct Block {
    using Number = X;

    const X* x;
    int64_t x_stride;
    const float* x_sums;
    const int32_t* codes;
    const char* scales;
    int64_t scale_dtype, scale_size;
    const int8_t* offsets;
    FloatMatrix y;
    int64_t first_row, rows, depth, columns, groups;

    int64_t num_panels() const { return (columns + PANEL - 1) / PANEL; }
    int64_t steps_of_group() const { return depth / groups / STEP; }
};

// What the nibbles of a word stand for: lookup<j>(codes) are depths 2 * j and 2 * j + 1.
#if defined(__AVX512F__)
const vfloat LEVELS{-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

ALWAYS_INLINE vfloat level(vint code, vfloat levels) {  // only the low four bits count
    return (vfloat)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)code, (__m512)levels);
}
#else
const vfloat LEVELS = splat(8);

ALWAYS_INLINE vfloat level(vint code, vfloat levels) {
    return __builtin_convertvector(code & 15, vfloat) - levels;
}
#endif

template <typename X>
struct Weights;

template <>
struct Weights<float> {
    const vfloat levels = LEVELS;

    template <int ROWS, int VECTORS>
    ALWAYS_INLINE void multiply_add(Tile<ROWS, VECTORS>& tile, const float* x, int64_t stride, vint* codes) const {
#pragma GCC unroll 8
        for (int k = 0; k < STEP; k++) {
            vfloat w[VECTORS];
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) w[v] = level(codes[v] >> (4 * (k / 2) + 16 * (k % 2)), levels);
            tile.multiply_add(x + k, stride, w);
        }
    }
};

#if defined(__AVX512BF16__)
// All 32 words of the register are used, the upper half again for the lower: a bit above the nibble does no harm.
struct BFloat16Levels {
    alignas(64) uint16_t bits[32];
    constexpr BFloat16Levels() : bits() {
        constexpr uint16_t of[9] = {0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0x4100};  // 0 to 8
        for (int i = 0; i < 32; i++) bits[i] = i % 16 < 8 ? 0x8000 | of[8 - i % 16] : of[i % 16 - 8];
    }
};
constexpr BFloat16Levels BFLOAT16_LEVELS;

template <>
struct Weights<bfloat16> {
    const __m512i levels = _mm512_load_si512(BFLOAT16_LEVELS.bits);

    template <int ROWS, int VECTORS>
    ALWAYS_INLINE void multiply_add(Tile<ROWS, VECTORS>& tile, const bfloat16* x, int64_t stride, vint* codes) const {
#pragma GCC unroll 4
        for (int j = 0; j < STEP / 2; j++) {
            vint w[VECTORS];
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++)
                w[v] = (vint)_mm512_maskz_permutexvar_epi16(~0u, (__m512i)(codes[v] >> (4 * j)), levels);
            add_pairs(tile, x + 2 * j, stride, w);
        }
    }
};
#endif

struct Panels {
    template <int ROWS, int PANELS, typename P>
    static __attribute__((noinline)) void multiply(const P& p, int64_t first, int64_t panel) {
        constexpr int VECTORS = 2 * PANELS;
        const Weights<typename P::Number> weights;
        const int64_t steps = p.steps_of_group(), panel_words = p.groups * steps * PANEL;
        const auto* x = p.x + first * p.x_stride;
        const int32_t* codes = p.codes + panel * panel_words;
        vfloat totals[ROWS][VECTORS] = {};
        for (int64_t group = 0; group < p.groups; group++) {
            Tile<ROWS, VECTORS> tile;
            start_group(tile, p, first, panel, group);
            for (int64_t step = 0; step < steps; step++, codes += PANEL, x += STEP) {
                vint words[VECTORS];
#pragma GCC unroll 8
                for (int v = 0; v < VECTORS; v++) {
                    const int32_t* from = codes + v / 2 * panel_words + v % 2 * LANES;
                    words[v] = load_pairs(from);
                    __builtin_prefetch(reinterpret_cast<const char*>(from) + PREFETCH_BYTES);
                }
                weights.multiply_add(tile, x, p.x_stride, words);
            }
            end_group(tile, p, panel, group, totals);
        }
        for (int row = 0; row < ROWS; row++)
            p.y.write(p.first_row + first + row, panel * PANEL, p.columns, totals[row], VECTORS);
    }

    // sums = offset * sum of x
    template <int ROWS, int VECTORS, typename P>
    static ALWAYS_INLINE void start_group(Tile<ROWS, VECTORS>& tile, const P& p, int64_t first, int64_t panel,
                                          int64_t group) {
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) {
            const int64_t at = ((panel + v / 2) * p.groups + group) * PANEL + v % 2 * LANES;
            const vfloat offset = __builtin_convertvector(load_bytes(p.offsets + at), vfloat);
#pragma GCC unroll 16
            for (int row = 0; row < ROWS; row++)
                tile.sums[row][v] = p.x_sums[(first + row) * p.groups + group] * offset;
        }
    }

    // totals += scale * sums
    template <int ROWS, int VECTORS, typename P>
    static ALWAYS_INLINE void end_group(const Tile<ROWS, VECTORS>& tile, const P& p, int64_t panel, int64_t group,
                                        vfloat (&totals)[ROWS][VECTORS]) {
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) {
            const int64_t at = ((panel + v / 2) * p.groups + group) * PANEL + v % 2 * LANES;
            const vfloat scale = load_as_float(p.scales + at * p.scale_size, p.scale_dtype);
#pragma GCC unroll 16
            for (int row = 0; row < ROWS; row++) totals[row][v] += tile.sums[row][v] * scale;
        }
    }
};

// The sum of each group of a row.
template <typename X>
void add_groups(const X* x, int64_t groups, int64_t width, float* sums) {
    for (int64_t group = 0; group < groups; group++, x += width) {
        vfloat lanes{};
        int64_t k = 0;
        for (; k + LANES <= width; k += LANES) lanes += load(x + k);
        if (k < width) lanes += load_first(x + k, width - k);
        sums[group] = sum(lanes);
    }
}

struct Call {
    FloatMatrix x;
    const int32_t* codes;
    void* scales;
    int64_t scale_dtype;
    const int8_t* offsets;
    FloatMatrix y;
    int64_t rows, depth, columns, group_size;

    int64_t groups() const { return depth / group_size; }
    int64_t group_width() const { return (group_size + STEP - 1) / STEP * STEP; }

    template <typename X>
    void multiply_block(const X* from, int64_t stride, int64_t first, int64_t count) const {
        const bool worth_threads = count * depth > WORTH_THREADS;
        const std::unique_ptr<float[]> sums(new float[count * groups()]);
        for_ranges(count, worth_threads, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; row++)
                add_groups(from + row * stride, groups(), group_width(), sums.get() + row * groups());
        });
        const int64_t scale_size = scale_dtype == FLOAT32 ? 4 : 2;
        multiply_in_pieces<Panels>(Block<X>{from, stride, sums.get(), codes, static_cast<const char*>(scales),
                                            scale_dtype, scale_size, offsets, y, first, count,
                                            groups() * group_width(), columns, groups()});
    }

    // Rows converted to X, each group filled up with zeros.
    template <typename X>
    void convert_and_multiply(int64_t first, int64_t count) const {
        const int64_t width = group_width(), stride = stride_in_scratch(groups() * width, sizeof(X));
        const std::unique_ptr<X[]> scratch(new X[count * stride]);
        for_ranges(count, count * depth > WORTH_THREADS, [&](int64_t begin, int64_t end) {
            std::unique_ptr<float[]> numbers(new float[depth]);
            for (int64_t row = begin; row < end; row++) {
                x.read(first + row, 0, depth, numbers.get());
                for (int64_t group = 0; group < groups(); group++) {
                    X* to = scratch.get() + row * stride + group * width;
                    for (int64_t k = 0; k < group_size; k++)
                        to[k] = from_float<X>(numbers[group * group_size + k]);
                    std::fill(to + group_size, to + width, X{});
                }
            }
        });
        multiply_block<X>(scratch.get(), stride, first, count);
    }

    template <typename X>
    void multiply() const {
        const bool is_direct = x.dtype == (sizeof(X) == 4 ? FLOAT32 : BFLOAT16) && group_size % STEP == 0 &&
                               (rows <= 4 || x.stride * sizeof(X) % 4096);
        if (is_direct) return multiply_block<X>(static_cast<const X*>(x.data), x.stride, 0, rows);
        for (int64_t first = 0; first < rows; first += ROWS_IN_SCRATCH)
            convert_and_multiply<X>(first, std::min(ROWS_IN_SCRATCH, rows - first));
    }
};

}  // namespace

// Strides in elements; the dtypes are those of dtype.h; y is contiguous.
extern "C" void int4_linear(void* x, int64_t x_stride, int64_t x_dtype, const int32_t* codes, void* scales,
                            int64_t scale_dtype, const int8_t* offsets, void* y, int64_t y_dtype, int64_t rows,
                            int64_t depth, int64_t columns, int64_t group_size) {
    const Call p{{x, x_dtype, x_stride}, codes, scales, scale_dtype, offsets, {y, y_dtype, columns},
                    rows, depth, columns, group_size};
    launch(QUANTISED_GEMM, [=] {
#if defined(__AVX512BF16__)
        if (x_dtype == BFLOAT16) return p.multiply<bfloat16>();
#endif
        p.multiply<float>();
    });
}
