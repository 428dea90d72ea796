// SwiGLU's activation: silu(gate) * up, with gate and up side by side in each row.
#include "activation.h"
#include "dtype.h"
#include "graph.h"
#include "threads.h"

namespace {

constexpr int64_t WORTH_THREADS = 1 << 14;  // an exponential is worth ten additions

template <typename T>
void silu_and_mul_row(const T* gate, const T* up, T* y, int64_t size) {
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) store(y + i, silu(load(gate + i)) * load(up + i));
    store_first(y + i, silu(load_first(gate + i, size - i)) * load_first(up + i, size - i), size - i);
}

}  // namespace

// x [rows, 2 * size] with its stride in numbers; y [rows, size] contiguous.
extern "C" void silu_and_mul(const void* x, int64_t stride, void* y, int64_t rows, int64_t size, int64_t dtype) {
    launch(ACTIVATION, [=] {
        with_float_type(dtype, [&](auto zero) {
            using T = decltype(zero);
            for_ranges(rows, rows * size > WORTH_THREADS, [&](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; row++) {
                    const T* gate = static_cast<const T*>(x) + row * stride;
                    silu_and_mul_row(gate, gate + size, static_cast<T*>(y) + row * size, size);
                }
            });
        });
    });
}
