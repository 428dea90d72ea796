// Lab cuda-paged-decode: attention of one query per row over a paged cache, with online softmax.
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
// Launched with a grid of (heads, rows) blocks, each of THREADS = 128 threads, four warps: blockIdx.x is the query head,
// blockIdx.y the row. head_dim is 32, 64, 96 or 128, so that each lane of a warp holds up to four numbers of a vector. The
// result must not depend on the order in which threads run. common.cuh (kernels/cuda) has WARP, ALL_LANES, lane_id() and
// warp_id().
//
// A plan: every warp passes over its own share of the keys with its own m, l, o; at the end the four are merged in shared
// memory. A warp without any key has m = -INFINITY, and exp(-INFINITY - -INFINITY) is NaN.
//
// Read and write no number beside an array. No two threads race: what one thread changes and another uses is ordered by a
// barrier, an exchange of the warp, or atomicAdd. The threads of a block share its work: none makes more than three times
// its share of the block's accesses to memory.
#include "common.cuh"

constexpr int THREADS = 128, WARPS = THREADS / WARP, MAX_PARTS = 4;

extern "C" __global__ void paged_decode(const float* query, const float* kv, const int* table, const int* seq_lens,
                                        float* out, int heads, int kv_heads, int head_dim, int block_size,
                                        int max_blocks, int window, float scale) {
#error "write it: paged_decode"
}
