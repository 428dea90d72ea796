// Causal attention over the paged cache: FlashAttention's loop on a CPU, for one query or a thousand.
//
//   task = (request, kv heads, some of its queries)               keys come in chunks of 4 vectors
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
// With queries and a cache in bf16 both products take pairs of bf16 numbers (`pairs.h`), so p is rounded to bf16;
// scores, softmax, mass and outputs are fp32. In all other cases everything is widened to fp32.
//
// Sources: online softmax, Milakov & Gimelshein 2018; FlashAttention-2, Dao 2023; PagedAttention, Kwon et al. 2023.
#include <type_traits>
#include <vector>

#include "cache.h"
#include "graph.h"
#include "pairs.h"
#include "threads.h"

namespace {

constexpr int CHUNK = 4 * LANES;         // keys that are looked at together
constexpr int MAX_QUERIES = 48;          // query vectors of a task, or one token's: the scratch stays in L2
constexpr int MANY_ROWS = 16;            // enough tasks for all threads, without one for each head
constexpr int64_t WORTH_THREADS = 2048;  // keys: some twenty microseconds
constexpr int TILE_SUMS = VECTOR_REGISTERS >= 32 ? 24 : 12;  // vectors of sums that fit in registers

// What the two products multiply: `Number`, of which a lane of a vector takes PER_WORD, one `Word`.
struct WideFactors {
    using Number = float;
    using Word = float;
    static constexpr int PER_WORD = 1;
};
struct PairFactors {
    using Number = bfloat16;
    using Word = int32_t;
    static constexpr int PER_WORD = 2;
};
template <typename Q, typename T>
using FactorsOf = std::conditional_t<std::is_same_v<Q, bfloat16> && std::is_same_v<T, bfloat16>, PairFactors,
                                     WideFactors>;

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
    int64_t width() const { return (cache.head_dim + LANES - 1) / LANES * LANES; }  // of a head in whole vectors

    // Words of a query or a key, in whole vectors.
    template <typename F>
    int64_t words() const {
        constexpr int AT_ONCE = LANES * F::PER_WORD;
        return (cache.head_dim + AT_ONCE - 1) / AT_ONCE * LANES;
    }
};

struct Task {
    int64_t row, first_head, num_heads;  // heads of the cache
    int64_t first_token, num_tokens;     // counted within the row's queries
};

struct Chunk {
    int64_t row, kv_head, first, count;  // keys first .. first + count - 1 of a request
};

// Asks for the cache lines of the next chunk while this one is computed. A core has some two dozen misses under way
// at most and waits when it is asked for more, so they are spread over the loops: a few at each of their steps.
class Ahead {
    const char *runs_[2 * CHUNK + 4], *ends_[2 * CHUNK + 4], *at_ = nullptr, *end_ = nullptr;
    int num_ = 0, current_ = 0, at_once_ = 1;

   public:
    // The keys and values of a chunk, page by page.
    void aim(const Batch& batch, const Chunk& chunk, int64_t bytes_per_number, int64_t numbers_per_word) {
        const CacheLayer& cache = batch.cache;
        const int32_t* blocks = batch.block_table + chunk.row * batch.table_stride;
        const int64_t end = chunk.first + chunk.count, per_slot = cache.head_dim * bytes_per_number;
        int64_t num_bytes = 0;
        num_ = current_ = 0, at_ = end_ = nullptr;
        for (int64_t first = chunk.first; first < end;) {
            const int64_t slot = first % cache.block_size, block = blocks[first / cache.block_size];
            const int64_t slots = std::min(cache.block_size - slot, end - first);
            for (int part = 0; part < 2; part++, num_++) {
                const int64_t offset = cache.offset(block, part, chunk.kv_head, slot);
                runs_[num_] = static_cast<const char*>(cache.data) + offset * bytes_per_number;
                ends_[num_] = runs_[num_] + slots * per_slot;
                num_bytes += slots * per_slot;
            }
            first += slots;
        }
        const int64_t steps = CHUNK + (CHUNK + cache.head_dim) / numbers_per_word;
        at_once_ = static_cast<int>((num_bytes / 64 + steps - 1) / steps);
    }

    void ask() {
        for (int i = 0; i < at_once_; i++) {
            if (at_ >= end_) {
                if (current_ == num_) return;
                at_ = runs_[current_], end_ = ends_[current_++];
            }
            __builtin_prefetch(at_);
            at_ += 64;
        }
    }
};

// What a thread works on: one task's queries and results, one chunk's keys and values. Rows of `width` numbers or of
// whole vectors of words; no result reads those behind head_dim.
template <typename F>
struct Scratch {
    std::vector<float> outputs, scores, peak;
    std::vector<typename F::Number> queries, weights;
    std::vector<typename F::Word> keys, values;
    const typename F::Word* value_rows[CHUNK];  // in `values`, or in the cache if it holds floats in whole vectors
    const typename F::Number* even_value;  // of a pair, until its other value is read
    std::vector<vfloat> mass;
    Ahead ahead;

    void resize(const Batch& batch) {
        const int64_t width = batch.width(), num_queries = std::max<int64_t>(MAX_QUERIES, batch.group());
        const int64_t words = batch.words<F>();
        queries.resize(num_queries * words * F::PER_WORD);
        outputs.resize(num_queries * width);
        scores.resize(num_queries * CHUNK);
        weights.resize(num_queries * CHUNK);
        keys.resize(words * CHUNK);
        values.resize(CHUNK / F::PER_WORD * width);
        mass.resize(num_queries);
        peak.resize(num_queries);
    }
};

// Step k of the depth: a word of every row of a, times a row of b.
template <int ROWS, int VECTORS>
ALWAYS_INLINE void add_step(Tile<ROWS, VECTORS>& tile, const float* a, int64_t a_stride, int64_t k, const float* b) {
    vfloat row_of_b[VECTORS];
    for (int v = 0; v < VECTORS; v++) row_of_b[v] = load(b + v * LANES);
    tile.multiply_add(a + k, a_stride, row_of_b);
}
template <int ROWS, int VECTORS>
ALWAYS_INLINE void add_step(Tile<ROWS, VECTORS>& tile, const bfloat16* a, int64_t a_stride, int64_t k,
                            const int32_t* b) {
    vint row_of_b[VECTORS];
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) row_of_b[v] = load_pairs(b + v * LANES);
    add_pairs(tile, a + 2 * k, a_stride, row_of_b);
}

// c [rows, columns] = or += a [rows, depth] @ b [depth, columns], the depth counted in words. a and c have rows of the
// given strides (in numbers), row k of b begins at b(k).
template <int ROWS, int VECTORS, bool ADD, typename Number, typename RowOf>
void multiply_tile(const Number* a, int64_t a_stride, RowOf b, int64_t depth, float* c, int64_t c_stride,
                   Ahead& ahead) {
    Tile<ROWS, VECTORS> tile;
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++)
            tile.sums[row][v] = ADD ? load(c + row * c_stride + v * LANES) : vfloat{};
    for (int64_t k = 0; k < depth; k++) {
        ahead.ask();
        add_step(tile, a, a_stride, k, b(k));
    }
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) store(c + row * c_stride + v * LANES, tile.sums[row][v]);
}

// At most ROWS rows, as one tile.
template <int ROWS, int VECTORS, bool ADD, typename Number, typename RowOf>
void multiply_some(int64_t rows, const Number* a, int64_t a_stride, RowOf b, int64_t depth, float* c,
                   int64_t c_stride, Ahead& ahead) {
    if constexpr (ROWS > 0) {
        if (rows == ROWS)
            multiply_tile<ROWS, VECTORS, ADD>(a, a_stride, b, depth, c, c_stride, ahead);
        else
            multiply_some<ROWS - 1, VECTORS, ADD>(rows, a, a_stride, b, depth, c, c_stride, ahead);
    }
}

template <int VECTORS, bool ADD, typename Number, typename RowOf>
void multiply_columns(int64_t rows, const Number* a, int64_t a_stride, RowOf b, int64_t depth, float* c,
                      int64_t c_stride, Ahead& ahead) {
    constexpr int ROWS = TILE_SUMS / std::max(VECTORS, 2);
    const int64_t num_tiles = (rows + ROWS - 1) / ROWS;
    for (int64_t tile = 0; tile < num_tiles; tile++) {  // of equal size, rather than a small last one
        const int64_t first = rows * tile / num_tiles, last = rows * (tile + 1) / num_tiles;
        multiply_some<ROWS, VECTORS, ADD>(last - first, a + first * a_stride, a_stride, b, depth,
                                          c + first * c_stride, c_stride, ahead);
    }
}

template <bool ADD, typename Number, typename RowOf>
void multiply(int64_t rows, const Number* a, int64_t a_stride, RowOf b, int64_t columns, int64_t depth, float* c,
              Ahead& ahead) {
    const auto from = [&](int64_t column) { return [=](int64_t k) { return b(k) + column; }; };
    int64_t at = 0;
    for (; at + 4 * LANES <= columns; at += 4 * LANES)
        multiply_columns<4, ADD>(rows, a, a_stride, from(at), depth, c + at, columns, ahead);
    for (; at + 2 * LANES <= columns; at += 2 * LANES)
        multiply_columns<2, ADD>(rows, a, a_stride, from(at), depth, c + at, columns, ahead);
    for (; at < columns; at += LANES)
        multiply_columns<1, ADD>(rows, a, a_stride, from(at), depth, c + at, columns, ahead);
}

// Walks over the slots of a request, from page to page.
template <typename T>
struct Cursor {
    const CacheLayer& cache;
    const int32_t* block;
    int64_t head, slot;
    const T *key, *value;

    Cursor(const Batch& batch, const Chunk& chunk)
        : cache(batch.cache),
          block(batch.block_table + chunk.row * batch.table_stride + chunk.first / batch.cache.block_size),
          head(chunk.kv_head),
          slot(chunk.first % batch.cache.block_size) {
        look_up();
    }

    void look_up() {
        key = static_cast<const T*>(cache.data) + cache.offset(*block, 0, head, slot);
        value = key + cache.heads * cache.block_size * cache.head_dim;
    }

    // On to the next slot; `is_last`: there is none, and what the block table holds there must not be read.
    void next(bool is_last) {
        key += cache.head_dim, value += cache.head_dim;
        if (++slot < cache.block_size || is_last) return;
        slot = 0, block++;
        look_up();
    }

    // What a stored key (part 0) or value (part 1) is multiplied with.
    float scale(int64_t part) const {
        if constexpr (std::is_same_v<T, int8_t>) return *cache.slot_scale(*block, part, head, slot);
        if constexpr (std::is_same_v<T, float8_e4m3>) return cache.scale[part];
        return 1;
    }

};

template <typename T>
vfloat load_scaled(const T* from, float scale) {
    if constexpr (sizeof(T) > 1) return load(from);
    vfloat x;
    for (int i = 0; i < LANES; i++) x[i] = to_float(from[i]) * scale;
    return x;
}

// The numbers of a head from d on: LANES, or what is left of them and zeros. WHOLE: a head is whole vectors.
template <bool WHOLE, typename T>
vfloat load_scaled(const T* head, int64_t d, int64_t head_dim, float scale) {
    if (WHOLE || d + LANES <= head_dim) return load_scaled(head + d, scale);
    T rest[LANES] = {};
    std::copy(head + d, head + head_dim, rest);
    return load_scaled(rest, scale);
}

// Words word .. word + LANES - 1 of a key.
template <typename F, bool WHOLE, typename T>
vfloat load_words(const T* key, int64_t word, int64_t head_dim, float scale) {
    if constexpr (std::is_same_v<F, PairFactors>)
        return (vfloat)(WHOLE ? load_pairs(key + 2 * word) : load_first_pairs(key + 2 * word, head_dim - 2 * word));
    else
        return load_scaled<WHOLE>(key, word, head_dim, scale);
}

// Row i of a chunk's values -> value_rows; rows of pairs hold the values of two keys, and 0 for one behind the chunk.
template <typename F, bool WHOLE, typename T>
void read_value(const Cursor<T>& at, int64_t i, bool is_last, int64_t head_dim, int64_t width, Scratch<F>& scratch) {
    auto* to = scratch.values.data() + i / F::PER_WORD * width;
    scratch.value_rows[i / F::PER_WORD] = to;
    if constexpr (std::is_same_v<F, PairFactors>) {
        const bfloat16* even = i % 2 ? scratch.even_value : at.value;
        scratch.even_value = at.value;
        if (i % 2 == 0 && !is_last) return;
        for (int64_t d = 0; d < width; d += LANES) {
            const int64_t count = WHOLE ? LANES : head_dim - d;
            const vint pairs = widen_bits(even + d, count) | (i % 2 ? widen_bits(at.value + d, count) << 16 : vint{});
            std::memcpy(to + d, &pairs, sizeof pairs);
        }
    } else if (WHOLE && std::is_same_v<T, float>) {
        scratch.value_rows[i] = reinterpret_cast<const float*>(at.value);
    } else {
        for (int64_t d = 0; d < width; d += LANES)
            store(to + d, load_scaled<WHOLE>(at.value, d, head_dim, at.scale(1)));
    }
}

// A chunk of the cache -> keys [words, CHUNK] (transposed) and value_rows.
template <typename F, bool WHOLE, typename T>
void read_chunk(const Batch& batch, const Chunk& chunk, Scratch<F>& scratch) {
    const int64_t head_dim = batch.cache.head_dim, width = batch.width(), words = batch.words<F>();
    Cursor<T> at(batch, chunk);
    for (int64_t first = 0; first < chunk.count; first += LANES) {
        const int64_t lanes = std::min<int64_t>(LANES, chunk.count - first);
        const T* keys[LANES];
        float scales[LANES];
        for (int64_t lane = 0; lane < lanes; lane++) {
            const int64_t i = first + lane;
            keys[lane] = at.key;
            scales[lane] = at.scale(0);
            read_value<F, WHOLE>(at, i, i + 1 == chunk.count, head_dim, width, scratch);
            at.next(i + 1 == chunk.count);
            scratch.ahead.ask();
        }
        for (int64_t word = 0; word < words; word += LANES) {
            vfloat square[LANES];
            for (int64_t lane = 0; lane < LANES; lane++)
                square[lane] = lane < lanes ? load_words<F, WHOLE>(keys[lane], word, head_dim, scales[lane]) : vfloat{};
            transpose(square);
            for (int row = 0; row < LANES; row++)
                std::memcpy(scratch.keys.data() + (word + row) * CHUNK + first, &square[row], sizeof(vfloat));
        }
    }
}

// Scores of one query -> weights, and its running peak, mass and output. Keys begin .. end - 1 of the chunk are
// visible, at least one.
template <typename Number>
void soften(const float* scores, float scale, int64_t begin, int64_t end, Number* weights, float& peak, vfloat& mass,
            float* output, int64_t width) {
    vfloat s[4];
    vfloat highest = splat(-INFINITY);
    for (int v = 0; v < 4; v++) {
        const vint at = lane_numbers() + v * LANES;
        const vint visible = (at >= static_cast<int32_t>(begin)) & (at < static_cast<int32_t>(end));
        s[v] = select(visible, load(scores + v * LANES) * scale, splat(-INFINITY));
        highest = maximum(highest, s[v]);
    }
    const float new_peak = std::max(peak, largest(highest));
    if (new_peak != peak) {
        const float factor = exp_nonpositive(splat(peak - new_peak))[0];
        mass *= factor;
        for (int64_t d = 0; d < width; d += LANES) store(output + d, load(output + d) * factor);
        peak = new_peak;
    }
    for (int v = 0; v < 4; v++) {
        const vfloat weight = exp_nonpositive(s[v] - peak);
        mass += weight;
        store(weights + v * LANES, weight);
    }
}

// Everything for one chunk of keys but reading it.
template <typename F>
void attend_chunk(const Batch& batch, const Task& task, const Chunk& chunk, int64_t position, Scratch<F>& scratch) {
    const int64_t base = (chunk.kv_head - task.first_head) * task.num_tokens * batch.group();
    const int64_t head_dim = batch.cache.head_dim, width = batch.width(), group = batch.group();
    const int64_t skip = std::max<int64_t>(0, chunk.first - position);  // tokens that stand before the chunk
    const int64_t begin = skip * group, num_queries = task.num_tokens * group;
    if (begin >= num_queries) return;
    const int64_t query_stride = batch.words<F>() * F::PER_WORD, depth = (head_dim + F::PER_WORD - 1) / F::PER_WORD;
    float* scores = scratch.scores.data();
    auto* weights = scratch.weights.data();
    const auto* keys = scratch.keys.data();
    multiply<false>(
        num_queries - begin, scratch.queries.data() + (base + begin) * query_stride, query_stride,
        [=](int64_t word) { return keys + word * CHUNK; }, CHUNK, depth, scores, scratch.ahead);
    const float scale = std::is_same_v<F, PairFactors> ? batch.scale : 1;  // wide queries are scaled already
    for (int64_t query = begin; query < num_queries; query++, scores += CHUNK, weights += CHUNK) {
        const int64_t at = position + query / group;
        const int64_t oldest = batch.window ? std::max<int64_t>(0, at - batch.window + 1 - chunk.first) : 0;
        const int64_t end = std::min(chunk.count, at + 1 - chunk.first);
        if (oldest < end)
            soften(scores, scale, oldest, end, weights, scratch.peak[base + query], scratch.mass[base + query],
                   scratch.outputs.data() + (base + query) * width, width);
        else  // the window has passed this chunk
            std::fill_n(weights, CHUNK, typename F::Number{});
    }
    const auto* const* values = scratch.value_rows;
    multiply<true>(
        num_queries - begin, scratch.weights.data(), CHUNK, [=](int64_t word) { return values[word]; }, width,
        (chunk.count + F::PER_WORD - 1) / F::PER_WORD, scratch.outputs.data() + (base + begin) * width, scratch.ahead);
}

template <typename Q, typename F>
void load_queries(const Batch& batch, const Task& task, Scratch<F>& scratch) {
    const int64_t head_dim = batch.cache.head_dim, width = batch.width(), group = batch.group();
    const int64_t stride = batch.words<F>() * F::PER_WORD;
    const int64_t token = batch.query_start_loc[task.row] + task.first_token;
    const int64_t per_head = task.num_tokens * group, num_queries = task.num_heads * per_head;
    for (int64_t query = 0; query < num_queries; query++) {
        const int64_t head = (task.first_head + query / per_head) * group + query % group;
        const Q* from = static_cast<const Q*>(batch.query) + (token + query % per_head / group) * batch.token_stride +
                        head * batch.head_stride;
        typename F::Number* to = scratch.queries.data() + query * stride;
        if constexpr (std::is_same_v<F, PairFactors>) {
            std::copy_n(from, head_dim, to);
            std::fill(to + head_dim, to + stride, bfloat16{});
        } else {
            for (int64_t d = 0; d < head_dim; d++) to[d] = to_float(from[d]) * batch.scale;
        }
        scratch.peak[query] = -INFINITY;
        scratch.mass[query] = vfloat{};
    }
    std::fill_n(scratch.outputs.data(), num_queries * width, 0.0f);
}

template <typename Q, typename F>
void store_outputs(const Batch& batch, const Task& task, Scratch<F>& scratch) {
    const int64_t head_dim = batch.cache.head_dim, width = batch.width(), group = batch.group();
    const int64_t token = batch.query_start_loc[task.row] + task.first_token;
    const int64_t per_head = task.num_tokens * group;
    for (int64_t query = 0; query < task.num_heads * per_head; query++) {
        const float* from = scratch.outputs.data() + query * width;
        const int64_t head = (task.first_head + query / per_head) * group + query % group;
        Q* to = static_cast<Q*>(batch.out) + ((token + query % per_head / group) * batch.heads + head) * head_dim;
        const float inverse = 1.0f / sum(scratch.mass[query]);
        int64_t d = 0;
        for (; d + LANES <= head_dim; d += LANES) store(to + d, load(from + d) * inverse);
        for (; d < head_dim; d++) to[d] = from_float<Q>(from[d] * inverse);
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

Chunk chunk_at(const Task& task, const Range& range, int64_t first, int64_t head) {
    return {task.row, head, first, std::min<int64_t>(CHUNK, range.end - first)};
}

// `next` is the task that this thread probably does next: its first chunk is asked for during the last one here.
template <typename Q, typename T, typename F>
void attend(const Batch& batch, const Task& task, const Task& next, Scratch<F>& scratch) {
    load_queries<Q>(batch, task, scratch);
    const Range range(batch, task), after(batch, next);
    const bool whole = batch.words<F>() * F::PER_WORD == batch.cache.head_dim;
    const auto read = whole ? read_chunk<F, true, T> : read_chunk<F, false, T>;
    const int64_t end_head = task.first_head + task.num_heads;
    for (int64_t first = range.first; first < range.end; first += CHUNK)
        for (int64_t head = task.first_head; head < end_head; head++) {
            const Chunk chunk = chunk_at(task, range, first, head);
            const Chunk later = head + 1 < end_head           ? chunk_at(task, range, first, head + 1)
                                : first + CHUNK < range.end ? chunk_at(task, range, first + CHUNK, task.first_head)
                                                            : chunk_at(next, after, after.first, next.first_head);
            scratch.ahead.aim(batch, later, sizeof(T), F::PER_WORD);
            read(batch, chunk, scratch);
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
        // In a decode batch all heads of a row are one task: they are neighbours in memory, and read in that order.
        const bool together = num_rows >= MANY_ROWS && num_tokens * batch.heads <= MAX_QUERIES;
        const int64_t heads_at_once = together ? batch.cache.heads : 1;
        for (int64_t head = 0; head < batch.cache.heads; head += heads_at_once)
            for (int64_t token = 0; token < num_tokens; token += tokens_at_once)
                tasks.push_back({row, head, heads_at_once, token, std::min(tokens_at_once, num_tokens - token)});
    }
    return tasks;
}

// Not inlined: a compiler that sees a variable of the thread looks up its address in the inner loops.
template <typename F>
__attribute__((noinline)) Scratch<F>& scratch_of_thread() {
    static thread_local Scratch<F> scratch;
    return scratch;
}

template <typename Q, typename T>
void attend_all(const Batch& batch, int64_t num_rows) {
    const std::vector<Task> tasks = make_tasks(batch, num_rows);
    const auto num_tasks = static_cast<int64_t>(tasks.size());
    const int64_t at_once = num_tasks > 256 ? 8 : 1;  // enough of them that a last handful hardly matters
    int64_t num_keys = 0;
    for (const Task& task : tasks) num_keys += Range(batch, task).end;
    for_pieces((num_tasks + at_once - 1) / at_once, num_keys > WORTH_THREADS, [&](int64_t piece) {
        Scratch<FactorsOf<Q, T>>& scratch = scratch_of_thread<FactorsOf<Q, T>>();
        scratch.resize(batch);
        const int64_t end = std::min(num_tasks, (piece + 1) * at_once);
        for (int64_t i = piece * at_once; i < end; i++)
            attend<Q, T>(batch, tasks[i], tasks[std::min(i + 1, num_tasks - 1)], scratch);
    });
}

}  // namespace

// Tensors as in ops.paged_attention; strides in numbers. Tokens past the last row's are padding: their out is 0.
extern "C" void paged_attention(const void* query, int64_t token_stride, int64_t head_stride, int64_t dtype,
                                void* out, int64_t num_tokens, const int32_t* query_start_loc,
                                const int32_t* seq_lens, const int32_t* block_table, int64_t table_stride,
                                int64_t num_rows, int64_t heads, float scale, int64_t window, void* kv,
                                int64_t block_stride, int64_t kv_dtype, float* kv_scale, int64_t scale_block_stride,
                                int64_t kv_heads, int64_t block_size, int64_t head_dim) {
    const CacheLayer cache{kv, block_stride, kv_heads, block_size, head_dim, kv_scale, scale_block_stride};
    const Batch batch{query,       token_stride, head_stride, out,   query_start_loc, seq_lens,
                      block_table, table_stride, heads,       scale, window,          cache};
    launch(ATTENTION, [=] {
        with_float_type(dtype, [&](auto q) {
            using Q = decltype(q);
            const int64_t padding = query_start_loc[num_rows] * heads * head_dim;
            std::fill(static_cast<Q*>(out) + padding, static_cast<Q*>(out) + num_tokens * heads * head_dim, Q{});
            with_cache_type(kv_dtype, [&](auto stored) { attend_all<Q, decltype(stored)>(batch, num_rows); });
        });
    });
}
