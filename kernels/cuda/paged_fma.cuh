// Attention of one query token on the CUDA cores, for fp32 queries, which tensor cores would round, and odd head sizes.
//
//     A token's row of HEAD_DIM values is spread over LANES lanes, VEC values each (16 bytes; 8 of a quantised cache),
//     so a warp reads 32 / LANES tokens at once, which lie behind each other in their page:
//
//         lane      0 ...  LANES-1 | LANES ... 2 LANES-1 | ...                 tokens of one step of a warp:
//         token        t           |         t + 1       | ...                 STEP = UNROLL * 32 / LANES
//
//     Steps go round-robin over the warps. Their keys and values come through a queue of STAGES slots in shared memory,
//     filled by asynchronous copies:
//
//         step         s          s + 1  ...  s + STAGES - 1
//         slot     | read now |  in flight   |   in flight   |         then the first slot takes step s + STAGES
//
//     Each lane reads back exactly what it copied itself. So the loop has no barrier at all, shared memory has no bank
//     conflicts, and the warps run apart. Scores are partial products, then a butterfly over the token's LANES lanes;
//     the softmax of the lanes merges at the end.
#pragma once
#include "paged_problem.cuh"

constexpr int TOKENS_AT_ONCE = WARP / LANES;
constexpr int STEP = UNROLL * TOKENS_AT_ONCE;

// The running softmax of a lane: for each query head over some tokens, for VEC of the dimensions.
struct State {
    float m[GROUP], l[GROUP], acc[GROUP][VEC];
};

// A step in a warp's queue, by token and lane. Only the int8 cache has scales for each token.
struct Slot {
    Pack<CACHE, VEC> key[UNROLL][WARP], value[UNROLL][WARP];
#if CACHE_I8
    float key_scale[UNROLL][WARP], value_scale[UNROLL][WARP];
#endif
};

__device__ inline void load_query(const Problem& p, int64_t token, int first_head, float (&query)[GROUP][VEC]) {
    const float scale = score_scale(p);
    const int column = lane_id() % LANES * VEC;
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        const SCALAR* row = p.query + token * p.query_token_stride + (first_head + g) * p.query_head_stride;
#pragma unroll
        for (int i = 0; i < VEC; ++i) query[g][i] = column < HEAD_DIM ? to_float(row[column + i]) * scale : 0.0f;
    }
}

// Start copying this lane's part of a step that begins at token `first`. Tokens from `last` on become zeros: their slots
// hold garbage, and their columns of the block table are stale.
__device__ inline void fetch(const Problem& p, const int32_t* table_row, int kv_head, int first, int last, Slot& slot) {
    const int lane = lane_id(), column = lane % LANES * VEC;
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const int token = first + u * TOKENS_AT_ONCE + lane / LANES;
        const bool wanted = token < last;
        const int64_t block = wanted ? table_row[token / BLOCK_SIZE] : 0;
        const int row = kv_head * BLOCK_SIZE + token % BLOCK_SIZE;
        const int part = p.num_kv_heads * BLOCK_SIZE;  // from keys to values, in rows
        if (column < HEAD_DIM) {
            const CACHE* key = p.kv + block * p.block_stride + int64_t(row) * HEAD_DIM + column;
            copy_async<sizeof(CACHE) * VEC>(&slot.key[u][lane], key, wanted);
            copy_async<sizeof(CACHE) * VEC>(&slot.value[u][lane], key + int64_t(part) * HEAD_DIM, wanted);
        }
#if CACHE_I8
        const float* scale = p.kv_scale + block * p.scale_block_stride + row;
        copy_async<4>(&slot.key_scale[u][lane], scale, wanted);
        copy_async<4>(&slot.value_scale[u][lane], scale + part, wanted);
#endif
    }
}

// Attend to the tokens of one step.
__device__ inline void consume(const Slot& slot, const float (&query)[GROUP][VEC], int first, int last, State& state) {
    const int lane = lane_id();
    const bool has_columns = lane % LANES * VEC < HEAD_DIM;
    float score[UNROLL][GROUP];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const auto packed = load<VEC>(slot.key[u][lane].at);
        float key[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) key[i] = has_columns ? to_float(packed.at[i]) : 0.0f;
#pragma unroll
        for (int g = 0; g < GROUP; ++g) {
            float product = 0;
#pragma unroll
            for (int i = 0; i < VEC; ++i) product = fmaf(query[g][i], key[i], product);
            score[u][g] = reduce_lanes<LANES>(product, Sum());
#if CACHE_I8
            score[u][g] *= slot.key_scale[u][lane];
#endif
            if (first + u * TOKENS_AT_ONCE + lane / LANES >= last) score[u][g] = NOTHING;
        }
    }
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        float m = state.m[g];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) m = fmaxf(m, score[u][g]);
        const float rescale = decay(state.m[g], m);
        state.m[g] = m;
        state.l[g] *= rescale;
#pragma unroll
        for (int i = 0; i < VEC; ++i) state.acc[g][i] *= rescale;
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            score[u][g] = decay(score[u][g], m);
            state.l[g] += score[u][g];
        }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const auto packed = load<VEC>(slot.value[u][lane].at);
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            float value = has_columns ? to_float(packed.at[i]) : 0.0f;
#if CACHE_I8
            value *= slot.value_scale[u][lane];
#endif
#pragma unroll
            for (int g = 0; g < GROUP; ++g) state.acc[g][i] = fmaf(score[u][g], value, state.acc[g][i]);
        }
    }
}

// The lanes that hold the same dimensions for other tokens merge what they have.
__device__ inline void merge_lanes(State& state) {
#pragma unroll
    for (int distance = LANES; distance < WARP; distance *= 2) {
#pragma unroll
        for (int g = 0; g < GROUP; ++g) {
            const float other_m = __shfl_xor_sync(ALL_LANES, state.m[g], distance);
            const float m = fmaxf(state.m[g], other_m);
            const float mine = decay(state.m[g], m), theirs = decay(other_m, m);
            state.m[g] = m;
            state.l[g] = state.l[g] * mine + __shfl_xor_sync(ALL_LANES, state.l[g], distance) * theirs;
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                const float other = __shfl_xor_sync(ALL_LANES, state.acc[g][i], distance);
                state.acc[g][i] = state.acc[g][i] * mine + other * theirs;
            }
        }
    }
}

union Shared {
    Slot queue[WARPS][STAGES];
    WarpResults results;
};

// The whole block: attention of one query token and GROUP heads over the tokens [first, last) of its sequence.
__device__ inline const WarpResults& attend(const Problem& p, int sequence, int64_t token, int first_head, int first,
                                            int last) {
    DYNAMIC_SHARED(memory);
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int lane = lane_id(), warp = warp_id(), kv_head = first_head / (p.num_heads / p.num_kv_heads);
    const int32_t* table_row = p.block_table + sequence * p.table_stride;
    Slot* queue = shared.queue[warp];

    const int steps = ceil_div(last - first, WARPS * STEP);
    const auto start_of = [&](int step) { return first + (step * WARPS + warp) * STEP; };
    for (int step = 0; step < STAGES - 1; ++step) {
        if (step < steps) fetch(p, table_row, kv_head, start_of(step), last, queue[step]);
        commit_copies();
    }
    float query[GROUP][VEC];
    load_query(p, token, first_head, query);
    State state;
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        state.m[g] = NOTHING;
        state.l[g] = 0;
#pragma unroll
        for (int i = 0; i < VEC; ++i) state.acc[g][i] = 0;
    }
    for (int step = 0; step < steps; ++step) {
        const int next = step + STAGES - 1;
        // Into the slot of step - 1, which only this lane reads, and has read.
        if (next < steps) fetch(p, table_row, kv_head, start_of(next), last, queue[next % STAGES]);
        commit_copies();  // an empty group where there was nothing to fetch: the count stays right
        wait_copies<STAGES - 1>();
        consume(queue[step % STAGES], query, start_of(step), last, state);
    }
    merge_lanes(state);

    __syncthreads();  // the slowest warp has emptied its queue
    if (lane < LANES) {
#pragma unroll
        for (int g = 0; g < GROUP; ++g) {
            if (lane == 0) shared.results.m[warp][g] = state.m[g];
            if (lane == 0) shared.results.l[warp][g] = state.l[g];
#pragma unroll
            for (int i = 0; i < VEC; ++i)
                if (lane * VEC < HEAD_DIM) shared.results.acc[warp][g][lane * VEC + i] = state.acc[g][i];
        }
    }
    __syncthreads();
    return shared.results;
}
