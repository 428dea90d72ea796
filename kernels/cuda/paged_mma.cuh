// Attention of one query token on tensor cores: the heads of a group are the columns of a product.
//
//     scores [16 tokens x 8 heads]  =  K [16 x HEAD_DIM]  Q^T [HEAD_DIM x 8]              the GROUP heads, and zeros
//     acc [HEAD_DIM x 8 heads]     +=  V^T [HEAD_DIM x 16]  weights [16 tokens x 8]
//
// A product has 16 rows and 8 columns (mma.cuh). Tokens take the rows, because there are many of them, and heads the
// columns: with heads as rows half of the accumulator's registers would hold padding. Both products have a head in the
// same lane, 2t or 2t + 1, so a lane rescales with the maxima that it has.
//
// A warp takes tiles of 16 tokens, round-robin with the other warps. Keys and values come through one queue of STAGES
// slots in shared memory, filled by asynchronous copies:
//
//     tile         K0         V0          K1         V1
//     slot     | read now | in flight | in flight |            then the first slot takes V1
//
// A row has an odd number of 16-byte chunks, one of them padding where needed, so that the eight rows that a matrix load
// reads lie in eight different groups of banks. The warps need no barrier between them, only a lane for its warp.
//
// A quantised cache stays quantised in shared memory. Four neighbouring bytes of a row come to one lane and are widened
// there to even and odd elements; the order of dimensions that follows is given to the query as well (keys), or undone
// when the result is stored (values).
#pragma once
#include "mma.cuh"
#include "paged_problem.cuh"

constexpr int TILE = 16, MAX_GROUP = 8;
constexpr bool QUANTISED = sizeof(CACHE) == 1;
constexpr int PIECES = HEAD_DIM / 16;  // products along the dimensions
constexpr int CHUNKS = HEAD_DIM * int(sizeof(CACHE)) / 16;  // of a row
constexpr int ONE_PAGE = BLOCK_SIZE % TILE == 0 ? TILE : 1;  // tokens of a tile that are certainly in the same page
static_assert(HEAD_DIM % 16 == 0 && GROUP <= MAX_GROUP);

struct Slot {
    uint4 row[TILE][CHUNKS | 1];
#if CACHE_I8
    float scale[TILE];
#endif
};

union Shared {
    Slot queue[WARPS][STAGES];
    WarpResults results;
};

// A block's tokens, first <= token < last, in tiles that begin at multiples of TILE.
struct Range {
    const int32_t* table_row;
    int kv_head, first, last;

    __device__ int start_of(int step) const { return first / TILE * TILE + (step * WARPS + warp_id()) * TILE; }
    __device__ int steps() const { return max(0, ceil_div(last - start_of(0), WARPS * TILE)); }
    __device__ bool has(int token) const { return first <= token && token < last; }
};

// Start copying a tile of keys (part 0) or values (part 1). Tokens out of range become zeros: their slots hold garbage,
// and their columns of the block table may be stale.
__device__ inline void fetch(const Problem& p, const Range& range, int start, int part, Slot& slot) {
    const auto block_of = [&](int row) { return int64_t(range.table_row[(start + row / ONE_PAGE * ONE_PAGE) / BLOCK_SIZE]); };
    const auto row_of = [&](int row) {
        return (part * p.num_kv_heads + range.kv_head) * BLOCK_SIZE + (start + row) % BLOCK_SIZE;
    };
#pragma unroll
    for (int i = lane_id(); i < TILE * CHUNKS; i += WARP) {
        const int row = i / CHUNKS, chunk = i % CHUNKS;
        const bool wanted = range.has(start + row);
        const CACHE* from = p.kv + (wanted ? block_of(row) * p.block_stride : 0) + int64_t(row_of(row)) * HEAD_DIM;
        copy_async<16>(&slot.row[row][chunk], from + chunk * (16 / sizeof(CACHE)), wanted);
    }
#if CACHE_I8
    if (lane_id() < TILE) {
        const int row = lane_id();
        const bool wanted = range.has(start + row);
        const float* from = p.kv_scale + (wanted ? block_of(row) * p.scale_block_stride : 0) + row_of(row);
        copy_async<4>(&slot.scale[row], from, wanted);
    }
#endif
}

// Column g of Q^T: the dimensions of head g that this lane multiplies, in the order of `keys`.
__device__ inline void load_query(const Problem& p, int64_t token, int first_head, MatrixB (&query)[PIECES]) {
    const int g = lane_id() / 4, t = lane_id() % 4;
    const SCALAR* row = p.query + token * p.query_token_stride + (first_head + g) * p.query_head_stride;
    const auto pair = [&](int dim) { return *reinterpret_cast<const uint32_t*>(load<2>(row + dim).at); };
#pragma unroll
    for (int k = 0; k < PIECES; ++k) {
        const uint32_t first = g < GROUP ? pair(k * 16 + (QUANTISED ? 4 * t : 2 * t)) : 0;
        const uint32_t second = g < GROUP ? pair(k * 16 + (QUANTISED ? 4 * t + 2 : 2 * t + 8)) : 0;
        query[k].at[0] = QUANTISED ? (first & 0xffff) | second << 16 : first;
        query[k].at[1] = QUANTISED ? first >> 16 | (second & 0xffff0000) : second;
    }
}

// K: tokens as rows, dimensions 16 k and on as columns.
__device__ inline MatrixA keys(const Slot& slot, int k) {
    const int lane = lane_id();
#if CACHE_F8E4M3 || CACHE_I8
    uint32_t word[2];
    load_matrices<2, false>(word, &slot.row[lane % 16][k]);
    const Widened low = widen<SCALAR>(word[0], CACHE()), high = widen<SCALAR>(word[1], CACHE());
    return {low.even, high.even, low.odd, high.odd};
#else
    MatrixA result;
    load_matrices<4, false>(result.at, &slot.row[lane % 16][2 * k + lane / 16]);
    return result;
#endif
}

// V^T: dimensions 16 k and on as rows (quantised: the even ones, then the odd ones), tokens as columns.
__device__ inline MatrixA values(const Slot& slot, int k) {
    const int lane = lane_id();
#if CACHE_F8E4M3 || CACHE_I8
    uint32_t word[2];
    load_matrices<2, true>(word, &slot.row[lane % 16][k]);
    const Widened low = widen<SCALAR>(word[0], CACHE()), high = widen<SCALAR>(word[1], CACHE());
    return {low.even, low.odd, high.even, high.odd};
#else
    MatrixA result;
    load_matrices<4, true>(result.at, &slot.row[lane / 16 * 8 + lane % 8][2 * k + lane / 8 % 2]);
    return result;
#endif
}

// The running softmax of a lane, for the heads 2t and 2t + 1. l is over the lane's own tokens, m over the warp's.
struct State {
    float m[2], l[2];
    MatrixC acc[PIECES];
};

// Scores become weights; m, l and acc take note of them.
__device__ inline void soften(State& state, MatrixC& scores) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float m = fmaxf(state.m[h], fmaxf(scores.at[h], scores.at[2 + h]));
#pragma unroll
        for (int distance = 4; distance < WARP; distance *= 2)  // over the lanes of these heads
            m = fmaxf(m, __shfl_xor_sync(ALL_LANES, m, distance));
        const float rescale = decay(state.m[h], m);
        scores.at[h] = decay(scores.at[h], m);
        scores.at[2 + h] = decay(scores.at[2 + h], m);
        state.m[h] = m;
        state.l[h] = state.l[h] * rescale + scores.at[h] + scores.at[2 + h];
#pragma unroll
        for (int k = 0; k < PIECES; ++k) {
            state.acc[k].at[h] *= rescale;
            state.acc[k].at[2 + h] *= rescale;
        }
    }
}

// A tile of keys: the weights of its tokens.
__device__ inline MatrixC weigh(const Problem& p, const Range& range, const Slot& slot, const MatrixB (&query)[PIECES],
                                int start, State& state) {
    MatrixC scores{};
#pragma unroll
    for (int k = 0; k < PIECES; ++k) multiply<SCALAR>(scores, keys(slot, k), query[k]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = lane_id() / 4 + i / 2 * 8;
        float scale = score_scale(p);
#if CACHE_I8
        scale *= slot.scale[row];
#endif
        scores.at[i] = range.has(start + row) ? scores.at[i] * scale : NOTHING;
    }
    soften(state, scores);
    return scores;
}

// A tile of values, with the weights of its tokens.
__device__ inline void add(const Slot& slot, MatrixC weights, State& state) {
#if CACHE_I8
#pragma unroll
    for (int i = 0; i < 4; ++i) weights.at[i] *= slot.scale[lane_id() / 4 + i / 2 * 8];
#endif
    const MatrixB columns = {transpose(pack<SCALAR>(weights.at[0], weights.at[1])),
                             transpose(pack<SCALAR>(weights.at[2], weights.at[3]))};
#pragma unroll
    for (int k = 0; k < PIECES; ++k) multiply<SCALAR>(state.acc[k], values(slot, k), columns);
}

__device__ inline void store_results(const State& state, WarpResults& results) {
    const int g = lane_id() / 4, t = lane_id() % 4, warp = warp_id();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float l = state.l[h];
#pragma unroll
        for (int distance = 4; distance < WARP; distance *= 2) l += __shfl_xor_sync(ALL_LANES, l, distance);
        const int head = 2 * t + h;
        if (head >= GROUP) continue;
        if (g == 0) results.m[warp][head] = state.m[h];
        if (g == 0) results.l[warp][head] = l;
#pragma unroll
        for (int k = 0; k < PIECES; ++k) {
            results.acc[warp][head][k * 16 + (QUANTISED ? 2 * g : g)] = state.acc[k].at[h];
            results.acc[warp][head][k * 16 + (QUANTISED ? 2 * g + 1 : g + 8)] = state.acc[k].at[2 + h];
        }
    }
}

// The whole block: attention of one query token and GROUP heads over the tokens [first, last) of its sequence.
__device__ inline const WarpResults& attend(const Problem& p, int sequence, int64_t token, int first_head, int first,
                                            int last) {
    DYNAMIC_SHARED(memory);
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    Slot* queue = shared.queue[warp_id()];
    const int kv_head = first_head / (p.num_heads / p.num_kv_heads);
    const Range range{p.block_table + sequence * p.table_stride, kv_head, first, last};

    const int tiles = 2 * range.steps();  // keys and values in turn
    const auto start_copy = [&](int tile) {
        if (tile < tiles) fetch(p, range, range.start_of(tile / 2), tile % 2, queue[tile % STAGES]);
        commit_copies();  // an empty group where there was nothing to fetch: the count stays right
    };
    const auto next_slot = [&](int tile) -> const Slot& {
        wait_copies<STAGES - 2>();
        __syncwarp();  // the whole tile is there, and all lanes have read the one before, whose slot is filled again
        start_copy(tile + STAGES - 1);
        return queue[tile % STAGES];
    };
    for (int tile = 0; tile < STAGES - 1; ++tile) start_copy(tile);
    MatrixB query[PIECES];
    load_query(p, token, first_head, query);
    State state{{NOTHING, NOTHING}, {}, {}};
    for (int tile = 0; tile < tiles; tile += 2) {
        const Slot& of_keys = next_slot(tile);
        const MatrixC weights = weigh(p, range, of_keys, query, range.start_of(tile / 2), state);
        const Slot& of_values = next_slot(tile + 1);
        add(of_values, weights, state);
    }

    __syncthreads();  // the slowest warp has emptied its queue
    store_results(state, shared.results);
    __syncthreads();
    return shared.results;
}
