// Rotary position embedding of the heads of every token.
#include "graph.h"
#include "rotary.h"
#include "threads.h"

// x [tokens, heads, head_dim], cos and sin fp32 [tokens, half], with strides in numbers; y like x, contiguous.
extern "C" void rotary_embedding(const void* x, int64_t token_stride, int64_t head_stride, const float* cos,
                                 int64_t cos_stride, const float* sin, int64_t sin_stride, void* y, int64_t tokens,
                                 int64_t heads, int64_t head_dim, int64_t half, int64_t dtype) {
    launch(ROTARY, [=] {
        with_float_type(dtype, [&](auto zero) {
            using T = decltype(zero);
            for_ranges(tokens, tokens * heads * head_dim > ROTARY_WORTH_THREADS, [&](int64_t begin, int64_t end) {
                for (int64_t token = begin; token < end; token++)
                    for (int64_t head = 0; head < heads; head++)
                        rotate(static_cast<const T*>(x) + token * token_stride + head * head_stride,
                               static_cast<T*>(y) + (token * heads + head) * head_dim, cos + token * cos_stride,
                               sin + token * sin_stride, half, head_dim);
            });
        });
    });
}
