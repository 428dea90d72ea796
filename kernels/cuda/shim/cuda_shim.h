// CUDA C++ for a machine without a GPU: the built-in names of the language, for g++.
//
// One block after the other, and in a block one thread after the other: a thread runs until it has to wait for others
// (a barrier, an exchange within its warp), and then the next one gets its turn. See runtime.cpp.
//
// What a GPU would punish is an error here: a barrier that some threads never reach, a shuffle whose lanes stand in
// different lines, a wide load from an odd address, a write behind the end of shared memory. Shared memory starts as
// NaN in every block, and an asynchronous copy arrives when it is waited for, not earlier.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __restrict__ __restrict
#define BLOCKS_PER_SM(threads, blocks)
// All __shared__ variables lie in one section of the library, which the runtime fills before each block.
#define __shared__ static __attribute__((section("prep_shared")))
#define DYNAMIC_SHARED(name) unsigned char* name = shim::dynamic_shared()

struct Index3 {
    unsigned x, y, z;
};
struct alignas(8) uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
extern Index3 threadIdx, blockIdx, blockDim, gridDim;

namespace shim {

enum class Exchange { sync, shuffle, ballot, gather };

void barrier(int line);
uint64_t exchange(Exchange kind, unsigned mask, uint64_t value, int source_lane, int line);
// The values that the 32 lanes of the warp gave, until its next exchange.
const uint64_t* gather(uint64_t value, int line);
unsigned char* dynamic_shared();
void copy_async(void* to, const void* from, int bytes, bool wanted);
void commit_copies();
void wait_copies(int pending);
[[noreturn]] void fail(const char* format, ...);
float half_to_float(uint16_t bits);
uint16_t float_to_half(float value);
uint16_t float_to_bfloat(float value);

template <class T>
T shuffle(unsigned mask, T value, int source_lane, int line) {
    static_assert(sizeof(T) <= 8);
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(T));
    bits = exchange(Exchange::shuffle, mask, bits, source_lane, line);
    memcpy(&value, &bits, sizeof(T));
    return value;
}

template <class A, class B>
A bit_cast(B value) {
    static_assert(sizeof(A) == sizeof(B));
    A result;
    memcpy(&result, &value, sizeof(A));
    return result;
}

}  // namespace shim

#define __syncthreads() shim::barrier(__LINE__)
#define __syncwarp() shim::exchange(shim::Exchange::sync, ALL_LANES, 0, 0, __LINE__)
#define __shfl_sync(mask, value, lane) shim::shuffle(mask, value, lane, __LINE__)
#define __shfl_xor_sync(mask, value, bits) shim::shuffle(mask, value, lane_id() ^ (bits), __LINE__)
#define __shfl_down_sync(mask, value, by) \
    shim::shuffle(mask, value, lane_id() + (by) < WARP ? lane_id() + (by) : lane_id(), __LINE__)
#define __ballot_sync(mask, predicate) unsigned(shim::exchange(shim::Exchange::ballot, mask, bool(predicate), 0, __LINE__))
#define __any_sync(mask, predicate) (__ballot_sync(mask, predicate) != 0)

// Threads take turns only where they wait, so a plain addition is atomic. races.cpp does not watch it.
template <class T>
__attribute__((no_sanitize("thread"))) T atomicAdd(T* address, T value) {
    const T old = *address;
    *address = old + value;
    return old;
}

inline uint32_t __float_as_uint(float x) { return shim::bit_cast<uint32_t>(x); }
inline float __uint_as_float(uint32_t x) { return shim::bit_cast<float>(x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }

inline void check_aligned(const void* address, size_t bytes) {
    if (reinterpret_cast<uintptr_t>(address) % bytes) shim::fail("an access of %zu bytes at an odd address", bytes);
}
