// In a guest: arrays that end, or begin, at a page that no code may touch, and the bytes that are allocated.
//
//     | wall | .............. array | wall |      at the end: one number behind the array lies in the second wall
//     | wall | array .............. | wall |      at the start: one number before it lies in the first
//
// The first touch of a wall is noted, the page is opened, and the access goes on: so the caller learns which array it was.
#include <malloc.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <initializer_list>

namespace {

constexpr int MOST = 32;
enum { untouched, read, written };

struct Region {
    char* start;
    size_t bytes;
    int touched;
};

Region regions[MOST];
int num_regions;
size_t page;
struct sigaction other;

bool is_write(const void* context) {
#ifdef __x86_64__
    return static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2;
#else
    (void)context;
    return false;
#endif
}

void open_wall(int, siginfo_t* info, void* context) {
    char* address = static_cast<char*>(info->si_addr);
    for (int i = 0; i < num_regions; ++i) {
        Region& region = regions[i];
        for (char* wall : {region.start, region.start + region.bytes - page}) {
            if (address < wall || address >= wall + page) continue;
            region.touched = is_write(context) ? written : read;
            mprotect(wall, page, PROT_READ | PROT_WRITE);
            return;
        }
    }
    sigaction(SIGSEGV, &other, nullptr);  // another address: the access faults again, and the process ends
}

}  // namespace

// Return room for an array between two walls, or null.
extern "C" void* walled(size_t bytes, int at_end) {
    if (num_regions == MOST) return nullptr;
    page = size_t(sysconf(_SC_PAGESIZE));
    if (!num_regions) {
        struct sigaction action = {};
        action.sa_sigaction = open_wall;
        action.sa_flags = SA_SIGINFO | SA_NODEFER;
        sigaction(SIGSEGV, &action, &other);
    }
    const size_t room = (bytes + page - 1) / page * page;
    void* start = mmap(nullptr, room + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) return nullptr;
    char* first = static_cast<char*>(start) + page;
    if (room) mprotect(first, room, PROT_READ | PROT_WRITE);
    regions[num_regions++] = {static_cast<char*>(start), room + 2 * page, untouched};
    return at_end ? first + room - bytes : first;
}

// Return whether a wall of the array, by number, was not touched (0), read (1) or written (2).
extern "C" int wall_touched(int number) { return regions[number].touched; }

extern "C" void free_walled() {
    for (int i = 0; i < num_regions; ++i) munmap(regions[i].start, regions[i].bytes);
    if (num_regions) sigaction(SIGSEGV, &other, nullptr);
    num_regions = 0;
}

extern "C" size_t allocated_bytes() {
    const struct mallinfo2 found = mallinfo2();
    return found.uordblks + found.hblkhd;
}
