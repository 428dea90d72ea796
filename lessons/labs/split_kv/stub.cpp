// Lab cpp-split-kv: attention over a long row in splits, and the reduction of (m, l, acc).
//
// The seam is paged_attention of kernels/ops.py, for decode: one query per row, keys and values in blocks of the cache.
// One long row leaves most of a GPU idle, so its tokens are split (Flash-Decoding: Dao et al. 2023; vLLM:
// v1/attention/ops/triton_unified_attention.py, reduce_segments).
//
//     row       |---- split 0 ----|---- split 1 ----|---- split 2 ----|--    split s: tokens from s * split_size on
//     window                            |<------------------------------>|   the last `window` tokens are seen; 0: all
//
//     decode_splits    for each row, head and split, over the tokens of the split that are seen:
//                          peak = max score   mass = sum exp(score - peak)   acc = sum exp(score - peak) * value
//                      without such a token: peak = -INFINITY, mass = 0; acc is not read, whatever it holds
//
//     merge_splits     for each row and head, with M the largest peak of its splits:
//                          out = sum exp(peak - M) * acc / sum exp(peak - M) * mass
//
//     row r has seq_lens[r] tokens; token t lies in block table[r][t / block_size], slot t % block_size
//     score(t) = scale * dot(query[r][h], key[t])           query head h reads kv head h / (heads / kv_heads)
//
// Papers call peak, mass and acc m, l and o. They depend on the row only, with the same bits alone and in a batch, and
// whatever `splits` is. Slots behind the last token hold NaN, so may acc of a split without a token; columns of the table
// behind a row's last block hold anything: read none of them. Scores may be as large as 1e4. Accepted errors: 2e-5 of the
// largest score for peak, of mass for mass, of mass times the row's largest value for acc, of that value for out.
//
// query, out  fp32 [rows, heads, head_dim]                       peak, mass  fp32 [rows, heads, splits]
// kv          fp32 [blocks, 2, kv_heads, block_size, head_dim]   acc         fp32 [rows, heads, splits, head_dim]
//             (0: keys, 1: values)                               table       int32 [rows, max_blocks]
// seq_lens    int32 [rows], each >= 1
//
// split_size is a multiple of block_size, and splits * split_size is at least each of seq_lens.
//
// head_dim is any size from 1 to 256, heads a multiple of kv_heads, at most 8 heads per kv head. Read and write no
// number beside an array, and free the memory that you allocate. One thread; -O3 -march=native -fopenmp-simd.
#include <algorithm>
#include <cmath>

extern "C" void decode_splits(const float* query, const float* kv, const int* table, const int* seq_lens,
                              float* peak, float* mass, float* acc, int rows, int heads, int kv_heads, int head_dim,
                              int block_size, int max_blocks, int window, int splits, int split_size, float scale) {
#error "write it: decode_splits"
}

extern "C" void merge_splits(const float* peak, const float* mass, const float* acc, float* out, int rows, int heads,
                             int splits, int head_dim) {
#error "write it: merge_splits"
}
