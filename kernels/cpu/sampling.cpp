// One token per row of logits, chosen without sorting them. A row goes through at most four stages:
//
//   peak     its highest logit and, greedy, that token: done
//   scale    x = (logit - peak) / temperature, at most 0 whatever the temperature, into a scratch row
//   floor    one number per row: min_p, top_k and top_p keep the tokens with x >= floor
//   draw     the highest x + Gumbel(hash(key, token)) among them
//
// Nothing is ever put in order. top_k asks for the k-th highest x, top_p for the x at which the probability from the
// top reaches p: both are the highest floor whose tokens weigh enough, with weights of 1 or of e^x. That
// floor is found by bisection, each step one pass over a row that lies in the L1 or L2 cache (`highest_floor`).
//
// Source: pivot search instead of a sort as in FlashInfer (sampling.cuh) and vLLM v1/worker/gpu/sample; the noise is
// that of kernels/reference/sampling.py.

#include <cmath>
#include <vector>

#include "graph.h"
#include "threads.h"
#include "vector.h"

namespace {

constexpr float HIGHEST_NOISE = 23.0f, LOWEST_NOISE = -2.9f;  // what 32 bits can give: 22.88 and -2.81
constexpr int64_t PARALLEL_TOKENS = 1 << 18;  // less than this is done before a second thread has woken up
constexpr int64_t RANDOM_COST = 16;           // a row with a temperature, in greedy rows

inline bool any(vint condition) {
    int64_t parts[LANES / 2], all = 0;
    std::memcpy(parts, &condition, sizeof parts);
    for (int64_t part : parts) all |= part;
    return all != 0;
}

// The next LANES of what is left of a row; past its end, `fill`.
inline vfloat load_part(const float* from, int64_t left, float fill) {
    if (left >= LANES) return load(from);
    vfloat x = splat(fill);
    for (int i = 0; i < left; i++) x[i] = from[i];
    return x;
}

// --- peak --------------------------------------------------------------------------------------------------

// The first token whose logit is `peak`, which the row holds.
int64_t first_equal(const float* logits, int64_t vocab_size, float peak) {
    int64_t token = 0;
    for (; token + 4 * LANES <= vocab_size; token += 4 * LANES) {
        const float* at = logits + token;
        const vint first = (load(at) == peak) | (load(at + LANES) == peak);
        const vint second = (load(at + 2 * LANES) == peak) | (load(at + 3 * LANES) == peak);
        if (any(first | second)) break;
    }
    while (logits[token] != peak) token++;
    return token;
}

// The highest logit; NaN if the row holds one.
float highest_logit(const float* logits, int64_t vocab_size) {
    vfloat highest[4];
    vint nan{};
    for (vfloat& each : highest) each = splat(-INFINITY);
    for (int64_t token = 0; token < vocab_size; token += 4 * LANES)
        for (int part = 0; part < 4; part++) {
            const int64_t at = token + part * LANES;
            const vfloat x = load_part(logits + at, vocab_size - at, -INFINITY);
            highest[part] = x > highest[part] ? x : highest[part];
            nan |= x != x;
        }
    if (any(nan)) return NAN;
    return largest(maximum(maximum(highest[0], highest[1]), maximum(highest[2], highest[3])));
}

// --- floor -------------------------------------------------------------------------------------------------

// A row on its way, padded with x = -inf and weight = 0 to whole vectors.
struct Row {
    const float* x;
    const float* weight;  // e^x
    int64_t padded_size;
};

// What a pivot parts a row into.
struct Parts {
    float weight;   // of the tokens with x >= pivot
    float lowest;   // x among them
    float highest;  // x among the others
};

template <bool COUNT>  // every token weighs 1 instead of e^x
Parts part_at(const Row& row, float pivot) {
    vfloat weight{}, lowest = splat(INFINITY), highest = splat(-INFINITY);
    for (int64_t token = 0; token < row.padded_size; token += LANES) {
        const vfloat x = load(row.x + token);
        const vint above = x >= pivot;
        weight += (vfloat)((vint)(COUNT ? splat(1.0f) : load(row.weight + token)) & above);
        const vfloat in = above ? x : splat(INFINITY), out = above ? splat(-INFINITY) : x;
        lowest = in < lowest ? in : lowest;
        highest = out > highest ? out : highest;
    }
    return {sum(weight), -largest(-lowest), largest(highest)};
}

// Halfway between low <= high <= 0, counted in floats: for numbers of one sign their order is that of their bits.
float halfway(float low, float high) {
    uint32_t deep, flat;
    std::memcpy(&deep, &low, sizeof deep);
    std::memcpy(&flat, &high, sizeof flat);
    deep &= 0x7fffffff, flat &= 0x7fffffff;
    const uint32_t middle = (flat + (deep - flat) / 2) | 0x80000000;
    float value;
    std::memcpy(&value, &middle, sizeof value);
    return value;
}

// The highest x of the row such that the tokens from it upward weigh at least `target`, if those from `low` do.
//
//     low               pivot               high        weight of what is >= pivot   reaches the target: low rises
//   ---[------------------|------------------]---> x                                 does not: high falls
//
// Both ends jump on to the next x that a token has, so that ten passes are usual and 32 are the most there can be.
template <bool COUNT>
float highest_floor(const Row& row, float low, float target) {
    float high = 0;  // the peak's
    while (low < high) {
        float pivot = halfway(low, high);
        if (pivot <= low) pivot = high;  // neighbours: nothing lies between
        const Parts parts = part_at<COUNT>(row, pivot);
        if (parts.weight >= target)
            low = parts.lowest;
        else
            high = parts.highest;
    }
    return low;
}

struct Filters {
    int64_t top_k;
    float top_p, min_p;
};

// Lowest x that min_p, then top_k, then top_p among the survivors let through.
float find_floor(const Row& row, int64_t vocab_size, const Filters& filters) {
    float floor = std::log(filters.min_p);  // e^x >= min_p
    if (filters.top_k < vocab_size && part_at<true>(row, floor).weight > filters.top_k)
        floor = highest_floor<true>(row, floor, filters.top_k);
    if (filters.top_p < 1.0f)
        floor = highest_floor<false>(row, floor, filters.top_p * part_at<false>(row, floor).weight);
    return floor;
}

// --- draw --------------------------------------------------------------------------------------------------

// ln of a positive normal number, as ln(2^n * m) = n ln 2 + ln m with m in [1/sqrt 2, sqrt 2). With f = m - 1 and
// s = f / (2 + f): ln m = 2 atanh s = 2s + s R, R = 2/3 s^2 + 2/5 s^4 + ...; as 2s = f - s f, it is f - s (f - R),
// where f is exact and the rest is small.
inline vfloat natural_log(vfloat x) {
    const vint n = ((vint)x - 0x3f3504f3) >> 23;
    const vfloat f = (vfloat)((vint)x - (n << 23)) - 1.0f;
    const vfloat s = f / (f + 2.0f);
    const vfloat s2 = s * s;
    const vfloat rest = s2 * (2.0f / 3 + s2 * (2.0f / 5 + s2 * (2.0f / 7 + s2 * (2.0f / 9))));
    const vfloat exponent = __builtin_convertvector(n, vfloat);
    return exponent * 0.693359375f + (f - s * (f - rest) - exponent * 2.12194440e-4f);
}

// Gumbel noise of LANES tokens: the hash bit for bit as everywhere, the two logarithms within 2e-7.
inline vfloat gumbel(vuint tokens, uint32_t first_key, uint32_t second_key) {
    vuint bits = (tokens * 0x9E3779B1u) ^ first_key;
    bits = (bits ^ (bits >> 16)) * 0x85EBCA6Bu;
    bits = ((bits ^ (bits >> 13)) + second_key) * 0xC2B2AE35u;
    bits ^= bits >> 16;
    const vfloat u = (__builtin_convertvector(bits, vfloat) + 0.5f) * 0x1.fffffep-33f;  // in (0, 1)
    // 1 - u loses the low bits of a small u, where the winners come from. What was lost goes into the logarithm.
    const vfloat rest = 1.0f - u;
    const vfloat lost = (1.0f - rest) - u;
    return -natural_log(-(natural_log(rest) + lost));
}

// The token with the highest x + noise among those with x >= floor; the lowest id of equals.
//
// The noise lies within [-2.9, 23]. So the winner has at least -2.9, the peak's share in the worst case, and a token
// that even 23 would not lift over the best of its lane needs no noise: of a trained model's vocabulary most.
int64_t draw(const Row& row, float floor, uint32_t first_key, uint32_t second_key) {
    vfloat best = splat(LOWEST_NOISE);
    vint best_token{};
    const vint lanes = lane_numbers();
    for (int64_t token = 0; token < row.padded_size; token += LANES) {
        const vfloat x = load(row.x + token);
        const vint candidate = (x >= floor) & (x >= best - HIGHEST_NOISE);
        if (!any(candidate)) continue;
        const vint tokens = lanes + static_cast<int32_t>(token);
        const vfloat score = x + gumbel((vuint)tokens, first_key, second_key);
        const vint wins = candidate & (score > best);
        best = select(wins, score, best);
        best_token = (tokens & wins) | (best_token & ~wins);
    }
    const float highest = largest(best);
    int64_t winner = row.padded_size;
    for (int i = 0; i < LANES; i++)
        if (best[i] == highest && best_token[i] < winner) winner = best_token[i];
    return winner;
}

// --- a row, all rows ---------------------------------------------------------------------------------------

// Scale into a scratch row that each thread keeps; the weights only where they are asked for.
Row scale(const float* logits, int64_t vocab_size, float peak, float temperature, bool weights) {
    static thread_local std::vector<float> scratch;
    const int64_t padded_size = (vocab_size + LANES - 1) / LANES * LANES;
    if (static_cast<int64_t>(scratch.size()) < 2 * padded_size) scratch.resize(2 * padded_size);
    float* x = scratch.data();
    float* weight = x + padded_size;
    for (int64_t token = 0; token < padded_size; token += LANES) {
        const vfloat scaled = (load_part(logits + token, vocab_size - token, -INFINITY) - peak) / temperature;
        store(x + token, scaled);
        if (weights) store(weight + token, exp_nonpositive(scaled));
    }
    return {x, weight, padded_size};
}

int64_t sample_row(const float* logits, int64_t vocab_size, float temperature, const Filters& filters,
                   const uint32_t* key, float* peak) {
    *peak = highest_logit(logits, vocab_size);
    if (std::isnan(*peak)) return 0;
    if (temperature == 0.0f || std::isinf(*peak)) return first_equal(logits, vocab_size, *peak);
    const Row row = scale(logits, vocab_size, *peak, temperature, filters.top_p < 1.0f);
    return draw(row, find_floor(row, vocab_size, filters), key[0], key[1]);
}

}  // namespace

// logits [rows, vocab_size] with `stride` between rows, keys [rows, 2]; see ops.sample.
extern "C" void sample(const float* logits, int64_t stride, int64_t rows, int64_t vocab_size,
                       const float* temperature, const int32_t* top_k, const float* top_p, const float* min_p,
                       const uint32_t* keys, int64_t* token_ids, float* peaks) {
    launch(SAMPLING, [=] {
        int64_t work = 0;
        for (int64_t row = 0; row < rows; row++) work += vocab_size * (temperature[row] == 0.0f ? 1 : RANDOM_COST);
        for_ranges(rows, work > PARALLEL_TOKENS, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; row++)
                token_ids[row] = sample_row(logits + row * stride, vocab_size, temperature[row],
                                            {top_k[row], top_p[row], min_p[row]}, keys + 2 * row, peaks + row);
        });
    });
}

// -inf in place wherever the token's bit is 0; bitmask [rows, mask_stride] words of 32 tokens, the lowest bit first.
extern "C" void apply_token_bitmask(float* logits, int64_t stride, int64_t rows, int64_t vocab_size,
                                    const int32_t* bitmask, int64_t mask_stride) {
    const vint lanes = lane_numbers();
    for (int64_t row = 0; row < rows; row++)
        for (int64_t token = 0; token < vocab_size; token += 32) {
            float* at = logits + row * stride + token;
            const int32_t word = bitmask[row * mask_stride + token / 32];
            if (word == -1) continue;
            if (token + 32 <= vocab_size)
                for (int part = 0; part < 32; part += LANES) {
                    const vint forbidden = ((splat_int(word) >> (lanes + part)) & 1) == 0;
                    store(at + part, select(forbidden, splat(-INFINITY), load(at + part)));
                }
            else
                for (int bit = 0; token + bit < vocab_size; bit++)
                    if (!(word >> bit & 1)) at[bit] = -INFINITY;
        }
}
