// Accesses to memory that nothing orders, and how a block's threads share its accesses. For kernels of learners.
//
// The compiler's option -fsanitize=thread puts a call of __tsan_read4 and its like before each access to memory. Here
// they keep, for each address, who wrote it last and who read it since. Two accesses of different threads race if one of
// them changes the number and nothing lies between them:
//
//     threads of one warp        an exchange of the warp or __syncwarp
//     threads of one block       __syncthreads
//     threads of two blocks      nothing: the blocks of a launch run in any order
//
// A write that leaves the number as it was changes nothing in any order, and is no race. atomicAdd is not instrumented.
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "export.h"

#define UNWATCHED __attribute__((no_sanitize("thread")))

namespace shim {
namespace {

constexpr int WARP = 32, WORD = 4;

struct Cell {
    Moment writer, readers[2];
};

using Cells = std::unordered_map<uintptr_t, Cell>;

bool is_watched;
Cells global_cells, shared_cells;
std::vector<size_t> accesses;  // of the present block, by thread
size_t most_accesses, of_thread;  // of the block with the most: all, and those of its busiest thread
int busiest_thread;
std::string race;
int threads_of_block;

struct Pending {  // a write that has not happened yet
    uintptr_t address;
    int bytes;
    char before[16];
    Moment moment;
} pending;

UNWATCHED bool is_unordered(const Moment& a, const Moment& b) {
    if (a.thread < 0 || (a.thread == b.thread && a.block == b.block)) return false;
    if (a.block != b.block) return true;
    if (a.barriers != b.barriers) return false;
    return a.thread / WARP != b.thread / WARP || a.exchanges == b.exchanges;
}

UNWATCHED Cell& cell_at(uintptr_t address) {
    Cells& cells = is_shared(reinterpret_cast<void*>(address)) ? shared_cells : global_cells;
    return cells.try_emplace(address).first->second;
}

UNWATCHED void note_race(const Moment& one, const Moment& other, uintptr_t address) {
    if (!race.empty()) return;
    const char* memory = is_shared(reinterpret_cast<void*>(address)) ? "shared memory" : "an array";
    char text[300];
    if (one.block != other.block)
        snprintf(text, sizeof text, "a race: blocks %u and %u use the same number of %s, and one of them writes it", one.block,
                 other.block, memory);
    else
        snprintf(text, sizeof text,
                 "a race: threads %d and %d of a block use the same number of %s, one of them writes it, and no barrier, "
                 "exchange or atomicAdd lies between",
                 one.thread, other.thread, memory);
    race = text;
}

// The pending write has happened: see whether it changed the number, and who else has used it.
UNWATCHED void settle() {
    if (!pending.bytes) return;
    const int step = std::min(pending.bytes, WORD);
    for (int at = 0; at < pending.bytes; at += step) {
        const uintptr_t address = pending.address + at;
        if (!memcmp(reinterpret_cast<void*>(address), pending.before + at, step)) continue;
        Cell& cell = cell_at(address);
        for (const Moment& earlier : {cell.writer, cell.readers[0], cell.readers[1]})
            if (is_unordered(earlier, pending.moment)) note_race(earlier, pending.moment, address);
        cell = {pending.moment, {}};
    }
    pending.bytes = 0;
}

// Watches one access. What it calls is instrumented too: the library's containers.
struct Hook {
    UNWATCHED Hook() { in_kernel = false; }
    UNWATCHED ~Hook() { in_kernel = true; }
};

UNWATCHED bool begins(const void* address) {
    settle();
    if (is_private(address)) return false;
    const size_t thread = size_t(moment().thread);
    if (accesses.size() <= thread) accesses.resize(thread + 1);
    ++accesses[thread];
    return true;
}

UNWATCHED void on_read(const void* from, int bytes) {
    if (!is_watched || !in_kernel) return;
    const Hook hook;
    if (!begins(from)) return;
    const Moment now = moment();
    const int step = std::min(bytes, WORD);
    for (int at = 0; at < bytes; at += step) {
        const uintptr_t address = reinterpret_cast<uintptr_t>(from) + at;
        Cell& cell = cell_at(address);
        if (is_unordered(cell.writer, now)) note_race(cell.writer, now, address);
        const Moment& first = cell.readers[0];
        const bool same_warp = first.thread < 0 || (first.block == now.block && first.thread / WARP == now.thread / WARP);
        cell.readers[same_warp ? 0 : 1] = now;
    }
}

UNWATCHED void on_write(void* to, int bytes) {
    if (!is_watched || !in_kernel) return;
    const Hook hook;
    if (!begins(to)) return;
    pending = {reinterpret_cast<uintptr_t>(to), bytes, {}, moment()};
    memcpy(pending.before, to, size_t(bytes));
}

}  // namespace

UNWATCHED void watch_launch(bool watched) {
    is_watched = watched;
    global_cells.clear();
    shared_cells.clear();
    pending.bytes = 0;
    most_accesses = of_thread = 0;
    race.clear();
}

UNWATCHED void watch_yield() { settle(); }

UNWATCHED void watch_block_end() {
    settle();
    shared_cells.clear();
    size_t all = 0;
    for (size_t each : accesses) all += each;
    if (all > most_accesses) {
        const auto busiest = std::max_element(accesses.begin(), accesses.end());
        most_accesses = all;
        of_thread = *busiest;
        busiest_thread = int(busiest - accesses.begin());
        threads_of_block = num_block_threads();
    }
    accesses.clear();
}

UNWATCHED const char* watch_found() { return race.empty() ? nullptr : race.c_str(); }

}  // namespace shim

// How many times its fair share the busiest thread did, of the accesses of the block with the most; which thread.
extern "C" UNWATCHED double shim_largest_share(int* thread) {
    *thread = shim::busiest_thread;
    return shim::most_accesses ? double(shim::of_thread) * shim::threads_of_block / double(shim::most_accesses) : 0;
}

extern "C" {
#define HOOKS(bytes)                                                                          \
    UNWATCHED void __tsan_read##bytes(void* address) { shim::on_read(address, bytes); }       \
    UNWATCHED void __tsan_write##bytes(void* address) { shim::on_write(address, bytes); }     \
    UNWATCHED void __tsan_unaligned_read##bytes(void* address) { shim::on_read(address, bytes); } \
    UNWATCHED void __tsan_unaligned_write##bytes(void* address) { shim::on_write(address, bytes); }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
UNWATCHED void __tsan_read_range(void* address, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 4) shim::on_read(static_cast<char*>(address) + at, int(std::min<size_t>(4, bytes - at)));
}
UNWATCHED void __tsan_write_range(void* address, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 4) shim::on_write(static_cast<char*>(address) + at, int(std::min<size_t>(4, bytes - at)));
}
UNWATCHED void __tsan_init() {}
UNWATCHED void __tsan_func_entry(void*) {}
UNWATCHED void __tsan_func_exit() {}
UNWATCHED void __tsan_vptr_update(void**, void*) {}
UNWATCHED void __tsan_vptr_read(void**) {}
}
