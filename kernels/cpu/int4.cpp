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
constexpr int64_t WORDS_AHEAD = PREFETCH_BYTES / sizeof(int32_t);

// x in the type that is multiplied, a whole number of steps for each group, and the sum of x in each group.
template <typename X>
struct Block {
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

// What the nibbles of a word stand for, and the product with it: one depth in a vector, or a pair of them.
template <typename X>
struct Numbers;

template <>
struct Numbers<float> {
    using Vector = vfloat;
    static constexpr int DEPTHS = 1;

    ALWAYS_INLINE vfloat decode(vint word, int depth) const { return level(word >> (4 * (depth / 2) + 16 * (depth % 2))); }

    template <int ROWS, int VECTORS>
    static ALWAYS_INLINE void multiply_add(Tile<ROWS, VECTORS>& tile, const float* x, int64_t stride,
                                           const vfloat (&w)[VECTORS]) {
        tile.add(x, stride, w);
    }

#if defined(__AVX512F__)
    const vfloat levels{-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

    ALWAYS_INLINE vfloat level(vint code) const {  // only the low four bits count
        return (vfloat)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)code, (__m512)levels);
    }
#else
    ALWAYS_INLINE vfloat level(vint code) const { return __builtin_convertvector((code & 15) - 8, vfloat); }
#endif
};

#if defined(__AVX512BF16__)
// -8 to 7 as bf16, twice: the look-up takes five bits, and the fifth belongs to another depth.
alignas(64) constexpr uint16_t BFLOAT16_LEVELS[32] = {
    0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0,
    0x40e0, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0,
    0x40c0, 0x40e0};

template <>
struct Numbers<bfloat16> {
    using Vector = vint;
    static constexpr int DEPTHS = 2;
    const __m512i levels = _mm512_load_si512(BFLOAT16_LEVELS);

    ALWAYS_INLINE vint decode(vint word, int pair) const {
        return (vint)_mm512_maskz_permutexvar_epi16(~0u, (__m512i)(word >> (4 * pair)), levels);
    }

    template <int ROWS, int VECTORS>
    static ALWAYS_INLINE void multiply_add(Tile<ROWS, VECTORS>& tile, const bfloat16* x, int64_t stride,
                                           const vint (&w)[VECTORS]) {
        add_pairs(tile, x, stride, w);
    }
};
#endif

// A step of weights, decoded in registers.
template <typename X>
struct Coded {
    const Numbers<X> numbers{};

    // words: of the first panel; the others lie panel_words apart
    template <int ROWS, int VECTORS>
    ALWAYS_INLINE void add_step(Tile<ROWS, VECTORS>& tile, const X* x, int64_t stride, const int32_t* words,
                                int64_t panel_words) const {
        vint codes[VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) {
            const int32_t* from = words + v / 2 * panel_words + v % 2 * LANES;
            codes[v] = load_pairs(from);
            ask(from + WORDS_AHEAD);
        }
#pragma GCC unroll 8
        for (int j = 0; j < STEP / Numbers<X>::DEPTHS; j++) {
            typename Numbers<X>::Vector w[VECTORS];
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) w[v] = numbers.decode(codes[v], j);
            numbers.multiply_add(tile, x + j * Numbers<X>::DEPTHS, stride, w);
        }
    }
};

template <typename X>
struct Panels {
    static constexpr bool MAKES_SMALLER_TILES = true;

    template <int ROWS, int PANELS, typename P>
    static __attribute__((noinline)) void multiply(const P& p, int64_t first, int64_t panel) {
        constexpr int VECTORS = 2 * PANELS;
        const Coded<X> weights;
        const int64_t steps = p.steps_of_group(), panel_words = p.groups * steps * PANEL;
        const X* x = p.x + first * p.x_stride;
        const int32_t* words = p.codes + panel * panel_words;
        vfloat totals[ROWS][VECTORS] = {};
        p.y.prefetch(p.first_row + first, panel * PANEL, ROWS, VECTORS);
        for (int64_t group = 0; group < p.groups; group++) {
            Tile<ROWS, VECTORS> tile;
            start_group(tile, p, first, panel, group);
            ask_for_next<PANELS>(p, panel + PANELS, group, panel_words);
            for (int64_t step = 0; step < steps; step++, words += PANEL, x += STEP)
                weights.add_step(tile, x, p.x_stride, words, panel_words);
            end_group(tile, p, panel, group, totals);
        }
        p.y.write(p.first_row + first, panel * PANEL, p.columns, totals);
    }

    // Asks for what the next tile begins with: first words, some of them in each group, and scales and offsets.
    template <int PANELS, typename P>
    static ALWAYS_INLINE void ask_for_next(const P& p, int64_t panel, int64_t group, int64_t panel_words) {
        constexpr int64_t WORDS = 16, LINES = WORDS_AHEAD / WORDS;
        for (int64_t next = panel; next < panel + PANELS; next++) {
            for (int64_t line = LINES * group / p.groups; line < LINES * (group + 1) / p.groups; line++)
                ask(p.codes + next * panel_words + line * WORDS);
            const int64_t at = (next * p.groups + group) * PANEL;
            ask(p.scales + at * p.scale_size);
            ask(p.offsets + at);
        }
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
            for (int row = 0; row < ROWS; row++)
                totals[row][v] = ::multiply_add(tile.sums[row][v], scale, totals[row][v]);
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
        const Block<X> block{from, stride, sums.get(), codes, static_cast<const char*>(scales), scale_dtype,
                             scale_size, offsets, y, first, count, groups() * group_width(), columns, groups()};
        multiply_in_pieces<Panels<X>>(block);
    }

    void read_row(int64_t row, float* to) const { x.read(row, 0, depth, to); }
    void read_row(int64_t row, bfloat16* to) const {  // bit for bit, as where x is multiplied in its place
        std::copy_n(static_cast<const bfloat16*>(x.data) + row * x.stride, depth, to);
    }

    // Rows as X, each group filled up with zeros.
    template <typename X>
    void convert_and_multiply(int64_t first, int64_t count) const {
        const int64_t width = group_width(), stride = stride_in_scratch(groups() * width, sizeof(X));
        const std::unique_ptr<X[]> scratch(new X[count * stride]);
        for_ranges(count, count * depth > WORTH_THREADS, [&](int64_t begin, int64_t end) {
            const std::unique_ptr<X[]> numbers(new X[depth]);
            for (int64_t row = begin; row < end; row++) {
                read_row(first + row, numbers.get());
                for (int64_t group = 0; group < groups(); group++) {
                    X* to = scratch.get() + row * stride + group * width;
                    std::copy_n(numbers.get() + group * group_size, group_size, to);
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
