// Which form of a kernel this processor runs. Every kernel exists for ARMv8.0; the files beside this one compile some of
// them once more for instructions that newer processors have:
//
//     bf16      bfdot, bfmmla    products of pairs of bf16 numbers
//     dotprod   sdot             products of four bytes
//     i8mm      smmla            the same for two rows and two columns
//
// The process asks once, when it looks up its kernels: it must not change the order of its sums.
#include <cstdint>
#include <cstring>

#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace {

enum Feature : int64_t { DOTPROD = 1, I8MM = 2, BF16 = 4 };

#if defined(__linux__)

int64_t features() {  // bits of asm/hwcap.h
    const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
    return (first >> 20 & 1 ? DOTPROD : 0) | (second >> 13 & 1 ? I8MM : 0) | (second >> 14 & 1 ? BF16 : 0);
}

#elif defined(__APPLE__)

bool has(const char* name) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value;
}

int64_t features() {
    return (has("hw.optional.arm.FEAT_DotProd") ? DOTPROD : 0) | (has("hw.optional.arm.FEAT_I8MM") ? I8MM : 0) |
           (has("hw.optional.arm.FEAT_BF16") ? BF16 : 0);
}

#else

int64_t features() {
    return 0;
}

#endif

struct Form {
    const char *kernel, *name;
    int64_t needs;
};

// Forms of a kernel, the fastest first.
constexpr Form FORMS[] = {
    {"paged_attention", "paged_attention_bf16", BF16}, {"gemm_bf16", "gemm_bf16_mmla", BF16},
    {"norm_gemm_bf16", "norm_gemm_bf16_mmla", BF16},   {"int8_linear", "int8_linear_i8mm", I8MM | DOTPROD},
    {"int8_linear", "int8_linear_dotprod", DOTPROD},
};

}  // namespace

// The name of the function that computes `kernel` on this processor.
extern "C" const char* fastest_form(const char* kernel) {
    static const int64_t available = features();
    for (const Form& form : FORMS)
        if (std::strcmp(form.kernel, kernel) == 0 && (form.needs & ~available) == 0) return form.name;
    return kernel;
}
