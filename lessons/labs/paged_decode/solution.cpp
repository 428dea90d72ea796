// Solution of lab cpp-paged-decode. The first comment of the stub states the contract.
#include <algorithm>
#include <cmath>
#include <cstring>

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;  // floats of a vector register
typedef int Ints __attribute__((vector_size(4 * LANES)));
constexpr Ints LANE = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif defined(__AVX__)
constexpr int LANES = 8;
typedef int Ints __attribute__((vector_size(4 * LANES)));
constexpr Ints LANE = {0, 1, 2, 3, 4, 5, 6, 7};
#else
constexpr int LANES = 4;
typedef int Ints __attribute__((vector_size(4 * LANES)));
constexpr Ints LANE = {0, 1, 2, 3};
#endif
typedef float Vector __attribute__((vector_size(4 * LANES)));

constexpr int PARTS = 4;             // vectors of scores of a chunk
constexpr int KEYS = PARTS * LANES;  // keys that share one rescaling
constexpr int MAX_DIM = 256;
constexpr int MAX_GROUP = 4;  // queries that share a pass over the keys

inline Vector load(const float* from) {
    Vector x;
    std::memcpy(&x, from, sizeof x);
    return x;
}
inline void store(float* to, Vector x) { std::memcpy(to, &x, sizeof x); }
inline Vector splat(float x) { return x - Vector{}; }
inline Vector select(Ints condition, Vector yes, Vector no) {
    return (Vector)(((Ints)yes & condition) | ((Ints)no & ~condition));
}

// Lane i of the result is lane from[i] of x and y behind each other.
inline __attribute__((always_inline)) Vector shuffled(Vector x, Vector y, Ints from) {
#if defined(__clang__)
    Vector z;
    for (int lane = 0; lane < LANES; lane++) z[lane] = from[lane] < LANES ? x[from[lane]] : y[from[lane] - LANES];
    return z;
#else
    return __builtin_shuffle(x, y, from);
#endif
}

// Lane i of the result is the sum of the lanes of x[i]. A round adds up halves of two vectors in one: log2(LANES) rounds
// of LANES / 2, LANES / 4, ... additions, where one vector after the other would take LANES log2(LANES).
template <int DISTANCE = LANES / 2>
inline __attribute__((always_inline)) Vector add_lanes(Vector (&x)[LANES]) {
    const Ints own = LANE + (LANE & DISTANCE) * (LANES / DISTANCE), other = own ^ DISTANCE;
#pragma GCC unroll 8
    for (int i = 0; i < DISTANCE; i++)
        x[i] = shuffled(x[i], x[i + DISTANCE], own) + shuffled(x[i], x[i + DISTANCE], other);
    if constexpr (DISTANCE > 1) return add_lanes<DISTANCE / 2>(x);
    return x[0];
}

template <int DISTANCE = LANES / 2>
inline float largest(Vector x) {
    const Vector other = shuffled(x, x, LANE ^ DISTANCE);
    x = x < other ? other : x;
    if constexpr (DISTANCE > 1) return largest<DISTANCE / 2>(x);
    return x[0];
}

// exp(x) for x <= 0, within 1e-7: 2^n times a polynomial of the rest.
inline Vector exponential(Vector x) {
    const Vector shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;  // 1.5 * 2^23: rounds
    const Vector r = x - n * 0.693359375f + n * 2.12194440e-4f;
    Vector p = splat(0.00138889f);
    for (const float factor : {0.00833333f, 0.0416666667f, 0.166666667f, 0.5f, 1.0f, 1.0f}) p = p * r + factor;
    return select(x < -87.0f, Vector{}, (Vector)((Ints)p + ((Ints)shifted << 23)));
}

// Some keys of one kv head. Addresses behind `count` are those of the last key: they are read, and count for nothing.
struct Chunk {
    const float* keys[KEYS];
    long to_values;  // from a key to its value
    int count;
};

// Scores of one query with LANES keys.
Vector dots(const float* query, const float* const* keys, int dim) {
    Vector sums[LANES] = {};
    int i = 0;
    for (; i + LANES <= dim; i += LANES) {
        const Vector q = load(query + i);
#pragma GCC unroll 16
        for (int t = 0; t < LANES; t++) sums[t] += q * load(keys[t] + i);
    }
    Vector all = add_lanes(sums);
    for (; i < dim; i++)
        for (int t = 0; t < LANES; t++) all[t] += query[i] * keys[t][i];
    return all;
}

// The G queries of one kv head, while they pass over its keys.
template <int G>
struct Group {
    float peak[G], out[G][MAX_DIM];
    Vector mass[G];

    void add(const float* query, const Chunk& chunk, int dim, float scale) {
        float weights[G][KEYS];
        for (int g = 0; g < G; g++) {
            Vector scores[PARTS], highest = splat(-INFINITY);
            for (int part = 0; part * LANES < chunk.count; part++)
                scores[part] = dots(query + g * dim, chunk.keys + part * LANES, dim) * scale;
            for (int part = 0; part < PARTS; part++) {
                scores[part] = select(LANE + part * LANES < chunk.count, scores[part], splat(-INFINITY));
                highest = highest < scores[part] ? scores[part] : highest;
            }
            rescale(g, largest(highest), dim);
            for (int part = 0; part < PARTS; part++) {
                const Vector weight = exponential(scores[part] - peak[g]);
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
        const float shrink = exponential(splat(peak[g] - candidate))[0];
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
        Vector sums[G][WIDE];
        for (int g = 0; g < G; g++)
            for (int w = 0; w < WIDE; w++) sums[g][w] = load(out[g] + i + w * LANES);
        for (int t = 0; t < chunk.count; t++) {
            const float* value = chunk.keys[t] + chunk.to_values + i;
            for (int w = 0; w < WIDE; w++) {
                const Vector v = load(value + w * LANES);
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
