// Attention of decode steps: one new token per row, over its own blocks of the cache.
//
// T is the type of what the model computes, C that of what its cache holds.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <omp.h>
#include <vector>

#include "numbers.h"

namespace {

// What a group of `shared` query heads reads of the cache: one row's tokens [first, context) of one key head.
struct Tokens {
    const int32_t *table;
    int64_t first, context, block_size, stride;

    // Calls `use(first token of the run, its number, the element where it begins)` block by block, and asks
    // for the next block meanwhile: blocks lie anywhere, so the processor cannot guess it.
    template <class C, class Use> void runs(const C *from, Use use) const {
        for (int64_t at = first; at < context;) {
            const int64_t inside = at % block_size, block = at / block_size;
            const int64_t count = std::min(block_size - inside, context - at);
            const C *here = from + (table[block] * block_size + inside) * stride;
            at += count;
            const C *next = at < context ? from + table[block + 1] * block_size * stride : here;
            use(at - count - first, count, here, next - here);
        }
    }
};

// DIM is the head size where it is known at compile time, so that a head stays in registers; else 0.
template <int64_t DIM, class C>
inline float dot(const float *query, const C *key, int64_t dim) {
    float sum = 0;
    for (int64_t i = 0; i < (DIM ? DIM : dim); ++i) sum += query[i] * wide(key[i]);
    return sum;
}

// Ask for `size` elements of each of `count` tokens.
template <class C> inline void fetch(const C *from, int64_t count, int64_t size, int64_t stride) {
    for (int64_t token = 0; token < count; ++token, from += stride)
        for (int64_t i = 0; i < size; i += 64 / sizeof(C)) __builtin_prefetch(from + i, 0, 2);
}

// Four keys at once: a query element is read once, and the four sums do not wait for each other.
template <int64_t DIM, class C>
inline void dot_four(float *score, const float *query, const C *key, int64_t stride, int64_t dim) {
    const C *k0 = key, *k1 = k0 + stride, *k2 = k1 + stride, *k3 = k2 + stride;
    float s0 = 0, s1 = 0, s2 = 0, s3 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
    for (int64_t i = 0; i < (DIM ? DIM : dim); ++i) {
        s0 += query[i] * wide(k0[i]);
        s1 += query[i] * wide(k1[i]);
        s2 += query[i] * wide(k2[i]);
        s3 += query[i] * wide(k3[i]);
    }
    score[0] = s0, score[1] = s1, score[2] = s2, score[3] = s3;
}

// sum += the four values at `value`, `stride` apart, times their shares.
template <int64_t DIM, class C>
inline void add_four(float *sum, const float *share, const C *value, int64_t stride, int64_t dim) {
    const C *v0 = value, *v1 = v0 + stride, *v2 = v1 + stride, *v3 = v2 + stride;
    const float s0 = share[0], s1 = share[1], s2 = share[2], s3 = share[3];
#pragma omp simd
    for (int64_t i = 0; i < (DIM ? DIM : dim); ++i)
        sum[i] += (s0 * wide(v0[i]) + s1 * wide(v1[i])) + (s2 * wide(v2[i]) + s3 * wide(v3[i]));
}

template <int64_t DIM, class C>
inline void add_one(float *sum, float share, const C *value, int64_t dim) {
#pragma omp simd
    for (int64_t i = 0; i < (DIM ? DIM : dim); ++i) sum[i] += share * wide(value[i]);
}

// Scores become e^(score - best); returns their sum.
inline float exponentials(float *score, int64_t length) {
    float best = score[0], total = 0;
    for (int64_t t = 1; t < length; ++t) best = score[t] > best ? score[t] : best;
    for (int64_t t = 0; t < length; ++t) total += score[t] = exp_negative(score[t] - best);
    return total;
}

// One query token per row over its own blocks; reads exactly the tokens it may see, token by token, because
// what several heads keep of a token lies side by side. Rows are split by heads until every thread has work.
template <int64_t DIM, class T, class C>
void decode(T *out, const T *heads, const C *keys, const C *values, const int32_t *blocks,
            const int32_t *contexts, int64_t rows, int64_t max_blocks, int64_t block_size,
            int64_t num_heads, int64_t num_kv, int64_t dim, int64_t window) {
    const int64_t shared = num_heads / num_kv, width = num_kv * dim;
    const int64_t size = stored_size<C>(dim), stride = num_kv * size;
    const int64_t parts = std::min(num_kv, 1 + 4 * omp_get_max_threads() / rows);
    const float scale = 1.0f / std::sqrt(float(dim));
#pragma omp parallel
    {
        std::vector<float> query(num_heads * dim), sums(num_heads * dim), totals(num_heads), scores;
        std::vector<float> floats(std::is_same_v<C, step> ? 4 * width : 0);
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < rows * parts; ++task) {
            const int64_t row = task / parts, part = task % parts, context = contexts[row];
            const int64_t first = window > 0 && context > window ? context - window : 0;
            const int64_t length = context - first;
            const int64_t kv = part * num_kv / parts, last = (part + 1) * num_kv / parts;
            const int64_t mine = (last - kv) * shared;
            const Tokens tokens{blocks + row * max_blocks, first, context, block_size, stride};
            const T *from = heads + (row * (num_heads + 2 * num_kv) + kv * shared) * dim;
            for (int64_t i = 0; i < mine * dim; ++i) query[i] = wide(from[i]) * scale;
            scores.resize(mine * length);
            // Every query head of this part with its key head in what was read, and its own row of scores. An
            // argument, not a capture: what a lambda captures GCC reads again for every head.
            const auto each_head = [&](const auto *near, auto use) {
                near += kv * dim;
                for (int64_t h = 0; h < mine; near += dim)
                    for (const int64_t next = h + shared; h < next; ++h) use(near, h * dim, &scores[h * length]);
            };
            // This part of some tokens, `width` apart. Steps become floats, once for all heads that share them.
            const auto read = [&](const C *from, int64_t count) {
                if constexpr (std::is_same_v<C, step>) {
                    for (int64_t t = 0; t < count; ++t)
                        for (int64_t h = kv; h < last; ++h)
                            widen(&floats[t * width + h * dim], from + t * stride + h * size, DIM ? DIM : dim);
                    return floats.data();
                } else {
                    return from;
                }
            };
            tokens.runs(keys, [&](int64_t t, int64_t count, const C *key, int64_t ahead) {
                int64_t end = t + count;
                for (; t + 4 <= end; t += 4, key += 4 * stride) {
                    fetch(key + ahead + kv * size, 4, (last - kv) * size, stride);
                    each_head(read(key, 4), [&](const auto *near, int64_t at, float *score) {
                        dot_four<DIM>(score + t, &query[at], near, width, dim);
                    });
                }
                for (; t < end; ++t, key += stride)
                    each_head(read(key, 1), [&](const auto *near, int64_t at, float *score) {
                        score[t] = dot<DIM>(&query[at], near, dim);
                    });
            });
            for (int64_t h = 0; h < mine; ++h) totals[h] = exponentials(&scores[h * length], length);
            std::fill(sums.begin(), sums.end(), 0.0f);
            tokens.runs(values, [&](int64_t t, int64_t count, const C *value, int64_t ahead) {
                int64_t end = t + count;
                for (; t + 4 <= end; t += 4, value += 4 * stride) {
                    fetch(value + ahead + kv * size, 4, (last - kv) * size, stride);
                    each_head(read(value, 4), [&](const auto *near, int64_t at, const float *share) {
                        add_four<DIM>(&sums[at], share + t, near, width, dim);
                    });
                }
                for (; t < end; ++t, value += stride)
                    each_head(read(value, 1), [&](const auto *near, int64_t at, const float *share) {
                        add_one<DIM>(&sums[at], share[t], near, dim);
                    });
            });
            T *to = out + (row * num_heads + kv * shared) * dim;
            for (int64_t h = 0; h < mine; ++h)
                for (int64_t i = 0; i < dim; ++i) to[h * dim + i] = narrow<T>(sums[h * dim + i] / totals[h]);
        }
    }
}

template <class T, class C>
void decode_any(T *out, const T *heads, const C *keys, const C *values, const int32_t *blocks,
                const int32_t *contexts, int64_t rows, int64_t max_blocks, int64_t block_size,
                int64_t num_heads, int64_t num_kv, int64_t dim, int64_t window) {
    auto run = dim == 64 ? decode<64, T, C> : dim == 128 ? decode<128, T, C> : decode<0, T, C>;
    run(out, heads, keys, values, blocks, contexts, rows, max_blocks, block_size, num_heads, num_kv, dim, window);
}

}  // namespace
