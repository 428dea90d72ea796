// Lab cpp-paged-decode: attention of one query per row over a paged cache, with online softmax.
//
// The seam is paged_attention of kernels/ops.py, for decode: one query per row, whose keys and values lie in blocks of the
// cache. Online softmax: Milakov and Gimelshein 2018 (1805.02867); PagedAttention: Kwon et al. 2023 (2309.06180); vLLM:
// csrc/attention/attention_kernels.cuh.
//
//     row r has seq_lens[r] tokens; token t lies in block table[r][t / block_size], slot t % block_size
//     score(t)  = scale * dot(query[r][h], key[t])          query head h reads kv head h / (heads / kv_heads)
//     out[r][h] = sum over t of exp(score(t) - max) / sum of exp * value[t]
//
//     chunk by chunk, with a running maximum m, mass l and output o:
//         m' = max(m, max s)    p = exp(s - m')    l = l exp(m - m') + sum p    o = o exp(m - m') + sum p value
//
// With a window w > 0 only the last w tokens are seen; 0 means no window. Slots behind the last token hold NaN, columns
// of the table behind a row's last block hold anything: read neither. Scores may be as large as 1e4. Errors up to 2e-5 of
// the largest value of the row are accepted.
//
// query, out  fp32 [rows, heads, head_dim]                             seq_lens  int32 [rows], each >= 1
// kv          fp32 [blocks, 2, kv_heads, block_size, head_dim]         table     int32 [rows, max_blocks]
//             (0: keys, 1: values)
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

// All keys begin <= token < end of one row, for the G queries of one kv head.
template <int G>
void attend(const float* query, const float* kv, const int* table, int begin, int end, int kv_head, float* out,
            const Shape& shape) {
    const long page = long(shape.block_size) * shape.head_dim;  // of one kv head
    Group<G> group = {};
    for (int g = 0; g < G; g++) group.peak[g] = -INFINITY;
    Chunk chunk;
    chunk.to_values = shape.kv_heads * page;
    int column = begin / shape.block_size, slot = begin % shape.block_size;
    for (int first = begin; first < end; first += KEYS) {
        chunk.count = std::min(KEYS, end - first);
        for (int t = 0; t < chunk.count; t++) {
            const long block = table[column];
            chunk.keys[t] = kv + (block * 2 * shape.kv_heads + kv_head) * page + long(slot) * shape.head_dim;
            if (++slot == shape.block_size) slot = 0, column++;
        }
        std::fill(chunk.keys + chunk.count, chunk.keys + KEYS, chunk.keys[chunk.count - 1]);
        group.add(query, chunk, shape.head_dim, shape.scale);
    }
    for (int g = 0; g < G; g++) {
        const float mass = group.total(g);
        for (int i = 0; i < shape.head_dim; i++) out[g * shape.head_dim + i] = group.out[g][i] / mass;
    }
}

using Attend = decltype(&attend<1>);
constexpr Attend ATTEND[MAX_GROUP] = {attend<1>, attend<2>, attend<3>, attend<4>};

}  // namespace

extern "C" void paged_decode(const float* query, const float* kv, const int* table, const int* seq_lens, float* out,
                             int rows, int heads, int kv_heads, int head_dim, int block_size, int max_blocks,
                             int window, float scale) {
    const int group = heads / kv_heads;
    for (int row = 0; row < rows; row++) {
        const int end = seq_lens[row], begin = window ? std::max(0, end - window) : 0;
        for (int head = 0, count; head < heads; head += count) {
            count = std::min(MAX_GROUP, group - head % group);
            const long at = (long(row) * heads + head) * head_dim;
            ATTEND[count - 1](query + at, kv, table + long(row) * max_blocks, begin, end, head / group, out + at,
                              {kv_heads, head_dim, block_size, scale});
        }
    }
}
