// Low-rank adapters, chosen per token: shrunk = A x, then y += scaling * B shrunk.
//
//   token_adapter    0   2   0  -1   2   2        tokens of one adapter share its matrices, wherever they
//   tiles           {0,      2}                   stand: up to 4 of them are computed together, and each number
//                       {1,          4,  5}       of A and B is read once for all
//
// Fast where neighbours in memory are neighbouring results, which is how the manager stores both halves on a CPU:
// A [depth, rank] and B [rank, columns], so a vector of either is 16 results. Other layouts are taken one number at a
// time. x and y are fp32 or bf16, sums are fp32; A and B may be bf16 beside fp32. Every result is summed in one order, whatever the tile: a token's bits
// do not depend on its company. Source: Punica (Chen et al. 2023), for the shape of the two halves.
#include <algorithm>

#include "graph.h"
#include "threads.h"
#include "tile.h"

namespace {

constexpr int TILE = 4;                                        // tokens at once
constexpr int PORTION = 64;                                    // tokens that one thread looks through for tiles
constexpr int SUMS = 4;                                        // of each dot product: k, k + 4, k + 8, ... go to one
constexpr int COLUMN_VECTORS = VECTOR_REGISTERS == 32 ? 4 : 2;  // of B at once
constexpr int AHEAD = 32;                                      // depths of A asked for before they are needed
constexpr int MAX_SLICES = 8;
constexpr int64_t WORTH_THREADS = 1 << 20;  // multiply-adds, as in gemm.cpp

// Calls visit(adapter, tokens, count) until every token of begin .. end - 1 with an adapter had its turn.
template <typename Visit>
ALWAYS_INLINE void for_each_tile(const int32_t* adapter, int64_t begin, int64_t end, Visit visit) {
    uint64_t taken = 0;
    for (int64_t first = begin; first < end; first++) {
        if (adapter[first] < 0 || taken >> (first - begin) & 1) continue;
        int64_t tokens[TILE];
        int count = 0;
        for (int64_t t = first; t < end && count < TILE; t++)
            if (adapter[t] == adapter[first] && !(taken >> (t - begin) & 1)) {
                tokens[count++] = t;
                taken |= uint64_t{1} << (t - begin);
            }
        visit(adapter[first], tokens, count);
    }
}

// Calls run with the count as a constant, so that its sums can stay in registers.
template <int MOST = TILE, typename Run>
ALWAYS_INLINE void with_constant(int count, Run run) {
    if constexpr (MOST > 1)
        if (count < MOST) return with_constant<MOST - 1>(count, run);
    run(std::integral_constant<int, MOST>{});
}

// COUNT numbers of a vector; the other lanes are 0. COUNT 0: `rest` of them, known only now.
template <int COUNT, typename Weight>
ALWAYS_INLINE vfloat load_some(const Weight* from, int64_t rest) {
    if constexpr (COUNT == LANES) return load(from);
    if constexpr (COUNT == 0) return load_first(from, rest);
    Weight padded[LANES] = {};
    std::memcpy(padded, from, COUNT * sizeof(Weight));
    return load(padded);
}

template <typename Value, typename Weight>
struct Shrink {
    const Value* x;
    int64_t x_stride;
    const Weight* a;  // [slices, adapters, rank, depth] with these strides
    int64_t slice_stride, adapter_stride, rank_stride, depth_stride;
    const int32_t* adapter;
    float* out;  // [slices, tokens, rank]
    int64_t slices, tokens, rank, depth;
};

// Up to LANES neighbouring ranks of some tokens: a [depth, COUNT].
template <int TOKENS, int COUNT, typename Value, typename Weight>
ALWAYS_INLINE void dot_products(const Shrink<Value, Weight>& p, const Value* const* x, const Weight* a, float* const* out,
                                int64_t rest) {
    constexpr int NUMBERS_PER_LINE = std::max<int>(LANES, 64 / sizeof(Weight));
    vfloat sums[SUMS][TOKENS] = {};
    const auto add = [&](int64_t k, int i) {
        const vfloat column = load_some<COUNT>(a + k * p.depth_stride, rest);
#pragma GCC unroll 4
        for (int t = 0; t < TOKENS; t++) sums[i][t] = multiply_add(splat(to_float(x[t][k])), column, sums[i][t]);
    };
    int64_t k = 0;
    for (; k + SUMS <= p.depth; k += SUMS) {
        for (int64_t i = 0; i < SUMS; i += NUMBERS_PER_LINE / LANES)
            __builtin_prefetch(a + (k + i + AHEAD) * p.depth_stride);
#pragma GCC unroll 4
        for (int i = 0; i < SUMS; i++) add(k + i, i);
    }
#pragma GCC unroll 4
    for (int i = 0; i < SUMS - 1; i++)
        if (k + i < p.depth) add(k + i, i);
    for (int t = 0; t < TOKENS; t++) {
        const vfloat total = (sums[0][t] + sums[1][t]) + (sums[2][t] + sums[3][t]);
        if constexpr (COUNT == LANES)
            store(out[t], total);
        else
            store_first(out[t], total, rest);
    }
}

template <int TOKENS, typename Value, typename Weight>
void shrink_tile(const Shrink<Value, Weight>& p, const Weight* a, const int64_t* tokens, float* slice_out) {
    const Value* x[TOKENS];
    float* out[TOKENS];
    for (int t = 0; t < TOKENS; t++) {
        x[t] = p.x + tokens[t] * p.x_stride;
        out[t] = slice_out + tokens[t] * p.rank;
    }
    for (int64_t r = 0; r < p.rank; r += LANES) {
        const int64_t rest = p.rank - r;
        if (rest >= LANES)
            dot_products<TOKENS, LANES>(p, x, a + r, out, rest);
        else if (rest == LANES / 2)
            dot_products<TOKENS, LANES / 2>(p, x, a + r, out, rest);
        else
            dot_products<TOKENS, 0>(p, x, a + r, out, rest);
        for (int t = 0; t < TOKENS; t++) out[t] += LANES;
    }
}

template <typename Value, typename Weight>
void shrink_token(const Shrink<Value, Weight>& p, const Weight* a, const Value* x, float* out) {
    for (int64_t r = 0; r < p.rank; r++) {
        float total = 0;
        for (int64_t k = 0; k < p.depth; k++) total += to_float(x[k]) * to_float(a[r * p.rank_stride + k * p.depth_stride]);
        out[r] = total;
    }
}

// Tokens begin .. end - 1 of one slice.
template <typename Value, typename Weight>
void shrink(const Shrink<Value, Weight>& p, int64_t slice, int64_t begin, int64_t end) {
    float* out = p.out + slice * p.tokens * p.rank;
    for (int64_t t = begin; t < end; t++)
        if (p.adapter[t] < 0) std::fill_n(out + t * p.rank, p.rank, 0.0f);
    for_each_tile(p.adapter, begin, end, [&](int32_t adapter, const int64_t* tokens, int count) {
        const Weight* a = p.a + slice * p.slice_stride + adapter * p.adapter_stride;
        if (p.rank_stride == 1)
            with_constant(count, [&](auto constant) { shrink_tile<constant>(p, a, tokens, out); });
        else
            for (int i = 0; i < count; i++)
                shrink_token(p, a, p.x + tokens[i] * p.x_stride, out + tokens[i] * p.rank);
    });
}

struct Part {
    const void* b;  // [adapters, columns, rank] with these strides
    int64_t columns, adapter_stride, column_stride, rank_stride;
};

struct Expand {
    const float* shrunk;  // [slices, tokens, rank] with these strides, rank by rank
    int64_t slice_stride, token_stride;
    const int32_t* adapter;
    const float* scaling;
    void* y;
    int64_t y_stride, slices, tokens, rank;
    Part parts[MAX_SLICES];
};

// VECTORS * LANES neighbouring columns of some tokens, or the first `rest` of LANES: b [rank, columns].
template <int TOKENS, int VECTORS, int COUNT, typename Value, typename Weight>
ALWAYS_INLINE void add_columns(const Weight* b, int64_t rank_stride, const float* const* shrunk, int64_t rank,
                               float scaling, Value* const* y, int64_t n, int64_t rest) {
    vfloat sums[TOKENS][VECTORS] = {};
    for (int64_t r = 0; r < rank; r++) {
        vfloat row[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            const Weight* from = b + r * rank_stride + n + v * LANES;
            __builtin_prefetch(from + VECTORS * LANES);
            row[v] = load_some<COUNT>(from, rest);
        }
#pragma GCC unroll 4
        for (int t = 0; t < TOKENS; t++)
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) sums[t][v] = multiply_add(splat(shrunk[t][r]), row[v], sums[t][v]);
    }
    for (int t = 0; t < TOKENS; t++)
        for (int v = 0; v < VECTORS; v++) {
            Value* to = y[t] + n + v * LANES;
            const vfloat added = scaling * sums[t][v];
            if constexpr (COUNT == LANES)
                store(to, load(to) + added);
            else
                store_first(to, load_first(to, rest) + added, rest);
        }
}

template <int TOKENS, typename Value, typename Weight>
void expand_tile(const Part& part, const Weight* b, const float* const* shrunk, int64_t rank, float scaling,
                 Value* const* y) {
    constexpr int STEP = COLUMN_VECTORS * LANES;
    int64_t n = 0;
    for (; n + STEP <= part.columns; n += STEP)
        add_columns<TOKENS, COLUMN_VECTORS, LANES>(b, part.rank_stride, shrunk, rank, scaling, y, n, STEP);
    for (; n + LANES <= part.columns; n += LANES)
        add_columns<TOKENS, 1, LANES>(b, part.rank_stride, shrunk, rank, scaling, y, n, LANES);
    if (n < part.columns)
        add_columns<TOKENS, 1, 0>(b, part.rank_stride, shrunk, rank, scaling, y, n, part.columns - n);
}

template <typename Value, typename Weight>
void expand_token(const Part& part, const Weight* b, const float* shrunk, int64_t rank, float scaling, Value* y) {
    for (int64_t n = 0; n < part.columns; n++) {
        float total = 0;
        for (int64_t r = 0; r < rank; r++)
            total += shrunk[r] * to_float(b[n * part.column_stride + r * part.rank_stride]);
        y[n] = from_float<Value>(to_float(y[n]) + scaling * total);
    }
}

// Tokens begin .. end - 1 of one slice, whose columns of y begin at first_column.
template <typename Value, typename Weight>
void expand(const Expand& p, int64_t slice, int64_t first_column, int64_t begin, int64_t end) {
    const Part& part = p.parts[slice];
    for_each_tile(p.adapter, begin, end, [&](int32_t adapter, const int64_t* tokens, int count) {
        const Weight* b = static_cast<const Weight*>(part.b) + adapter * part.adapter_stride;
        const float scaling = p.scaling[adapter];
        const float* shrunk[TILE];
        Value* y[TILE];
        for (int i = 0; i < count; i++) {
            shrunk[i] = p.shrunk + slice * p.slice_stride + tokens[i] * p.token_stride;
            y[i] = static_cast<Value*>(p.y) + tokens[i] * p.y_stride + first_column;
        }
        if (part.column_stride == 1)
            with_constant(count, [&](auto constant) {
                expand_tile<constant>(part, b, shrunk, p.rank, scaling, y);
            });
        else
            for (int i = 0; i < count; i++) expand_token(part, b, shrunk[i], p.rank, scaling, y[i]);
    });
}

// run(slice, begin, end) for all slices and portions of the tokens.
template <typename Run>
void for_each_portion(int64_t slices, int64_t tokens, bool worth_threads, const Run& run) {
    const int64_t portions = (tokens + PORTION - 1) / PORTION;
    for_pieces(slices * portions, worth_threads, [&](int64_t piece) {
        const int64_t begin = piece % portions * PORTION;
        run(piece / portions, begin, std::min(tokens, begin + PORTION));
    });
}

template <typename Value, typename Weight>
void launch_shrink(const Shrink<Value, Weight>& p) {
    launch(LORA, [p] {
        for_each_portion(p.slices, p.tokens, p.slices * p.tokens * p.rank * p.depth > WORTH_THREADS,
                         [&p](int64_t slice, int64_t begin, int64_t end) { shrink(p, slice, begin, end); });
    });
}

template <typename Value, typename Weight>
void launch_expand(const Expand& p) {
    launch(LORA, [p] {
        int64_t first_column[MAX_SLICES + 1] = {};
        for (int64_t i = 0; i < p.slices; i++) first_column[i + 1] = first_column[i] + p.parts[i].columns;
        for_each_portion(p.slices, p.tokens, p.tokens * p.rank * first_column[p.slices] > WORTH_THREADS,
                         [&](int64_t slice, int64_t begin, int64_t end) {
                             expand<Value, Weight>(p, slice, first_column[slice], begin, end);
                         });
    });
}

}  // namespace

extern "C" int64_t lora_max_slices() {
    return MAX_SLICES;
}

// Kinds of x or y and of the matrices: both fp32, both bf16, or bf16 matrices beside fp32.
enum Kinds : int64_t { FLOATS, FLOATS_BESIDE_BF16, BF16 };

// x [tokens, depth] with its stride, a [slices, adapters, rank, depth] with its four strides, adapter int32 [tokens]
// -> out [slices, tokens, rank].
extern "C" void lora_shrink(const void* x, int64_t x_stride, const void* a, const int64_t* a_strides, int64_t kinds,
                            const int32_t* adapter, float* out, int64_t slices, int64_t tokens, int64_t rank,
                            int64_t depth) {
    const auto with = [&](auto value, auto weight) {
        using Value = decltype(value);
        using Weight = decltype(weight);
        launch_shrink(Shrink<Value, Weight>{static_cast<const Value*>(x), x_stride, static_cast<const Weight*>(a),
                                            a_strides[0], a_strides[1], a_strides[2], a_strides[3], adapter, out,
                                            slices, tokens, rank, depth});
    };
    if (kinds == FLOATS) return with(float{}, float{});
    if (kinds == FLOATS_BESIDE_BF16) return with(float{}, bfloat16{});
    with(bfloat16{}, bfloat16{});
}

// parts: for each slice the address of b, columns, and the strides of adapters, columns and ranks.
extern "C" void lora_expand(const float* shrunk, int64_t slice_stride, int64_t token_stride, const int64_t* parts,
                            int64_t kinds, const int32_t* adapter, void* y, int64_t y_stride, const float* scaling,
                            int64_t slices, int64_t tokens, int64_t rank) {
    Expand p{shrunk, slice_stride, token_stride, adapter, scaling, y, y_stride, slices, tokens, rank, {}};
    for (int64_t i = 0; i < slices; i++) {
        const int64_t* part = parts + 5 * i;
        p.parts[i] = {reinterpret_cast<const void*>(part[0]), part[1], part[2], part[3], part[4]};
    }
    if (kinds == FLOATS) return launch_expand<float, float>(p);
    if (kinds == FLOATS_BESIDE_BF16) return launch_expand<float, bfloat16>(p);
    launch_expand<bfloat16, bfloat16>(p);
}
