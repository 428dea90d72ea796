// A few rows times a 4-bit matrix (W4A16): out[t, n] = sum_k x[t, k] * (nibble[n, k] - zero[n, g]) * scale[n, g].
//
// One warp per ROWS rows of the matrix. Decode has a token or a few, so the matrix is read once and the kernel is bound by
// bandwidth: half a byte for each weight, against which some four instructions have to be paid. What keeps them few:
//
//   - A lane takes one 32-bit word = 8 columns at a time, a warp 128 bytes of a row. Its 8 values of x are then one 16-byte
//     load, beside those of the next lane. Were the matrix read in 16-byte loads, the lanes would read x 64 bytes apart,
//     with a quarter of the L1's bandwidth, and four times as many bytes of x pass the L1 as bytes of the matrix.
//   - UNROLL words are loaded before the first is used, so that enough of them are in flight.
//   - Integer to float conversion runs at a quarter of the rate. Instead the nibble is put into the mantissa of 2^23:
//
//         0x4b000000 | nibble << 4i       is the fp32 number  2^23 + nibble * 16^i         (i = 0 .. 3: bits 0 .. 15)
//         minus (2^23 + zero * 16^i)      =  (nibble - zero) * 16^i, exactly
//
//     without shifting the nibble down. Sums for the four i are kept apart and weighed by 16^-i once for each word.
//
// x of a few tokens stays in the L1 while all rows pass. Every sum is in the same order for any T and ROWS: a row of x
// gives the same bits alone and in a batch. Tokens beyond 8 make it a matrix product; see triton_ops/int4.py.
//
// Defines: SCALAR (x and out), SCALE, TOKENS, ROWS, UNROLL.
#include "common.cuh"

constexpr int COLUMNS = 8;  // of a word
constexpr uint32_t MAGIC = 0x4b000000;
constexpr float MAGIC_VALUE = 8388608.0f;

// For 8 columns and every token: sums[t] += scale * dot(x, nibbles - zero).
__device__ inline void multiply_word(uint32_t word, float zero, float scale, const Pack<SCALAR, COLUMNS> (&x)[TOKENS],
                                     float (&sums)[TOKENS]) {
    float parts[TOKENS][4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t mask = 0xfu << 4 * i;
        const float offset = fmaf(zero, float(1 << 4 * i), MAGIC_VALUE);
        const float low = __uint_as_float(MAGIC | (word & mask)) - offset;
        const float high = __uint_as_float(MAGIC | (word >> 16 & mask)) - offset;
#pragma unroll
        for (int t = 0; t < TOKENS; ++t) {
            parts[t][i] = fmaf(low, to_float(x[t].at[i]), parts[t][i]);
            parts[t][i] = fmaf(high, to_float(x[t].at[i + 4]), parts[t][i]);
        }
    }
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
        float dot = parts[t][3];
#pragma unroll
        for (int i = 2; i >= 0; --i) dot = fmaf(dot, 1.0f / 16, parts[t][i]);
        sums[t] = fmaf(scale, dot, sums[t]);
    }
}

// x [TOKENS, columns], strided; qweight [rows, columns / 2], scale and zero [rows, columns / group_size];
// out [TOKENS, rows]. columns and group_size are multiples of 8.
extern "C" __global__ void int4_gemv(const SCALAR* __restrict__ x, const uint8_t* __restrict__ qweight,
                                     const SCALE* __restrict__ scale, const uint8_t* __restrict__ zero,
                                     SCALAR* __restrict__ out, int64_t x_stride, int rows, int columns,
                                     int group_size) {
    const int first_row = (blockIdx.x * (blockDim.x / WARP) + warp_id()) * ROWS;
    if (first_row >= rows) return;
    const int groups = columns / group_size;
    float sums[ROWS][TOKENS] = {};
    for (int begin = lane_id() * COLUMNS; begin < columns; begin += UNROLL * WARP * COLUMNS) {
        uint32_t words[ROWS][UNROLL];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int64_t row = min(first_row + r, rows - 1);  // behind the last row: compute it again, store nothing
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                const int column = begin + u * WARP * COLUMNS;
                const uint8_t* address = qweight + (row * columns + column) / 2;
                if (column < columns) words[r][u] = *reinterpret_cast<const uint32_t*>(address);
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int column = begin + u * WARP * COLUMNS;
            if (column >= columns) break;
            Pack<SCALAR, COLUMNS> values[TOKENS];
#pragma unroll
            for (int t = 0; t < TOKENS; ++t) values[t] = load<COLUMNS>(x + t * x_stride + column);
            const int group = column / group_size;
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const int64_t at = int64_t(min(first_row + r, rows - 1)) * groups + group;
                multiply_word(words[r][u], float(zero[at]), to_float(scale[at]), values, sums[r]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int t = 0; t < TOKENS; ++t) {
            const float total = reduce_lanes<WARP>(sums[r][t], Sum());
            if (lane_id() == 0 && first_row + r < rows) out[int64_t(t) * rows + first_row + r] = from_float<SCALAR>(total);
        }
    }
}
