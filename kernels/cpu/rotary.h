// Rotation of one head, in the NeoX layout: dimension i turns together with i + half. y may be x.
#pragma once

#include "dtype.h"

constexpr int64_t ROTARY_WORTH_THREADS = 1 << 14;  // numbers

template <typename T>
void rotate(const T* x, T* y, const float* cos, const float* sin, int64_t half, int64_t head_dim) {
    int64_t i = 0;
    for (; i + LANES <= half; i += LANES) {
        const vfloat first = load(x + i), second = load(x + half + i), c = load(cos + i), s = load(sin + i);
        store(y + i, first * c - second * s);
        store(y + half + i, second * c + first * s);
    }
    for (; i < half; i++) {
        const float first = to_float(x[i]), second = to_float(x[half + i]);
        y[i] = from_float<T>(first * cos[i] - second * sin[i]);
        y[half + i] = from_float<T>(second * cos[i] + first * sin[i]);
    }
    for (i = 2 * half; i < head_dim; i++) y[i] = x[i];
}
