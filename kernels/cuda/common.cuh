// What all kernels share: storage types, wide loads, asynchronous copies, reductions.
//
// This is the one place that knows which compiler reads the source. NVRTC compiles it for a GPU; g++ compiles the same
// kernels for the host shim (shim/), where a block's threads are fibers. No header of the CUDA toolkit is needed.
//
// Arithmetic is fp32. f16, bf16, f8e4m3 and i8 are storage only: `to_float` after the load, `from_float` before the
// store, each rounding once, half to even.
#pragma once

#ifdef PREP_HOST_SHIM
#include "shim/cuda_shim.h"
#else
#ifdef __CUDACC_RTC__  // no headers there
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define INFINITY __int_as_float(0x7f800000)
#else  // nvcc, to compare
#include <math.h>
#include <stdint.h>
#endif
// Shared memory whose size the launch gives.
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
// At least this many blocks shall fit on an SM: the compiler keeps to 65536 / threads / blocks registers.
#define BLOCKS_PER_SM(threads, blocks) __launch_bounds__(threads, blocks)
__device__ inline void check_aligned(const void*, size_t) {}  // the GPU itself refuses
#endif

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

__device__ inline int lane_id() { return threadIdx.x % WARP; }
__device__ inline int warp_id() { return threadIdx.x / WARP; }

template <class Int>
__host__ __device__ constexpr Int ceil_div(Int a, Int b) {
    return (a + b - 1) / b;
}

template <class A, class B> constexpr bool same_type = false;
template <class A> constexpr bool same_type<A, A> = true;

// --- storage types ---------------------------------------------------------------------------------------------

typedef float f32;
typedef int8_t i8;
struct f16 { uint16_t bits; };
struct bf16 { uint16_t bits; };
struct f8e4m3 { uint8_t bits; };  // 1 sign, 4 exponent, 3 mantissa bits; no infinity, 0x7f is NaN, largest 448

__device__ inline float to_float(f32 x) { return x; }
__device__ inline float to_float(i8 x) { return float(x); }

// bf16 is the upper half of an fp32.
__device__ inline float to_float(bf16 x) { return __uint_as_float(uint32_t(x.bits) << 16); }

__device__ inline float to_float(f16 x) {
#ifdef PREP_HOST_SHIM
    return shim::half_to_float(x.bits);
#else
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
    return result;
#endif
}

// Exponent and mantissa moved into the place they have in fp32; 2^120 then corrects the bias (127 - 7), also for
// subnormal numbers. Works on every architecture, and is two instructions and a NaN check.
__device__ inline float to_float(f8e4m3 x) {
    const uint32_t magnitude = x.bits & 0x7f;
    const float value = __uint_as_float((uint32_t(x.bits & 0x80) << 24) | (magnitude << 20)) * 0x1p120f;
    return magnitude == 0x7f ? __uint_as_float(0x7fc00000) : value;
}

template <class T>
__device__ inline T from_float(float x);

template <>
__device__ inline f32 from_float<f32>(float x) { return x; }

template <>
__device__ inline bf16 from_float<bf16>(float x) {
#ifdef PREP_HOST_SHIM
    return bf16{shim::float_to_bfloat(x)};
#else
    bf16 result;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
    return result;
#endif
}

template <>
__device__ inline f16 from_float<f16>(float x) {
#ifdef PREP_HOST_SHIM
    return f16{shim::float_to_half(x)};
#else
    f16 result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
    return result;
#endif
}

// The caller has clamped x to +-448. Of the mantissa's 23 bits 20 go: adding half a unit, less one bit if the last bit
// that stays is even, rounds half to even. Below 2^-6 the steps are 2^-9 wide.
template <>
__device__ inline f8e4m3 from_float<f8e4m3>(float x) {
    const uint32_t bits = __float_as_uint(x);
    const uint32_t sign = (bits >> 24) & 0x80;
    const uint32_t magnitude = bits & 0x7fffffff;
    if (x != x) return f8e4m3{uint8_t(sign | 0x7f)};
    if (fabsf(x) < 0x1p-6f) return f8e4m3{uint8_t(sign | uint32_t(rintf(fabsf(x) * 512.0f)))};
    const uint32_t rounded = (magnitude + 0x7ffff + ((magnitude >> 20) & 1)) >> 20;
    return f8e4m3{uint8_t(sign | (rounded - ((127 - 7) << 3)))};
}

// The caller has brought x into -127 .. 127.
template <>
__device__ inline i8 from_float<i8>(float x) { return i8(rintf(x)); }

// --- wide loads and stores -------------------------------------------------------------------------------------
//
// N values that travel as one: with N * sizeof(T) = 16 a single 128-bit instruction, 512 bytes for a warp. Memory is
// accessed through a built-in word of that size: copied value by value, the compiler may split the access again.
// `load` works on global and shared memory, `store` on global memory.

template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
    T at[N];
};

template <int BYTES> struct WordOf { typedef uint4 type; };
template <> struct WordOf<8> { typedef uint2 type; };
template <> struct WordOf<4> { typedef uint32_t type; };
template <> struct WordOf<2> { typedef uint16_t type; };
template <> struct WordOf<1> { typedef uint8_t type; };

template <int BYTES>
__device__ inline void move(void* to, const void* from) {
    typedef typename WordOf<BYTES>::type Word;
    constexpr int WORDS = BYTES / sizeof(Word);
#pragma unroll
    for (int i = 0; i < WORDS; ++i) static_cast<Word*>(to)[i] = static_cast<const Word*>(from)[i];
}

template <int N, class T>
__device__ inline Pack<T, N> load(const T* from) {
    check_aligned(from, sizeof(Pack<T, N>));
    Pack<T, N> values;
    move<sizeof(values)>(&values, from);
    return values;
}

template <class T, int N>
__device__ inline void store(T* to, const Pack<T, N>& values) {
    check_aligned(to, sizeof(values));
#ifndef PREP_HOST_SHIM
    // Spelled out, because NVRTC 13.5 splits a plain copy into four stores. Without a "memory" clobber, so that later
    // loads may go first: no kernel reads what it has stored.
    if constexpr (sizeof(values) == 16) {
        const uint4& word = reinterpret_cast<const uint4&>(values);
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(word.x),
                     "r"(word.y), "r"(word.z), "r"(word.w));
        return;
    }
#endif
    move<sizeof(values)>(to, &values);
}

// --- copies that do not wait -----------------------------------------------------------------------------------
//
// cp.async (sm_80): global to shared memory without a register and without waiting. Copies are committed in groups;
// `wait_copies<N>` returns when all but the newest N groups of this thread have arrived. What a thread copied itself it
// can then read without a barrier.

// BYTES is 4, 8 or 16. If not `wanted`, nothing is read and zeros are written.
template <int BYTES>
__device__ inline void copy_async(void* to, const void* from, bool wanted) {
#ifdef PREP_HOST_SHIM
    shim::copy_async(to, from, BYTES, wanted);
#else
    const unsigned target = unsigned(__cvta_generic_to_shared(to));
    const int bytes = wanted ? BYTES : 0;
    if constexpr (BYTES == 16) {  // .cg: bypasses L1: the data is read once
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(from), "r"(bytes) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(target), "l"(from), "r"(bytes), "n"(BYTES)
                     : "memory");
    }
#endif
}

__device__ inline void commit_copies() {
#ifdef PREP_HOST_SHIM
    shim::commit_copies();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int PENDING>
__device__ inline void wait_copies() {
#ifdef PREP_HOST_SHIM
    shim::wait_copies(PENDING);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// --- reductions ------------------------------------------------------------------------------------------------
//
// Butterflies: in each round a lane exchanges with the one whose number differs in one bit, after which both hold the
// result for twice as many lanes. The order of the additions is fixed, so the same values give the same bits.

struct Sum {
    template <class T>
    __device__ T operator()(T a, T b) const { return a + b; }
};
struct Max {  // fmaxf would drop a NaN
    template <class T>
    __device__ T operator()(T a, T b) const { return a > b || a != a ? a : b; }
};

// Over groups of WIDTH neighbouring lanes (a power of two); every lane gets its group's result.
template <int WIDTH, class T, class Operator>
__device__ inline T reduce_lanes(T value, Operator combine) {
#pragma unroll
    for (int distance = WIDTH / 2; distance > 0; distance /= 2)
        value = combine(value, __shfl_xor_sync(ALL_LANES, value, distance));
    return value;
}

// Over the block; every thread gets the result. `scratch` is shared memory for one value of each warp, and may be
// used again at once: the first barrier keeps the writes behind the reads of the call before.
template <class T, class Operator>
__device__ inline T reduce_block(T value, Operator combine, T* scratch) {
    value = reduce_lanes<WARP>(value, combine);
    __syncthreads();
    if (lane_id() == 0) scratch[warp_id()] = value;
    __syncthreads();
    value = scratch[0];
    for (int warp = 1; warp < int(blockDim.x) / WARP; ++warp) value = combine(value, scratch[warp]);
    return value;
}
