// Lab cpp-lora-sgmv: low-rank adapters, many in one batch: shrink and expand for the rows of each adapter.
//
// The seam is lora_shrink and lora_expand of kernels/ops.py, which every linear layer calls beside its own weight.
// LoRA: Hu et al. 2021 (2106.09685); SGMV: Punica, Chen et al. 2023 (2310.18547); S-LoRA: Sheng et al. 2023
// (2311.03285); vLLM: lora/ops/triton_ops/lora_shrink_op.py, lora_expand_op.py.
//
//     order    3  7 | 0  1  5 | 4           rows sorted by adapter: adapter s has the rows
//     starts   0      2     2       5  6    order[starts[s]] .. order[starts[s + 1] - 1], here 2, 0, 3 and 1 rows
//
//     shrink   low[t][r]  = sum over k of x[t][k] * a[s][r][k]                    for r < ranks[s]
//     expand   y[t][n]   += scaling[s] * sum over r of low[t][r] * b[s][r][n]     r < ranks[s]
//
// Rows in no list (here 2 and 6) have no adapter: their low and y keep their bits. All slots have room for max_rank;
// behind the rank of an adapter a and b hold what an earlier adapter left, also NaN, and low holds anything: read none
// of it, and leave low there as it was. Errors up to 1e-6 of the sum of the absolute terms are accepted.
//
// x      fp32 [tokens, depth]                 order    int32 [rows with an adapter], may be empty
// low    fp32 [tokens, max_rank]              starts   int32 [adapters + 1]
// y      fp32 [tokens, columns]               ranks    int32 [adapters], 1 to max_rank
// a      fp32 [adapters, max_rank, depth]     scaling  fp32 [adapters]
// b      fp32 [adapters, max_rank, columns]   (vLLM keeps b as [adapters, columns, max_rank])
//
// depth and columns are any size >= 1, max_rank is at most 128. A row's numbers must not depend on the rows beside
// it. Read and write no number beside an array, and free the memory that you allocate. One thread; -O3 -march=native
// -fopenmp-simd.
#include <algorithm>

// given up to here

#include <cstring>

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16, WIDE = 4;  // floats of a vector; ranks or vectors at once, so that all sums stay in registers
#else
constexpr int LANES = 8, WIDE = 2;
#endif
constexpr int TILE = 6;  // rows that share what is read of a and b
typedef float vfloat __attribute__((vector_size(4 * LANES)));

inline vfloat load(const float* from) {
    vfloat value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

inline void store(float* to, vfloat value) { std::memcpy(to, &value, sizeof value); }

inline float sum(vfloat value) {
    float total = 0;
    for (int lane = 0; lane < LANES; lane++) total += value[lane];
    return total;
}

// RANKS numbers of low for ROWS rows. Every sum has the same order, however many rows and ranks share the loads.
template <int ROWS, int RANKS>
inline void dots(const float* const* x, const float* a, int depth, float* const* low, int rank) {
    vfloat sums[ROWS][RANKS] = {};
    int k = 0;
    for (; k + LANES <= depth; k += LANES) {
        vfloat of_a[RANKS];
#pragma GCC unroll 4
        for (int r = 0; r < RANKS; r++) of_a[r] = load(a + long(r) * depth + k);
#pragma GCC unroll 6
        for (int row = 0; row < ROWS; row++) {
            const vfloat of_x = load(x[row] + k);
#pragma GCC unroll 4
            for (int r = 0; r < RANKS; r++) sums[row][r] += of_x * of_a[r];
        }
    }
    for (int row = 0; row < ROWS; row++)
        for (int r = 0; r < RANKS; r++) {
            float total = sum(sums[row][r]);
            for (int rest = k; rest < depth; rest++) total += x[row][rest] * a[long(r) * depth + rest];
            low[row][rank + r] = total;
        }
}

template <int ROWS>
void shrink(const float* const* x, const float* a, int depth, float* const* low, int num_ranks) {
    int rank = 0;
    for (; rank + WIDE <= num_ranks; rank += WIDE) dots<ROWS, WIDE>(x, a + long(rank) * depth, depth, low, rank);
    for (; rank < num_ranks; rank++) dots<ROWS, 1>(x, a + long(rank) * depth, depth, low, rank);
}

// VECTORS * LANES neighbouring columns of ROWS rows.
template <int ROWS, int VECTORS>
inline void add_columns(const float* const* low, const float* b, int columns, float scaling, float* const* y, int column,
                        int num_ranks) {
    vfloat sums[ROWS][VECTORS] = {};
    for (int r = 0; r < num_ranks; r++) {
        const float* from = b + long(r) * columns + column;
        vfloat of_b[VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++) {
            of_b[v] = load(from + v * LANES);
            __builtin_prefetch(from + (VECTORS + v) * LANES);  // the next columns lie elsewhere than the next rank
        }
#pragma GCC unroll 6
        for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) sums[row][v] += low[row][r] * of_b[v];
    }
    for (int row = 0; row < ROWS; row++)
        for (int v = 0; v < VECTORS; v++) {
            float* to = y[row] + column + v * LANES;
            store(to, load(to) + scaling * sums[row][v]);
        }
}

template <int ROWS>
void expand(const float* const* low, const float* b, int columns, float scaling, float* const* y, int num_ranks) {
    int column = 0;
    for (; column + WIDE * LANES <= columns; column += WIDE * LANES)
        add_columns<ROWS, WIDE>(low, b, columns, scaling, y, column, num_ranks);
    for (; column + LANES <= columns; column += LANES)
        add_columns<ROWS, 1>(low, b, columns, scaling, y, column, num_ranks);
    for (; column < columns; column++)
        for (int row = 0; row < ROWS; row++) {
            float total = 0;
            for (int r = 0; r < num_ranks; r++) total += low[row][r] * b[long(r) * columns + column];
            y[row][column] += scaling * total;
        }
}

// Calls visit(adapter, rows, count) for up to TILE rows of one adapter at a time.
template <typename Visit>
inline void for_each_tile(const int* order, const int* starts, int adapters, Visit visit) {
    for (int adapter = 0; adapter < adapters; adapter++)
        for (int at = starts[adapter]; at < starts[adapter + 1]; at += TILE)
            visit(adapter, order + at, std::min(TILE, starts[adapter + 1] - at));
}

using Shrink = decltype(&shrink<1>);
using Expand = decltype(&expand<1>);
constexpr Shrink SHRINK[] = {shrink<1>, shrink<2>, shrink<3>, shrink<4>, shrink<5>, shrink<6>};
constexpr Expand EXPAND[] = {expand<1>, expand<2>, expand<3>, expand<4>, expand<5>, expand<6>};

}  // namespace

extern "C" void lora_shrink(const float* x, const float* a, const int* order, const int* starts, const int* ranks,
                            float* low, int adapters, int max_rank, int depth) {
    for_each_tile(order, starts, adapters, [&](int adapter, const int* rows, int count) {
        const float* of_x[TILE];
        float* of_low[TILE];
        for (int i = 0; i < count; i++) {
            of_x[i] = x + long(rows[i]) * depth;
            of_low[i] = low + long(rows[i]) * max_rank;
        }
        SHRINK[count - 1](of_x, a + long(adapter) * max_rank * depth, depth, of_low, ranks[adapter]);
    });
}

extern "C" void lora_expand(const float* low, const float* b, const int* order, const int* starts, const int* ranks,
                            const float* scaling, float* y, int adapters, int max_rank, int columns) {
    for_each_tile(order, starts, adapters, [&](int adapter, const int* rows, int count) {
        const float* of_low[TILE];
        float* of_y[TILE];
        for (int i = 0; i < count; i++) {
            of_low[i] = low + long(rows[i]) * max_rank;
            of_y[i] = y + long(rows[i]) * columns;
        }
        const float* of_b = b + long(adapter) * max_rank * columns;
        EXPAND[count - 1](of_low, of_b, columns, scaling[adapter], of_y, ranks[adapter]);
    });
}
