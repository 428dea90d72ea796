// Causal attention over the paged cache: FlashAttention's loop on a CPU, for one query or a thousand.
//
//   task = (request, kv head, some of its queries)                keys come in chunks of 4 vectors
//
//                                            chunk 0        chunk 1        chunk 2
//       queries of the group,               +--------------+--------------+-----
//       G = heads / kv_heads for each       | scores = q k | ...          |        running for every query:
//       token, behind each other            | softmax      |              |          peak m, mass l, output o
//                                           | o += p v     |              |
//                                           +--------------+--------------+-----
//
//   per chunk    m' = max(m, max s)    p = exp(s - m')    l = l exp(m - m') + sum p    o = o exp(m - m') + p v
//
// The pages of a chunk are copied once per task, keys transposed, so that both products are the tile of
// `tile.h`: q [queries, head_dim] x keys [head_dim, chunk] and p [queries, chunk] x values [chunk, head_dim].
// Chunks are counted from the start of the request, and each query goes through them in the same order with
// the same operations, whatever the other queries are: alone, in a batch, or in a chunk of a prompt.
//
// Sources: online softmax, Milakov & Gimelshein 2018; FlashAttention-2, Dao 2023; PagedAttention, Kwon et al. 2023.
#include <type_traits>
#include <vector>

#include "cache.h"
#include "graph.h"
#include "tile.h"

namespace {

constexpr int CHUNK = 4 * LANES;         // keys that are looked at together
constexpr int MAX_QUERIES = 48;          // query vectors of a task: bounds the scratch, so that it stays in L2
constexpr int64_t WORTH_THREADS = 2048;  // keys: some twenty microseconds
constexpr int TILE_SUMS = VECTOR_REGISTERS >= 32 ? 24 : 12;  // vectors of sums that fit in registers

struct Batch {
    const void* query;
    int64_t token_stride, head_stride;
    void* out;  // [tokens, heads, head_dim] contiguous
    const int32_t *query_start_loc, *seq_lens, *block_table;
    int64_t table_stride, heads;
    float scale;
    int64_t window;  // 0: none
    CacheLayer cache;

    int64_t group() const { return heads / cache.heads; }
};

struct Task {
    int64_t row, kv_head, first_token, num_tokens;  // tokens counted within the row's queries
};

struct Chunk {
    int64_t row, kv_head, first, count;  // keys first .. first + count - 1 of a request
};

// What a thread works on: one task's queries and results, one chunk's keys and values. Rows of head_dim numbers.
struct Scratch {
    std::vector<float> queries, outputs, scores, keys, values;
    vfloat mass[MAX_QUERIES];
    float peak[MAX_QUERIES];

    void resize(int64_t head_dim) {
        queries.resize(MAX_QUERIES * head_dim);
        outputs.resize(MAX_QUERIES * head_dim);
        scores.resize(MAX_QUERIES * CHUNK);
        keys.resize(head_dim * CHUNK);
        values.resize(CHUNK * head_dim);
    }
};

// c [rows, columns] = or += a [rows, depth] @ b [depth, columns], all with rows of the given strides.
template <int ROWS, int VECTORS, bool ADD>
void multiply_tile(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t depth, float* c,
                   int64_t c_stride) {
    Tile<ROWS, VECTORS> tile;
    tile.zero();
    if (ADD)
        for (int row = 0; row < ROWS; row++)
            for (int v = 0; v < VECTORS; v++) tile.sums[row][v] = load(c + row * c_stride + v * LANES);
    for (int64_t k = 0; k < depth; k++) {
        vfloat row_of_b[VECTORS];
        for (int v = 0; v < VECTORS; v++) row_of_b[v] = load(b + k * b_stride + v * LANES);
        tile.multiply_add(a + k, a_stride, row_of_b);
    }
    for (int row = 0; row < ROWS; row++)
        for (int v = 0; v < VECTORS; v++) store(c + row * c_stride + v * LANES, tile.sums[row][v]);
}

template <int ROWS, int VECTORS, bool ADD>
void multiply_rows(int64_t rows, const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t depth,
                   float* c, int64_t c_stride) {
    while (rows >= ROWS) {
        multiply_tile<ROWS, VECTORS, ADD>(a, a_stride, b, b_stride, depth, c, c_stride);
        a += ROWS * a_stride, c += ROWS * c_stride, rows -= ROWS;
    }
    if constexpr (ROWS > 1)
        if (rows) multiply_rows<ROWS / 2, VECTORS, ADD>(rows, a, a_stride, b, b_stride, depth, c, c_stride);
}

template <bool ADD>
void multiply(int64_t rows, const float* a, int64_t a_stride, const float* b, int64_t columns, int64_t depth,
              float* c) {
    int64_t v = 0;
    const int64_t vectors = columns / LANES;
    for (; v + 4 <= vectors; v += 4)
        multiply_rows<TILE_SUMS / 4, 4, ADD>(rows, a, a_stride, b + v * LANES, columns, depth, c + v * LANES,
                                             columns);
    for (; v + 2 <= vectors; v += 2)
        multiply_rows<TILE_SUMS / 2, 2, ADD>(rows, a, a_stride, b + v * LANES, columns, depth, c + v * LANES,
                                             columns);
    for (; v < vectors; v++)
        multiply_rows<TILE_SUMS / 2, 1, ADD>(rows, a, a_stride, b + v * LANES, columns, depth, c + v * LANES,
                                             columns);
}

// What a stored number is multiplied with.
template <typename T>
float slot_scale(const Batch& batch, int64_t block, int64_t part, int64_t head, int64_t slot) {
    if constexpr (std::is_same_v<T, int8_t>) return *batch.cache.slot_scale(block, part, head, slot);
    if constexpr (std::is_same_v<T, float8_e4m3>) return batch.cache.scale[part];
    return 1;
}

template <typename T>
vfloat load_scaled(const T* from, float scale) {
    if constexpr (sizeof(T) > 1) return load(from);
    vfloat x;
    for (int i = 0; i < LANES; i++) x[i] = to_float(from[i]) * scale;
    return x;
}

// Walks over the slots of a request, from page to page.
struct Cursor {
    const int32_t* block;
    int64_t slot, block_size;

    Cursor(const Batch& batch, int64_t row, int64_t position)
        : block(batch.block_table + row * batch.table_stride + position / batch.cache.block_size),
          slot(position % batch.cache.block_size),
          block_size(batch.cache.block_size) {}

    void next() {
        if (++slot == block_size) slot = 0, block++;
    }
};

// A chunk of the cache -> keys [head_dim, CHUNK] (transposed), values [count, head_dim].
// The chunk that comes next is asked for meanwhile, a few lines at a time: a core has some two dozen misses
// under way at most, and waits when it is asked for more.
template <typename T>
void read_chunk(const Batch& batch, const Chunk& chunk, const Chunk& next, Scratch& scratch) {
    const CacheLayer& cache = batch.cache;
    const int64_t head_dim = cache.head_dim, head = chunk.kv_head;
    constexpr int64_t LINE = 64 / sizeof(T);
    const T* pages = static_cast<const T*>(cache.data);
    Cursor at(batch, chunk.row, chunk.first), later(batch, next.row, next.first);
    for (int64_t i = 0; i < chunk.count; i += LANES) {
        const int64_t lanes = std::min<int64_t>(LANES, chunk.count - i);
        const T* rows[LANES];
        float scales[LANES];
        for (int64_t lane = 0; lane < lanes; lane++, at.next()) {
            const T* value = pages + cache.offset(*at.block, 1, head, at.slot);
            rows[lane] = pages + cache.offset(*at.block, 0, head, at.slot);
            scales[lane] = slot_scale<T>(batch, *at.block, 0, head, at.slot);
            const float scale = slot_scale<T>(batch, *at.block, 1, head, at.slot);
            float* to = scratch.values.data() + (i + lane) * head_dim;
            for (int64_t d = 0; d < head_dim; d += LANES) store(to + d, load_scaled(value + d, scale));
            if (i + lane < next.count) {
                for (int64_t part = 0; part < 2; part++) {
                    const T* soon = pages + cache.offset(*later.block, part, next.kv_head, later.slot);
                    for (int64_t d = 0; d < head_dim; d += LINE) __builtin_prefetch(soon + d);
                }
                later.next();
            }
        }
        for (int64_t d = 0; d < head_dim; d += LANES) {
            vfloat square[LANES];
            for (int64_t lane = 0; lane < LANES; lane++)
                square[lane] = lane < lanes ? load_scaled(rows[lane] + d, scales[lane]) : vfloat{};
            transpose(square);
            for (int row = 0; row < LANES; row++) store(scratch.keys.data() + (d + row) * CHUNK + i, square[row]);
        }
    }
}

// Scores of one query -> weights, in place. Keys begin .. end - 1 of the chunk are visible, at least one.
// Returns the factor exp(m - m') for what was summed before.
float soften(float* scores, int64_t begin, int64_t end, float& peak, vfloat& mass) {
    vfloat s[4];
    vfloat highest = splat(-INFINITY);
    vint lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    for (int v = 0; v < 4; v++) {
        const vint at = lane + v * LANES;
        const vint visible = (at >= static_cast<int32_t>(begin)) & (at < static_cast<int32_t>(end));
        s[v] = select(visible, load(scores + v * LANES), splat(-INFINITY));
        highest = maximum(highest, s[v]);
    }
    const float new_peak = std::max(peak, largest(highest));
    const float factor = exp_nonpositive(splat(peak - new_peak))[0];
    mass *= factor;
    for (int v = 0; v < 4; v++) {
        const vfloat weight = exp_nonpositive(s[v] - new_peak);
        mass += weight;
        store(scores + v * LANES, weight);
    }
    peak = new_peak;
    return factor;
}

// Everything for one chunk of keys but reading it.
void attend_chunk(const Batch& batch, const Task& task, const Chunk& chunk, int64_t position, Scratch& scratch) {
    const int64_t head_dim = batch.cache.head_dim, group = batch.group();
    const int64_t skip = std::max<int64_t>(0, chunk.first - position);  // tokens that stand before the chunk
    const int64_t begin = skip * group, num_queries = task.num_tokens * group;
    if (begin >= num_queries) return;
    float* scores = scratch.scores.data() + begin * CHUNK;
    multiply<false>(num_queries - begin, scratch.queries.data() + begin * head_dim, head_dim, scratch.keys.data(),
                    CHUNK, head_dim, scores);
    for (int64_t query = begin; query < num_queries; query++, scores += CHUNK) {
        const int64_t at = position + query / group;
        const int64_t oldest = batch.window ? std::max<int64_t>(0, at - batch.window + 1 - chunk.first) : 0;
        const int64_t end = std::min(chunk.count, at + 1 - chunk.first);
        if (oldest >= end) {  // the window has passed this chunk
            std::fill_n(scores, CHUNK, 0.0f);
            continue;
        }
        const float factor = soften(scores, oldest, end, scratch.peak[query], scratch.mass[query]);
        float* output = scratch.outputs.data() + query * head_dim;
        for (int64_t d = 0; d < head_dim; d += LANES) store(output + d, load(output + d) * factor);
    }
    multiply<true>(num_queries - begin, scratch.scores.data() + begin * CHUNK, CHUNK, scratch.values.data(), head_dim,
                   chunk.count, scratch.outputs.data() + begin * head_dim);
}

template <typename Q>
void load_queries(const Batch& batch, const Task& task, Scratch& scratch) {
    const int64_t head_dim = batch.cache.head_dim, group = batch.group();
    const int64_t token = batch.query_start_loc[task.row] + task.first_token;
    for (int64_t query = 0; query < task.num_tokens * group; query++) {
        const Q* from = static_cast<const Q*>(batch.query) + (token + query / group) * batch.token_stride +
                        (task.kv_head * group + query % group) * batch.head_stride;
        float* to = scratch.queries.data() + query * head_dim;
        for (int64_t d = 0; d < head_dim; d++) to[d] = to_float(from[d]) * batch.scale;
        scratch.peak[query] = -INFINITY;
        scratch.mass[query] = vfloat{};
    }
    std::fill_n(scratch.outputs.data(), task.num_tokens * group * head_dim, 0.0f);
}

template <typename Q>
void store_outputs(const Batch& batch, const Task& task, Scratch& scratch) {
    const int64_t head_dim = batch.cache.head_dim, group = batch.group();
    const int64_t token = batch.query_start_loc[task.row] + task.first_token;
    for (int64_t query = 0; query < task.num_tokens * group; query++) {
        const float* from = scratch.outputs.data() + query * head_dim;
        const int64_t head = task.kv_head * group + query % group;
        Q* to = static_cast<Q*>(batch.out) + ((token + query / group) * batch.heads + head) * head_dim;
        const float inverse = 1.0f / sum(scratch.mass[query]);
        for (int64_t d = 0; d < head_dim; d++) to[d] = from_float<Q>(from[d] * inverse);
    }
}

// The keys that a task's queries see: from that of its first query's window to its last query.
struct Range {
    int64_t position, first, end;  // of the first query; first is where the chunk begins

    Range(const Batch& batch, const Task& task) {
        const int64_t num_queries = batch.query_start_loc[task.row + 1] - batch.query_start_loc[task.row];
        position = batch.seq_lens[task.row] - num_queries + task.first_token;
        end = position + task.num_tokens;
        first = batch.window ? std::max<int64_t>(0, position - batch.window + 1) / CHUNK * CHUNK : 0;
    }
};

Chunk chunk_at(const Task& task, const Range& range, int64_t first) {
    return {task.row, task.kv_head, first, std::min<int64_t>(CHUNK, range.end - first)};
}

// `next` is the task that this thread probably does next: its first chunk is asked for during the last one here.
template <typename Q, typename T>
void attend(const Batch& batch, const Task& task, const Task& next, Scratch& scratch) {
    load_queries<Q>(batch, task, scratch);
    const Range range(batch, task), after(batch, next);
    for (int64_t first = range.first; first < range.end; first += CHUNK) {
        const Chunk chunk = chunk_at(task, range, first);
        const bool last = first + CHUNK >= range.end;
        read_chunk<T>(batch, chunk, last ? chunk_at(next, after, after.first) : chunk_at(task, range, first + CHUNK),
                      scratch);
        attend_chunk(batch, task, chunk, range.position, scratch);
    }
    store_outputs<Q>(batch, task, scratch);
}

std::vector<Task> make_tasks(const Batch& batch, int64_t num_rows) {
    const int64_t tokens_at_once = std::max<int64_t>(1, MAX_QUERIES / batch.group());
    std::vector<Task> tasks;
    tasks.reserve(num_rows * batch.cache.heads);
    for (int64_t row = 0; row < num_rows; row++) {
        const int64_t num_tokens = batch.query_start_loc[row + 1] - batch.query_start_loc[row];
        for (int64_t head = 0; head < batch.cache.heads; head++)
            for (int64_t token = 0; token < num_tokens; token += tokens_at_once)
                tasks.push_back({row, head, token, std::min(tokens_at_once, num_tokens - token)});
    }
    return tasks;
}

template <typename Q, typename T>
void attend_all(const Batch& batch, int64_t num_rows) {
    const std::vector<Task> tasks = make_tasks(batch, num_rows);
    const size_t at_once = tasks.size() > 256 ? 8 : 1;  // enough of them that a last handful hardly matters
    int64_t num_keys = 0;
    for (const Task& task : tasks) num_keys += Range(batch, task).end;
#pragma omp parallel if (num_keys > WORTH_THREADS)
    {
        static thread_local Scratch scratch;
        scratch.resize(batch.cache.head_dim);
#pragma omp for schedule(dynamic, at_once)
        for (size_t i = 0; i < tasks.size(); i++)
            attend<Q, T>(batch, tasks[i], tasks[std::min(i + 1, tasks.size() - 1)], scratch);
    }
}

}  // namespace

// Tensors as in ops.paged_attention; strides in numbers. Tokens past the last row's are padding: their out is 0.
extern "C" void paged_attention(const void* query, int64_t token_stride, int64_t head_stride, int64_t dtype,
                                void* out, int64_t num_tokens, const int32_t* query_start_loc,
                                const int32_t* seq_lens, const int32_t* block_table, int64_t table_stride,
                                int64_t num_rows, int64_t heads, float scale, int64_t window, void* kv,
                                int64_t block_stride, int64_t kv_dtype, float* kv_scale, int64_t scale_block_stride,
                                int64_t kv_heads, int64_t block_size, int64_t head_dim) {
    const Batch batch{
        query,           token_stride,
        head_stride,     out,
        query_start_loc, seq_lens,
        block_table,     table_stride,
        heads,           scale,
        window,          {kv, block_stride, kv_heads, block_size, head_dim, kv_scale, scale_block_stride}};
    launch([=] {
        with_float_type(dtype, [&](auto q) {
            using Q = decltype(q);
            const int64_t padding = query_start_loc[num_rows] * heads * head_dim;
            std::fill(static_cast<Q*>(out) + padding, static_cast<Q*>(out) + num_tokens * heads * head_dim, Q{});
            switch (kv_dtype) {
                case FLOAT32:
                    return attend_all<Q, float>(batch, num_rows);
                case FLOAT16:
                    return attend_all<Q, float16>(batch, num_rows);
                case BFLOAT16:
                    return attend_all<Q, bfloat16>(batch, num_rows);
                case FLOAT8_E4M3:
                    return attend_all<Q, float8_e4m3>(batch, num_rows);
                case INT8:
                    return attend_all<Q, int8_t>(batch, num_rows);
            }
        });
    });
}
