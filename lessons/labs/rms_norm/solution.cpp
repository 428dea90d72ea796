// Solution of lab cpp-rms-norm. The first comment of the stub states the contract.
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
