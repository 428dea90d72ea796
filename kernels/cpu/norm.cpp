// RMSNorm, alone and with the residual added first: each row is read once and written once.
#include "graph.h"
#include "norm.h"
#include "threads.h"

namespace {

struct Rows {
    int64_t outer, inner, outer_stride, inner_stride, size;
};

template <typename T>
void rms_norm_rows(const T* x, const T* weight, T* y, Rows rows, float eps) {
    const int64_t num_rows = rows.outer * rows.inner;
    for_ranges(num_rows, num_rows * rows.size > NORM_WORTH_THREADS, [&](int64_t begin, int64_t end) {
        float wide[rows.size];
        for (int64_t row = begin; row < end; row++) {
            const T* from = x + row / rows.inner * rows.outer_stride + row % rows.inner * rows.inner_stride;
            for (int64_t i = 0; i < rows.size; i++) wide[i] = to_float(from[i]);
            normalise(wide, weight, y + row * rows.size, rows.size, eps);
        }
    });
}

}  // namespace

// x [outer, inner, size] with strides in numbers; weight [size]; y [outer, inner, size] contiguous.
extern "C" void rms_norm(const void* x, const void* weight, void* y, int64_t outer, int64_t inner,
                         int64_t outer_stride, int64_t inner_stride, int64_t size, float eps, int64_t dtype) {
    launch(NORM, [=] {
        with_float_type(dtype, [&](auto zero) {
            using T = decltype(zero);
            rms_norm_rows(static_cast<const T*>(x), static_cast<const T*>(weight), static_cast<T*>(y),
                          {outer, inner, outer_stride, inner_stride, size}, eps);
        });
    });
}

// x, residual [rows, size] with strides in numbers; y, total [rows, size] contiguous: y = norm(total), total = x +
// residual.
extern "C" void fused_add_rms_norm(const void* x, int64_t x_stride, const void* residual, int64_t residual_stride,
                                   const void* weight, void* y, void* total, int64_t rows, int64_t size, float eps,
                                   int64_t dtype) {
    launch(NORM, [=] {
        with_float_type(dtype, [&](auto zero) {
            using T = decltype(zero);
            const Norm<T> norm{static_cast<const T*>(x), x_stride, static_cast<const T*>(residual), residual_stride,
                               static_cast<const T*>(weight), static_cast<T*>(total), size, eps};
            for_ranges(rows, rows * size > NORM_WORTH_THREADS, [&](int64_t begin, int64_t end) {
                norm.rows(begin, end, static_cast<T*>(y) + begin * size, size);
            });
        });
    });
}
