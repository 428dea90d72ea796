// Paged attention for decode, one pass: one query token per sequence, its keys and values read once.
//
// One block of WARPS warps per (sequence, kv head). The GROUP query heads that share the kv head are computed together,
// so each key and value is loaded once for all of them (more than 8 take several blocks: registers). That is 4 FLOP per
// byte of a bf16 cache at GROUP = 4. An H100 balances at 20 FLOP/B on its FP32 CUDA cores, which this kernel uses
// (67 TFLOP/s, 3.35 TB/s), and at 295 on its bf16 tensor cores (989 TFLOP/s): decode needs a fifth of the CUDA cores and
// waits for memory, so what counts is that enough loads are in flight.
//
//     A token's row of HEAD_DIM values is spread over LANES lanes, VEC values each (16 bytes; 8 of an fp8 cache),
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
//     conflicts, and the warps run apart. With 128 bf16 and 3 slots a block has 32 KB in flight and an SM up to 4 blocks;
//     to hide 600 ns at 3.3 TB/s an H100 needs about 16 KB in flight on each SM.
//
//     score[token] = scale * q . k[token]           partial products, then a butterfly over the token's LANES lanes
//
//     Online softmax (Milakov & Gimelshein 2018), for each query head, over the tokens a lane has seen:
//         m = max score     l = sum exp2(score - m)     acc = sum exp2(score - m) * v
//     and two such triples (over different tokens) merge into one:
//         m = max(m1, m2)   l = l1 exp2(m1 - m) + l2 exp2(m2 - m)   acc likewise
//     first over the lanes of a warp, then over the warps. Scores carry a factor of log2(e), so that exp2 does.
//
// Which lane takes a token depends on nothing but the token's place in its sequence, so a sequence gives the same bits
// alone and in any batch. Sources: PagedAttention (Kwon et al. 2023), Flash-Decoding (Dao et al. 2023).
//
// Defines: SCALAR (query and output), CACHE, CACHE_F8E4M3 or CACHE_I8 (1 if CACHE is that), HEAD_DIM, GROUP, BLOCK_SIZE,
// VEC, LANES, WARPS, UNROLL, STAGES, MIN_BLOCKS.
#include "common.cuh"

constexpr int TOKENS_AT_ONCE = WARP / LANES;
constexpr int STEP = UNROLL * TOKENS_AT_ONCE;
constexpr int THREADS = WARPS * WARP;
constexpr float LOG2_E = 1.44269504f;
#define NOTHING (-INFINITY)  // the maximum over no tokens

// What a launch is about; the same for every block. (Kernels take it in pieces: cuda.core passes no structs.)
struct Problem {
    const SCALAR* query;         // [tokens, heads, HEAD_DIM], strided
    const CACHE* kv;             // [blocks, 2, kv_heads, BLOCK_SIZE, HEAD_DIM], blocks strided
    const float* kv_scale;       // fp8: [2]; int8: [blocks, 2, kv_heads, BLOCK_SIZE], blocks strided
    const int32_t* query_start;  // [sequences + 1]
    const int32_t* seq_lens;     // [sequences]
    const int32_t* block_table;  // [sequences, ...], strided
    int64_t query_token_stride, query_head_stride, block_stride, scale_block_stride, table_stride;
    int num_tokens, num_sequences, num_heads, num_kv_heads;
    int window;  // 0: none
    float scale;
};

#define PROBLEM_PARAMETERS                                                                                        \
    const SCALAR *query, const CACHE *kv, const float *kv_scale, const int32_t *query_start,                     \
        const int32_t *seq_lens, const int32_t *block_table, int64_t query_token_stride,                          \
        int64_t query_head_stride, int64_t block_stride, int64_t scale_block_stride, int64_t table_stride,        \
        int num_tokens, int num_sequences, int num_heads, int num_kv_heads, int window, float scale
#define PROBLEM                                                                                                   \
    Problem {                                                                                                     \
        query, kv, kv_scale, query_start, seq_lens, block_table, query_token_stride, query_head_stride,          \
            block_stride, scale_block_stride, table_stride, num_tokens, num_sequences, num_heads, num_kv_heads,  \
            window, scale                                                                                         \
    }

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

// exp2(a - b), and 0 where a has seen no token: -inf - -inf would be NaN.
__device__ inline float decay(float a, float b) { return a == NOTHING ? 0.0f : exp2f(a - b); }

__device__ inline void load_query(const Problem& p, int64_t token, int first_head, float (&query)[GROUP][VEC]) {
    float scale = p.scale * LOG2_E;
#if CACHE_F8E4M3
    scale *= p.kv_scale[0];
#endif
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

// What the warps leave for each other. It takes the place of the queue, which is empty by then.
struct WarpResults {
    float m[WARPS][GROUP], l[WARPS][GROUP], acc[WARPS][GROUP][HEAD_DIM];
};

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

// Merge the warps for one head and dimension, in their order.
__device__ inline void merge_warps(const WarpResults& results, int g, int column, float& m, float& l, float& acc) {
    m = NOTHING, l = 0, acc = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) m = fmaxf(m, results.m[warp][g]);
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) {
        const float weight = decay(results.m[warp][g], m);
        l += results.l[warp][g] * weight;
        acc += results.acc[warp][g][column] * weight;
    }
}

// The result of one element. The fp8 cache has one scale for all values, which can wait until here.
__device__ inline SCALAR finish(const Problem& p, float l, float acc) {
    float value = l == 0 ? 0.0f : acc / l;
#if CACHE_F8E4M3
    value *= p.kv_scale[1];
#endif
    return from_float<SCALAR>(value);
}

// The first token that the query, which is the last of seq_len tokens, can see.
__device__ inline int first_visible(const Problem& p, int seq_len) {
    return p.window > 0 && seq_len > p.window ? seq_len - p.window : 0;
}

// The query token of a sequence, or -1 if it has none in this step.
__device__ inline int64_t token_of(const Problem& p, int sequence) {
    if (sequence >= p.num_sequences) return -1;
    const int token = p.query_start[sequence];
    return token < p.query_start[sequence + 1] ? token : -1;
}

// Tokens behind the last sequence are padding and get zeros: block x of the grid clears heads of token x.
__device__ inline void clear_padding(const Problem& p, SCALAR* out, int token, int first_head, int heads) {
    if (token >= p.num_tokens || token < p.query_start[p.num_sequences]) return;
    for (int i = threadIdx.x; i < heads * HEAD_DIM; i += blockDim.x)
        out[(int64_t(token) * p.num_heads + first_head) * HEAD_DIM + i] = from_float<SCALAR>(0);
}

// out [tokens, heads, HEAD_DIM]. Grid: (sequences or tokens, whichever are more; heads / GROUP).
extern "C" __global__ void BLOCKS_PER_SM(THREADS, MIN_BLOCKS) paged_decode(PROBLEM_PARAMETERS, SCALAR* out) {
    const Problem p = PROBLEM;
    const int sequence = blockIdx.x, first_head = blockIdx.y * GROUP;
    clear_padding(p, out, blockIdx.x, first_head, GROUP);
    const int64_t token = token_of(p, sequence);
    if (token < 0) return;

    const int seq_len = p.seq_lens[sequence];
    const WarpResults& results = attend(p, sequence, token, first_head, first_visible(p, seq_len), seq_len);
    out += (token * p.num_heads + first_head) * HEAD_DIM;
    for (int i = threadIdx.x; i < GROUP * HEAD_DIM; i += THREADS) {
        float m, l, acc;
        merge_warps(results, i / HEAD_DIM, i % HEAD_DIM, m, l, acc);
        out[i] = finish(p, l, acc);
    }
}
