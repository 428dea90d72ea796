// A product with the norm in front of it and the rotation behind it, as every layer of a Llama has them:
//
//     total  = x + residual                                  [rows, depth]
//     y      = norm(total) @ weight.T (+ bias)               [rows, columns]
//     first heads of y: rotated by the position of their row
//
// Apart, each of the three is read from memory again by the next one. Here a thread that has rows of its own norms a
// block of them into its L2 cache, multiplies it, and rotates the result while that is still there:
//
//     block of 192 rows      | norm | panel 0, panel 1, ... | rotate |   then its next block
//
// Few rows are cut into panels, which all need every row: then the three parts follow each other. The bits are the same.
#pragma once

#include <memory>

#include "gemm.h"
#include "norm.h"
#include "rotary.h"

struct Rotary {
    const float *cos, *sin;  // [rows, half]
    int64_t cos_stride, sin_stride, heads, head_dim, half;  // heads: those that are rotated, the first of a row; or 0

    template <typename T>
    void rows(int64_t begin, int64_t end, T* y, int64_t y_stride) const {
        for (int64_t row = begin; row < end; row++)
            for (int64_t head = 0; head < heads; head++) {
                T* at = y + row * y_stride + head * head_dim;
                rotate(at, at, cos + row * cos_stride, sin + row * sin_stride, half, head_dim);
            }
    }
};

// p.x is not read: the norm's result takes its place.
template <typename Panels, typename X, typename Y>
void multiply_normed(const Norm<X>& norm, const Product<X, Y>& p, const Rotary& rotary) {
    const int64_t stride = stride_apart<X>(p.depth), num_panels = p.num_panels();
    const bool worth_threads = is_worth_threads(p);
    if (is_cut_into_rows(p))
        return for_ranges(p.rows, worth_threads, [&](int64_t begin, int64_t end) {
            std::unique_ptr<X[]> hidden(new X[std::min<int64_t>(ROWS_AT_ONCE, end - begin) * stride]);
            for (int64_t first = begin; first < end; first += ROWS_AT_ONCE) {
                const int64_t last = std::min<int64_t>(first + ROWS_AT_ONCE, end);
                norm.rows(first, last, hidden.get(), stride);
                Product<X, Y> part = p;
                part.x = hidden.get(), part.x_stride = stride, part.rows = last - first;
                part.y = p.y + first * p.y_stride;
                multiply_block(Panels{}, part, 0, part.rows, 0, num_panels);
                rotary.rows(first, last, p.y, p.y_stride);
            }
        });
    std::unique_ptr<X[]> hidden(new X[p.rows * stride]);
    for_ranges(p.rows, p.rows * p.depth > NORM_WORTH_THREADS, [&](int64_t begin, int64_t end) {
        norm.rows(begin, end, hidden.get() + begin * stride, stride);
    });
    Product<X, Y> whole = p;
    whole.x = hidden.get(), whole.x_stride = stride;
    for_ranges(num_panels, worth_threads, [&](int64_t begin, int64_t end) {
        multiply_block(Panels{}, whole, 0, p.rows, begin, end);
    });
    for_ranges(p.rows, p.rows * rotary.heads * rotary.head_dim > ROTARY_WORTH_THREADS,
               [&](int64_t begin, int64_t end) { rotary.rows(begin, end, p.y, p.y_stride); });
}
