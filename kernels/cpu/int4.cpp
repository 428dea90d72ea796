// y = x @ weight.T with weights of four bits: qweight [rows, columns / 2], two to a byte, and for every group of columns
// a scale and a zero point. x [tokens, columns], y [tokens, rows].
//
//   a chunk is LANES bytes of a row, 2 * LANES columns (drawn with 4 lanes; the numbers are columns):
//
//       bytes   | 1 0 | 3 2 | 5 4 | 7 6 |
//       low     |   0 |   2 |   4 |   6 |   times x[0] x[2] x[4] x[6]
//       high    |   1 |   3 |   5 |   7 |   times x[1] x[3] x[5] x[7]
//
// So x is arranged once, evens before odds in every chunk; a group that ends within a chunk is filled up with zeros.
// A nibble becomes a number, (nibble - zero) * scale, by a look-up: a register of AVX512 holds all 16 of a group.
//
// Few tokens: each nibble is decoded where it is used. That is six instructions for 32 weights, of which three move
// lanes about: 16 GB/s of weights on a core of 4 GHz, and more than most memories give. Many tokens are bound by
// arithmetic: a panel of rows is decoded into the L1 cache, where it meets all of them.
//
//   a sum      span 0: [ chunk | chunk | ... ]  add lane by lane, then the lanes  --+
//              span 1: [ chunk | chunk | ... ]  the same                          --+--> in this order
//              ...
//
// Both ways add up in this order, so a token's result does not depend on how many tokens there are, bit for bit.
#include <algorithm>
#include <vector>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "graph.h"
#include "quantised.h"
#include "threads.h"

namespace {

constexpr int CHUNK = 2 * LANES;                // columns
constexpr int SPAN = 1024;                      // columns; TILE_ROWS spans of weights and some of x fit the L1 cache
constexpr int TOKENS_AT_ONCE = 64;              // a span of theirs fits the L2 cache
constexpr int ROWS_AT_ONCE = 64;                // what one thread takes at a time
constexpr int DECODE_IN_PLACE = 12;             // up to so many tokens it is cheaper than storing and loading
constexpr int TILE_ROWS = 4;
constexpr int TILE_TOKENS = LANES >= 16 ? 4 : 2;  // 16 sums in 32 registers, or 8 in 16
constexpr int64_t PARALLEL_PRODUCTS = 1 << 19;  // less than this is done before a second thread has woken up

struct Product {
    FloatMatrix x;
    const uint8_t* qweight;
    int64_t qweight_stride;
    FloatMatrix scale;
    const uint8_t* zero;
    int64_t zero_stride;
    FloatMatrix y;
    int64_t rows, columns, group_size;

    int64_t chunks_of_group() const { return (group_size + CHUNK - 1) / CHUNK; }
    int64_t chunks() const { return columns / group_size * chunks_of_group(); }
};

// At most TOKENS_AT_ONCE tokens, arranged. Spans lie behind each other, each as [tokens, chunks of the span, CHUNK].
struct Block {
    std::vector<float> x;
    int64_t first_token, tokens, chunks;

    int64_t span_chunks(int64_t first_chunk) const { return std::min<int64_t>(SPAN / CHUNK, chunks - first_chunk); }
    float* span(int64_t first_chunk) { return x.data() + first_chunk * CHUNK * tokens; }
    const float* span(int64_t first_chunk) const { return x.data() + first_chunk * CHUNK * tokens; }
};

// --- nibbles -----------------------------------------------------------------------------------------------

// LANES bytes as integers.
inline vint load_bytes(const uint8_t* from) {
#if defined(__AVX512F__)
    return (vint)_mm512_maskz_cvtepu8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
    typedef uint8_t vbytes __attribute__((vector_size(LANES)));
    vbytes bytes;
    std::memcpy(&bytes, from, sizeof bytes);
    return __builtin_convertvector(__builtin_convertvector(bytes, vhalf), vint);
#endif
}

// The same of fewer, where a group or the matrix ends; zeros behind them.
inline vint load_last_bytes(const uint8_t* from, int64_t count) {
    uint8_t padded[LANES] = {};
    std::copy_n(from, count, padded);
    return load_bytes(padded);
}

// What the 16 nibbles of a group stand for; of an index only the low four bits count.
class Levels {
public:
    Levels() = default;
    Levels(float scale, float zero) {
#if defined(__AVX512F__)
        const vfloat nibbles{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        values_ = (nibbles - zero) * scale;
    }
    vfloat operator[](vint nibbles) const {
        return (vfloat)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)nibbles, (__m512)values_);
    }

private:
    vfloat values_;
#else
        scale_ = scale, zero_ = zero;
    }
    vfloat operator[](vint nibbles) const {
        return (__builtin_convertvector(nibbles & 15, vfloat) - zero_) * scale_;
    }

private:
    float scale_, zero_;
#endif
};

// Decodes `count` chunks of ROWS rows, at most a span: calls use(chunk, even, odd) with a vector for each row. The first
// chunk is 0 to `use`.
template <int ROWS, typename Use>
ALWAYS_INLINE void decode(const Product& p, int64_t first_row, int64_t first_chunk, int64_t count, Use use) {
    const int64_t chunks_of_group = p.chunks_of_group();
    const int64_t first_group = first_chunk / chunks_of_group;
    const int64_t groups = (first_chunk + count - 1) / chunks_of_group + 1 - first_group;
    float scales[ROWS][SPAN / CHUNK];  // a group takes a chunk at least
    for (int row = 0; row < ROWS; row++) p.scale.read(first_row + row, first_group, groups, scales[row]);

    int64_t chunk = 0, within = first_chunk % chunks_of_group;
    for (int64_t group = 0; group < groups; group++, within = 0) {
        const int64_t end = std::min(count, chunk + chunks_of_group - within);
        const int64_t first_byte = (first_group + group) * p.group_size / 2 + within * LANES;
        int64_t left = p.group_size / 2 - within * LANES;  // bytes of the group
        const uint8_t* bytes = p.qweight + first_row * p.qweight_stride + first_byte;
        const uint8_t* zero = p.zero + first_row * p.zero_stride + first_group + group;
        Levels levels[ROWS];
        for (int row = 0; row < ROWS; row++) levels[row] = Levels(scales[row][group], zero[row * p.zero_stride]);
        for (int row = 0; row < ROWS; row++)
            for (int64_t line = 0; line < left; line += 64)
                __builtin_prefetch(bytes + row * p.qweight_stride + line + PREFETCH_BYTES);

        const auto decode_chunk = [&](auto load_nibbles) __attribute__((always_inline)) {
            vfloat even[ROWS], odd[ROWS];
#pragma GCC unroll 4
            for (int row = 0; row < ROWS; row++) {
                const vint nibbles = load_nibbles(bytes + row * p.qweight_stride);
                even[row] = levels[row][nibbles];
                odd[row] = levels[row][nibbles >> 4];
            }
            use(chunk, even, odd);
        };
        for (; chunk < end && left >= LANES; chunk++, left -= LANES, bytes += LANES) decode_chunk(load_bytes);
        if (chunk < end) decode_chunk([&](const uint8_t* from) { return load_last_bytes(from, left); }), chunk++;
    }
}

// totals[i] += the lanes of sums[i]
template <int COUNT>
ALWAYS_INLINE void add_lanes(const vfloat* sums, float* totals) {
    if constexpr (COUNT >= LANES) {  // LANES of them at once, in the order of `sum`
        vfloat lanes[LANES];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) lanes[i] = sums[i];
        transpose(lanes);
#pragma GCC unroll 4
        for (int width = LANES / 2; width > 0; width /= 2)
#pragma GCC unroll 8
            for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
        store(totals, load(totals) + lanes[0]);
        add_lanes<COUNT - LANES>(sums + LANES, totals + LANES);
    } else {
        for (int i = 0; i < COUNT; i++) totals[i] += sum(sums[i]);
    }
}

// --- few tokens --------------------------------------------------------------------------------------------

template <int TOKENS, int ROWS>
__attribute__((noinline)) void decode_and_multiply(const Product& p, const Block& block, int64_t first_token,
                                                   int64_t first_row) {
    float totals[TOKENS * ROWS] = {};
    for (int64_t chunk = 0; chunk < block.chunks; chunk += SPAN / CHUNK) {
        const int64_t count = block.span_chunks(chunk), width = count * CHUNK;
        const float* x = block.span(chunk) + first_token * width;
        vfloat sums[TOKENS * ROWS] = {};
        decode<ROWS>(p, first_row, chunk, count, [&](int64_t at, const vfloat* even, const vfloat* odd) {
#pragma GCC unroll 4
            for (int token = 0; token < TOKENS; token++) {
                const vfloat x_even = in_register(load(x + token * width + at * CHUNK));
                const vfloat x_odd = in_register(load(x + token * width + at * CHUNK + LANES));
#pragma GCC unroll 4
                for (int row = 0; row < ROWS; row++) sums[token * ROWS + row] += x_even * even[row];
#pragma GCC unroll 4
                for (int row = 0; row < ROWS; row++) sums[token * ROWS + row] += x_odd * odd[row];
            }
        });
        add_lanes<TOKENS * ROWS>(sums, totals);
    }
    for (int token = 0; token < TOKENS; token++)
        p.y.write(block.first_token + first_token + token, first_row, ROWS, totals + token * ROWS);
}

template <int ROWS, int TOKENS = TILE_TOKENS>
void few_tokens(const Product& p, const Block& block, int64_t first_token, int64_t first_row) {
    if constexpr (TOKENS > 0) {
        if (block.tokens - first_token < TOKENS) return few_tokens<ROWS, TOKENS - 1>(p, block, first_token, first_row);
        decode_and_multiply<TOKENS, ROWS>(p, block, first_token, first_row);
        if (first_token + TOKENS < block.tokens) few_tokens<ROWS>(p, block, first_token + TOKENS, first_row);
    }
}

void few_tokens(const Product& p, const Block& block, int64_t begin, int64_t end) {
    int64_t row = begin;
    for (; row + TILE_ROWS <= end; row += TILE_ROWS) few_tokens<TILE_ROWS>(p, block, 0, row);
    for (; row < end; row++) few_tokens<1>(p, block, 0, row);
}

// --- many tokens -------------------------------------------------------------------------------------------

// x [TOKENS, width] times weights [ROWS, width], added to totals [TOKENS, TILE_ROWS].
template <int TOKENS, int ROWS>
__attribute__((noinline)) void multiply(const float* x, const float* weights, int64_t width, float* totals) {
    vfloat sums[TOKENS * TILE_ROWS] = {};
    for (int64_t i = 0; i < width; i += LANES) {
        vfloat w[ROWS];
#pragma GCC unroll 4
        for (int row = 0; row < ROWS; row++) w[row] = in_register(load(weights + row * width + i));
#pragma GCC unroll 4
        for (int token = 0; token < TOKENS; token++) {
            const vfloat xt = in_register(load(x + token * width + i));
#pragma GCC unroll 4
            for (int row = 0; row < ROWS; row++) sums[token * TILE_ROWS + row] += xt * w[row];
        }
    }
    add_lanes<TOKENS * TILE_ROWS>(sums, totals);
}

// A span of ROWS <= TILE_ROWS rows for all tokens of the block, added to totals [tokens, TILE_ROWS].
template <int ROWS>
void decode_then_multiply(const Product& p, const Block& block, int64_t first_row, int64_t chunk, float* totals) {
    alignas(64) float weights[ROWS * SPAN];
    const int64_t count = block.span_chunks(chunk), width = count * CHUNK;
    decode<ROWS>(p, first_row, chunk, count, [&](int64_t at, const vfloat* even, const vfloat* odd) {
        for (int row = 0; row < ROWS; row++) {
            store(weights + row * width + at * CHUNK, even[row]);
            store(weights + row * width + at * CHUNK + LANES, odd[row]);
        }
    });
    const float* x = block.span(chunk);
    int64_t token = 0;
    for (; token + TILE_TOKENS <= block.tokens; token += TILE_TOKENS)
        multiply<TILE_TOKENS, ROWS>(x + token * width, weights, width, totals + token * TILE_ROWS);
    for (; token < block.tokens; token++)
        multiply<1, ROWS>(x + token * width, weights, width, totals + token * TILE_ROWS);
}

void many_tokens(const Product& p, const Block& block, int64_t begin, int64_t end) {
    const auto width = [&](int64_t row) { return row + TILE_ROWS <= end ? TILE_ROWS : 1; };  // of a panel
    alignas(64) float totals[ROWS_AT_ONCE][TOKENS_AT_ONCE * TILE_ROWS] = {};  // by the panel's first row
    for (int64_t chunk = 0; chunk < block.chunks; chunk += SPAN / CHUNK)
        for (int64_t row = begin; row < end; row += width(row))
            if (width(row) == TILE_ROWS) decode_then_multiply<TILE_ROWS>(p, block, row, chunk, totals[row - begin]);
            else decode_then_multiply<1>(p, block, row, chunk, totals[row - begin]);
    for (int64_t row = begin; row < end; row += width(row))
        for (int64_t token = 0; token < block.tokens; token++)
            p.y.write(block.first_token + token, row, width(row), totals[row - begin] + token * TILE_ROWS);
}

// --- all ---------------------------------------------------------------------------------------------------

// One token of x into its block, whose x is zero so far.
void arrange(const Product& p, Block& block, int64_t token) {
    std::vector<float> x(p.columns);
    p.x.read(block.first_token + token, 0, p.columns, x.data());
    const int64_t chunks_of_group = p.chunks_of_group();
    for (int64_t span = 0; span < block.chunks; span += SPAN / CHUNK) {
        const int64_t count = block.span_chunks(span);
        float* to = block.span(span) + token * count * CHUNK;
        for (int64_t chunk = span; chunk < span + count; chunk++, to += CHUNK) {
            const int64_t within = chunk % chunks_of_group * CHUNK;
            const float* from = x.data() + chunk / chunks_of_group * p.group_size + within;
            const int64_t pairs = std::min<int64_t>(CHUNK, p.group_size - within) / 2;
            for (int64_t i = 0; i < pairs; i++) {
                to[i] = from[2 * i];
                to[LANES + i] = from[2 * i + 1];
            }
        }
    }
}

void multiply_all(const Product& p, int64_t tokens) {
    for (int64_t first = 0; first < tokens; first += TOKENS_AT_ONCE) {
        Block block{{}, first, std::min<int64_t>(TOKENS_AT_ONCE, tokens - first), p.chunks()};
        block.x.resize(block.tokens * block.chunks * CHUNK);
        const bool worth_threads = block.tokens * p.rows * p.columns > PARALLEL_PRODUCTS;
        for_ranges(block.tokens, worth_threads, [&](int64_t begin, int64_t end) {
            for (int64_t token = begin; token < end; token++) arrange(p, block, token);
        });
        for_pieces((p.rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE, worth_threads, [&](int64_t part) {
            const int64_t begin = part * ROWS_AT_ONCE, end = std::min(p.rows, begin + ROWS_AT_ONCE);
            if (block.tokens <= DECODE_IN_PLACE) few_tokens(p, block, begin, end);
            else many_tokens(p, block, begin, end);
        });
    }
}

}  // namespace

// Strides in elements; the dtypes are those of dtype.h; y has the dtype of x and is contiguous.
extern "C" void int4_linear(void* x, int64_t x_stride, int64_t dtype, const uint8_t* qweight, int64_t qweight_stride,
                            void* scale, int64_t scale_stride, int64_t scale_dtype, const uint8_t* zero,
                            int64_t zero_stride, void* y, int64_t tokens, int64_t rows, int64_t columns,
                            int64_t group_size) {
    const Product p{{x, dtype, x_stride}, qweight, qweight_stride, {scale, scale_dtype, scale_stride},
                    zero, zero_stride, {y, dtype, rows}, rows, columns, group_size};
    launch(QUANTISED_GEMM, [=] { multiply_all(p, tokens); });
}
