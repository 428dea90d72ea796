// Paged attention for decode, one pass: one query token per sequence, its keys and values read once.
//
// One block of WARPS warps per (sequence, kv head). The GROUP query heads that share the kv head are computed together,
// so each key and value is loaded once for all of them (more than 8 take several blocks). That is 4 FLOP per byte of a
// bf16 cache at GROUP = 4. An H100 balances at 20 FLOP/B on its FP32 CUDA cores (67 TFLOP/s, 3.35 TB/s), and at 295 on
// its bf16 tensor cores (989 TFLOP/s): decode needs a fifth of the CUDA cores and waits for memory, so what counts is
// that enough loads are in flight. To hide 600 ns at 3.3 TB/s an H100 needs about 16 KB in flight on each SM.
//
//     16-bit queries    paged_mma.cuh, tensor cores: hardly any instructions, and half the registers of the other, so
//                       that more warps fit on an SM
//     32-bit queries    paged_fma.cuh, CUDA cores
//
// Which warp takes a token depends on nothing but the token's place in its sequence, so a sequence gives the same bits
// alone and in any batch. Sources: PagedAttention (Kwon et al. 2023), Flash-Decoding (Dao et al. 2023).
//
// Defines: SCALAR (query and output), CACHE, CACHE_F8E4M3 or CACHE_I8 (1 if CACHE is that), HEAD_DIM, GROUP, BLOCK_SIZE,
// WARPS, STAGES, MIN_BLOCKS, TENSOR_CORES; for the CUDA cores also VEC, LANES, UNROLL.
#if TENSOR_CORES
#include "paged_mma.cuh"
#else
#include "paged_fma.cuh"
#endif

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
