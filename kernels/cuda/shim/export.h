// What makes a kernel callable from Python: SHIM_EXPORT(rms_norm) behind the kernel's source defines
//
//     const char* shim_launch_rms_norm(grid, block, shared_bytes, arguments, backwards)    an error, or null
//     const char* shim_signature_rms_norm()                                                 "pppf": see launch.py
//
// arguments is what cuLaunchKernel takes: a pointer to the value of each parameter.
#pragma once

#include <stdint.h>

#include <utility>

namespace shim {

struct Launch {
    const char* kernel;
    const unsigned* grid;
    const unsigned* block;
    size_t shared_bytes;
    char* static_shared;
    size_t static_shared_bytes;
    bool backwards;
    void (*run_thread)(const void* call);
    const void* call;
};

const char* launch(const Launch& launch);

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
                                              void** arguments, int backwards) {                                   \
        const auto call = shim::bind(name, arguments);                                                              \
        return shim::launch({#name, grid, block, shared_bytes, __start_prep_shared,                                 \
                             size_t(__stop_prep_shared - __start_prep_shared), backwards != 0, call.run_thread, &call}); \
    }                                                                                                               \
    extern "C" const char* shim_signature_##name() { return shim::signature(name); }
