// The helpers of `threads.h`.
//
// A job's pieces are taken from `ticket_`: its upper half is the job's number, the lower one the next piece. A thread
// reads the ticket, then the job, then takes the piece by exchanging the ticket; if that succeeds, the job was still
// this one. Between two jobs the ticket is closed: no job has so many pieces.
//
//     ticket_    7:closed -> 8:0 -> 8:1 -> 8:2 -> 9:closed -> 10:0 ...
//
// The caller sleeps if the last piece takes long. Perhaps the thread that computes it waits for a core that another program
// has: the system then moves it to the core that the caller leaves.
#include "threads.h"

#include <signal.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace {

constexpr uint64_t CLOSED = UINT32_MAX, NEXT_JOB = uint64_t{1} << 32;
constexpr int SPINS = 2000;    // of a thread that waits: some twenty microseconds, as long as between two kernels
constexpr int YIELDS = 200;    // then it offers its core to others, and at last sleeps

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

class Pool {
    std::atomic<uint64_t> ticket_{CLOSED};
    std::atomic<void (*)(const void*, int64_t)> work_{nullptr};
    std::atomic<const void*> context_{nullptr};
    std::atomic<int64_t> count_{0}, num_helpers_{0}, done_{0};
    std::atomic_flag is_busy_ = ATOMIC_FLAG_INIT;
    int64_t num_started_ = 0;
    std::atomic<int> num_asleep_{0};
    std::atomic<bool> is_caller_asleep_{false};
    std::mutex mutex_;
    std::condition_variable wake_, finished_;

    // Do one piece, or fail to because another thread was faster. False: there is none.
    bool take_piece(int64_t helper) {
        uint64_t ticket = ticket_.load(std::memory_order_acquire);
        const auto piece = static_cast<int64_t>(ticket % NEXT_JOB);
        const auto work = work_.load(std::memory_order_acquire);
        const void* const context = context_.load(std::memory_order_acquire);
        if (piece >= count_.load(std::memory_order_acquire)) return false;
        if (helper >= num_helpers_.load(std::memory_order_acquire)) return false;
        if (ticket_.compare_exchange_strong(ticket, ticket + 1, std::memory_order_acq_rel)) {
            work(context, piece);
            done_.fetch_add(1);
            if (is_caller_asleep_.load()) {
                { const std::lock_guard<std::mutex> lock(mutex_); }  // the caller has looked and begun to wait
                finished_.notify_one();
            }
        }
        return true;
    }

    bool has_work(int64_t helper) {
        return static_cast<int64_t>(ticket_.load() % NEXT_JOB) < count_.load() && helper < num_helpers_.load();
    }

    void help(int64_t helper) {
        for (int idle = 0;;) {
            if (take_piece(helper)) {
                idle = 0;
            } else if (idle++ < SPINS) {
                pause();
            } else if (idle < SPINS + YIELDS) {
                std::this_thread::yield();
            } else {
                std::unique_lock<std::mutex> lock(mutex_);
                num_asleep_++;
                wake_.wait(lock, [&] { return has_work(helper); });
                num_asleep_--;
                idle = 0;
            }
        }
    }

    // Start helpers that never end: they sleep while there is nothing to do. Signals are left to Python's threads.
    void start_helpers(int64_t num_helpers) {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        for (; num_started_ < num_helpers; num_started_++)
            std::thread([this, helper = num_started_] { help(helper); }).detach();
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }

    void wait_for_helpers(int64_t count) {
        for (int waited = 0; waited < SPINS + YIELDS; waited++) {
            if (done_.load(std::memory_order_acquire) == count) return;
            waited < SPINS ? pause() : std::this_thread::yield();
        }
        std::unique_lock<std::mutex> lock(mutex_);
        is_caller_asleep_ = true;
        finished_.wait(lock, [&] { return done_.load() == count; });
        is_caller_asleep_ = false;
    }

   public:
    void run(int64_t count, void (*work)(const void*, int64_t), const void* context) {
        if (count >= static_cast<int64_t>(CLOSED) || is_busy_.test_and_set(std::memory_order_acquire)) {
            for (int64_t piece = 0; piece < count; piece++) work(context, piece);
            return;
        }
        const int64_t num_helpers = num_threads() - 1;
        if (num_started_ < num_helpers) start_helpers(num_helpers);
        work_.store(work, std::memory_order_release);
        context_.store(context, std::memory_order_release);
        num_helpers_.store(num_helpers, std::memory_order_release);
        count_.store(count, std::memory_order_release);
        done_.store(0, std::memory_order_release);
        const uint64_t job = ticket_.load(std::memory_order_relaxed) / NEXT_JOB + 1;
        ticket_.store(job * NEXT_JOB);
        if (num_asleep_.load() > 0) {
            { const std::lock_guard<std::mutex> lock(mutex_); }  // a helper that found no work has begun to wait
            wake_.notify_all();
        }
        while (take_piece(-1)) continue;
        wait_for_helpers(count);
        ticket_.store((job + 1) * NEXT_JOB + CLOSED, std::memory_order_release);
        is_busy_.clear(std::memory_order_release);
    }
};

// Never destroyed: helpers use it until the process ends.
Pool& pool() {
    static Pool& it = *new Pool;
    return it;
}

}  // namespace

int64_t num_threads() {
#if defined(_OPENMP)
    return omp_get_max_threads();
#else
    return 1;
#endif
}

void run_pieces(int64_t count, void (*work)(const void* context, int64_t piece), const void* context) {
    pool().run(count, work, context);
}
