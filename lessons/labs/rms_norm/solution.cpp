// Lab cpp-rms-norm: the residual added, then RMSNorm, in one pass over memory.
//
// The seam is fused_add_rms_norm of kernels/ops.py; a transformer layer calls it twice (Zhang and Sennrich 2019,
// 1910.07467). vLLM: csrc/layernorm_kernels.cu.
//
//     total = x + residual                                       [rows, hidden], what the next layer adds to
//     out   = total / sqrt(mean(total^2) + eps) * weight         [rows, hidden], mean over the row
//
// All arrays are fp32 and contiguous, row after row; they do not overlap. rows >= 1; hidden is any size >= 1, also one
// that is no multiple of a vector. Numbers may be as large as 1e4. Errors up to 1e-5 of the largest number of a row are
// accepted. Read and write no number beside an array, and free the memory that you allocate. One thread; -O3
// -march=native -fopenmp-simd.
#include <cmath>

extern "C" void fused_add_rms_norm(const float* x, const float* residual, const float* weight, float* out, float* total,
                                   int rows, int hidden, float eps) {
    for (int row = 0; row < rows; row++) {
        const long start = long(row) * hidden;
        float squares = 0;  // the second loop finds the row in the first-level cache
#pragma omp simd reduction(+ : squares)
        for (int i = 0; i < hidden; i++) {
            const float both = x[start + i] + residual[start + i];
            total[start + i] = both;
            squares += both * both;
        }
        const float scale = 1.0f / std::sqrt(squares / hidden + eps);
#pragma omp simd
        for (int i = 0; i < hidden; i++) out[start + i] = total[start + i] * scale * weight[i];
    }
}
