// Lab cuda-top-k-top-p: one token for each row of logits: temperature, top-k, top-p, one draw; no sort of a row.
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
// Launched with one block of THREADS = 256 threads for each row: blockIdx.x is the row. It has 48 KB
// (49,152 bytes) of dynamic shared memory, see DYNAMIC_SHARED. vocab is a multiple of 4, so that a thread can load 16
// bytes at once, and at most 1,000,000. The result must not depend on the order in which threads run. common.cuh
// (kernels/cuda) has load, reduce_block and more.
//
// A plan: for numbers >= 0 the bits of a float, read as an integer, have the order of the floats. So with the
// distances -x the floor can be searched digit by digit, from the highest: in each pass the block adds up, for each
// value of the next five bits, the tokens (or their exp) whose higher bits are those found so far. The first digit at
// which the sum from the top reaches the target is the next digit of the floor.
//
// Read and write no number beside an array. No two threads race: what one thread changes and another uses is ordered by a
// barrier, an exchange of the warp, or atomicAdd. The threads of a block share its work: none makes more than three times
// its share of the block's accesses to memory.
#include "common.cuh"

constexpr int THREADS = 256;

// given up to here

constexpr int WARPS = THREADS / WARP;
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
