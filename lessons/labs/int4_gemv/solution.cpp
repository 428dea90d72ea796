// Lab cpp-int4-gemv: a vector times a matrix of 4-bit weights, dequantised by groups.
//
// The seam is int4_linear of kernels/ops.py for one token: a decoding request times a matrix of 4-bit weights (W4A16; AWQ:
// Lin et al. 2023, 2306.00978; GPTQ: Frantar et al. 2022, 2210.17323, both after repacking).
//
//     row n   k = 0     1   |   2     3   | ...        byte j has column 2 j in its low, 2 j + 1 in its high four bits
//     byte       low  high  |  low  high  | ...
//
//     weight[n][k] = (nibble - zero[n][g]) * scale[n][g]        nibble, zero: 0 to 15, unsigned;  g = k / group_size
//     out[n]       = sum over k of x[k] * weight[n][k]
//
// group_size divides columns. Numbers of x may be as large as 1e4. Errors up to 1e-5 of the sum over k of |x[k]| *
// scale[n][g] are accepted.
//
// x        fp32 [columns]                      scale  fp32 [rows, columns / group_size]
// qweight  uint8 [rows, columns / 2]           zero   uint8 [rows, columns / group_size]
// out      fp32 [rows]
//
// rows >= 1; group_size is a multiple of 8, not always of a vector. Read and write no number beside an array, and
// free the memory that you allocate. One thread; -O3 -march=native -fopenmp-simd.
//
// A plan: read eight columns as one 32-bit word, in little-endian order. word & (15 << 4 i) is nibble i times 16^i, which
// is exact as a float, so x of that column is multiplied by 16^-i once for all rows. The zero points need not be
// subtracted from each nibble: sum x (nibble - zero) = sum x nibble - zero * sum x, and the sum of x in a group is the
// same for all rows.
#include <cstdint>

// given up to here

#include <algorithm>
#include <vector>

#include "vector.h"

namespace {

constexpr int NIBBLES = 8;                // columns of a word
constexpr int COLUMNS = NIBBLES * LANES;  // of a step
constexpr int ROWS = 4;                   // rows that share the loads of x

template <class To>
inline To load(const void* from) {
    To x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

// Lane i of the result is lane from[i] of x.
inline vfloat permuted(vfloat x, vint from) {
#if defined(__clang__)
    vfloat y;
    for (int lane = 0; lane < LANES; lane++) y[lane] = x[from[lane]];
    return y;
#else
    return __builtin_shuffle(x, from);
#endif
}

// What all rows need of x. A step covers LANES words of a row.
struct Step {
    vfloat x[NIBBLES];  // lane l of x[i]: column 8 l + i of the step, times 16^-i
    int first_group;    // of the step
    vint group;         // of each lane, counted from there
};

struct Arranged {
    std::vector<Step> steps;
    std::vector<float> sums;  // of x in each group
    int words, groups;

    Arranged(const float* x, int columns, int group_size)
        : steps((columns + COLUMNS - 1) / COLUMNS), sums(columns / group_size), words(columns / NIBBLES),
          groups(columns / group_size) {
        const int words_of_group = group_size / NIBBLES;
        for (int group = 0; group < groups; group++)
            for (int k = group * group_size; k < (group + 1) * group_size; k++) sums[group] += x[k];
        for (int at = 0; at < int(steps.size()) * LANES; at++) {
            Step& step = steps[at / LANES];
            const int lane = at % LANES, group = std::min(at / words_of_group, groups - 1);
            if (lane == 0) step.first_group = group;
            step.group[lane] = group - step.first_group;
            float power = 1;
            for (int i = 0; i < NIBBLES; i++, power /= 16)
                step.x[i][lane] = at < words ? x[at * NIBBLES + i] * (i < NIBBLES - 1 ? power : 1) : 0;
        }
    }
};

// sum of nibble * x for each word
inline vfloat products(vuint words, const Step& step) {
    vfloat sum = {};
#pragma GCC unroll 8
    for (int i = 0; i < NIBBLES - 1; i++)
        sum += __builtin_convertvector((vint)(words & (15u << 4 * i)), vfloat) * step.x[i];
    return sum + __builtin_convertvector((vint)(words >> 28), vfloat) * step.x[NIBBLES - 1];  // no sign bit
}

// COUNT rows from where the pointers stand. factors: room for the scales of COUNT rows, LANES more for each.
template <int COUNT>
void multiply(const Arranged& x, const uint8_t* qweight, const float* scale, const uint8_t* zero, float* out,
              float* factors) {
    const int stride = x.groups + LANES, whole = x.words / LANES;
    float offsets[COUNT] = {};
    for (int row = 0; row < COUNT; row++) {
        std::memcpy(factors + row * stride, scale + row * x.groups, sizeof(float) * x.groups);
        for (int group = 0; group < x.groups; group++)
            offsets[row] += scale[row * x.groups + group] * zero[row * x.groups + group] * x.sums[group];
    }
    vfloat sums[COUNT] = {};
    const auto add = [&](int number, auto load_words) {
        const Step& step = x.steps[number];
#pragma GCC unroll 4
        for (int row = 0; row < COUNT; row++) {
            const vuint words = load_words(qweight + (long(row) * x.words + number * LANES) * sizeof(uint32_t));
            const vfloat factor = load<vfloat>(factors + row * stride + step.first_group);
            sums[row] += products(words, step) * permuted(factor, step.group);
        }
    };
    for (int number = 0; number < whole; number++) add(number, load<vuint>);
    if (whole * LANES < x.words)
        add(whole, [&](const uint8_t* from) {
            vuint last = {};
            std::memcpy(&last, from, (x.words - whole * LANES) * sizeof(uint32_t));
            return last;
        });
    for (int row = 0; row < COUNT; row++) {
        out[row] = -offsets[row];
        for (int lane = 0; lane < LANES; lane++) out[row] += sums[row][lane];
    }
}

}  // namespace

extern "C" void int4_gemv(const float* x, const uint8_t* qweight, const float* scale, const uint8_t* zero, float* out,
                          int rows, int columns, int group_size) {
    const Arranged arranged(x, columns, group_size);
    const int groups = arranged.groups;
    std::vector<float> factors(ROWS * (groups + LANES));
    for (int row = 0, count; row < rows; row += count) {
        count = rows - row >= ROWS ? ROWS : 1;
        const auto some = count == ROWS ? multiply<ROWS> : multiply<1>;
        some(arranged, qweight + long(row) * columns / 2, scale + long(row) * groups, zero + long(row) * groups,
             out + row, factors.data());
    }
}
