// Choose one token per row without sorting. One block per row.
//
//     peak      = highest logit                      one pass; greedy rows are done
//     distance  = (peak - logit) / temperature       0 for the best token; as bits of an fp32 it sorts like an integer
//     limit     = the largest distance that stays:   min_p, then top_k, then top_p, each by a radix search
//     token     = argmax of Gumbel noise - distance, over what stays         = a sample of the softmax
//
// Radix search for the key (the bits of a distance, 31 of them) at which something summed from the top reaches a target:
// the count reaches top_k, or the probability reaches top_p. Five bits at a time, from the highest:
//
//     keys      |  bin 0  |  bin 1  |  bin 2  | ...  |  bin 31  |      add up each bin over the row
//     summed         3         9        14                             target 12: it lies in bin 2
//               |<- all stay ------>|<-look->|<- none stays ...        next pass: the keys of bin 2 only
//
// It ends early when the whole bin stays (the target is met at its end, or it holds one token), as a rule after two to
// four passes of the possible seven. Each thread adds to its own column of bins: no atomics, no bank conflicts on the
// sums, and the order of additions is fixed, so a row gives the same token alone and in a batch.
//
// Bound by bandwidth, of the L2 after the first pass: 4 bytes a token and pass.
// Source of the idea: RadiK (Li et al. 2024), FlashInfer's sampling kernels; the noise is that of reference/sampling.py.
//
// Defines: THREADS, VEC (logits of one load).
#include "common.cuh"

constexpr int BITS = 5;
constexpr int BINS = 1 << BITS;
constexpr int KEY_BITS = 31;
constexpr uint32_t INFINITE_KEY = 0x7f800000;

struct Columns {
    float mass[BINS][THREADS];
    uint16_t count[BINS][THREADS];
};

// What is the same for all tokens of a row.
struct Row {
    const float* logits;
    int vocab_size;
    float peak, temperature;

    __device__ float distance(float logit) const { return (peak - logit) / temperature; }
    __device__ uint32_t key(float logit) const { return __float_as_uint(fabsf(distance(logit))); }
};

template <class Visit>
__device__ inline void for_each_logit(const float* logits, int vocab_size, Visit visit) {
#pragma unroll 4
    for (int first = threadIdx.x * VEC; first < vocab_size; first += THREADS * VEC) {
        const auto values = load<VEC>(logits + first);
#pragma unroll
        for (int i = 0; i < VEC; ++i) visit(first + i, values.at[i]);
    }
}

// Value and token as one integer: the higher value wins, then the lower token. A NaN is higher than everything.
__device__ inline uint64_t candidate(float value, int token) {
    const uint32_t bits = __float_as_uint(value + 0.0f);  // -0 becomes 0
    const uint32_t ordered = value != value ? 0xffffffffu : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return uint64_t(ordered) << 32 | uint32_t(~token);
}

__device__ inline int token_of(uint64_t candidate) { return int(~uint32_t(candidate)); }

__device__ inline uint64_t best_of_block(uint64_t best) {
    __shared__ uint64_t scratch[THREADS / WARP];
    return reduce_block(best, Max(), scratch);
}

// Add up every bin of the columns of all threads: warp w takes bins w, w + 8, ...
__device__ inline void add_columns(const Columns& columns, float (&mass)[BINS], int (&count)[BINS]) {
    __syncthreads();
    for (int bin = warp_id(); bin < BINS; bin += THREADS / WARP) {
        float bin_mass = 0;
        int bin_count = 0;
        for (int thread = lane_id(); thread < THREADS; thread += WARP) {
            bin_mass += columns.mass[bin][thread];
            bin_count += columns.count[bin][thread];
        }
        bin_mass = reduce_lanes<WARP>(bin_mass, Sum());
        bin_count = reduce_lanes<WARP>(bin_count, Sum());
        if (lane_id() == 0) mass[bin] = bin_mass, count[bin] = bin_count;
    }
    __syncthreads();
}

// The largest key that stays if tokens are taken from the top until their sum reaches the target: their number reaches
// `target`, or, with BY_MASS, their probability `target` times that of all. Only keys up to `limit` are looked at.
template <bool BY_MASS>
__device__ inline uint32_t radix_search(const Row& row, uint32_t limit, float target, Columns& columns) {
    __shared__ float mass[BINS];
    __shared__ int count[BINS];
    uint32_t prefix = 0;  // of the keys that are still looked at: their bits from `shift` on
    float above = 0;      // the sum over smaller keys
    for (int shift = KEY_BITS; shift > 0;) {
        const int upper = shift;
        shift = max(0, shift - BITS);
        for (int bin = 0; bin < BINS; ++bin) columns.mass[bin][threadIdx.x] = columns.count[bin][threadIdx.x] = 0;
        for_each_logit(row.logits, row.vocab_size, [&](int, float logit) {
            const uint32_t key = row.key(logit);
            if (key > limit || key >> upper != prefix >> upper) return;
            const int bin = key >> shift & (BINS - 1) & ((1 << (upper - shift)) - 1);
            ++columns.count[bin][threadIdx.x];
            if (BY_MASS) columns.mass[bin][threadIdx.x] += expf(-__uint_as_float(key));
        });
        add_columns(columns, mass, count);

        if (BY_MASS && upper == KEY_BITS) {
            float total = 0;
            for (int bin = 0; bin < BINS; ++bin) total += mass[bin];
            target *= total;
        }
        int chosen = -1;
        float sum = above;
        for (int bin = 0; bin < BINS && (chosen < 0 || sum < target); ++bin) {
            if (count[bin] == 0) continue;
            above = sum;
            sum += BY_MASS ? mass[bin] : float(count[bin]);
            chosen = bin;
        }
        if (upper == KEY_BITS && sum < target) return limit;  // there is less than was asked for: all of it stays
        prefix |= uint32_t(chosen) << shift;
        if (count[chosen] == 1 || (!BY_MASS && sum == target)) return min(limit, prefix | ((1u << shift) - 1));
    }
    return min(limit, prefix);
}

// The finaliser of murmur3 with the second half of the row's key in its middle -> (0, 1) -> Gumbel.
__device__ inline float gumbel(uint32_t first_key, uint32_t second_key, int token) {
    uint32_t bits = first_key ^ uint32_t(token) * 0x9e3779b1u;
    bits = (bits ^ bits >> 16) * 0x85ebca6bu;
    bits = ((bits ^ bits >> 13) + second_key) * 0xc2b2ae35u;
    bits ^= bits >> 16;
    const float uniform = (float(bits) + 0.5f) * (0x1p-32f * (1 - 0x1p-24f));
    return -logf(-log1pf(-uniform));  // log1p keeps small values apart, from which the winners come
}

// logits [rows, vocab_size], rows strided; the parameters [rows], keys [rows, 2].
extern "C" __global__ void sample(const float* __restrict__ logits, const float* __restrict__ temperature,
                                  const int32_t* __restrict__ top_k, const float* __restrict__ top_p,
                                  const float* __restrict__ min_p, const uint32_t* __restrict__ keys,
                                  int64_t* __restrict__ token_ids, float* __restrict__ peaks, int64_t row_stride,
                                  int vocab_size) {
    DYNAMIC_SHARED(memory);
    Columns& columns = *reinterpret_cast<Columns*>(memory);
    const int r = blockIdx.x;
    logits += r * row_stride;

    uint64_t best = candidate(-INFINITY, 0);
    for_each_logit(logits, vocab_size, [&](int token, float logit) { best = Max()(best, candidate(logit, token)); });
    const int greedy = token_of(best_of_block(best));
    const Row row = {logits, vocab_size, logits[greedy], temperature[r]};
    if (threadIdx.x == 0) peaks[r] = row.peak;
    if (row.temperature == 0 || !isfinite(row.peak)) {
        if (threadIdx.x == 0) token_ids[r] = greedy;
        return;
    }

    uint32_t limit = min_p[r] > 0 ? __float_as_uint(fabsf(logf(min_p[r]))) : INFINITE_KEY;
    if (top_k[r] < vocab_size) limit = radix_search<false>(row, limit, float(top_k[r]), columns);
    if (top_p[r] < 1) limit = radix_search<true>(row, limit, top_p[r], columns);

    const uint32_t first_key = keys[2 * r], second_key = keys[2 * r + 1];
    best = candidate(-INFINITY, 0);
    for_each_logit(logits, vocab_size, [&](int token, float logit) {
        if (row.key(logit) > limit) return;
        best = Max()(best, candidate(gumbel(first_key, second_key, token) - row.distance(logit), token));
    });
    best = best_of_block(best);
    if (threadIdx.x == 0) token_ids[r] = token_of(best);
}
