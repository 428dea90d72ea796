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
// Few queries, as in decode, take keys, and pairs of values, from registers instead. There the memory limits the
// speed, so the pages of the next chunk are asked for while this one is computed. Chunks are counted from the
// start of the request, and each query goes through them in the same order with the same operations, whatever the
// other queries are: alone, in a batch, or in a chunk of a prompt.
//
// With queries and a cache in bf16 both products take pairs of bf16 numbers (`pairs.h`), so p is rounded to bf16;
// scores, softmax, mass and outputs are fp32. In all other cases everything is widened to fp32.
//
// Sources: online softmax, Milakov & Gimelshein 2018; FlashAttention-2, Dao 2023; PagedAttention, Kwon et al. 2023.
#include <type_traits>
#include <vector>

#include "attention_products.h"
#include "cache.h"
#include "graph.h"
#include "threads.h"

namespace {

constexpr int CHUNK = 4 * LANES;         // keys that are looked at together
constexpr int MAX_QUERIES = 48;          // query vectors of a task, or one token's: the scratch stays in L2
constexpr int MANY_ROWS = 16;            // enough tasks for all threads, without one for each head
constexpr int MANY_TASKS = 256;          // enough that a last handful hardly matters
constexpr int64_t WORTH_THREADS = 2048;  // keys: some twenty microseconds
constexpr int FEW = 8;                   // queries for which keys are not worth a copy

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
    int64_t first, count;  // keys first .. first + count - 1 of a request
};

// What a thread works on: one task's queries and results, one chunk's keys and values. Rows of `width` numbers or of
// whole vectors of words; no result reads those behind head_dim.
template <typename F>
struct Scratch {
    std::vector<float> outputs, scores, peaks, new_peaks, factors;
    std::vector<typename F::Number> queries, weights, zeros;
    std::vector<typename F::Word> keys, values;
    const typename F::Word* value_rows[CHUNK];  // in `values`, or in the cache if it holds floats in whole vectors
    std::vector<vfloat> masses;

    void resize(const Batch& batch) {
        const int64_t width = batch.width(), num_queries = std::max<int64_t>(MAX_QUERIES, batch.group());
        const int64_t words = batch.words<F>(), whole = (num_queries + LANES - 1) / LANES * LANES;
        queries.resize(num_queries * words * F::PER_WORD);
        outputs.resize(num_queries * width);
        scores.resize(num_queries * CHUNK);
        weights.resize(num_queries * CHUNK);
        keys.resize(words * CHUNK);
        values.resize(CHUNK / F::PER_WORD * width);
        zeros.resize(words * F::PER_WORD);
        masses.resize(num_queries);
        for (auto* numbers : {&peaks, &new_peaks, &factors}) numbers->resize(whole + LANES);  // read by whole vectors
    }
};

// Where the keys of a chunk lie, for the first head of the cache. Behind its end comes the first key of the last vector.
template <typename T>
struct Slots {
    const T* keys[CHUNK] = {};
    const float* scales[CHUNK] = {};  // of an int8 cache

    // Keys first .. of a row, at most up to `end`.
    void find(const Batch& batch, int64_t row, int64_t first, int64_t end) {
        const CacheLayer& cache = batch.cache;
        const int32_t* block = batch.block_table + row * batch.table_stride + first / cache.block_size;
        const int64_t count = std::min<int64_t>(CHUNK, end - first);
        if (count <= 0) return;
        int64_t slot = first % cache.block_size;
        for (int64_t i = 0; i < count; slot = 0, block++) {
            const T* key = static_cast<const T*>(cache.data) + cache.offset(*block, 0, 0, slot);
            for (; i < count && slot < cache.block_size; i++, slot++, key += cache.head_dim) {
                keys[i] = key;
                if constexpr (std::is_same_v<T, int8_t>) scales[i] = cache.slot_scale(*block, 0, 0, slot);
            }
        }
        const int64_t last = (count - 1) / LANES * LANES;
        for (int64_t i = count; i < CHUNK; i++) keys[i] = keys[last], scales[i] = scales[last];
    }
};

// The keys and values of one head of the cache.
template <typename T>
class Head {
    const CacheLayer& cache_;
    const Slots<T>& slots_;
    int64_t head_, values_;

    float scale(int64_t i, int64_t part, int64_t head) const {
        if constexpr (std::is_same_v<T, int8_t>) return slots_.scales[i][head * cache_.block_size];
        if constexpr (std::is_same_v<T, float8_e4m3>) return cache_.scale[part];
        return 1;
    }

   public:
    Head(const CacheLayer& cache, const Slots<T>& slots, int64_t head)
        : cache_(cache), slots_(slots), head_(head), values_(head + cache.heads) {}

    const T* key(int64_t i) const { return slots_.keys[i] + head_ * cache_.block_size * cache_.head_dim; }
    const T* value(int64_t i) const { return slots_.keys[i] + values_ * cache_.block_size * cache_.head_dim; }
    // What a stored number is multiplied with.
    float key_scale(int64_t i) const { return scale(i, 0, head_); }
    float value_scale(int64_t i) const { return scale(i, 1, values_); }
};

template <typename T>
vfloat load_scaled(const T* from, float scale) {
    if constexpr (sizeof(T) > 1) return load(from);
    vfloat x{};
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

// The pairs of the values i and i + 1 from number d on: 2 * LANES numbers of a head, or what is left of them.
template <bool WHOLE>
ALWAYS_INLINE void load_value_pairs(const bfloat16* even, const bfloat16* odd, int64_t count, vint (&pairs)[2]) {
    const vint x = WHOLE ? load_pairs(even) : load_first_pairs(even, count);
    const vint y = WHOLE ? load_pairs(odd) : load_first_pairs(odd, count);
    pairs[0] = interleaved<0>(x, y);
    pairs[1] = interleaved<LANES>(x, y);
}

// The keys of a chunk, transposed: [words, CHUNK]. Those of `later` are asked for.
template <typename F, bool WHOLE, typename T>
void read_keys(const Batch& batch, const Head<T>& here, const Head<T>& later, int64_t count, Scratch<F>& scratch) {
    const int64_t head_dim = batch.cache.head_dim;
    for (int64_t first = 0; first < count; first += LANES)
        for (int64_t word = 0; word < batch.words<F>(); word += LANES) {
            const int64_t at = word * F::PER_WORD;
            vfloat square[LANES];
            for (int lane = 0; lane < LANES; lane++) {
                const T* key = here.key(first + lane);
                ask(later.key(first + lane) + at);
                if constexpr (std::is_same_v<F, PairFactors>)
                    square[lane] = (vfloat)(WHOLE ? load_pairs(key + at) : load_first_pairs(key + at, head_dim - at));
                else
                    square[lane] = load_scaled<WHOLE>(key, at, head_dim, here.key_scale(first + lane));
            }
            transpose(square);
#pragma GCC unroll 16
            for (int row = 0; row < LANES; row++)
                std::memcpy(scratch.keys.data() + (word + row) * CHUNK + first, &square[row], sizeof(vfloat));
        }
}

// The values of a chunk -> value_rows; rows of pairs hold the values of two keys, and 0 for one behind the chunk.
template <typename F, bool WHOLE, typename T>
void read_values(const Batch& batch, const Head<T>& here, const Head<T>& later, int64_t count, Scratch<F>& scratch) {
    const int64_t head_dim = batch.cache.head_dim, width = batch.width();
    auto* to = scratch.values.data();
    for (int64_t i = 0; i < count; i += F::PER_WORD, to += width) {
        scratch.value_rows[i / F::PER_WORD] = to;
        for (int64_t d = 0; d < head_dim; d += 64 / sizeof(T))
            for (int64_t j = i; j < i + F::PER_WORD; j++) ask(later.value(j) + d);
        if constexpr (std::is_same_v<F, PairFactors>) {
            const bfloat16 *even = here.value(i), *odd = i + 1 < count ? here.value(i + 1) : scratch.zeros.data();
            for (int64_t d = 0; d < width; d += 2 * LANES) {
                vint pairs[2];
                load_value_pairs<WHOLE>(even + d, odd + d, head_dim - d, pairs);
                for (int v = 0; v < 2 && d + v * LANES < width; v++)
                    std::memcpy(to + d + v * LANES, &pairs[v], sizeof(vint));
            }
        } else if constexpr (WHOLE && std::is_same_v<T, float>) {
            scratch.value_rows[i] = here.value(i);
        } else {
            for (int64_t d = 0; d < width; d += LANES)
                store(to + d, load_scaled<WHOLE>(here.value(i), d, head_dim, here.value_scale(i)));
        }
    }
}

// Scores of ROWS queries: few of them take the keys from registers, four words at a time. The sums have the order of
// `multiply`.
template <int ROWS, typename F, typename T>
void score_few(const Batch& batch, const Head<T>& here, const Head<T>& later, int64_t count,
               const typename F::Number* queries, float* scores) {
    constexpr int VECTORS = ROWS <= 2 ? 4 : 2;
    const int64_t words = batch.words<F>(), head_dim = batch.cache.head_dim;
    for (int64_t first = 0; first < count; first += VECTORS * LANES) {
        Tile<ROWS, VECTORS> tile;
        tile.zero();
        for (int64_t word = 0; word < words; word += 4) {
            vfloat columns[VECTORS][4];
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) {
                const T* const from = here.key(first + v * LANES) + word * F::PER_WORD;
                const char* const then = reinterpret_cast<const char*>(later.key(first + v * LANES));
                load_columns([=](int lane) { return from + lane * head_dim; }, columns[v]);
#pragma GCC unroll 4
                for (int line = 0; line < LANES / 4; line++) ask(then + (word * LANES / 16 + line) * 64);
            }
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) {
                vfloat row[VECTORS];
#pragma GCC unroll 4
                for (int v = 0; v < VECTORS; v++) row[v] = columns[v][k];
                add_word(tile, queries + (word + k) * F::PER_WORD, words * F::PER_WORD, row);
            }
        }
        store_rows(tile, scores + first, CHUNK);
    }
}

// outputs [ROWS, width] = outputs * factors + weights [ROWS, CHUNK] @ values of pairs, from registers as well.
template <int ROWS>
void add_few_values(const Batch& batch, const Head<bfloat16>& here, const Head<bfloat16>& later, int64_t count,
                    const Scratch<PairFactors>& scratch, float* outputs) {
    const int64_t head_dim = batch.cache.head_dim;
    for (int64_t d = 0; d < head_dim; d += 2 * LANES) {
        Tile<ROWS, 2> tile;
        load_scaled_rows(tile, outputs + d, head_dim, scratch.factors.data());
        for (int64_t first = 0; first < count; first += LANES) {
            const bfloat16 *value = here.value(first) + d, *then = later.value(first) + d;
            const bfloat16* weights = scratch.weights.data() + first;
            for (int64_t left = count - first, i = 0; i < LANES && i < left; i += 2, value += 2 * head_dim) {
                ask(then + i * head_dim);
                ask(then + (i + 1) * head_dim);
                vint pairs[2];
                load_value_pairs<true>(value, i + 1 < left ? value + head_dim : scratch.zeros.data(), 0, pairs);
                add_pairs(tile, weights + i, CHUNK, pairs);
            }
        }
        store_rows(tile, outputs + d, head_dim);
    }
}

// The keys of a chunk that a query sees.
struct Seen {
    int64_t begin, end;

    Seen(const Batch& batch, const Chunk& chunk, int64_t position)
        : begin(batch.window ? std::max<int64_t>(0, position - batch.window + 1 - chunk.first) : 0),
          end(std::min(chunk.count, position + 1 - chunk.first)) {}

    bool nothing() const { return begin >= end; }  // the window has passed this chunk
};

// Scores of a query, scaled, and -inf where it does not see the key; return the largest.
inline float mask(float* scores, float scale, Seen seen) {
    vfloat highest = splat(-INFINITY);
    for (int v = 0; v < CHUNK / LANES; v++) {
        vfloat s = load(scores + v * LANES) * scale;
        if (seen.begin > v * LANES || seen.end < (v + 1) * LANES) {
            const vint at = lane_numbers() + v * LANES;
            const vint visible = (at >= static_cast<int32_t>(seen.begin)) & (at < static_cast<int32_t>(seen.end));
            s = select(visible, s, splat(-INFINITY));
        }
        store(scores + v * LANES, s);
        highest = maximum(highest, s);
    }
    return largest(highest);
}

// Scores of the queries of some tokens, the first of which stands at `position` -> weights, their running peaks and
// masses, and the factors that their outputs so far shrink by. Step by step for all of them: one query alone would wait
// for each of its steps. query: number of the first one in `scratch`.
template <typename F>
void soften(const Batch& batch, const Chunk& chunk, int64_t position, int64_t num_tokens, int64_t query,
            Scratch<F>& scratch) {
    const float scale = std::is_same_v<F, PairFactors> ? batch.scale : 1;  // wide queries are scaled already
    const int64_t group = batch.group(), count = num_tokens * group;
    float *peaks = scratch.peaks.data() + query, *new_peaks = scratch.new_peaks.data();
    for (int64_t i = 0, token = 0; token < num_tokens; token++) {
        const Seen seen(batch, chunk, position + token);
        for (const int64_t end = i + group; i < end; i++)
            new_peaks[i] = seen.nothing() ? peaks[i] : std::max(peaks[i], mask(&scratch.scores[i * CHUNK], scale, seen));
    }
    for (int64_t i = 0; i < count; i += LANES) {
        const vfloat before = load(peaks + i), now = load(new_peaks + i);
        store(scratch.factors.data() + i, select(before == now, splat(1), exp_nonpositive(before - now)));
    }
    for (int64_t i = 0, token = 0; token < num_tokens; token++) {
        const Seen seen(batch, chunk, position + token);
        for (const int64_t end = i + group; i < end; i++) {
            auto* weights = &scratch.weights[i * CHUNK];
            if (seen.nothing()) {
                std::fill_n(weights, CHUNK, typename F::Number{});
                continue;
            }
            vfloat mass = scratch.masses[query + i] * scratch.factors[i];
#pragma GCC unroll 8
            for (int v = 0; v < CHUNK / LANES; v++) {
                const vfloat weight = exp_nonpositive(load(&scratch.scores[i * CHUNK + v * LANES]) - new_peaks[i]);
                mass += weight;
                store(weights + v * LANES, weight);
            }
            scratch.masses[query + i] = mass;
            peaks[i] = new_peaks[i];
        }
    }
}

// A chunk of keys: its queries' scores, weights, and what is added to their outputs.
template <typename F, bool WHOLE, typename T>
void attend_chunk(const Batch& batch, const Task& task, const Chunk& chunk, int64_t position, const Head<T>& here,
                  const Head<T>& later, int64_t base, Scratch<F>& scratch) {
    const int64_t head_dim = batch.cache.head_dim, width = batch.width();
    const int64_t skip = std::max<int64_t>(0, chunk.first - position);  // tokens that stand before the chunk
    const int64_t num_tokens = task.num_tokens - skip, num_queries = num_tokens * batch.group();
    const int64_t query = base + skip * batch.group(), query_stride = batch.words<F>() * F::PER_WORD;
    const auto* queries = scratch.queries.data() + query * query_stride;
    float* outputs = scratch.outputs.data() + query * width;
    constexpr bool FROM_REGISTERS = WHOLE && sizeof(T) * F::PER_WORD == sizeof(float);
    // A vector of keys lies in one page then.
    const bool are_few = FROM_REGISTERS && num_queries <= FEW && batch.cache.block_size % LANES == 0;
    if (!are_few) {
        read_keys<F, WHOLE>(batch, here, later, chunk.count, scratch);
        multiply(num_queries, queries, query_stride, RowsApart<typename F::Word>{scratch.keys.data(), CHUNK}, CHUNK,
                 (head_dim + F::PER_WORD - 1) / F::PER_WORD, nullptr, scratch.scores.data());
    } else if constexpr (FROM_REGISTERS) {
        with_rows<FEW>(num_queries, [&](auto rows) {
            score_few<rows, F>(batch, here, later, chunk.count, queries, scratch.scores.data());
        });
    }
    soften(batch, chunk, position + skip, num_tokens, query, scratch);
    if constexpr (FROM_REGISTERS && std::is_same_v<F, PairFactors>)
        if (are_few)
            return with_rows<FEW>(num_queries, [&](auto rows) {
                add_few_values<rows>(batch, here, later, chunk.count, scratch, outputs);
            });
    read_values<F, WHOLE>(batch, here, later, chunk.count, scratch);
    multiply(num_queries, scratch.weights.data(), CHUNK, RowsListed<typename F::Word>{scratch.value_rows}, width,
             (chunk.count + F::PER_WORD - 1) / F::PER_WORD, scratch.factors.data(), outputs);
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
        scratch.peaks[query] = -INFINITY;
        scratch.masses[query] = vfloat{};
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
        const float inverse = 1.0f / sum(scratch.masses[query]);
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

// While a head's part of a chunk is computed, the same part of the next chunk is asked for, a little with every step: a
// core has a limited number of misses under way, then it waits. `next` is the task that this thread probably does next.
template <bool WHOLE, typename Q, typename T, typename F>
void attend(const Batch& batch, const Task& task, const Task& next, Scratch<F>& scratch) {
    load_queries<Q>(batch, task, scratch);
    const Range range(batch, task), after(batch, next);
    const int64_t end_head = task.first_head + task.num_heads, queries_per_head = task.num_tokens * batch.group();
    Slots<T> in_turn[2];
    in_turn[0].find(batch, task.row, range.first, range.end);
    for (int64_t first = range.first, turn = 0; first < range.end; first += CHUNK, turn = 1 - turn) {
        Slots<T> &slots = in_turn[turn], &later_slots = in_turn[1 - turn];
        const Chunk chunk{first, std::min<int64_t>(CHUNK, range.end - first)};
        const bool is_last = first + CHUNK >= range.end;
        if (is_last)
            later_slots.find(batch, next.row, after.first, after.end);
        else
            later_slots.find(batch, task.row, first + CHUNK, range.end);
        for (int64_t head = task.first_head; head < end_head; head++) {
            const Head<T> here(batch.cache, slots, head);
            const int64_t later_head = is_last ? next.first_head + (head - task.first_head) % next.num_heads : head;
            const Head<T> later(batch.cache, later_slots, later_head);
            const int64_t base = (head - task.first_head) * queries_per_head;
            attend_chunk<F, WHOLE>(batch, task, chunk, range.position, here, later, base, scratch);
        }
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
    const int64_t at_once = num_tasks > MANY_TASKS ? 8 : 1;
    int64_t num_keys = 0;
    for (const Task& task : tasks) num_keys += Range(batch, task).end;
    const bool worth_threads = num_keys > WORTH_THREADS;
    for_pieces((num_tasks + at_once - 1) / at_once, worth_threads, [&](int64_t piece) {
        using F = FactorsOf<Q, T>;
        Scratch<F>& scratch = scratch_of_thread<F>();
        scratch.resize(batch);
        const int64_t end = std::min(num_tasks, (piece + 1) * at_once);
        const bool whole = batch.words<F>() * F::PER_WORD == batch.cache.head_dim;
        for (int64_t i = piece * at_once; i < end; i++) {
            const Task& next = tasks[std::min(i + 1, num_tasks - 1)];  // a thread's pieces are neighbours
            (whole ? attend<true, Q, T, F> : attend<false, Q, T, F>)(batch, tasks[i], next, scratch);
        }
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
