// What the products with quantised weights share.
#pragma once

#include "dtype.h"
#include "tile.h"

// How far ahead weights are asked for. The tiles' rows are short streams side by side, which a processor's own
// prefetching sees too late; behind each other in memory they are one.
constexpr int64_t PREFETCH_BYTES = 8192;

// A matrix of one of the three float types, read and written as float.
struct FloatMatrix {
    void* data;
    int64_t dtype, stride;

    void read(int64_t row, int64_t column, int64_t count, float* to) const {
        with_float_type(dtype, [&](auto type) {
            const auto* from = static_cast<const decltype(type)*>(data) + row * stride + column;
            for (int64_t i = 0; i < count; i++) to[i] = to_float(from[i]);
        });
    }
    void write(int64_t row, int64_t column, int64_t count, const float* from) const {
        with_float_type(dtype, [&](auto type) {
            auto* to = static_cast<decltype(type)*>(data) + row * stride + column;
            for (int64_t i = 0; i < count; i++) to[i] = from_float<decltype(type)>(from[i]);
        });
    }
};

// A vector that several instructions use is loaded once. GCC would rather make its address an operand of each of them,
// and a core reads from memory twice in a cycle, no more.
template <typename Vector>
ALWAYS_INLINE Vector in_register(Vector x) {
#if defined(__x86_64__)
    asm("" : "+v"(x));
#endif
    return x;
}
