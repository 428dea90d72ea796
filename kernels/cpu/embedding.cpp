// Rows of a table, by number: token embeddings, and the angles of positions.
#include <cstring>

#include "graph.h"

// table [rows, row_bytes] with its stride in bytes, ids int64 [count], y [count, row_bytes] contiguous.
extern "C" void embedding(const char* table, int64_t stride, const int64_t* ids, char* y, int64_t count,
                          int64_t row_bytes) {
    launch(EMBEDDING, [=] {
        for (int64_t i = 0; i < count; i++) std::memcpy(y + i * row_bytes, table + ids[i] * stride, row_bytes);
    });
}
