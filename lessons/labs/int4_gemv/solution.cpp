// Solution of lab cpp-int4-gemv. The first comment of the stub states the contract.
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
