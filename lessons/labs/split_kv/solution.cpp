// Lab cpp-split-kv: attention over a long row in splits, and the reduction of (m, l, acc).
//
// The seam is paged_attention of kernels/ops.py, for decode: one query per row, keys and values in blocks of the cache.
// One long row leaves most of a GPU idle, so its tokens are split (Flash-Decoding: Dao et al. 2023; vLLM:
// v1/attention/ops/triton_unified_attention.py, reduce_segments).
//
//     row       |---- split 0 ----|---- split 1 ----|---- split 2 ----|--    split s: tokens from s * split_size on
//     window                            |<------------------------------>|   the last `window` tokens are seen; 0: all
//
//     decode_splits    for each row, head and split, over the tokens of the split that are seen:
//                          peak = max score   mass = sum exp(score - peak)   acc = sum exp(score - peak) * value
//                      without such a token: peak = -INFINITY, mass = 0; acc is not read, whatever it holds
//
//     merge_splits     for each row and head, with M the largest peak of its splits:
//                          out = sum exp(peak - M) * acc / sum exp(peak - M) * mass
//
//     row r has seq_lens[r] tokens; token t lies in block table[r][t / block_size], slot t % block_size
//     score(t) = scale * dot(query[r][h], key[t])           query head h reads kv head h / (heads / kv_heads)
//
// Papers call peak, mass and acc m, l and o. They depend on the row only, with the same bits alone and in a batch, and
// whatever `splits` is. Slots behind the last token hold NaN, so may acc of a split without a token; columns of the table
// behind a row's last block hold anything: read none of them. Scores may be as large as 1e4. Accepted errors: 2e-5 of the
// largest score for peak, of mass for mass, of mass times the row's largest value for acc, of that value for out.
//
// query, out  fp32 [rows, heads, head_dim]                       peak, mass  fp32 [rows, heads, splits]
// kv          fp32 [blocks, 2, kv_heads, block_size, head_dim]   acc         fp32 [rows, heads, splits, head_dim]
//             (0: keys, 1: values)                               table       int32 [rows, max_blocks]
// seq_lens    int32 [rows], each >= 1
//
// split_size is a multiple of block_size, and splits * split_size is at least each of seq_lens.
//
// head_dim is any size from 1 to 256, heads a multiple of kv_heads, at most 8 heads per kv head. Read and write no
// number beside an array, and free the memory that you allocate. One thread; -O3 -march=native -fopenmp-simd.
#include <algorithm>
#include <cmath>

// given up to here

#include "vector.h"

namespace {

constexpr int PARTS = 4;             // vectors of scores of a chunk
constexpr int KEYS = PARTS * LANES;  // keys that share one rescaling
constexpr int MAX_DIM = 256;
constexpr int MAX_GROUP = 4;  // queries that share a pass over the keys
const vint LANE = lane_numbers();

// Lane i of two vectors behind each other: of the first, or of the second where DISTANCE is a part of i; and the lane
// DISTANCE away from it.
template <int DISTANCE>
struct Own {
    static constexpr int of(int i) { return i & DISTANCE ? LANES + i : i; }
};
template <int DISTANCE>
struct Other {
    static constexpr int of(int i) { return Own<DISTANCE>::of(i) ^ DISTANCE; }
};

// Lane i of the result is the sum of the lanes of x[i]. A round adds up halves of two vectors in one: log2(LANES) rounds
// of LANES / 2, LANES / 4, ... additions, where one vector after the other would take LANES log2(LANES).
template <int DISTANCE = LANES / 2>
inline __attribute__((always_inline)) vfloat add_lanes(vfloat (&x)[LANES]) {
#pragma GCC unroll 8
    for (int i = 0; i < DISTANCE; i++)
        x[i] = shuffled<Own<DISTANCE>>(x[i], x[i + DISTANCE]) + shuffled<Other<DISTANCE>>(x[i], x[i + DISTANCE]);
    if constexpr (DISTANCE > 1) return add_lanes<DISTANCE / 2>(x);
    return x[0];
}

// Some keys of one kv head. Addresses behind `count` are those of the last key: they are read, and count for nothing.
struct Chunk {
    const float* keys[KEYS];
    long to_values;  // from a key to its value
    int count;
};

// Scores of one query with LANES keys.
vfloat dots(const float* query, const float* const* keys, int dim) {
    vfloat sums[LANES] = {};
    int i = 0;
    for (; i + LANES <= dim; i += LANES) {
        const vfloat q = load(query + i);
#pragma GCC unroll 16
        for (int t = 0; t < LANES; t++) sums[t] += q * load(keys[t] + i);
    }
    vfloat all = add_lanes(sums);
    for (; i < dim; i++)
        for (int t = 0; t < LANES; t++) all[t] += query[i] * keys[t][i];
    return all;
}

// The G queries of one kv head, while they pass over its keys.
template <int G>
struct Group {
    float peak[G], out[G][MAX_DIM];
    vfloat mass[G];

    void add(const float* query, const Chunk& chunk, int dim, float scale) {
        float weights[G][KEYS];
        for (int g = 0; g < G; g++) {
            vfloat scores[PARTS], highest = splat(-INFINITY);
            for (int part = 0; part * LANES < chunk.count; part++)
                scores[part] = dots(query + g * dim, chunk.keys + part * LANES, dim) * scale;
            for (int part = 0; part < PARTS; part++) {
                scores[part] = select(LANE + part * LANES < chunk.count, scores[part], splat(-INFINITY));
                highest = highest < scores[part] ? scores[part] : highest;
            }
            rescale(g, largest(highest), dim);
            for (int part = 0; part < PARTS; part++) {
                const vfloat weight = exp_nonpositive(scores[part] - peak[g]);
                mass[g] += weight;
                store(weights[g] + part * LANES, weight);
            }
        }
        constexpr int WIDE = G == 1 ? 4 : 2;  // sums that stay in registers: G * WIDE
        int i = 0;
        for (; i + WIDE * LANES <= dim; i += WIDE * LANES) mix<WIDE>(chunk, i, weights);
        for (; i + LANES <= dim; i += LANES) mix<1>(chunk, i, weights);
        for (; i < dim; i++)
            for (int g = 0; g < G; g++)
                for (int t = 0; t < chunk.count; t++) out[g][i] += weights[g][t] * chunk.keys[t][chunk.to_values + i];
    }

    void rescale(int g, float candidate, int dim) {
        if (candidate <= peak[g]) return;
        const float shrink = exp_nonpositive(splat(peak[g] - candidate))[0];
        mass[g] *= shrink;
        for (int i = 0; i < dim; i++) out[g][i] *= shrink;
        peak[g] = candidate;
    }

    float total(int g) const {
        float sum = 0;
        for (int lane = 0; lane < LANES; lane++) sum += mass[g][lane];
        return sum;
    }

    // out += weights * values, for WIDE * LANES dimensions from i on.
    template <int WIDE>
    void mix(const Chunk& chunk, int i, const float (&weights)[G][KEYS]) {
        vfloat sums[G][WIDE];
        for (int g = 0; g < G; g++)
            for (int w = 0; w < WIDE; w++) sums[g][w] = load(out[g] + i + w * LANES);
        for (int t = 0; t < chunk.count; t++) {
            const float* value = chunk.keys[t] + chunk.to_values + i;
            for (int w = 0; w < WIDE; w++) {
                const vfloat v = load(value + w * LANES);
                for (int g = 0; g < G; g++) sums[g][w] += weights[g][t] * v;
            }
        }
        for (int g = 0; g < G; g++)
            for (int w = 0; w < WIDE; w++) store(out[g] + i + w * LANES, sums[g][w]);
    }
};

struct Shape {
    int kv_heads, head_dim, block_size;
    float scale;
};

// What is read and written: the tensors of the contract.
struct Rows {
    const float *query, *kv;
    const int* table;
    float *peak, *mass, *acc;
    int heads, max_blocks, splits;
};

// The keys begin <= token < end of a row's split, for G queries of one kv head: to their states.
template <int G>
void attend(const Rows& rows, const Shape& shape, int row, int first_head, int split, int begin, int end) {
    const long page = long(shape.block_size) * shape.head_dim;  // of one kv head
    const int* table = rows.table + long(row) * rows.max_blocks;
    const long head = long(row) * rows.heads + first_head, kv_head = first_head / (rows.heads / shape.kv_heads);
    Group<G> group = {};
    for (int g = 0; g < G; g++) group.peak[g] = -INFINITY;
    Chunk chunk;
    chunk.to_values = shape.kv_heads * page;
    int column = begin / shape.block_size, slot = begin % shape.block_size;
    for (int first = begin; first < end; first += KEYS) {
        chunk.count = std::min(KEYS, end - first);
        for (int t = 0; t < chunk.count; t++) {
            const long block = table[column];
            chunk.keys[t] = rows.kv + (block * 2 * shape.kv_heads + kv_head) * page + long(slot) * shape.head_dim;
            if (++slot == shape.block_size) slot = 0, column++;
        }
        std::fill(chunk.keys + chunk.count, chunk.keys + KEYS, chunk.keys[chunk.count - 1]);
        group.add(rows.query + head * shape.head_dim, chunk, shape.head_dim, shape.scale);
    }
    for (int g = 0; g < G; g++) {
        const long at = (head + g) * rows.splits + split;
        rows.peak[at] = group.peak[g];
        rows.mass[at] = group.total(g);
        if (begin < end) std::copy_n(group.out[g], shape.head_dim, rows.acc + at * shape.head_dim);
    }
}

using Attend = decltype(&attend<1>);
constexpr Attend ATTEND[MAX_GROUP] = {attend<1>, attend<2>, attend<3>, attend<4>};

}  // namespace

extern "C" void decode_splits(const float* query, const float* kv, const int* table, const int* seq_lens,
                              float* peak, float* mass, float* acc, int rows, int heads, int kv_heads, int head_dim,
                              int block_size, int max_blocks, int window, int splits, int split_size, float scale) {
    const Rows all = {query, kv, table, peak, mass, acc, heads, max_blocks, splits};
    const Shape shape = {kv_heads, head_dim, block_size, scale};
    const int group = heads / kv_heads;
    for (int row = 0; row < rows; row++) {
        const int length = seq_lens[row], seen = window ? std::max(0, length - window) : 0;
        for (int split = 0; split < splits; split++) {
            const int begin = std::max(seen, split * split_size), end = std::min(length, (split + 1) * split_size);
            for (int head = 0, count; head < heads; head += count) {
                count = std::min(MAX_GROUP, group - head % group);
                ATTEND[count - 1](all, shape, row, head, split, begin, end);
            }
        }
    }
}

extern "C" void merge_splits(const float* peak, const float* mass, const float* acc, float* out, int rows, int heads,
                             int splits, int head_dim) {
    for (long head = 0; head < long(rows) * heads; head++, peak += splits, mass += splits) {
        const float highest = *std::max_element(peak, peak + splits);
        float total = 0, *to = out + head * head_dim;
        std::fill_n(to, head_dim, 0.0f);
        for (int split = 0; split < splits; split++, acc += head_dim) {
            if (peak[split] == -INFINITY) continue;
            const float weight = std::exp(peak[split] - highest);
            total += weight * mass[split];
            for (int i = 0; i < head_dim; i++) to[i] += weight * acc[i];
        }
        for (int i = 0; i < head_dim; i++) to[i] /= total;
    }
}
