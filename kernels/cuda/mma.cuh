// Tensor cores: a warp multiplies small matrices that its 32 lanes hold in registers together.
//
//     multiply:   C [16 x 8, fp32]  +=  A [16 x 16]  B [16 x 8]                  A and B in f16 or bf16
//
// The lane of an element, with g = lane / 4 and t = lane % 4 (PTX ISA, "Matrix fragments for mma.m16n8k16"):
//
//     A   at[0]  row g,      columns 2t, 2t + 1        at[2]  row g,      columns 2t + 8, 2t + 9
//         at[1]  row g + 8,  columns 2t, 2t + 1        at[3]  row g + 8,  columns 2t + 8, 2t + 9
//     B   at[0]  rows 2t, 2t + 1,  column g            at[1]  rows 2t + 8, 2t + 9,  column g
//     C   at[0], at[1]  row g,  columns 2t, 2t + 1     at[2], at[3]  row g + 8,  columns 2t, 2t + 1
//
// A word holds two 16-bit numbers, the first in its lower half. All 32 lanes must call these functions together. On the
// host shim the lanes show each other their registers, and a product is summed in double and rounded once.
#pragma once
#include "common.cuh"

struct MatrixA { uint32_t at[4]; };
struct MatrixB { uint32_t at[2]; };
struct MatrixC { float at[4]; };

template <class T>
__device__ inline uint32_t pack(float first, float second) {
    return from_float<T>(first).bits | uint32_t(from_float<T>(second).bits) << 16;
}

#ifdef PREP_HOST_SHIM
template <class T>
inline float half_of(uint32_t word, int index) { return to_float(T{uint16_t(word >> 16 * index)}); }
#endif

template <class T>
__device__ inline void multiply(MatrixC& c, const MatrixA& a, const MatrixB& b) {
#ifdef PREP_HOST_SHIM
    struct Factors { MatrixA a; MatrixB b; } mine{a, b};
    const uint64_t* lanes = shim::gather(reinterpret_cast<uintptr_t>(&mine), __LINE__);
    const auto of = [&](int lane) { return reinterpret_cast<const Factors*>(lanes[lane]); };
    for (int i = 0; i < 4; ++i) {
        const int row = lane_id() / 4, column = lane_id() % 4 * 2 + i % 2;
        double sum = c.at[i];
        for (int k = 0; k < 16; ++k) {
            const int pair = k % 8 / 2;  // t of the lanes that hold column k of A and row k of B
            const float left = half_of<T>(of(row * 4 + pair)->a.at[i / 2 + k / 8 * 2], k % 2);
            const float right = half_of<T>(of(column * 4 + pair)->b.at[k / 8], k % 2);
            sum += double(left) * right;
        }
        c.at[i] = float(sum);
    }
    __syncwarp();  // the other lanes have read `mine`
#else
    if constexpr (same_type<T, bf16>)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(c.at[0]), "+f"(c.at[1]), "+f"(c.at[2]), "+f"(c.at[3])
            : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b.at[0]), "r"(b.at[1]));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(c.at[0]), "+f"(c.at[1]), "+f"(c.at[2]), "+f"(c.at[3])
            : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b.at[0]), "r"(b.at[1]));
#endif
}

// Read COUNT (2 or 4) matrices of 8 rows of 16 bytes from shared memory: row i of matrix j lies where lane 8 j + i
// points to. Then to[j] holds, of matrix j in 16-bit units, row g, columns 2t and 2t + 1; TRANSPOSED: rows 2t and
// 2t + 1, column g.
template <int COUNT, bool TRANSPOSED>
__device__ inline void load_matrices(uint32_t* to, const void* row) {
#ifdef PREP_HOST_SHIM
    uint16_t mine[8];  // read when this lane comes: whatever the others should have written must be there by then
    if (lane_id() < 8 * COUNT) memcpy(mine, load<1>(static_cast<const uint4*>(row)).at, 16);
    const uint64_t* rows = shim::gather(reinterpret_cast<uintptr_t>(mine), __LINE__);
    const int g = lane_id() / 4, t = lane_id() % 4;
    for (int j = 0; j < COUNT; ++j) {
        const auto at = [&](int i, int column) {
            return uint32_t(reinterpret_cast<const uint16_t*>(rows[8 * j + i])[column]);
        };
        to[j] = TRANSPOSED ? at(2 * t, g) | at(2 * t + 1, g) << 16 : at(g, 2 * t) | at(g, 2 * t + 1) << 16;
    }
    __syncwarp();  // the other lanes have read `mine`
#else
    const unsigned address = unsigned(__cvta_generic_to_shared(row));
    if constexpr (COUNT == 4 && TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
    else if constexpr (COUNT == 4)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
    else if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(to[0]), "=r"(to[1]) : "r"(address) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                     : "=r"(to[0]), "=r"(to[1]) : "r"(address) : "memory");
#endif
}

// An 8 x 8 matrix with row g, columns 2t and 2t + 1 in a word becomes one with rows 2t and 2t + 1, column g.
__device__ inline uint32_t transpose(uint32_t word) {
#ifdef PREP_HOST_SHIM
    const uint64_t* words = shim::gather(word, __LINE__);
    const int g = lane_id() / 4, t = lane_id() % 4;
    const auto at = [&](int row) { return uint32_t(words[row * 4 + g / 2] >> g % 2 * 16) & 0xffff; };
    return at(2 * t) | at(2 * t + 1) << 16;
#else
    uint32_t result;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(word));
    return result;
#endif
}

// --- a quantised cache's bytes as factors ------------------------------------------------------------------------
//
// Bytes 0 and 2 of a word become two 16-bit numbers, and bytes 1 and 3 two others: the order that costs no shuffling of
// bytes. A few operations on whole words, where four single conversions would keep the tensor cores waiting.

struct Widened { uint32_t even, odd; };

// a * b + c on both halves of words.
template <class T>
__device__ inline uint32_t multiply_add(uint32_t a, uint32_t b, uint32_t c) {
#ifdef PREP_HOST_SHIM
    return pack<T>(half_of<T>(a, 0) * half_of<T>(b, 0) + half_of<T>(c, 0),
                   half_of<T>(a, 1) * half_of<T>(b, 1) + half_of<T>(c, 1));
#else
    uint32_t result;
    if constexpr (same_type<T, bf16>)
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    else
        asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
#endif
}

// Exponent and mantissa of bytes 1 and 3 moved to their places in T, then the bias corrected: by 2^120 or 2^8.
template <class T>
__device__ inline uint32_t widen_f8e4m3_odd(uint32_t word) {
    constexpr bool BF16 = same_type<T, bf16>;
    const uint32_t moved = (word & 0x80008000) | (word & 0x7f007f00) >> (BF16 ? 4 : 1);
    return multiply_add<T>(moved, BF16 ? 0x7b807b80 : 0x5c005c00, 0x80008000);  // plus -0
}

template <class T>
__device__ inline Widened widen(uint32_t word, f8e4m3) {
    Widened result{widen_f8e4m3_odd<T>(word << 8), widen_f8e4m3_odd<T>(word)};
    const uint32_t nan = ((word & 0x7f7f7f7f) + 0x01010101) & 0x80808080;  // a magnitude of 0x7f has carried
    if (nan) {
        if (nan & 0x00000080) result.even |= 0x7fff;
        if (nan & 0x00800000) result.even |= 0x7fff0000;
        if (nan & 0x00008000) result.odd |= 0x7fff;
        if (nan & 0x80000000) result.odd |= 0x7fff0000;
    }
    return result;
}

// 128 + (the lower seven bits), less 128 or, if the byte is negative, 256: all of them exact in bf16.
template <class T>
__device__ inline Widened widen(uint32_t word, i8) {
    static_assert(same_type<T, bf16>, "a scaled weight would underflow in f16");
    const auto one = [](uint32_t bytes) {
        return multiply_add<T>(0x43004300 | (bytes & 0x007f007f), 0x3f803f80, 0xc300c300 | (bytes & 0x00800080));
    };
    return {one(word), one(word >> 8)};
}
