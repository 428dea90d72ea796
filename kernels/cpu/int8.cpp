// y = x @ weight.T with int8 weights: qweight [rows, columns], one scale per row. x [tokens, columns] is rounded to int8 on
// the way in, each token with its own scale max|x| / 127; y [tokens, rows].
//
//   y[t, n] = (sum over k of xq[t, k] * qweight[n, k]) * x_scale[t] * scale[n]
//
// The sum is over integers, exact in any order, so a token's result cannot depend on the batch.
//
// AVX512-VNNI multiplies 64 pairs of bytes and adds them up in 16 lanes in one instruction, but one byte of each pair
// must be unsigned. So x is stored as xq + 128, and what is too much is taken off again:
//
//   sum (xq + 128) * w  -  sum 128 * w          the second from one more token, all of whose bytes are 128
//
// int32 may wrap around in between: modulo 2^32 the difference is right. Elsewhere the compiler makes vectors of a
// plain loop.
#include <algorithm>
#include <cmath>
#include <vector>

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define HAS_VNNI 1
#include <immintrin.h>
#else
#define HAS_VNNI 0
#endif

#include "graph.h"
#include "quantised.h"
#include "threads.h"

namespace {

constexpr int64_t BYTES = 64;           // of a register; rows of xq are filled up to whole ones
constexpr int64_t TOKENS_AT_ONCE = 64;  // whose xq stays in the L2 cache
constexpr int64_t ROWS_AT_ONCE = 64;    // what one thread takes at a time
constexpr int TILE_TOKENS = 4, TILE_ROWS = 4;  // 16 sums in 32 registers
constexpr int64_t PARALLEL_PRODUCTS = 1 << 20;  // less than this is done before a second thread has woken up
constexpr int OFFSET = HAS_VNNI ? 128 : 0;

#if HAS_VNNI
typedef uint8_t xbyte;
#else
typedef int8_t xbyte;
#endif

struct Product {
    FloatMatrix x;
    const int8_t* qweight;
    int64_t qweight_stride;
    const float* scale;
    FloatMatrix y;
    int64_t rows, columns;
};

// Rounded tokens: xq [tokens + 1, stride], where the last one is all OFFSET.
struct Block {
    std::vector<xbyte> xq;
    std::vector<float> scale;
    int64_t stride, first_token, tokens;

    const xbyte* token(int64_t index) const { return xq.data() + index * stride; }
};

// --- rounding ----------------------------------------------------------------------------------------------

// max|x| / 127 of a token; NaN if it holds one.
float scale_of(const float* x, int64_t columns) {
    vfloat largest_yet{};
    vint nan{};
    for (int64_t k = 0; k < columns; k += LANES) {
        const vfloat at = columns - k >= LANES ? load(x + k) : load_first(x + k, columns - k);
        const vfloat magnitude = (vfloat)((vint)at & 0x7fffffff);
        largest_yet = magnitude > largest_yet ? magnitude : largest_yet;
        nan |= at != at;
    }
    for (int i = 0; i < LANES; i++)
        if (nan[i]) return NAN;
    return largest(largest_yet) / 127.0f;
}

// To whole steps, half to even: adding 1.5 * 2^23 rounds, and leaves the integer in the low bits.
void round_steps(const float* x, int64_t columns, float scale, xbyte* xq) {
    for (int64_t k = 0; k < columns; k++) {
        const float steps = std::min(std::max(x[k] / scale, -127.0f), 127.0f);
        const float shifted = steps + 12582912.0f;
        int32_t bits;
        std::memcpy(&bits, &shifted, sizeof bits);
        xq[k] = static_cast<xbyte>(bits + OFFSET);
    }
}

// One token into its block, where it is all OFFSET so far. What has no finite scale stays 0, and 0 times NaN is NaN.
void quantise(const Product& p, Block& block, int64_t token) {
    std::vector<float> x(p.columns);
    p.x.read(block.first_token + token, 0, p.columns, x.data());
    const float scale = block.scale[token] = scale_of(x.data(), p.columns);
    if (scale > 0.0f && scale < INFINITY)
        round_steps(x.data(), p.columns, scale, block.xq.data() + token * block.stride);
}

// --- products ----------------------------------------------------------------------------------------------

#if HAS_VNNI
// totals[i] = the lanes of sums[i] added up, for COUNT <= 16 registers at once.
template <int COUNT>
ALWAYS_INLINE void add_lanes(const vint* sums, int32_t* totals) {
    vfloat square[LANES] = {};  // only to be transposed: nothing is calculated in floats
#pragma GCC unroll 16
    for (int i = 0; i < COUNT; i++) square[i] = (vfloat)sums[i];
    transpose(square);
    vint total{};
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) total += (vint)square[i];
    std::memcpy(totals, &total, COUNT * sizeof *totals);
}
#endif

// The integer sums of TOKENS tokens, from x on, and ROWS rows.
template <int TOKENS, int ROWS>
ALWAYS_INLINE void multiply(const Product& p, const xbyte* x, int64_t x_stride, int64_t first_row,
                            int32_t (&sums)[TOKENS][ROWS]) {
    const int8_t* w = p.qweight + first_row * p.qweight_stride;
#if HAS_VNNI
    vint lanes[TOKENS * ROWS] = {};
    for (int64_t k = 0; k < p.columns; k += BYTES) {
        const __mmask64 inside = ~0ull >> (BYTES - std::min(BYTES, p.columns - k));  // past its end is another row
        __m512i weights[ROWS];
#pragma GCC unroll 4
        for (int row = 0; row < ROWS; row++)
            weights[row] = in_register(_mm512_maskz_loadu_epi8(inside, w + row * p.qweight_stride + k));
#pragma GCC unroll 4
        for (int row = 0; row < ROWS; row++) __builtin_prefetch(w + row * p.qweight_stride + k + PREFETCH_BYTES);
#pragma GCC unroll 4
        for (int token = 0; token < TOKENS; token++) {
            const __m512i xt = in_register(_mm512_loadu_si512(x + token * x_stride + k));
#pragma GCC unroll 4
            for (int row = 0; row < ROWS; row++) {
                vint& sum = lanes[token * ROWS + row];
                sum = (vint)_mm512_dpbusd_epi32((__m512i)sum, xt, weights[row]);
            }
        }
    }
    add_lanes<TOKENS * ROWS>(lanes, sums[0]);
#else
    for (int token = 0; token < TOKENS; token++)
        for (int row = 0; row < ROWS; row++) {
            int32_t sum = 0;
            for (int64_t k = 0; k < p.columns; k++)
                sum += static_cast<int32_t>(x[token * x_stride + k]) * w[row * p.qweight_stride + k];
            sums[token][row] = sum;
        }
#endif
}

template <int TOKENS, int ROWS>
__attribute__((noinline)) void multiply_tile(const Product& p, const Block& block, int64_t first_token,
                                             int64_t first_row, const int32_t (&excess)[1][ROWS]) {
    int32_t sums[TOKENS][ROWS];
    multiply<TOKENS, ROWS>(p, block.token(first_token), block.stride, first_row, sums);
    for (int token = 0; token < TOKENS; token++) {
        float y[ROWS];
        for (int row = 0; row < ROWS; row++) {
            const uint32_t sum = static_cast<uint32_t>(sums[token][row]) - static_cast<uint32_t>(excess[0][row]);
            y[row] = static_cast<float>(static_cast<int32_t>(sum)) * block.scale[first_token + token] *
                     p.scale[first_row + row];
        }
        p.y.write(block.first_token + first_token + token, first_row, ROWS, y);
    }
}

template <int ROWS, int TOKENS = TILE_TOKENS>
void multiply_tokens(const Product& p, const Block& block, int64_t first_token, int64_t first_row,
                     const int32_t (&excess)[1][ROWS]) {
    if constexpr (TOKENS > 0) {
        for (; first_token + TOKENS <= block.tokens; first_token += TOKENS)
            multiply_tile<TOKENS, ROWS>(p, block, first_token, first_row, excess);
        multiply_tokens<ROWS, TOKENS - 1>(p, block, first_token, first_row, excess);
    }
}

template <int ROWS>
void multiply_rows(const Product& p, const Block& block, int64_t first_row) {
    int32_t excess[1][ROWS] = {};
    if (OFFSET) multiply<1, ROWS>(p, block.token(block.tokens), block.stride, first_row, excess);
    multiply_tokens<ROWS>(p, block, 0, first_row, excess);
}

void multiply_all(const Product& p, int64_t tokens) {
    for (int64_t first = 0; first < tokens; first += TOKENS_AT_ONCE) {
        const int64_t count = std::min(TOKENS_AT_ONCE, tokens - first), stride = (p.columns + BYTES - 1) / BYTES * BYTES;
        Block block{std::vector<xbyte>((count + 1) * stride, OFFSET), std::vector<float>(count), stride, first, count};
        const bool worth_threads = count * p.rows * p.columns > PARALLEL_PRODUCTS;
        for_ranges(count, worth_threads, [&](int64_t begin, int64_t end) {
            for (int64_t token = begin; token < end; token++) quantise(p, block, token);
        });
        for_pieces((p.rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE, worth_threads, [&](int64_t part) {
            int64_t row = part * ROWS_AT_ONCE;
            const int64_t end = std::min(p.rows, row + ROWS_AT_ONCE);
            for (; row + TILE_ROWS <= end; row += TILE_ROWS) multiply_rows<TILE_ROWS>(p, block, row);
            for (; row < end; row++) multiply_rows<1>(p, block, row);
        });
    }
}

}  // namespace

// Strides in elements; the dtype is that of x and y, see dtype.h; y is contiguous.
extern "C" void int8_linear(void* x, int64_t x_stride, int64_t dtype, const int8_t* qweight, int64_t qweight_stride,
                            const float* scale, void* y, int64_t tokens, int64_t rows, int64_t columns) {
    const Product p{{x, dtype, x_stride}, qweight, qweight_stride, scale, {y, dtype, rows}, rows, columns};
    launch(QUANTISED_GEMM, [=] { multiply_all(p, tokens); });
}
