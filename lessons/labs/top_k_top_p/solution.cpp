// Lab cpp-top-k-top-p: one token for each row of logits: temperature, top-k, top-p, one draw; no sort of a row.
//
// The seam is sample of kernels/ops.py, without min_p and with the noise given. Gumbel-max: Maddison et al. 2014
// (1411.0030); nucleus sampling: Holtzman et al. 2019 (1904.09751); filters without a sort: FlashInfer's sampling
// kernels, Qrita (Park et al. 2026, 2602.01518). vLLM 0.32: v1/sample/ops/topk_topp_sampler.py (sorts),
// topk_topp_triton.py (Qrita).
//
//     x[i]     = (logits[i] - highest logit) / temperature        never above 0, so exp(x) never overflows
//     top_k    keeps the tokens whose logit is at least the top_k-th highest
//     top_p    of these it keeps the most probable, up to and including the one with which their sum of exp(x) reaches
//              top_p times the sum over all that top_k keeps
//     token    = the one with the highest x + noise among what stays; the lowest id of equals
//
// With Gumbel noise, -log(-log(u)), that token is a sample of the softmax over what stays. Noise may be any finite
// number.
//
// Tokens with equal logits stay or go together, as in this engine. So each filter is a floor, found without an order.
// (vLLM keeps all that tie with the k-th logit where it sorts; its Triton kernel keeps k, the lowest ids of those that
// tie.)
//
// top_k is 1 to vocab, and vocab switches it off; top_p is above 0 and at most 1, and 1 switches it off. Temperature 0
// takes the highest logit, the lowest id of equals, whatever the rest says; other temperatures are at least 1e-5. A
// logit of -INFINITY forbids a token: it is never drawn, and every row has another. There are no NaN. Sums in fp32 are
// exact enough: in the checks no share of the sum lies within 1e-4 of top_p, and different logits and different scores
// x + noise lie apart.
//
// logits, noise  fp32 [rows, vocab]        temperature, top_p  fp32 [rows]
// token_ids      int32 [rows]              top_k               int32 [rows]
//
// vocab is any size >= 1. Read and write no number beside an array, and free the memory that you allocate. One
// thread; -O3 -march=native -fopenmp-simd.
#include <algorithm>
#include <cmath>

// given up to here

#include <cstring>
#include <functional>
#include <utility>
#include <vector>

namespace {

constexpr int LANES = 16;  // one register of AVX-512, two of AVX
typedef float vfloat __attribute__((vector_size(4 * LANES)));
typedef int vint __attribute__((vector_size(4 * LANES)));
constexpr int UNROLLED = 4;  // vectors at once, so that no instruction waits for the one before
constexpr int FEW = 64;      // candidates for a floor that are sorted at last

inline vfloat splat(float x) { return x - vfloat{}; }

inline vfloat load(const float* from, int count = LANES, float fill = 0) {
    vfloat x = splat(fill);
    if (count >= LANES)
        std::memcpy(&x, from, sizeof x);
    else
        for (int i = 0; i < count; i++) x[i] = from[i];
    return x;
}

inline vfloat select(vint condition, vfloat yes, vfloat no) {
    return (vfloat)(((vint)yes & condition) | ((vint)no & ~condition));
}

inline bool any(vint condition) {
    long parts[sizeof condition / sizeof(long)], all = 0;
    std::memcpy(parts, &condition, sizeof parts);
    for (const long part : parts) all |= part;
    return all != 0;
}

// exp(x) for x <= 0, within 1e-7: 2^n times a polynomial of the rest.
inline vfloat exponential(vfloat x) {
    x = select(x < -87.0f, splat(-87.0f), x);
    const vfloat shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;  // adding 1.5 * 2^23 rounds
    const vfloat r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vfloat p = splat(0.00138889f);
    for (const float factor : {0.00833333f, 0.0416666667f, 0.166666667f, 0.5f, 1.0f, 1.0f}) p = p * r + factor;
    return p * (vfloat)((__builtin_convertvector(n, vint) + 127) << 23);
}

// The best of a row by `combine`, with `fill` where the last vector is not full.
template <typename Combine>
inline float reduced(const float* numbers, int count, float fill, Combine combine) {
    vfloat found[UNROLLED];
    for (vfloat& each : found) each = splat(fill);
    for (int first = 0; first < count; first += UNROLLED * LANES)
#pragma GCC unroll 4
        for (int u = 0; u < UNROLLED; u++) {
            const int at = first + u * LANES;
            found[u] = combine(load(numbers + at, count - at, fill), found[u]);
        }
    const vfloat all = combine(combine(found[0], found[1]), combine(found[2], found[3]));
    float best = all[0];
    for (int i = 1; i < LANES; i++) best = combine(splat(all[i]), splat(best))[0];
    return best;
}

float highest_of(const float* logits, int count) {
    return reduced(logits, count, -INFINITY, [](vfloat x, vfloat y) { return x > y ? x : y; });
}

// The lowest but for those of forbidden tokens.
float lowest_of(const float* logits, int count) {
    return reduced(logits, count, INFINITY, [](vfloat x, vfloat y) { return (x < y) & (x > -INFINITY) ? x : y; });
}

// Calls visit(token) in order for the tokens with low < logit <= high. Where none is, four vectors cost one test.
template <typename Visit>
inline void for_each_between(const float* logits, int count, float low, float high, Visit visit) {
    for (int first = 0; first < count; first += UNROLLED * LANES) {
        const int end = std::min(count, first + UNROLLED * LANES);
        vint found = {};
        for (int at = first; at < end; at += LANES) {
            const vfloat x = load(logits + at, end - at, -INFINITY);
            found |= (x > low) & (x <= high);
        }
        if (!any(found)) continue;
        for (int token = first; token < end; token++)
            if (logits[token] > low && logits[token] <= high) visit(token);
    }
}

inline float below(float x) { return std::nextafter(x, -INFINITY); }

// Tokens among which a filter looks for its floor: their logits, and what each adds if that is not 1.
struct Tokens {
    const float* logits;
    const float* mass;
    int count;
};

struct Above {
    float sum;
    int count;
};

// What the tokens above the pivot add up to.
template <bool MASS>
Above above(const Tokens& tokens, float pivot) {
    vfloat sums[UNROLLED] = {};
    vint counts[UNROLLED] = {};
    for (int first = 0; first < tokens.count; first += UNROLLED * LANES)
        for (int u = 0; u < UNROLLED; u++) {
            const int at = first + u * LANES, rest = tokens.count - at;
            const vint in = load(tokens.logits + at, rest, -INFINITY) > pivot;
            counts[u] -= in;  // true is -1
            if (MASS) sums[u] += (vfloat)((vint)load(tokens.mass + at, rest) & in);
        }
    float sum = 0;
    int count = 0;
    for (int u = 0; u < UNROLLED; u++)
        for (int i = 0; i < LANES; i++) sum += sums[u][i], count += counts[u][i];
    return {MASS ? sum : float(count), count};
}

// The highest logit such that the tokens from it upward add up to at least `target`.
//
//     low                  pivot                 high       sum above the pivot   reaches target: low rises to it
//   ---(------ candidates ---|---------------------]--->    logit                 does not: high falls to it
//
// A few candidates are sorted. Between neighbouring floats there is no pivot: then all candidates are equal.
template <bool MASS>
float floor_of(const Tokens& tokens, float lowest, float highest, float target) {
    float low = below(lowest), high = highest;
    Above at_low = above<MASS>(tokens, low), at_high = {0, 0};
    if (at_low.sum <= target) return lowest;
    while (at_low.count - at_high.count > FEW) {
        const float pivot = low + (high - low) / 2;
        if (pivot <= low || pivot >= high) return high;
        const Above at_pivot = above<MASS>(tokens, pivot);
        if (at_pivot.sum >= target)
            low = pivot, at_low = at_pivot;
        else
            high = pivot, at_high = at_pivot;
    }
    std::vector<std::pair<float, float>> few;  // logit and what it adds
    for_each_between(tokens.logits, tokens.count, low, high, [&](int token) {
        few.push_back({tokens.logits[token], MASS ? tokens.mass[token] : 1.0f});
    });
    std::sort(few.begin(), few.end(), std::greater<>());
    float sum = at_high.sum, floor = high;
    for (size_t i = 0; i < few.size() && sum < target; i++) {
        sum += few[i].second;
        floor = few[i].first;
    }
    return floor;
}

// The logit from which tokens stay. top_p looks only at what top_k keeps.
float filtered(const float* logits, int vocab, float peak, float inverse, int top_k, float top_p) {
    static thread_local std::vector<float> kept, mass;
    float floor = lowest_of(logits, vocab);
    Tokens tokens = {logits, nullptr, vocab};
    if (top_k < vocab) {
        floor = floor_of<false>(tokens, floor, peak, float(top_k));
        kept.clear();
        for_each_between(logits, vocab, below(floor), peak, [&](int token) { kept.push_back(logits[token]); });
        tokens = {kept.data(), nullptr, int(kept.size())};
    }
    if (top_p == 1) return floor;
    mass.resize(tokens.count + LANES);
    tokens.mass = mass.data();
    vfloat sums = {};
    for (int at = 0; at < tokens.count; at += LANES) {
        const vfloat logit = load(tokens.logits + at, tokens.count - at, -INFINITY);
        const vfloat weight = exponential((logit - peak) * inverse);
        std::memcpy(&mass[at], &weight, sizeof weight);
        sums += select(logit > -INFINITY, weight, vfloat{});
    }
    float total = 0;
    for (int i = 0; i < LANES; i++) total += sums[i];
    return floor_of<true>(tokens, floor, peak, top_p * total);
}

int greedy(const float* logits, int vocab, float peak) {
    int at = 0;
    while (at < vocab && !any(load(logits + at, vocab - at, -INFINITY) == peak)) at += LANES;
    while (logits[at] != peak) at++;
    return at;
}

// The token with the highest x + noise from the floor upward.
int draw(const float* logits, const float* noise, int vocab, float peak, float inverse, float floor) {
    float best = -INFINITY;
    int token = 0;
    for (int at = 0; at < vocab; at += LANES) {
        const vfloat logit = load(logits + at, vocab - at, -INFINITY);
        const vint in = logit >= floor;
        if (!any(in)) continue;
        const vfloat score = (logit - peak) * inverse + load(noise + at, vocab - at);
        if (!any(in & (score > best))) continue;
        for (int i = 0; i < LANES; i++)
            if (in[i] && score[i] > best) {
                best = score[i];
                token = at + i;
            }
    }
    return token;
}

}  // namespace

extern "C" void top_k_top_p(const float* logits, const float* noise, const float* temperature, const int* top_k,
                            const float* top_p, int* token_ids, int rows, int vocab) {
    for (int row = 0; row < rows; row++, logits += vocab, noise += vocab) {
        const float peak = highest_of(logits, vocab), inverse = 1 / temperature[row];
        if (temperature[row] == 0) {
            token_ids[row] = greedy(logits, vocab, peak);
            continue;
        }
        const float floor = filtered(logits, vocab, peak, inverse, top_k[row], top_p[row]);
        token_ids[row] = draw(logits, noise, vocab, peak, inverse, floor);
    }
}
