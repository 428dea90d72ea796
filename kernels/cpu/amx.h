// AMX, of Intel's processors since Sapphire Rapids: eight registers of 16 rows of 64 bytes ("tiles"), and an instruction
// that adds the product of two of them to a third:
//
//     a  16 rows x 16 pairs of bf16    b  16 pairs x 16 columns    sums  16 rows x 16 columns of fp32
//
// HAS_AMX tells whether the names below exist. With EMULATE_AMX they are plain C++, in the order of the manual (Intel SDM
// volume 2, TDPBF16PS), so that a processor without AMX can test the code above them.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(EMULATE_AMX)
#define HAS_AMX 1
#elif defined(__AMX_BF16__) && defined(__linux__)
#define HAS_AMX 1
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#define HAS_AMX 0
#endif

#if HAS_AMX

// What LDTILECFG reads. A register with 0 rows may not be used.
struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

#if defined(EMULATE_AMX)

struct EmulatedTiles {
    TileShapes shapes;
    char bytes[8][16][64];
};
inline thread_local EmulatedTiles tiles;

inline bool enable_amx() {
    return true;
}
inline void load_tile_shapes(const void* shapes) {
    std::memset(tiles.bytes, 0, sizeof tiles.bytes);
    std::memcpy(&tiles.shapes, shapes, sizeof tiles.shapes);
}
inline void release_tiles() {
    tiles.shapes = TileShapes{};
}
inline void zero_tile(int tile) {
    std::memset(tiles.bytes[tile], 0, sizeof tiles.bytes[tile]);
}
inline void load_tile(int tile, const void* from, int64_t stride) {
    zero_tile(tile);
    for (int row = 0; row < tiles.shapes.rows[tile]; row++)
        std::memcpy(tiles.bytes[tile][row], static_cast<const char*>(from) + row * stride,
                    tiles.shapes.row_bytes[tile]);
}
inline void save_tile(int tile, void* to, int64_t stride) {
    for (int row = 0; row < tiles.shapes.rows[tile]; row++)
        std::memcpy(static_cast<char*>(to) + row * stride, tiles.bytes[tile][row], tiles.shapes.row_bytes[tile]);
}
inline float emulated_number(int tile, int row, int number) {
    uint16_t half;
    std::memcpy(&half, tiles.bytes[tile][row] + 2 * number, sizeof half);
    const uint32_t bits = uint32_t{half} << 16;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
}
inline void add_tile_product(int sums, int a, int b) {
    for (int row = 0; row < tiles.shapes.rows[sums]; row++)
        for (int pair = 0; pair < tiles.shapes.row_bytes[a] / 4; pair++)
            for (int column = 0; column < tiles.shapes.row_bytes[sums] / 4; column++)
                for (int half = 0; half < 2; half++) {
                    float sum;
                    std::memcpy(&sum, tiles.bytes[sums][row] + 4 * column, sizeof sum);
                    sum += emulated_number(a, row, 2 * pair + half) * emulated_number(b, pair, 2 * column + half);
                    std::memcpy(tiles.bytes[sums][row] + 4 * column, &sum, sizeof sum);
                }
}

#else

// Macros, because the number of a register is part of the instruction.
#define load_tile_shapes(shapes) _tile_loadconfig(shapes)
#define release_tiles() _tile_release()
#define zero_tile(tile) _tile_zero(tile)
#define load_tile(tile, from, stride) _tile_loadd(tile, from, stride)
#define save_tile(tile, to, stride) _tile_stored(tile, to, stride)
#define add_tile_product(sums, a, b) _tile_dpbf16ps(sums, a, b)

// Linux gives the eight kilobytes of registers to a process that asks for them; its threads have them as well.
inline bool enable_amx() {
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM of asm/prctl.h
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

#endif
#endif
