// Replay recorded calls of the C++ kernels without Python: `replay CALLS RESULTS` (`record.py` writes and reads the
// files). Without arguments: print the numbers that a recording depends on, and the forms that this processor runs.
//
//     calls      per call: name | buffers, with their content | addresses inside buffers | arguments
//     results    per call: the content of all its buffers afterwards
//
// All numbers are 64 bits, all blocks filled up to 8 bytes, in the byte order of the machine.
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

extern "C" int64_t gemm_lanes();
extern "C" int64_t lora_max_slices();
extern "C" const char* fastest_form(const char* kernel);

#define FOR_ALL_KERNELS(DO)                                                                                       \
    DO(apply_token_bitmask) DO(embedding) DO(fused_add_rms_norm) DO(gemm) DO(gemm_bf16) DO(int4_linear)           \
    DO(int8_linear) DO(lora_expand) DO(lora_shrink) DO(norm_gemm) DO(norm_gemm_bf16) DO(paged_attention)          \
    DO(reshape_and_cache) DO(rms_norm) DO(rotary_embedding) DO(sample) DO(silu_and_mul)                           \
    DO(paged_attention_bf16) DO(gemm_bf16_mmla) DO(norm_gemm_bf16_mmla) DO(int8_linear_dotprod) DO(int8_linear_i8mm)

#define DECLARE(name) extern "C" void name();
FOR_ALL_KERNELS(DECLARE)

namespace {

#define WITH_NAME(name) {#name, name},
const std::map<std::string, void (*)()> KERNELS = {FOR_ALL_KERNELS(WITH_NAME)};

constexpr size_t MOST_ARGUMENTS = 24;
constexpr std::align_val_t ALIGNMENT{64};

struct Delete {
    void operator()(char* bytes) const { ::operator delete(bytes, ALIGNMENT); }
};

struct Buffer {
    int64_t size;
    std::unique_ptr<char, Delete> bytes;

    explicit Buffer(int64_t size) : size(size), bytes(static_cast<char*>(::operator new(size + 8, ALIGNMENT))) {}
    int64_t address() const { return reinterpret_cast<int64_t>(bytes.get()); }
};

[[noreturn]] void fail(const std::string& reason) {
    std::fprintf(stderr, "replay: %s\n", reason.c_str());
    std::exit(2);
}

struct Calls {
    std::ifstream file;

    int64_t number() {
        int64_t value = 0;
        file.read(reinterpret_cast<char*>(&value), sizeof value);
        return value;
    }
    Buffer block() {
        const int64_t size = number();
        if (!file || size < 0) fail("the file of calls is cut short");
        Buffer buffer(size);
        file.read(buffer.bytes.get(), (size + 7) / 8 * 8);
        return buffer;
    }
};

// Both calling conventions (AAPCS64, System V x86-64) count integers and floats apart, and let a function leave arguments
// unread. No kernel has more than one float.
void call(void (*kernel)(), const int64_t (&a)[MOST_ARGUMENTS], float number) {
    using I = int64_t;
    using Any = void (*)(I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, float);
    reinterpret_cast<Any>(kernel)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12],
                                  a[13], a[14], a[15], a[16], a[17], a[18], a[19], a[20], a[21], a[22], a[23], number);
}

void replay_call(Calls& calls, const std::string& name, std::vector<Buffer>& buffers) {
    for (int64_t left = calls.number(); left > 0; left--) buffers.push_back(calls.block());
    std::vector<char*> addresses;
    for (int64_t left = calls.number(); left > 0; left--) {
        char* const at = buffers.at(calls.number()).bytes.get();
        const int64_t offset = calls.number(), target = calls.number();
        addresses.push_back(at + offset);
        const int64_t address = buffers.at(target).address() + calls.number();
        std::memcpy(at + offset, &address, sizeof address);
    }
    enum Kind : int64_t { INTEGER, FLOAT, ADDRESS };
    int64_t integers[MOST_ARGUMENTS] = {};
    float number = 0;
    size_t count = 0;
    for (int64_t left = calls.number(); left > 0; left--) {
        const int64_t kind = calls.number(), value = calls.number(), offset = calls.number();
        if (kind == FLOAT)
            std::memcpy(&number, &value, sizeof number);
        else if (count == MOST_ARGUMENTS)
            fail(name + " has too many arguments");
        else
            integers[count++] = kind == ADDRESS ? buffers.at(value).address() + offset : value;
    }
    const auto kernel = KERNELS.find(fastest_form(name.c_str()));
    if (kernel == KERNELS.end()) fail("no kernel " + name + " in replay.cpp");
    call(kernel->second, integers, number);
    for (char* at : addresses) std::memset(at, 0, sizeof(int64_t));  // the same results in every run
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3) {
        std::printf("gemm_lanes %" PRId64 "\nlora_max_slices %" PRId64 "\n", gemm_lanes(), lora_max_slices());
        for (const auto& [name, kernel] : KERNELS)
            if (name != fastest_form(name.c_str())) std::printf("%s %s\n", name.c_str(), fastest_form(name.c_str()));
        return 0;
    }
    Calls calls{std::ifstream(argv[1], std::ios::binary)};
    std::ofstream results(argv[2], std::ios::binary);
    if (!calls.file || !results) fail("a file cannot be opened");
    while (calls.file.peek() != EOF) {
        const Buffer name = calls.block();
        std::vector<Buffer> buffers;
        replay_call(calls, std::string(name.bytes.get(), name.size), buffers);
        for (const Buffer& buffer : buffers) results.write(buffer.bytes.get(), buffer.size);
    }
    return results.flush() ? 0 : 1;
}
