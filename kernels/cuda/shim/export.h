// What makes a kernel callable from Python: SHIM_EXPORT(rms_norm) behind the kernel's source defines
//
//     const char* shim_launch_rms_norm(grid, block, shared_bytes, arguments, options)      an error, or null
//     const char* shim_signature_rms_norm()                                                 "pppf": see launch.py
//
// arguments is what cuLaunchKernel takes: a pointer to the value of each parameter. options: see below.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <utility>

namespace shim {

constexpr int BACKWARDS = 1;  // threads of a block run from the last to the first
constexpr int WATCHED = 2;    // accesses to memory are counted, in a library with races.cpp
constexpr int NO_RACES = 4;   // of those, races are errors

struct Launch {
    const char* kernel;
    const unsigned* grid;
    const unsigned* block;
    size_t shared_bytes;
    char* static_shared;
    size_t static_shared_bytes;
    int options;
    void (*run_thread)(const void* call);
    const void* call;
};

const char* launch(const Launch& launch);

// A thread at a point of its run: the block's barriers and its warp's exchanges before it.
struct Moment {
    unsigned block = 0;
    int thread = -1, barriers = 0, exchanges = 0;
};

extern bool in_kernel;  // whether code of the kernel runs, and not the runtime's
Moment moment();
int num_block_threads();
bool is_shared(const void* address);   // shared memory of the block
bool is_private(const void* address);  // the running thread's stack, threadIdx and its like

// Defined by races.cpp; the runtime calls them if they are linked.
__attribute__((weak)) void watch_launch(bool watched);
__attribute__((weak)) void watch_yield();
__attribute__((weak)) void watch_block_end();
__attribute__((weak)) const char* watch_found();

template <class... P>
struct Call {
    void (*kernel)(P...);
    void** arguments;

    template <size_t... I>
    void run(std::index_sequence<I...>) const {
        kernel(*static_cast<P*>(arguments[I])...);
    }
    static void run_thread(const void* self) {
        static_cast<const Call*>(self)->run(std::index_sequence_for<P...>{});
    }
};

template <class... P>
Call<P...> bind(void (*kernel)(P...), void** arguments) {
    return {kernel, arguments};
}

template <class T>
constexpr char letter(T*) { return 'p'; }
constexpr char letter(int32_t) { return 'i'; }
constexpr char letter(int64_t) { return 'l'; }
constexpr char letter(float) { return 'f'; }

template <class... P>
const char* signature(void (*)(P...)) {
    static const char letters[] = {letter(P{})..., 0};
    return letters;
}

}  // namespace shim

// The linker marks both ends of the section that __shared__ variables are put into; neither exists without one.
extern "C" char __start_prep_shared[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_prep_shared[] __attribute__((weak, visibility("hidden")));

#define SHIM_EXPORT(name)                                                                                           \
    extern "C" const char* shim_launch_##name(const unsigned* grid, const unsigned* block, size_t shared_bytes,    \
                                              void** arguments, int options) {                                     \
        const auto call = shim::bind(name, arguments);                                                              \
        return shim::launch({#name, grid, block, shared_bytes, __start_prep_shared,                                 \
                             size_t(__stop_prep_shared - __start_prep_shared), options, call.run_thread, &call}); \
    }                                                                                                               \
    extern "C" const char* shim_signature_##name() { return shim::signature(name); }
