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
// head_dim is any size from 1 to 256, heads a multiple of kv_heads, at most 8 heads per kv head. Read and write no
// number beside an array, and free the memory that you allocate. One thread; -O3 -march=native -fopenmp-simd.
#include <algorithm>
#include <cmath>

extern "C" void paged_decode(const float* query, const float* kv, const int* table, const int* seq_lens, float* out,
                             int rows, int heads, int kv_heads, int head_dim, int block_size, int max_blocks,
                             int window, float scale) {
#error "write it: paged_decode"
}
