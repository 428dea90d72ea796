// Rows of a table, by number: token embeddings, and the angles of positions.
#include <cstring>

#include "graph.h"
#include "threads.h"

namespace {

constexpr int64_t WORTH_THREADS = 1 << 18;  // bytes: some ten microseconds

}  // namespace

// table [rows, row_bytes] with its stride in bytes, ids int64 [count], y [count, row_bytes] contiguous.
extern "C" void embedding(const char* table, int64_t stride, const int64_t* ids, char* y, int64_t count,
                          int64_t row_bytes) {
    launch(EMBEDDING, [=] {
        for_ranges(count, count * row_bytes > WORTH_THREADS, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i++) std::memcpy(y + i * row_bytes, table + ids[i] * stride, row_bytes);
        });
    });
}
