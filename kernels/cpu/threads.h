// Work in pieces, shared by the threads that are awake.
//
//   caller    | 0 | 1 | 2 | 5 |   its own share and the helper's rest are done: on to the next kernel
//   helper      | 3 | 4 |         has lost its core to another program: takes no piece 5, and is not waited for
//
// A parallel region of OpenMP ends when every thread has arrived in it, whether or not work is left: beside another
// busy program each region waits until the system gives the last thread its core back. Here a thread that does not
// run takes no pieces. One that is stopped in the middle of a piece is waited for, so pieces are small.
#pragma once

#include <algorithm>
#include <cstdint>

constexpr int64_t PIECES_PER_THREAD = 4;

// Threads that share the work of a kernel: OpenMP's number, which torch.set_num_threads changes.
int64_t num_threads();

// Run work(context, piece) for the pieces 0 .. count - 1, on this thread and on helpers. A call while another one is
// running, by another thread or from inside a piece, or of more than 65,535 pieces, is done by its own thread alone.
void run_pieces(int64_t count, void (*work)(const void* context, int64_t piece), const void* context);

template <typename Work>
inline void for_pieces(int64_t count, bool worth_threads, const Work& work) {
    if (!worth_threads || count < 2 || num_threads() < 2) {
        for (int64_t piece = 0; piece < count; piece++) work(piece);
        return;
    }
    run_pieces(
        count, [](const void* context, int64_t piece) { (*static_cast<const Work*>(context))(piece); }, &work);
}

// Run work(begin, end) for ranges that cover 0 .. count - 1: a few for each thread, and one if there is little to do.
template <typename Work>
inline void for_ranges(int64_t count, bool worth_threads, const Work& work) {
    const int64_t ranges = worth_threads ? std::min(count, num_threads() * PIECES_PER_THREAD) : 1;
    if (num_threads() < 2 || ranges < 2) return work(int64_t{0}, count);
    for_pieces(ranges, true,
               [&](int64_t piece) { work(count * piece / ranges, count * (piece + 1) / ranges); });
}
