// Lab cpp-int4-gemv: a vector times a matrix of 4-bit weights, dequantised by groups.
//
// The seam is int4_linear of kernels/ops.py for one token: a decoding request times a matrix of 4-bit weights (W4A16; AWQ:
// Lin et al. 2023, 2306.00978; GPTQ: Frantar et al. 2022, 2210.17323, both after repacking).
//
//     row n   k = 0     1   |   2     3   | ...        byte j has column 2 j in its low, 2 j + 1 in its high four bits
//     byte       low  high  |  low  high  | ...
//
//     weight[n][k] = (nibble - zero[n][g]) * scale[n][g]        nibble, zero: 0 to 15, unsigned;  g = k / group_size
//     out[n]       = sum over k of x[k] * weight[n][k]
//
// group_size divides columns. Numbers of x may be as large as 1e4. Errors up to 1e-5 of the sum over k of |x[k]| *
// scale[n][g] are accepted.
//
// x        fp32 [columns]                      scale  fp32 [rows, columns / group_size]
// qweight  uint8 [rows, columns / 2]           zero   uint8 [rows, columns / group_size]
// out      fp32 [rows]
//
// rows >= 1; group_size is a multiple of 8, not always of a vector. Read and write no number beside an array, and
// free the memory that you allocate. One thread; -O3 -march=native -fopenmp-simd.
//
// A plan: read eight columns as one 32-bit word, in little-endian order. word & (15 << 4 i) is nibble i times 16^i, which
// is exact as a float, so x of that column is multiplied by 16^-i once for all rows. The zero points need not be
// subtracted from each nibble: sum x (nibble - zero) = sum x nibble - zero * sum x, and the sum of x in a group is the
// same for all rows.
#include <cstdint>

extern "C" void int4_gemv(const float* x, const uint8_t* qweight, const float* scale, const uint8_t* zero, float* out,
                          int rows, int columns, int group_size) {
#error "write it: int4_gemv"
}
