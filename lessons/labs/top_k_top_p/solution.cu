// Solution of lab cuda-top-k-top-p. The first comment of the stub states the contract.
#include "common.cuh"

constexpr int THREADS = 256, WARPS = THREADS / WARP;
constexpr int BITS = 5, BINS = 1 << BITS;
constexpr int KEY_BITS = 31;

// Each thread adds to its own column of bins: no atomics, and the order of the additions is fixed.
struct Columns {
    float mass[BINS][THREADS];
    uint16_t count[BINS][THREADS];
};

struct Row {
    const float* logits;
    int vocab;
    float peak, temperature;

    __device__ float distance(float logit) const { return (peak - logit) / temperature; }
    __device__ uint32_t key(float logit) const { return __float_as_uint(distance(logit)); }  // 0 for the best token
};

template <class Visit>
__device__ inline void for_each_logit(const Row& row, Visit visit) {
    for (int first = threadIdx.x * 4; first < row.vocab; first += THREADS * 4) {
        const auto values = load<4>(row.logits + first);
#pragma unroll
        for (int i = 0; i < 4; ++i) visit(first + i, values.at[i]);
    }
}

// A value and a token as one integer: the higher value wins, then the lower token.
__device__ inline uint64_t candidate(float value, int token) {
    const uint32_t bits = __float_as_uint(value + 0.0f);  // -0 becomes 0
    const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return uint64_t(ordered) << 32 | uint32_t(~token);
}

__device__ inline int best_token(uint64_t best) {
    __shared__ uint64_t scratch[WARPS];
    return int(~uint32_t(reduce_block(best, Max(), scratch)));
}

// The largest key that stays when tokens are taken from the top until they reach `target`: in number, or with MASS in
// their sum of exp, of which target is then the share. Keys above `limit` are out.
template <bool MASS>
__device__ inline uint32_t radix_search(const Row& row, uint32_t limit, float target, Columns& columns) {
    __shared__ float sums[BINS];
    uint32_t prefix = 0;  // of the keys that are still looked at
    float above = 0;      // the sum over smaller keys
    for (int shift = KEY_BITS; shift > 0;) {
        const int upper = shift;
        shift = max(0, shift - BITS);
        for (int bin = 0; bin < BINS; ++bin) columns.mass[bin][threadIdx.x] = columns.count[bin][threadIdx.x] = 0;
        for_each_logit(row, [&](int, float logit) {
            const uint32_t key = row.key(logit);
            if (key > limit || key >> upper != prefix >> upper) return;
            const int bin = int(key >> shift) & ((1 << (upper - shift)) - 1);
            if (MASS)
                columns.mass[bin][threadIdx.x] += expf(-__uint_as_float(key));
            else
                ++columns.count[bin][threadIdx.x];
        });
        __syncthreads();
        for (int bin = warp_id(); bin < BINS; bin += WARPS) {
            float sum = 0;
            for (int thread = lane_id(); thread < THREADS; thread += WARP)
                sum += MASS ? columns.mass[bin][thread] : float(columns.count[bin][thread]);
            sum = reduce_lanes<WARP>(sum, Sum());
            if (lane_id() == 0) sums[bin] = sum;
        }
        __syncthreads();
        float total = above;
        for (int bin = 0; bin < BINS; ++bin) total += sums[bin];
        if (upper == KEY_BITS) {
            if (MASS) target *= total;
            if (total <= target) return limit;  // all of it stays
        }
        int chosen = 0;
        float sum = above;
        for (int bin = 0; bin < BINS && sum < target; ++bin) {
            if (sums[bin] == 0) continue;
            above = sum;
            sum += sums[bin];
            chosen = bin;
        }
        prefix |= uint32_t(chosen) << shift;
        __syncthreads();  // before sums and columns are used again
    }
    return min(limit, prefix);
}

extern "C" __global__ void top_k_top_p(const float* logits, const float* noise, const float* temperature,
                                       const int* top_k, const float* top_p, int* token_ids, int vocab) {
    DYNAMIC_SHARED(memory);
    Columns& columns = *reinterpret_cast<Columns*>(memory);
    const int r = blockIdx.x;
    Row row = {logits + int64_t(r) * vocab, vocab, 0, temperature[r]};
    noise += int64_t(r) * vocab;

    uint64_t best = 0;
    for_each_logit(row, [&](int token, float logit) { best = Max()(best, candidate(logit, token)); });
    const int greedy = best_token(best);
    if (row.temperature == 0) {
        if (threadIdx.x == 0) token_ids[r] = greedy;
        return;  // the whole block
    }
    row.peak = row.logits[greedy];

    uint32_t limit = __float_as_uint(INFINITY) - 1;  // a forbidden token is infinitely far away
    if (top_k[r] < vocab) limit = radix_search<false>(row, limit, float(top_k[r]), columns);
    if (top_p[r] < 1) limit = radix_search<true>(row, limit, top_p[r], columns);

    best = 0;
    for_each_logit(row, [&](int token, float logit) {
        if (row.key(logit) <= limit) best = Max()(best, candidate(noise[token] - row.distance(logit), token));
    });
    const int token = best_token(best);
    if (threadIdx.x == 0) token_ids[r] = token;
}
