// Lab cuda-int4-gemv: a vector times a matrix of 4-bit weights, dequantised by groups; a warp per row.
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
// group_size is a multiple of 8 and qweight is aligned, so that a lane can take eight columns as one 32-bit word. Launched
// with ceil(rows / 4) blocks of THREADS = 128 threads: a warp for each row, warp w of block b has row 4 b + w. rows is any
// size >= 1. common.cuh (kernels/cuda) has WARP, ALL_LANES, lane_id(), warp_id(), load<4>, reduce_lanes and more.
//
// Read and write no number beside an array. No two threads race: what one thread changes and another uses is ordered by a
// barrier, an exchange of the warp, or atomicAdd. The threads of a block share its work: none makes more than three times
// its share of the block's accesses to memory.
#include "common.cuh"

constexpr int THREADS = 128, WARPS = THREADS / WARP, COLUMNS = 8;  // of a 32-bit word

extern "C" __global__ void int4_gemv(const float* x, const uint8_t* qweight, const float* scale, const uint8_t* zero,
                                     float* out, int rows, int columns, int group_size) {
    const int row = blockIdx.x * WARPS + warp_id(), groups = columns / group_size;
    if (row >= rows) return;  // the whole warp
    const uint8_t* bytes = qweight + int64_t(row) * columns / 2;
    scale += int64_t(row) * groups;
    zero += int64_t(row) * groups;
    float sum = 0;
    // neighbouring lanes take neighbouring words: 128 bytes of the row for each step of the warp
    for (int column = lane_id() * COLUMNS; column < columns; column += WARP * COLUMNS) {
        const uint32_t word = *reinterpret_cast<const uint32_t*>(bytes + column / 2);
        const Pack<float, 4> first = load<4>(x + column), second = load<4>(x + column + 4);
        const int group = column / group_size;
        const float offset = zero[group];
        float dot = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            dot += first.at[i] * (float(word >> 4 * i & 15) - offset);
            dot += second.at[i] * (float(word >> (4 * i + 16) & 15) - offset);
        }
        sum += dot * scale[group];
    }
    sum = reduce_lanes<WARP>(sum, Sum());
    if (lane_id() == 0) out[row] = sum;
}
