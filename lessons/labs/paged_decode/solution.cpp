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
// head_dim is any size from 1 to 256, heads a multiple of kv_heads, at most 8 heads per kv head. One thread;
// -O3 -march=native -fopenmp-simd.
#include <algorithm>
#include <cmath>
#include <cstring>

namespace {

constexpr int LANES = 16;  // floats that the compiler puts into one vector register, or two
constexpr int KEYS = 16;   // keys that share one rescaling
constexpr int MAX_DIM = 256;

// exp(x) for x <= 0, within 1e-7: 2^n times a polynomial of the rest. Unlike std::exp it becomes vector instructions.
inline float exponential(float x) {
    x = std::max(x, -87.0f);
    const float n = std::nearbyint(x * 1.44269504f), r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 0.00138889f;
    for (const float factor : {0.00833333f, 0.0416666667f, 0.166666667f, 0.5f, 1.0f, 1.0f}) p = p * r + factor;
    const int bits = (int(n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return p * power;
}

// What G queries of one kv head keep while they pass over its keys. Inner loops of LANES steps become single instructions.
template <int G>
struct Group {
    float peak[G], mass[G], out[G][MAX_DIM];

    void add(const float* query, const float* keys, const float* values, int count, int dim, float scale) {
        float weights[G][KEYS];
        for (int t = 0; t < count; t++) dots(query, keys + t * dim, dim, scale, weights, t);
        for (int g = 0; g < G; g++) {
            float largest = peak[g], sum = 0;
            for (int t = 0; t < count; t++) largest = std::max(largest, weights[g][t]);
            for (int t = count; t < KEYS; t++) weights[g][t] = -INFINITY;
            const float shrink = exponential(peak[g] - largest);
#pragma omp simd reduction(+ : sum)
            for (int t = 0; t < KEYS; t++) sum += weights[g][t] = exponential(weights[g][t] - largest);
            peak[g] = largest;
            mass[g] = mass[g] * shrink + sum;
            for (int i = 0; i < dim; i++) out[g][i] *= shrink;
        }
        mix(values, count, dim, weights);
    }

    // Scores of all queries with one key: the key is loaded once.
    static void dots(const float* query, const float* key, int dim, float scale, float (&weights)[G][KEYS], int t) {
        float sums[G][LANES] = {};
        int i = 0;
        for (; i + LANES <= dim; i += LANES)
            for (int g = 0; g < G; g++)
#pragma omp simd
                for (int lane = 0; lane < LANES; lane++) sums[g][lane] += query[g * dim + i + lane] * key[i + lane];
        for (int g = 0; g < G; g++) {
            float dot = 0;
            for (int rest = i; rest < dim; rest++) dot += query[g * dim + rest] * key[rest];
#pragma omp simd reduction(+ : dot)
            for (int lane = 0; lane < LANES; lane++) dot += sums[g][lane];
            weights[g][t] = dot * scale;
        }
    }

    // out += weights * values, LANES dimensions at a time, so that the sums stay in registers.
    void mix(const float* values, int count, int dim, const float (&weights)[G][KEYS]) {
        int i = 0;
        for (; i + LANES <= dim; i += LANES) {
            float sums[G][LANES] = {};
            for (int t = 0; t < count; t++)
                for (int g = 0; g < G; g++)
#pragma omp simd
                    for (int lane = 0; lane < LANES; lane++) sums[g][lane] += weights[g][t] * values[t * dim + i + lane];
            for (int g = 0; g < G; g++)
                for (int lane = 0; lane < LANES; lane++) out[g][i + lane] += sums[g][lane];
        }
        for (; i < dim; i++)
            for (int g = 0; g < G; g++)
                for (int t = 0; t < count; t++) out[g][i] += weights[g][t] * values[t * dim + i];
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
    for (int token = begin, count; token < end; token += count) {
        const int slot = token % shape.block_size;
        count = std::min({KEYS, shape.block_size - slot, end - token});
        const long block = table[token / shape.block_size];
        const float* keys = kv + (block * 2 * shape.kv_heads + kv_head) * page + long(slot) * shape.head_dim;
        group.add(query, keys, keys + shape.kv_heads * page, count, shape.head_dim, shape.scale);
    }
    for (int g = 0; g < G; g++)
        for (int i = 0; i < shape.head_dim; i++) out[g * shape.head_dim + i] = group.out[g][i] / group.mass[g];
}

using Attend = decltype(&attend<1>);
constexpr Attend ATTEND[] = {attend<1>, attend<2>, attend<3>, attend<4>, attend<5>, attend<6>, attend<7>, attend<8>};

}  // namespace

extern "C" void paged_decode(const float* query, const float* kv, const int* table, const int* seq_lens, float* out,
                             int rows, int heads, int kv_heads, int head_dim, int block_size, int max_blocks,
                             int window, float scale) {
    const int group = heads / kv_heads;
    for (int row = 0; row < rows; row++) {
        const int end = seq_lens[row], begin = window ? std::max(0, end - window) : 0;
        for (int kv_head = 0; kv_head < kv_heads; kv_head++) {
            const long head = long(row) * heads + kv_head * group;
            ATTEND[group - 1](query + head * head_dim, kv, table + long(row) * max_blocks, begin, end, kv_head,
                              out + head * head_dim, {kv_heads, head_dim, block_size, scale});
        }
    }
}
