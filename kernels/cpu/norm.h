// RMSNorm of rows, for `norm.cpp` and in front of a product (`norm_gemm.h`).
#pragma once

#include <cmath>

#include "dtype.h"

constexpr int64_t NORM_WORTH_THREADS = 1 << 14;  // numbers: some microseconds; waking another thread takes about one

// y = round(x / rms(x)) * weight for one row that is already in fp32.
template <typename T>
void normalise(const float* x, const T* weight, T* y, int64_t size, float eps) {
    vfloat squares{};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) squares += load(x + i) * load(x + i);
    const vfloat rest = load_first(x + i, size - i);
    const float scale = 1.0f / std::sqrt(sum(squares + rest * rest) / size + eps);
    for (i = 0; i + LANES <= size; i += LANES) store(y + i, rounded<T>(load(x + i) * scale) * load(weight + i));
    for (; i < size; i++) y[i] = from_float<T>(to_float(from_float<T>(x[i] * scale)) * to_float(weight[i]));
}

// both = round(one + other), and the same in fp32.
template <typename T>
void add_residual(const T* one, const T* other, T* both, float* wide, int64_t size) {
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) {
        store(both + i, load(one + i) + load(other + i));
        store(wide + i, load(both + i));
    }
    for (; i < size; i++) {
        both[i] = from_float<T>(to_float(one[i]) + to_float(other[i]));
        wide[i] = to_float(both[i]);
    }
}

template <typename T>
struct Norm {
    const T* x;
    int64_t x_stride;
    const T* residual;  // null: there is none, and no total
    int64_t residual_stride;
    const T* weight;
    T* total;  // [rows, size] contiguous
    int64_t size;
    float eps;

    // Norms of the rows begin .. end - 1, the first at y.
    void rows(int64_t begin, int64_t end, T* y, int64_t y_stride) const {
        float wide[size];
        for (int64_t row = begin; row < end; row++) {
            const T* from = x + row * x_stride;
            if (residual)
                add_residual(from, residual + row * residual_stride, total + row * size, wide, size);
            else
                for (int64_t i = 0; i < size; i++) wide[i] = to_float(from[i]);
            normalise(wide, weight, y + (row - begin) * y_stride, size, eps);
        }
    }
};
