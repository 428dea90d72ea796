// Solution of lab cuda-int4-gemv. The first comment of the stub states the contract.
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
