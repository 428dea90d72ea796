// Record and replay, the idea of CUDA graphs on a CPU, and a clock on every kernel.
//
// Every kernel's entry point does its work inside `launch`. While a thread records, `launch` also keeps the work with
// its arguments: pointers, sizes, strides. Replaying does the same calls again without Python in between, on the same
// memory: new inputs are written to where the old ones were.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

enum Kernel : int64_t {
    GEMM, ATTENTION, KV_WRITE, NORM, ROTARY, ACTIVATION, EMBEDDING, QUANTISED_GEMM, SAMPLING, LORA, NUM_KERNELS
};

using Graph = std::vector<std::function<void()>>;

inline thread_local Graph* recording = nullptr;
inline double* seconds_by_kernel = nullptr;  // [NUM_KERNELS] while kernels are timed, otherwise null

template <typename Work>
inline void run_timed(Kernel kernel, const Work& work) {
    if (!seconds_by_kernel) return work();
    const auto start = std::chrono::steady_clock::now();
    work();
    seconds_by_kernel[kernel] += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

template <typename Work>
inline void launch(Kernel kernel, Work work) {
    if (recording) recording->push_back([=] { run_timed(kernel, work); });
    run_timed(kernel, work);
}
