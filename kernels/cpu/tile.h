// The inner loop of every product: a tile of ROWS x (VECTORS * LANES) sums that stay in registers.
//
//                     b  [depth, VECTORS * LANES]
//                     . . . . | . . . .
//       a             . . . . | . . . .        for each k: load the VECTORS vectors of b once, broadcast
//       x x x x  ---> + + + + | + + + +        a[row][k], and do ROWS * VECTORS multiply-adds
//       x x x x  ---> + + + + | + + + +
//
// Every sum runs over k in order, whatever the tile's size. So a row's result does not depend on how many
// rows there are: that is batch invariance. Source: Goto & van de Geijn 2008, "Anatomy of High-Performance
// Matrix Multiplication", and the micro-kernel of BLIS.
#pragma once

#include "vector.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))

template <int ROWS, int VECTORS>
struct Tile {
    vfloat sums[ROWS][VECTORS];

    ALWAYS_INLINE void zero() {
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) sums[row][v] = vfloat{};
    }

    // sums[row] += a[row * stride] * b
    ALWAYS_INLINE void add(const float* a, int64_t stride, const vfloat (&b)[VECTORS]) {
#pragma GCC unroll 16
        for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++)
                sums[row][v] = multiply_add(splat(a[row * stride]), b[v], sums[row][v]);
    }
};

// Asks for the cache line of an address that is read some thousand bytes later. To the L2 cache, which has more misses
// under way than the L1 cache.
ALWAYS_INLINE void ask(const void* address) {
    __builtin_prefetch(address, 0, 2);
}
