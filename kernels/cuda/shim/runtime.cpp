// The host shim's scheduler: runs the blocks of a grid in turn, and the threads of a block as fibers.
//
// A fiber is a stack and a saved processor state (ucontext). It runs until it must wait for others:
//
//     __syncthreads()        until every thread of the block that has not returned stands at the same line
//     __shfl_xor_sync(...)   until every lane of its warp named in the mask stands at the same line
//
//     scheduler:  run every fiber that may run  -->  open the barriers and exchanges that are complete  --+
//                      ^                                                                                |
//                      +-------------------------- something opened -----------------------------------+
//                                                  nothing opened: all returned, or a deadlock
//
// Threads may run forwards (0, 1, 2, ...) or backwards. A kernel that is right gives the same result; one that lacks
// a barrier usually does not.
#include <stdarg.h>
#include <stdio.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "cuda_shim.h"
#include "export.h"

Index3 threadIdx, blockIdx, blockDim, gridDim;

namespace shim {
namespace {

constexpr int WARP = 32;
constexpr size_t STACK_BYTES = 64 * 1024;
constexpr int UNSET = 0xff;  // as fp32, fp16, bf16 and e4m3: NaN
constexpr size_t GUARD_BYTES = 256;

enum class State { ready, at_barrier, in_exchange, returned };

struct Copy {
    void* to;
    const void* from;
    int bytes;
    bool wanted;
};

struct Fiber {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(STACK_BYTES);
    Index3 index;
    State state;
    int line;  // where it waits
    Exchange kind;
    unsigned mask;
    uint64_t value;  // given to the exchange, then received from it
    int source_lane;
    int exchanges;
    std::vector<Copy> uncommitted;
    std::deque<std::vector<Copy>> groups;
};

std::vector<Fiber> fibers;
std::vector<std::array<uint64_t, WARP>> gathered;  // by warp
int num_threads;
Fiber* current;
ucontext_t scheduler;
const Launch* launched;
std::vector<unsigned char> dynamic_memory;
unsigned char* dynamic_start;
bool failed;
int barriers;  // opened in this block
std::string message;

std::string place() {
    char text[200];
    snprintf(text, sizeof text, "%s, block (%u, %u, %u)", launched->kernel, blockIdx.x, blockIdx.y, blockIdx.z);
    return text;
}

void report(const std::string& what) {
    if (!failed) message = place() + ": " + what;
    failed = true;
}

// While it lives, the runtime works for the running thread.
struct Inside {
    const bool was = in_kernel;
    Inside() { in_kernel = false; }
    ~Inside() { in_kernel = was; }
};

void yield() {
    if (watch_yield) watch_yield();
    swapcontext(&current->context, &scheduler);
}

void run_fiber() {
    in_kernel = true;
    launched->run_thread(launched->call);
    in_kernel = false;
    current->state = State::returned;
    yield();
}

void start_fiber(int number) {
    Fiber& fiber = fibers[number];
    const unsigned x = number % blockDim.x, rest = number / blockDim.x;
    fiber.index = {x, rest % blockDim.y, rest / blockDim.y};
    fiber.state = State::ready;
    fiber.exchanges = 0;
    fiber.uncommitted.clear();
    fiber.groups.clear();
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    makecontext(&fiber.context, run_fiber, 0);
}

void run_ready() {
    for (int i = 0; i < num_threads && !failed; ++i) {
        Fiber& fiber = fibers[launched->options & BACKWARDS ? num_threads - 1 - i : i];
        if (fiber.state != State::ready) continue;
        current = &fiber;
        threadIdx = fiber.index;
        swapcontext(&scheduler, &fiber.context);
    }
}

bool open_barrier() {
    int line = 0;
    for (int i = 0; i < num_threads; ++i) {
        const Fiber& fiber = fibers[i];
        if (fiber.state == State::returned) continue;
        if (fiber.state != State::at_barrier) return false;
        if (line && fiber.line != line) return false;
        line = fiber.line;
    }
    for (int i = 0; i < num_threads; ++i)
        if (fibers[i].state == State::at_barrier) fibers[i].state = State::ready;
    barriers += line != 0;
    return line != 0;
}

// The lanes that `lane` waits for have all come, to the same line and for the same kind of exchange.
bool complete(const Fiber* warp, int lanes, const Fiber& lane) {
    for (int i = 0; i < WARP; ++i) {
        if (!(lane.mask >> i & 1)) continue;
        if (i >= lanes) return false;
        const Fiber& other = warp[i];
        if (other.state != State::in_exchange || other.line != lane.line || other.kind != lane.kind ||
            other.mask != lane.mask)
            return false;
    }
    return true;
}

void deliver(Fiber* warp, unsigned mask) {
    auto& given = gathered[(warp - fibers.data()) / WARP];
    uint64_t votes = 0;
    for (int i = 0; i < WARP; ++i) {
        if (!(mask >> i & 1)) continue;
        given[i] = warp[i].value;
        votes |= uint64_t(given[i] != 0) << i;
    }
    for (int i = 0; i < WARP; ++i) {
        if (!(mask >> i & 1)) continue;
        Fiber& lane = warp[i];
        lane.state = State::ready;
        ++lane.exchanges;
        if (lane.kind == Exchange::ballot) lane.value = votes;
        if (lane.kind == Exchange::gather) lane.value = reinterpret_cast<uintptr_t>(given.data());
        if (lane.kind != Exchange::shuffle) continue;
        if (lane.source_lane < 0 || lane.source_lane >= WARP || !(mask >> lane.source_lane & 1))
            report("a shuffle in line " + std::to_string(lane.line) + " reads lane " +
                   std::to_string(lane.source_lane) + ", which does not take part");
        else
            lane.value = given[lane.source_lane];
    }
}

bool open_exchanges() {
    bool opened = false;
    for (int first = 0; first < num_threads; first += WARP) {
        const int lanes = num_threads - first < WARP ? num_threads - first : WARP;
        for (int i = 0; i < lanes; ++i) {
            Fiber& lane = fibers[first + i];
            if (lane.state != State::in_exchange || !complete(&fibers[first], lanes, lane)) continue;
            deliver(&fibers[first], lane.mask);
            opened = true;
        }
    }
    return opened;
}

void report_deadlock() {
    std::map<std::string, int> waiting;
    for (int i = 0; i < num_threads; ++i) {
        const Fiber& fiber = fibers[i];
        if (fiber.state == State::returned) {
            ++waiting["returned"];
        } else {
            const char* what = fiber.state == State::at_barrier ? "__syncthreads" : "an exchange of its warp";
            ++waiting[std::string("at ") + what + " in line " + std::to_string(fiber.line)];
        }
    }
    std::string text = "deadlock";
    const char* separator = ": ";
    for (const auto& [where, count] : waiting) {
        text += separator + std::to_string(count) + (count == 1 ? " thread " : " threads ") + where;
        separator = ", ";
    }
    report(text);
}

// Memory of a block starts unset: reads before the first write yield NaN.
void reset_memory() {
    if (launched->static_shared_bytes) memset(launched->static_shared, UNSET, launched->static_shared_bytes);
    dynamic_memory.assign(launched->shared_bytes + 2 * GUARD_BYTES, UNSET);
    const uintptr_t start = reinterpret_cast<uintptr_t>(dynamic_memory.data());
    dynamic_start = dynamic_memory.data() + (128 - start % 128) % 128;
}

void check_guard() {
    for (size_t i = 0; i < GUARD_BYTES / 2; ++i)
        if (dynamic_start[launched->shared_bytes + i] != UNSET) {
            report("a write behind the end of its " + std::to_string(launched->shared_bytes) +
                   " bytes of dynamic shared memory");
            return;
        }
}

void run_block() {
    reset_memory();
    barriers = 0;
    for (int i = 0; i < num_threads; ++i) start_fiber(i);
    while (!failed) {
        run_ready();
        const auto returned = [](const Fiber& fiber) { return fiber.state == State::returned; };
        if (failed || std::all_of(fibers.begin(), fibers.begin() + num_threads, returned)) break;
        const bool exchanged = open_exchanges();
        if (!exchanged && !open_barrier()) report_deadlock();
    }
    check_guard();
    if (watch_block_end) watch_block_end();
    if (launched->options & NO_RACES && watch_found && watch_found()) report(watch_found());
}

}  // namespace

bool in_kernel;

Moment moment() {
    const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    return {block, int(current - fibers.data()), barriers, current->exchanges};
}

int num_block_threads() { return num_threads; }

// Static variables of the library: a template's __shared__ variable lies among them, not in the section of the others.
extern "C" char __bss_start[] __attribute__((visibility("hidden")));
extern "C" char _end[] __attribute__((visibility("hidden")));

bool is_shared(const void* address) {
    if (address >= __bss_start && address < _end) return true;
    const auto* byte = static_cast<const unsigned char*>(address);
    const auto* fixed = reinterpret_cast<const unsigned char*>(launched->static_shared);
    return (byte >= fixed && byte < fixed + launched->static_shared_bytes) ||
           (byte >= dynamic_memory.data() && byte < dynamic_memory.data() + dynamic_memory.size());
}

bool is_private(const void* address) {
    const auto* byte = static_cast<const char*>(address);
    for (const Index3* each : {&threadIdx, &blockIdx, &blockDim, &gridDim})
        if (address >= each && address < each + 1) return true;
    return byte >= current->stack.data() && byte < current->stack.data() + current->stack.size();
}


const char* launch(const Launch& launch) {
    launched = &launch;
    failed = false;
    in_kernel = false;
    if (watch_launch) watch_launch(launch.options & WATCHED);
    gridDim = {launch.grid[0], launch.grid[1], launch.grid[2]};
    blockDim = {launch.block[0], launch.block[1], launch.block[2]};
    num_threads = int(blockDim.x * blockDim.y * blockDim.z);
    if (fibers.size() < size_t(num_threads)) fibers.resize(num_threads);
    gathered.resize(fibers.size() / WARP + 1);
    for (unsigned z = 0; z < gridDim.z; ++z)
        for (unsigned y = 0; y < gridDim.y; ++y)
            for (unsigned x = 0; x < gridDim.x; ++x) {
                blockIdx = {x, y, z};
                run_block();
                if (failed) return message.c_str();
            }
    return nullptr;
}

void barrier(int line) {
    const Inside inside;
    current->state = State::at_barrier;
    current->line = line;
    yield();
}

uint64_t exchange(Exchange kind, unsigned mask, uint64_t value, int source_lane, int line) {
    const Inside inside;
    current->state = State::in_exchange;
    current->kind = kind;
    current->mask = mask;
    current->value = value;
    current->source_lane = source_lane;
    current->line = line;
    yield();
    return current->value;
}

const uint64_t* gather(uint64_t value, int line) {
    return reinterpret_cast<const uint64_t*>(exchange(Exchange::gather, ~0u, value, 0, line));
}

unsigned char* dynamic_shared() { return dynamic_start; }

void copy_async(void* to, const void* from, int bytes, bool wanted) {
    const Inside inside;
    check_aligned(to, bytes);
    check_aligned(from, bytes);
    current->uncommitted.push_back({to, from, bytes, wanted});
}

void commit_copies() {
    const Inside inside;
    current->groups.push_back(std::move(current->uncommitted));
    current->uncommitted.clear();
}

void wait_copies(int pending) {
    const Inside inside;
    while (int(current->groups.size()) > pending) {
        for (const Copy& copy : current->groups.front())
            if (copy.wanted)
                memcpy(copy.to, copy.from, copy.bytes);
            else
                memset(copy.to, 0, copy.bytes);
        current->groups.pop_front();
    }
}

void fail(const char* format, ...) {
    char text[300];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    report(text);
    yield();  // the scheduler sees the failure and never comes back
    __builtin_unreachable();
}

// Exponent and mantissa moved to their places in fp32, then the bias corrected by a product (127 - 15 = 112).
float half_to_float(uint16_t bits) {
    const uint32_t sign = uint32_t(bits & 0x8000) << 16, magnitude = bits & 0x7fff;
    if (magnitude >= 0x7c00) return bit_cast<float>(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    return bit_cast<float>(sign | bit_cast<uint32_t>(bit_cast<float>(magnitude << 13) * 0x1p112f));
}

uint16_t float_to_half(float value) {
    const uint32_t bits = bit_cast<uint32_t>(value), magnitude = bits & 0x7fffffff;
    const uint16_t sign = bits >> 16 & 0x8000;
    if (magnitude > 0x7f800000) return sign | 0x7e00;
    if (magnitude >= 0x477ff000) return sign | 0x7c00;  // rounds to 65536 or more: infinity
    if (magnitude < 0x38800000) return sign | uint16_t(rintf(bit_cast<float>(magnitude) * 0x1p24f));  // subnormal
    const uint32_t rounded = (magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13;
    return sign | uint16_t(rounded - (112 << 10));
}

uint16_t float_to_bfloat(float value) {
    const uint32_t bits = bit_cast<uint32_t>(value);
    if (value != value) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

}  // namespace shim
