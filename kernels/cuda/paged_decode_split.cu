// Paged attention for decode with the sequence split over blocks, for when there are fewer (sequence, kv head) pairs than
// the GPU has room for: one request with 32k tokens and 8 kv heads would keep 8 of 132 SMs busy.
//
//     paged_decode_partial    grid (sequence, kv head, split)     as paged_decode.cu, over SPLIT tokens:   (m, l, acc) each
//     paged_decode_reduce     grid (sequence, head)               merges the splits of a head, in order
//
//     sequence   |--- split 0 ---|--- split 1 ---|--- split 2 ---|--- s          splits start at multiples of SPLIT tokens,
//     window                         |<------------------------->|               whatever the batch is: the same bits
//
// The partial results are fp32, HEAD_DIM + 2 numbers for SPLIT * 2 * HEAD_DIM read: under 1 % at SPLIT = 512. A sequence
// in a single split gets the bits of paged_decode. Source: Flash-Decoding (Dao et al. 2023).
//
// Defines: those of paged_decode.cu, and SPLIT.
#include "paged_decode.cu"

// partial [sequences, heads, splits, HEAD_DIM], sums [sequences, heads, splits, 2] for m and l.
extern "C" __global__ void BLOCKS_PER_SM(THREADS, MIN_BLOCKS)
    paged_decode_partial(PROBLEM_PARAMETERS, float* partial, float* sums) {
    const Problem p = PROBLEM;
    const int sequence = blockIdx.x, first_head = blockIdx.y * GROUP, split = blockIdx.z;
    const int64_t token = token_of(p, sequence);
    if (token < 0) return;
    const int seq_len = p.seq_lens[sequence];
    const int first = max(first_visible(p, seq_len), split * SPLIT), last = min(seq_len, (split + 1) * SPLIT);
    if (first >= last) return;  // an empty split is never read

    const WarpResults& results = attend(p, sequence, token, first_head, first, last);
    for (int i = threadIdx.x; i < GROUP * HEAD_DIM; i += THREADS) {
        const int g = i / HEAD_DIM, column = i % HEAD_DIM;
        const int64_t at = (int64_t(sequence) * p.num_heads + first_head + g) * gridDim.z + split;
        float m, l, acc;
        merge_warps(results, g, column, m, l, acc);
        partial[at * HEAD_DIM + column] = acc;
        if (column == 0) sums[at * 2] = m;
        if (column == 0) sums[at * 2 + 1] = l;
    }
}

// out [tokens, heads, HEAD_DIM]. A thread takes a dimension.
extern "C" __global__ void paged_decode_reduce(PROBLEM_PARAMETERS, const float* partial, const float* sums, SCALAR* out,
                                               int num_splits) {
    const Problem p = PROBLEM;
    const int sequence = blockIdx.x, head = blockIdx.y, column = threadIdx.x;
    clear_padding(p, out, blockIdx.x, head, 1);
    const int64_t token = token_of(p, sequence);
    if (token < 0 || column >= HEAD_DIM) return;
    const int seq_len = p.seq_lens[sequence];
    const int begin = first_visible(p, seq_len) / SPLIT, end = ceil_div(seq_len, SPLIT);
    partial += (int64_t(sequence) * p.num_heads + head) * num_splits * HEAD_DIM;
    sums += (int64_t(sequence) * p.num_heads + head) * num_splits * 2;

    float m = NOTHING, l = 0, acc = 0;
    for (int split = begin; split < end; ++split) m = fmaxf(m, sums[split * 2]);
    for (int split = begin; split < end; ++split) {
        const float weight = decay(sums[split * 2], m);
        l += sums[split * 2 + 1] * weight;
        acc += partial[split * HEAD_DIM + column] * weight;
    }
    out[(token * p.num_heads + head) * HEAD_DIM + column] = finish(p, l, acc);
}
