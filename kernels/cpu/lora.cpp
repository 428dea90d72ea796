// Low-rank adapters, chosen per token: shrunk = A x, then y += scaling * B shrunk.
//
//   token_adapter    0   0   0  -1   2   2        runs of one adapter share its matrices:
//                   |_______|       |___|         up to 4 tokens x 4 ranks are summed at once
//
// A [rank, depth] is read along the depth, B along its columns: the manager stores it as [rank, columns], so that 16
// neighbouring results are one vector. Every result is summed in one order, whatever the run: a token's bits do not
// depend on its company. Source: Punica (Chen et al. 2023), for the shape of the two halves.
#include <algorithm>

#include "graph.h"
#include "tile.h"

namespace {

constexpr int TILE = 4;
constexpr int MAX_SLICES = 8;
constexpr int64_t WORTH_THREADS = 1 << 20;  // multiply-adds, as in gemm.cpp

struct Shrink {
    const float* x;
    int64_t x_stride;
    const float* a;  // [slices, adapters, rank, depth]
    const int32_t* adapter;
    float* out;  // [slices, tokens, rank]
    int64_t slices, tokens, adapters, rank, depth;
};

template <int TOKENS, int RANKS>
ALWAYS_INLINE void dot_products(const Shrink& p, const float* x, const float* a, float* out) {
    vfloat sums[TOKENS][RANKS] = {};
    const auto add = [&](auto read) {
        vfloat rows[RANKS];
#pragma GCC unroll 4
        for (int r = 0; r < RANKS; r++) rows[r] = read(a + r * p.depth);
#pragma GCC unroll 4
        for (int t = 0; t < TOKENS; t++) {
            const vfloat token = read(x + t * p.x_stride);
#pragma GCC unroll 4
            for (int r = 0; r < RANKS; r++) sums[t][r] += token * rows[r];
        }
    };
    int64_t k = 0;
    for (; k + LANES <= p.depth; k += LANES) add([k](const float* from) { return load(from + k); });
    if (const int64_t rest = p.depth - k)
        add([k, rest](const float* from) { return load_first(from + k, rest); });
    for (int t = 0; t < TOKENS; t++)
        for (int r = 0; r < RANKS; r++) out[t * p.rank + r] = sum(sums[t][r]);
}

template <int TOKENS>
void all_ranks(const Shrink& p, const float* x, const float* a, float* out) {
    int64_t r = 0;
    for (; r + TILE <= p.rank; r += TILE) dot_products<TOKENS, TILE>(p, x, a + r * p.depth, out + r);
    for (; r < p.rank; r++) dot_products<TOKENS, 1>(p, x, a + r * p.depth, out + r);
}

// Tokens begin .. end - 1 of one slice.
void shrink(const Shrink& p, int64_t slice, int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end;) {
        const int32_t adapter = p.adapter[t];
        float* out = p.out + (slice * p.tokens + t) * p.rank;
        if (adapter < 0) {
            std::fill_n(out, p.rank, 0.0f);
            t++;
            continue;
        }
        const float* x = p.x + t * p.x_stride;
        const float* a = p.a + (slice * p.adapters + adapter) * p.rank * p.depth;
        int64_t run = 1;
        while (run < TILE && t + run < end && p.adapter[t + run] == adapter) run++;
        if (run == TILE)
            all_ranks<TILE>(p, x, a, out);
        else
            for (int64_t i = 0; i < run; i++) all_ranks<1>(p, x + i * p.x_stride, a, out + i * p.rank);
        t += run;
    }
}

struct Part {
    const float* b;  // [adapters, columns, rank] with these strides
    int64_t columns, adapter_stride, column_stride, rank_stride;
};

struct Expand {
    const float* shrunk;  // [slices, tokens, rank] with these strides, rank by rank
    int64_t slice_stride, token_stride;
    const int32_t* adapter;
    const float* scaling;
    float* y;
    int64_t y_stride, slices, tokens, rank;
    Part parts[MAX_SLICES];
};

ALWAYS_INLINE void add_vector(const Part& part, const float* b, const float* shrunk, int64_t rank, float scaling,
                              float* y) {
    vfloat total{};
    for (int64_t r = 0; r < rank; r++) total += shrunk[r] * load(b + r * part.rank_stride);
    store(y, load(y) + scaling * total);
}

// One token's slice: y[0 .. columns - 1] += scaling * B shrunk.
void expand(const Part& part, const float* b, const float* shrunk, int64_t rank, float scaling, float* y) {
    int64_t n = 0;
    if (part.column_stride == 1)
        for (; n + LANES <= part.columns; n += LANES) add_vector(part, b + n, shrunk, rank, scaling, y + n);
    for (; n < part.columns; n++) {
        float total = 0;
        for (int64_t r = 0; r < rank; r++) total += shrunk[r] * b[n * part.column_stride + r * part.rank_stride];
        y[n] += scaling * total;
    }
}

void expand(const Expand& p, int64_t t) {
    const int32_t adapter = p.adapter[t];
    if (adapter < 0) return;
    float* y = p.y + t * p.y_stride;
    for (int64_t slice = 0; slice < p.slices; slice++) {
        const Part& part = p.parts[slice];
        const float* shrunk = p.shrunk + slice * p.slice_stride + t * p.token_stride;
        expand(part, part.b + adapter * part.adapter_stride, shrunk, p.rank, p.scaling[adapter], y);
        y += part.columns;
    }
}

}  // namespace

extern "C" int64_t lora_max_slices() {
    return MAX_SLICES;
}

// x [tokens, depth] with its stride, a [slices, adapters, rank, depth], adapter int32 [tokens] -> out [slices, tokens, rank].
extern "C" void lora_shrink(const float* x, int64_t x_stride, const float* a, const int32_t* adapter, float* out,
                            int64_t slices, int64_t tokens, int64_t adapters, int64_t rank, int64_t depth) {
    const Shrink p{x, x_stride, a, adapter, out, slices, tokens, adapters, rank, depth};
    launch(LORA, [p] {
        const int64_t portions = (p.tokens + TILE - 1) / TILE;
#pragma omp parallel for collapse(2) if (p.slices * p.tokens * p.rank * p.depth > WORTH_THREADS)
        for (int64_t slice = 0; slice < p.slices; slice++)
            for (int64_t i = 0; i < portions; i++)
                shrink(p, slice, i * TILE, std::min(p.tokens, (i + 1) * TILE));
    });
}

// parts: for each slice the address of b, columns, and the strides of adapters, columns and ranks.
extern "C" void lora_expand(const float* shrunk, int64_t slice_stride, int64_t token_stride, const int64_t* parts,
                            const int32_t* adapter, float* y, int64_t y_stride, const float* scaling, int64_t slices,
                            int64_t tokens, int64_t rank) {
    Expand p{shrunk, slice_stride, token_stride, adapter, scaling, y, y_stride, slices, tokens, rank, {}};
    int64_t columns = 0;
    for (int64_t i = 0; i < slices; i++) {
        const int64_t* part = parts + 5 * i;
        p.parts[i] = {reinterpret_cast<const float*>(part[0]), part[1], part[2], part[3], part[4]};
        columns += part[1];
    }
    launch(LORA, [p, columns] {
#pragma omp parallel for if (p.tokens * p.rank * columns > WORTH_THREADS)
        for (int64_t t = 0; t < p.tokens; t++) expand(p, t);
    });
}
