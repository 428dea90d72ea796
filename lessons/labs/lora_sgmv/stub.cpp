// Lab cpp-lora-sgmv: low-rank adapters, many in one batch: shrink and expand for the rows of each adapter.
//
// The seam is lora_shrink and lora_expand of kernels/ops.py, which every linear layer calls beside its own weight.
// LoRA: Hu et al. 2021 (2106.09685); SGMV: Punica, Chen et al. 2023 (2310.18547); S-LoRA: Sheng et al. 2023
// (2311.03285); vLLM: lora/ops/triton_ops/lora_shrink_op.py, lora_expand_op.py.
//
//     order    3  7 | 0  1  5 | 4           rows sorted by adapter: adapter s has the rows
//     starts   0      2     2       5  6    order[starts[s]] .. order[starts[s + 1] - 1], here 2, 0, 3 and 1 rows
//
//     shrink   low[t][r]  = sum over k of x[t][k] * a[s][r][k]                    for r < ranks[s]
//     expand   y[t][n]   += scaling[s] * sum over r of low[t][r] * b[s][r][n]     r < ranks[s]
//
// Rows in no list (here 2 and 6) have no adapter: their low and y keep their bits. All slots have room for max_rank;
// behind the rank of an adapter a and b hold what an earlier adapter left, also NaN, and low holds anything: read none
// of it, and leave low there as it was. Errors up to 1e-6 of the sum of the absolute terms are accepted.
//
// x      fp32 [tokens, depth]                 order    int32 [rows with an adapter], may be empty
// low    fp32 [tokens, max_rank]              starts   int32 [adapters + 1]
// y      fp32 [tokens, columns]               ranks    int32 [adapters], 1 to max_rank
// a      fp32 [adapters, max_rank, depth]     scaling  fp32 [adapters]
// b      fp32 [adapters, max_rank, columns]   (vLLM keeps b as [adapters, columns, max_rank])
//
// depth and columns are any size >= 1, max_rank is at most 128. A row's numbers must not depend on the rows beside
// it. Read and write no number beside an array, and free the memory that you allocate. One thread; -O3 -march=native
// -fopenmp-simd.
#include <algorithm>

extern "C" void lora_shrink(const float* x, const float* a, const int* order, const int* starts, const int* ranks,
                            float* low, int adapters, int max_rank, int depth) {
#error "write it: lora_shrink and lora_expand"
}

extern "C" void lora_expand(const float* low, const float* b, const int* order, const int* starts, const int* ranks,
                            const float* scaling, float* y, int adapters, int max_rank, int columns) {
}
