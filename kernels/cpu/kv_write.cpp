// Storing a step's keys and values in their slots of the cache, converted to its type.
#include <type_traits>

#include "cache.h"
#include "graph.h"
#include "threads.h"

namespace {

constexpr int64_t WORTH_THREADS = 1 << 14;

template <typename From, typename To>
void write_head(const From* x, To* to, int64_t size, float) {
    if constexpr (std::is_same_v<From, To>)
        std::copy_n(x, size, to);
    else
        for (int64_t i = 0; i < size; i++) to[i] = from_float<To>(to_float(x[i]));
}

template <typename From>
void write_head(const From* x, float8_e4m3* to, int64_t size, float scale) {
    for (int64_t i = 0; i < size; i++) to[i] = from_float<float8_e4m3>(to_float(x[i]) / scale);
}

// Symmetric, with a scale for the head of this token. A NaN makes the scale NaN, and with it the whole head.
template <typename From>
float write_head_int8(const From* x, int8_t* to, int64_t size) {
    float peak = 0;
    for (int64_t i = 0; i < size; i++) {
        const float magnitude = std::fabs(to_float(x[i]));
        peak = peak >= magnitude || peak != peak ? peak : magnitude;
    }
    const float scale = peak / 127;
    for (int64_t i = 0; i < size; i++) {
        const float steps = scale > 0 ? std::nearbyint(to_float(x[i]) / scale) : 0;
        to[i] = static_cast<int8_t>(std::min(127.0f, std::max(-127.0f, steps)));
    }
    return scale;
}

template <typename From>
void write_token(const From* x, int64_t head_stride, const CacheLayer& cache, int64_t dtype, int64_t part,
                 int64_t slot) {
    const int64_t block = slot / cache.block_size, place = slot % cache.block_size;
    with_cache_type(dtype, [&](auto stored) {
        using To = decltype(stored);
        for (int64_t head = 0; head < cache.heads; head++) {
            const From* from = x + head * head_stride;
            To* to = static_cast<To*>(cache.data) + cache.offset(block, part, head, place);
            if constexpr (std::is_same_v<To, int8_t>)
                *cache.slot_scale(block, part, head, place) = write_head_int8(from, to, cache.head_dim);
            else
                write_head(from, to, cache.head_dim, dtype == FLOAT8_E4M3 ? cache.scale[part] : 1);
        }
    });
}

}  // namespace

// key, value [tokens, heads, head_dim], strides in numbers; slots int64 [tokens], -1 is padding.
extern "C" void reshape_and_cache(const void* key, int64_t key_token_stride, int64_t key_head_stride,
                                  const void* value, int64_t value_token_stride, int64_t value_head_stride,
                                  int64_t dtype, void* kv, int64_t block_stride, int64_t kv_dtype, float* kv_scale,
                                  int64_t scale_block_stride, const int64_t* slots, int64_t tokens, int64_t heads,
                                  int64_t block_size, int64_t head_dim) {
    const CacheLayer cache{kv, block_stride, heads, block_size, head_dim, kv_scale, scale_block_stride};
    launch(KV_WRITE, [=] {
        with_float_type(dtype, [&](auto zero) {
            using T = decltype(zero);
            for_ranges(tokens, tokens * heads * head_dim > WORTH_THREADS, [&](int64_t begin, int64_t end) {
                for (int64_t token = begin; token < end; token++) {
                    if (slots[token] < 0) continue;
                    write_token(static_cast<const T*>(key) + token * key_token_stride, key_head_stride, cache,
                                kv_dtype, 0, slots[token]);
                    write_token(static_cast<const T*>(value) + token * value_token_stride, value_head_stride, cache,
                                kv_dtype, 1, slots[token]);
                }
            });
        });
    });
}
