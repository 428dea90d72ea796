// What the products with quantised weights share.
#pragma once

#include <algorithm>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "dtype.h"
#include "threads.h"
#include "tile.h"

// How far ahead of its use a panel is asked for. Several panels are read side by side, more streams than a processor's
// own prefetching follows.
constexpr int64_t PREFETCH_BYTES = 2048;
constexpr int64_t ROWS_IN_SCRATCH = 768;  // of x, converted at once

// A matrix of one of the three float types, read and written as float.
struct FloatMatrix {
    void* data;
    int64_t dtype, stride;

    void read(int64_t row, int64_t column, int64_t count, float* to) const {
        with_float_type(dtype, [&](auto type) {
            const auto* from = static_cast<const decltype(type)*>(data) + row * stride + column;
            int64_t i = 0;
            for (; i + LANES <= count; i += LANES) store(to + i, load(from + i));
            store_first(to + i, load_first(from + i, count - i), count - i);
        });
    }

    // The lines that `rows` x `count` vectors go to: they arrive while these are computed.
    ALWAYS_INLINE void prefetch(int64_t row, int64_t column, int rows, int count) const {
        const int64_t size = dtype == FLOAT32 ? 4 : 2;
        for (int i = 0; i < rows; i++)
            for (int v = 0; v < count; v++)
                __builtin_prefetch(static_cast<char*>(data) + ((row + i) * stride + column + v * LANES) * size, 1);
    }

    // A tile whose first number is at `row` and `column`. What would be columns `end` and more is left out.
    template <int ROWS, int VECTORS>
    ALWAYS_INLINE void write(int64_t row, int64_t column, int64_t end, const vfloat (&tile)[ROWS][VECTORS]) const {
        if (dtype == FLOAT32) write_as(static_cast<float*>(data) + row * stride, column, end, tile);
        if (dtype == FLOAT16) write_as(static_cast<float16*>(data) + row * stride, column, end, tile);
        if (dtype == BFLOAT16) write_as(static_cast<bfloat16*>(data) + row * stride, column, end, tile);
    }

    // Inline, as a tile's numbers are in registers: with a call for each row, int4 takes 8 % longer at 128
    // rows (`prep kernels bench int4_linear`, before and after).
    template <typename T, int ROWS, int VECTORS>
    ALWAYS_INLINE void write_as(T* to, int64_t column, int64_t end, const vfloat (&tile)[ROWS][VECTORS]) const {
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++, column += LANES)
#pragma GCC unroll 16
            for (int i = 0; i < ROWS; i++)
                if (column + LANES <= end)
                    store(to + i * stride + column, tile[i][v]);
                else
                    store_first(to + i * stride + column, tile[i][v], std::max<int64_t>(0, end - column));
    }
};

// LANES numbers of one of the three float types.
inline vfloat load_as_float(const void* from, int64_t dtype) {
    vfloat x{};
    with_float_type(dtype, [&](auto type) { x = load(static_cast<const decltype(type)*>(from)); });
    return x;
}

// LANES bytes and words, to and from. GCC makes a conversion over two sizes a byte at a time.
typedef int8_t vbytes __attribute__((vector_size(LANES)));
typedef int16_t vshort __attribute__((vector_size(2 * LANES)));

inline vint load_bytes(const int8_t* from) {
    vbytes bytes;
    std::memcpy(&bytes, from, sizeof bytes);
#if defined(__AVX512F__)
    return (vint)_mm512_maskz_cvtepi8_epi32(0xffff, (__m128i)bytes);
#else
    return __builtin_convertvector(__builtin_convertvector(bytes, vshort), vint);
#endif
}

// The low byte of each word.
inline void store_bytes(void* to, vint words) {
#if defined(__AVX512F__)
    _mm_storeu_si128(static_cast<__m128i*>(to), _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)words));
#else
    const vbytes bytes = __builtin_convertvector(__builtin_convertvector(words, vshort), vbytes);
    std::memcpy(to, &bytes, sizeof bytes);
#endif
}

// Numbers between rows in scratch memory: rows a multiple of 4 KiB apart would share one set of the L1 cache.
inline int64_t stride_in_scratch(int64_t numbers, int64_t size) {
    return numbers * size % 4096 ? numbers : numbers + 64 / size;
}
