// RMS normalisation, and the same with the residual added first. One block per row.
//
//     total = x + residual                                    (fused_add_rms_norm only)
//     out   = total / sqrt(mean(total^2) + eps) * weight
//
// Two passes over the row, but one over memory: between the sum of squares and the scaling a thread keeps its part of
// the row in registers.
//
//     thread     0      1      2    ...  THREADS-1 |  0      1    ...
//     row     [VEC ] [VEC ] [VEC ]         [VEC ]  [VEC ] [VEC ]          VEC values travel in one 16-byte load
//              `---------------- round 0 --------' `----- round 1 --      ROUNDS of them are in flight at once
//
// Bound by bandwidth: a row of bf16 x costs 2 bytes read and 2 written for each element, 2 more each way with the
// residual. Rounding as in the checkpoints: the normalised row is rounded to the weight's type, then multiplied.
//
// Defines: X, RESIDUAL, TOTAL, WEIGHT (storage types), VEC, ROUNDS, THREADS.
#include "common.cuh"

// The sum of squares of the block's row -> 1 / rms.
__device__ inline float inverse_rms(float square_sum, int hidden, float eps) {
    __shared__ float scratch[WARP];
    return rsqrtf(reduce_block(square_sum, Sum(), scratch) / float(hidden) + eps);
}

__device__ inline void scale_row(const float (&row)[ROUNDS][VEC], float scale, const WEIGHT* weight, WEIGHT* out,
                                 int hidden) {
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        const int column = (round * THREADS + threadIdx.x) * VEC;
        if (column >= hidden) continue;
        const auto factors = load<VEC>(weight + column);
        Pack<WEIGHT, VEC> result;
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            const float normed = to_float(from_float<WEIGHT>(row[round][i] * scale));
            result.at[i] = from_float<WEIGHT>(normed * to_float(factors.at[i]));
        }
        store(out + column, result);
    }
}

// x: row r is outer r / inner and inner r % inner of a view with two strides (heads in a fused qkv tensor).
// out [rows, hidden], contiguous.
extern "C" __global__ void BLOCKS_PER_SM(THREADS, 1) rms_norm(const X* __restrict__ x, const WEIGHT* __restrict__ weight,
                                    WEIGHT* __restrict__ out, int64_t outer_stride, int64_t inner_stride, int inner,
                                    int hidden, float eps) {
    const int row_id = blockIdx.x;
    x += row_id / inner * outer_stride + row_id % inner * inner_stride;
    float row[ROUNDS][VEC], square_sum = 0;
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        const int column = (round * THREADS + threadIdx.x) * VEC;
        if (column >= hidden) continue;
        const auto values = load<VEC>(x + column);
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            row[round][i] = to_float(values.at[i]);
            square_sum = fmaf(row[round][i], row[round][i], square_sum);
        }
    }
    scale_row(row, inverse_rms(square_sum, hidden, eps), weight, out + int64_t(row_id) * hidden, hidden);
}

// x, residual: rows with a stride; total, out [rows, hidden], contiguous. What is normalised is the sum as it is stored.
extern "C" __global__ void BLOCKS_PER_SM(THREADS, 1) fused_add_rms_norm(const X* __restrict__ x, const RESIDUAL* __restrict__ residual,
                                              const WEIGHT* __restrict__ weight, WEIGHT* __restrict__ out,
                                              TOTAL* __restrict__ total, int64_t x_stride, int64_t residual_stride,
                                              int hidden, float eps) {
    const int64_t row_id = blockIdx.x;
    x += row_id * x_stride;
    residual += row_id * residual_stride;
    total += row_id * hidden;
    float row[ROUNDS][VEC], square_sum = 0;
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        const int column = (round * THREADS + threadIdx.x) * VEC;
        if (column >= hidden) continue;
        const auto left = load<VEC>(x + column);
        const auto right = load<VEC>(residual + column);
        Pack<TOTAL, VEC> sum;
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            sum.at[i] = from_float<TOTAL>(to_float(left.at[i]) + to_float(right.at[i]));
            row[round][i] = to_float(sum.at[i]);
            square_sum = fmaf(row[round][i], row[round][i], square_sum);
        }
        store(total + column, sum);
    }
    scale_row(row, inverse_rms(square_sum, hidden, eps), weight, out + row_id * hidden, hidden);
}
