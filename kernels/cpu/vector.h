// Vectors of floats in the widest registers of the target, written with the compiler's vector extensions (GCC and
// clang): arithmetic operators work lane by lane, and there is no intrinsic to look up.
#pragma once

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__AVX512F__) || defined(__FMA__) || defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16;
constexpr int VECTOR_REGISTERS = 32;
#elif defined(__AVX__)
constexpr int LANES = 8;
constexpr int VECTOR_REGISTERS = 16;
#else
constexpr int LANES = 4;
#if defined(__aarch64__)
constexpr int VECTOR_REGISTERS = 32;
#else
constexpr int VECTOR_REGISTERS = 16;
#endif
#endif

typedef float vfloat __attribute__((vector_size(4 * LANES)));
typedef int32_t vint __attribute__((vector_size(4 * LANES)));
typedef uint32_t vuint __attribute__((vector_size(4 * LANES)));
typedef uint16_t vhalf __attribute__((vector_size(2 * LANES)));

// float16 and bfloat16 are storage types here: loaded as float, rounded to nearest even when stored. As a bfloat16 a
// subnormal number, below 1.2e-38, is stored as a zero of its sign: so does the instruction of AVX512-BF16.
#if defined(__aarch64__)
typedef __fp16 float16;  // GCC 12 has no _Float16 in C++ for ARM
#else
typedef _Float16 float16;
#endif
struct bfloat16 {
    uint16_t bits;
};

inline float to_float(float x) {
    return x;
}
inline float to_float(float16 x) {
    return static_cast<float>(x);
}
inline float to_float(bfloat16 x) {
    const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

template <typename T>
inline T from_float(float x) {
    return static_cast<T>(x);
}
template <>
inline bfloat16 from_float<bfloat16>(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if (!(bits & 0x7f800000)) bits &= 0x80000000;
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return {static_cast<uint16_t>(x != x ? 0x7fc0 : rounded)};
}

inline vfloat splat(float x) {
    return x - vfloat{};
}
inline vint splat_int(int32_t x) {
    return x - vint{};
}

// x * y + sum, rounded once where there is an instruction for it. For some processors GCC makes one of the operators in
// some loops and not in others: then a sum would depend on the size of the tile.
inline __attribute__((always_inline)) vfloat multiply_add(vfloat x, vfloat y, vfloat sum) {
#if defined(__AVX512F__)
    return (vfloat)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)sum);
#elif defined(__FMA__)
    return (vfloat)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)sum);
#elif defined(__aarch64__)
    return (vfloat)vfmaq_f32((float32x4_t)sum, (float32x4_t)x, (float32x4_t)y);
#else
    return x * y + sum;
#endif
}

inline vint lane_numbers() {
    vint lanes;
    for (int i = 0; i < LANES; i++) lanes[i] = i;
    return lanes;
}

inline vfloat load(const float* from) {
    vfloat x;
    std::memcpy(&x, from, sizeof x);
    return x;
}
// 16 bits to 32 with zeros in front. GCC 12 makes five instructions of the conversion where AVX-512 has one.
inline vint widened(vhalf bits) {
#if defined(__AVX512F__)
    return (vint)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)bits);
#else
    return __builtin_convertvector(bits, vint);
#endif
}

inline vfloat load(const bfloat16* from) {
    vhalf bits;
    std::memcpy(&bits, from, sizeof bits);
    return (vfloat)(widened(bits) << 16);
}
inline vfloat load(const float16* from) {
#if defined(__AVX512F__)
    return (vfloat)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__F16C__) && defined(__AVX__)
    return (vfloat)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#elif defined(__aarch64__)
    return (vfloat)vcvt_f32_f16(vld1_f16(from));
#else
    vfloat x{};
    for (int i = 0; i < LANES; i++) x[i] = static_cast<float>(from[i]);
    return x;
#endif
}

inline void store(float* to, vfloat x) {
    std::memcpy(to, &x, sizeof x);
}
// `from_float` for all lanes at once; a NaN may have other bits.
inline void store(bfloat16* to, vfloat x) {
#if defined(__AVX512BF16__) && defined(__AVX512VL__)
    const auto halves = _mm512_cvtneps_pbh((__m512)x);
#else
    const vint is_normal = ((vint)x & 0x7f800000) != 0, sign = (vint)x & static_cast<int32_t>(0x80000000);
    const vuint bits = (vuint)(((vint)x & is_normal) | sign);
    const vint rounded = (vint)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16), is_nan = x != x;
    const vhalf halves = __builtin_convertvector((rounded & ~is_nan) | (is_nan & 0x7fc0), vhalf);
#endif
    std::memcpy(to, &halves, sizeof halves);
}
inline void store(float16* to, vfloat x) {
    for (int i = 0; i < LANES; i++) to[i] = from_float<float16>(x[i]);
}

// Each lane as a T would hold it.
template <typename T>
inline vfloat rounded(vfloat x) {
    if constexpr (std::is_same_v<T, float>) return x;
    T numbers[LANES];
    store(numbers, x);
    return load(numbers);
}

// The first `count` lanes; the others are 0, and left alone in memory.
template <typename T>
inline vfloat load_first(const T* from, int64_t count) {
    vfloat x{};
    for (int64_t i = 0; i < count; i++) x[i] = to_float(from[i]);
    return x;
}
template <typename T>
inline void store_first(T* to, vfloat x, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = from_float<T>(x[i]);
}

// Lane by lane `condition ? yes : no`, where condition is a comparison of vectors.
inline vfloat select(vint condition, vfloat yes, vfloat no) {
    return (vfloat)(((vint)yes & condition) | ((vint)no & ~condition));
}

// The larger of two; a NaN in x stays. Written so that it becomes one instruction.
inline vfloat maximum(vfloat x, vfloat y) {
    return x < y ? y : x;
}

// Lane i of the result is lane from(i) of x and y behind each other.
template <typename From, size_t... I>
inline __attribute__((always_inline)) vfloat shuffled(vfloat x, vfloat y, From, std::index_sequence<I...>) {
#if defined(__clang__)
    return __builtin_shufflevector(x, y, From::of(I)...);
#else
    return __builtin_shuffle(x, y, vint{From::of(I)...});
#endif
}
template <typename From>
inline __attribute__((always_inline)) vfloat shuffled(vfloat x, vfloat y) {
    return shuffled(x, y, From{}, std::make_index_sequence<LANES>{});
}
template <int DISTANCE>
struct Swap {
    static constexpr int of(int i) { return i ^ DISTANCE; }
};
template <int DISTANCE>
struct Low {
    static constexpr int of(int i) { return i & DISTANCE ? LANES + i - DISTANCE : i; }
};
template <int DISTANCE>
struct High {
    static constexpr int of(int i) { return i & DISTANCE ? LANES + i : i + DISTANCE; }
};

// Lanes i and i ^ distance change places.
template <int DISTANCE>
inline vfloat swap_lanes(vfloat x) {
    return shuffled<Swap<DISTANCE>>(x, x);
}

// The largest lane, and the sum of all, pairwise: the same tree for every caller.
template <int DISTANCE = LANES / 2>
inline float largest(vfloat x) {
    x = maximum(x, swap_lanes<DISTANCE>(x));
    if constexpr (DISTANCE > 1) return largest<DISTANCE / 2>(x);
    return x[0];
}
template <int DISTANCE = LANES / 2>
inline float sum(vfloat x) {
    x += swap_lanes<DISTANCE>(x);
    if constexpr (DISTANCE > 1) return sum<DISTANCE / 2>(x);
    return x[0];
}

// A square of LANES x LANES numbers, rows become columns: log2(LANES) rounds, each of which swaps the two
// off-diagonal quarters of every block of 2 * DISTANCE.
template <int DISTANCE = LANES / 2>
inline __attribute__((always_inline)) void transpose(vfloat (&rows)[LANES]) {
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        if (!(i & DISTANCE)) {
            const vfloat upper = rows[i], lower = rows[i + DISTANCE];
            rows[i] = shuffled<Low<DISTANCE>>(upper, lower);
            rows[i + DISTANCE] = shuffled<High<DISTANCE>>(upper, lower);
        }
    if constexpr (DISTANCE > 1) transpose<DISTANCE / 2>(rows);
}

// Four numbers of each of LANES rows in memory: columns[k] holds number k of every row. row(i): the address of row i.
// Half of the exchange comes with the loads: four numbers of every fourth row go into one register.
template <typename RowOf>
inline __attribute__((always_inline)) void load_columns(RowOf row, vfloat (&columns)[4]) {
    vfloat x[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
#if defined(__AVX512F__)
        const auto at = [&](int j) { return _mm_loadu_ps(reinterpret_cast<const float*>(row(j))); };
        __m512 four = _mm512_castps128_ps512(at(i));
        four = _mm512_mask_broadcast_f32x4(four, 0x00f0, at(4 + i));
        four = _mm512_mask_broadcast_f32x4(four, 0x0f00, at(8 + i));
        x[i] = (vfloat)_mm512_mask_broadcast_f32x4(four, 0xf000, at(12 + i));
#else
        float numbers[LANES];
        for (int j = 0; j < LANES; j += 4) std::memcpy(numbers + j, row(i + j), 4 * sizeof(float));
        x[i] = load(numbers);
#endif
    }
    const vfloat a = shuffled<Low<1>>(x[0], x[1]), b = shuffled<High<1>>(x[0], x[1]);
    const vfloat c = shuffled<Low<1>>(x[2], x[3]), d = shuffled<High<1>>(x[2], x[3]);
    columns[0] = shuffled<Low<2>>(a, c);
    columns[1] = shuffled<Low<2>>(b, d);
    columns[2] = shuffled<High<2>>(a, c);
    columns[3] = shuffled<High<2>>(b, d);
}

// e^x to about one unit in the last place: 2^n * e^r with r in [-ln2/2, ln2/2], e^r by a Taylor polynomial.
// Below -87.3, where floats become subnormal, the result is 0; NaN stays NaN. Above 88.7 it is wrong:
// softmax and silu only ask for what is at most 0.
inline __attribute__((always_inline)) vfloat exp_nonpositive(vfloat x) {
    const vfloat n_shifted = x * 1.44269504f + 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
    const vfloat n = n_shifted - 12582912.0f;
    const vfloat r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts, so that r is exact
    vfloat p = splat(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const vfloat scaled = (vfloat)((vuint)p + ((vuint)n_shifted << 23));
    return select(x < -87.3f, vfloat{}, scaled);
}
