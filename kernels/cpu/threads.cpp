// The helpers of `threads.h`.
//
// Each thread has a share of a job's pieces and a ticket for it: the job's number, the next piece and the share's end. A
// thread reads the ticket, then the job, then takes the piece by exchanging the ticket; if that succeeds, the job was
// still this one. A job ends when its tickets are used up, so no thread takes anything until the next one is written.
//
//     ticket of thread 0    8: 0 of 4 -> 8: 1 of 4 -> ... -> 8: 4 of 4    9: 0 of 2 ...
//     ticket of thread 1    8: 4 of 8 -> 8: 5 of 8 -> ... -> 8: 8 of 8    9: 2 of 4 ...
//
// A thread whose share is done takes from the others'. Otherwise the same thread has the same part of each kernel's rows:
// what one kernel has written is still in its L2 cache when the next one reads it.
//
// The caller sleeps if the last piece takes long. Perhaps the thread that computes it waits for a core that another program
// has: the system then moves it to the core that the caller leaves.
#include "threads.h"

#include <signal.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#if defined(_OPENMP)
extern "C" int omp_get_max_threads();  // declared here: Apple's compiler has no omp.h, though torch has the library
#endif

namespace {

constexpr int64_t MAX_THREADS = 256, MAX_PIECES = UINT16_MAX;
constexpr int SPINS = 2000;    // of a thread that waits: some twenty microseconds, as long as between two kernels
constexpr int YIELDS = 200;    // then it offers its core to others, and at last sleeps

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

class alignas(64) Ticket {
    std::atomic<uint64_t> value_{0};  // job << 32 | next piece << 16 | end

   public:
    void open(uint32_t job, int64_t begin, int64_t end) {
        value_.store(uint64_t{job} << 32 | begin << 16 | end, std::memory_order_release);
    }

    uint64_t read() const { return value_.load(std::memory_order_acquire); }
    static int64_t piece(uint64_t value) { return value >> 16 & MAX_PIECES; }
    static bool is_used_up(uint64_t value) { return piece(value) >= static_cast<int64_t>(value & MAX_PIECES); }

    // Take the next piece, unless the ticket has changed since it was read.
    bool take(uint64_t value) {
        return value_.compare_exchange_strong(value, value + (1 << 16), std::memory_order_acq_rel);
    }
};

class Pool {
    Ticket tickets_[MAX_THREADS];
    std::atomic<bool> is_asleep_[MAX_THREADS]{};
    std::atomic<void (*)(const void*, int64_t)> work_{nullptr};
    std::atomic<const void*> context_{nullptr};
    std::atomic<int64_t> num_threads_{0}, done_{0};
    uint32_t job_ = 0;
    std::atomic_flag is_busy_ = ATOMIC_FLAG_INIT;
    int64_t num_started_ = 1;  // the caller is thread 0
    int64_t most_threads_ = MAX_THREADS;
    std::atomic<bool> is_caller_asleep_{false};
    std::mutex mutex_;
    std::condition_variable wake_, finished_;

    // Do one piece of a share, or fail to because another thread was faster. False: there is none.
    bool take_piece(Ticket& share) {
        const uint64_t ticket = share.read();
        if (Ticket::is_used_up(ticket)) return false;
        const auto work = work_.load(std::memory_order_relaxed);
        const void* const context = context_.load(std::memory_order_relaxed);
        if (share.take(ticket)) {
            work(context, Ticket::piece(ticket));
            done_.fetch_add(1);
            if (is_caller_asleep_.load()) {
                { const std::lock_guard<std::mutex> lock(mutex_); }  // the caller has looked and begun to wait
                finished_.notify_one();
            }
        }
        return true;
    }

    // Do one piece of the thread's own share or, if that is done, of another's.
    bool take_any_piece(int64_t thread) {
        const int64_t threads = num_threads_.load(std::memory_order_acquire);
        for (int64_t i = 0; thread < threads && i < threads; i++)
            if (take_piece(tickets_[(thread + i) % threads])) return true;
        return false;
    }

    bool has_work(int64_t thread) const {
        const int64_t threads = num_threads_.load();
        return thread < threads && std::any_of(tickets_, tickets_ + threads, [](const Ticket& ticket) {
                   return !Ticket::is_used_up(ticket.read());
               });
    }

    void help(int64_t thread) {
        for (int idle = 0;;) {
            if (take_any_piece(thread)) {
                idle = 0;
            } else if (idle++ < SPINS) {
                pause();
            } else if (idle < SPINS + YIELDS) {
                std::this_thread::yield();
            } else {
                std::unique_lock<std::mutex> lock(mutex_);
                is_asleep_[thread] = true;
                std::atomic_thread_fence(std::memory_order_seq_cst);  // as in `run`: one of the two sees the other
                wake_.wait(lock, [&] { return has_work(thread); });
                is_asleep_[thread] = false;
                idle = 0;
            }
        }
    }

    // Start helpers that never end: they sleep while there is nothing to do. Signals are left to Python's threads. If the
    // system refuses one, those that there are do the work: returns how many threads there are.
    int64_t start_helpers(int64_t threads) {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        try {
            for (; num_started_ < threads; num_started_++)
                std::thread([this, thread = num_started_] { help(thread); }).detach();
        } catch (const std::system_error&) {
            most_threads_ = num_started_;
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        return num_started_;
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
        if (count > MAX_PIECES || is_busy_.test_and_set(std::memory_order_acquire)) {
            for (int64_t piece = 0; piece < count; piece++) work(context, piece);
            return;
        }
        int64_t threads = std::min(num_threads(), most_threads_);
        if (num_started_ < threads) threads = start_helpers(threads);
        work_.store(work, std::memory_order_relaxed);
        context_.store(context, std::memory_order_relaxed);
        num_threads_.store(threads, std::memory_order_relaxed);
        done_.store(0, std::memory_order_relaxed);
        job_++;
        for (int64_t share = 0; share < threads; share++)
            tickets_[share].open(job_, count * share / threads, count * (share + 1) / threads);
        std::atomic_thread_fence(std::memory_order_seq_cst);  // a helper says that it is asleep, then looks for tickets
        if (std::any_of(is_asleep_ + 1, is_asleep_ + threads, [](const auto& asleep) { return asleep.load(); })) {
            { const std::lock_guard<std::mutex> lock(mutex_); }  // a helper that found no work has begun to wait
            wake_.notify_all();
        }
        while (take_any_piece(0)) continue;
        wait_for_helpers(count);
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
