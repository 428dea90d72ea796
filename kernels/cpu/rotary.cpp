// Rotary position embedding in the NeoX layout: dimension i turns together with i + half.
#include "dtype.h"
#include "graph.h"
#include "threads.h"

namespace {

constexpr int64_t WORTH_THREADS = 1 << 14;

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

}  // namespace

// x [tokens, heads, head_dim], cos and sin fp32 [tokens, half], with strides in numbers; y like x, contiguous.
extern "C" void rotary_embedding(const void* x, int64_t token_stride, int64_t head_stride, const float* cos,
                                 int64_t cos_stride, const float* sin, int64_t sin_stride, void* y, int64_t tokens,
                                 int64_t heads, int64_t head_dim, int64_t half, int64_t dtype) {
    launch(ROTARY, [=] {
        with_float_type(dtype, [&](auto zero) {
            using T = decltype(zero);
            for_ranges(tokens, tokens * heads * head_dim > WORTH_THREADS, [&](int64_t begin, int64_t end) {
                for (int64_t token = begin; token < end; token++)
                    for (int64_t head = 0; head < heads; head++)
                        rotate(static_cast<const T*>(x) + token * token_stride + head * head_stride,
                               static_cast<T*>(y) + (token * heads + head) * head_dim, cos + token * cos_stride,
                               sin + token * sin_stride, half, head_dim);
            });
        });
    });
}
