// What a decode step does between its matrix products: norm, rotation, cache write, attention.
//
// Plain C interface, called with pointers into torch's memory; compiled_ops.py builds and checks it. Every
// function mirrors the torch code beside it, down to where half precision is rounded. NaN goes through.

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <omp.h>
#include <vector>

#include "numbers.h"

namespace {

template <class T> inline float rounded(float value) { return wide(narrow<T>(value)); }

// e^x for x <= 0, to float precision (what would be denormal is 0); std::exp is not vectorised.
inline float exp_negative(float x) {
    bool is_zero = x < -87.0f;
    x = is_zero ? -87.0f : x;
    float n = std::nearbyint(x * 1.44269504f);
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    uint32_t bits = uint32_t(int32_t(n) + 127) << 23;
    float scale;
    std::memcpy(&scale, &bits, 4);
    return is_zero ? 0.0f : p * scale;
}

template <class T>
void rms_norm(T *out, const T *in, const T *weight, int64_t rows, int64_t size, int64_t stride, float eps) {
#pragma omp parallel for if (rows * size > 16384)
    for (int64_t row = 0; row < rows; ++row) {
        const T *from = in + row * stride;
        T *to = out + row * size;
        float sum = 0;
        for (int64_t i = 0; i < size; ++i) sum += wide(from[i]) * wide(from[i]);
        float factor = 1.0f / std::sqrt(sum / size + eps);
        for (int64_t i = 0; i < size; ++i)
            to[i] = narrow<T>(wide(weight[i]) * rounded<T>(wide(from[i]) * factor));
    }
}

// Each row in steps of a 127th of its largest value, around 128; NaN and infinity are left to the scale.
template <class T> void round_rows(uint8_t *out, float *scales, const T *in, int64_t rows, int64_t size) {
#pragma omp parallel for if (rows * size > 16384)
    for (int64_t row = 0; row < rows; ++row) {
        const T *from = in + row * size;
        uint8_t *to = out + row * size;
        float largest = 0;
        int32_t faults = 0;
        for (int64_t i = 0; i < size; ++i) {
            float value = std::fabs(wide(from[i]));
            largest = value > largest ? value : largest;
            faults |= !(value <= FLT_MAX);
        }
        float scale = std::max(largest / 127.0f, 1e-30f);
        scales[row] = faults ? NAN : scale;
        for (int64_t i = 0; i < size; ++i) {
            float steps = std::nearbyint(wide(from[i]) / scale);
            to[i] = uint8_t(int32_t(steps >= -127.0f && steps <= 127.0f ? steps : 0.0f) + 128);
        }
    }
}

template <class T> inline void rotate(T *to, const T *from, const T *cos, const T *sin, int64_t half) {
#pragma omp simd
    for (int64_t i = 0; i < half; ++i) {
        float first = wide(from[i]), second = wide(from[i + half]), c = wide(cos[i]), s = wide(sin[i]);
        to[i] = narrow<T>(rounded<T>(first * c) - rounded<T>(second * s));
        to[i + half] = narrow<T>(rounded<T>(second * c) + rounded<T>(first * s));
    }
}

// silu(gate) * up, where a row of `in` is gate and up side by side.
template <class T> void gate(T *out, const T *in, int64_t rows, int64_t size) {
#pragma omp parallel for if (rows * size > 16384)
    for (int64_t row = 0; row < rows; ++row) {
        const T *from = in + row * 2 * size;
        T *to = out + row * size;
        for (int64_t i = 0; i < size; ++i) {
            float x = wide(from[i]), e = exp_negative(-std::fabs(x));
            float sigmoid = (x < 0 ? e : 1.0f) / (1.0f + e);
            to[i] = narrow<T>(rounded<T>(x * sigmoid) * wide(from[i + size]));
        }
    }
}

// heads: [tokens, num_heads + 2 * num_kv, dim]. Rotates queries in place, keys into the cache, copies values.
template <class T>
void rotate_and_write(T *heads, const T *cos, const T *sin, const int64_t *slots, T *keys, T *values,
                      int64_t tokens, int64_t num_heads, int64_t num_kv, int64_t dim) {
#pragma omp parallel for if (tokens * (num_heads + 2 * num_kv) * dim > 16384)
    for (int64_t token = 0; token < tokens; ++token) {
        T *head = heads + token * (num_heads + 2 * num_kv) * dim;
        const T *c = cos + token * (dim / 2), *s = sin + token * (dim / 2);
        int64_t slot = slots[token] * num_kv * dim;
        for (int64_t h = 0; h < num_heads; ++h, head += dim) rotate(head, head, c, s, dim / 2);
        for (int64_t h = 0; h < num_kv; ++h, head += dim) rotate(keys + slot + h * dim, head, c, s, dim / 2);
        std::memcpy(values + slot, head, num_kv * dim * sizeof(T));
    }
}

// What a group of `shared` query heads reads of the cache: one row's tokens [first, context) of one key head.
struct Tokens {
    const int32_t *table;
    int64_t first, context, block_size, stride;

    // Calls `use(first token of the run, its number, the element where it begins)` block by block, and asks
    // for the next block meanwhile: blocks lie anywhere, so the processor cannot guess it.
    template <class T, class Use> void runs(const T *from, Use use) const {
        for (int64_t at = first; at < context;) {
            const int64_t inside = at % block_size, block = at / block_size;
            const int64_t count = std::min(block_size - inside, context - at);
            const T *here = from + (table[block] * block_size + inside) * stride;
            at += count;
            const T *next = at < context ? from + table[block + 1] * block_size * stride : here;
            use(at - count - first, count, here, next - here);
        }
    }
};

// DIM is the head size where it is known at compile time, so that a head stays in registers; else 0.
template <int64_t DIM, class T>
inline float dot(const float *query, const T *key, int64_t dim) {
    float sum = 0;
    for (int64_t i = 0; i < (DIM ? DIM : dim); ++i) sum += query[i] * wide(key[i]);
    return sum;
}

// Ask for `size` elements of each of `count` tokens.
template <class T> inline void fetch(const T *from, int64_t count, int64_t size, int64_t stride) {
    for (int64_t token = 0; token < count; ++token, from += stride)
        for (int64_t i = 0; i < size; i += 64 / sizeof(T)) __builtin_prefetch(from + i, 0, 2);
}

// Four keys at once: a query element is read once, and the four sums do not wait for each other.
template <int64_t DIM, class T>
inline void dot_four(float *score, const float *query, const T *key, int64_t stride, int64_t dim) {
    const T *k0 = key, *k1 = k0 + stride, *k2 = k1 + stride, *k3 = k2 + stride;
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
template <int64_t DIM, class T>
inline void add_four(float *sum, const float *share, const T *value, int64_t stride, int64_t dim) {
    const T *v0 = value, *v1 = v0 + stride, *v2 = v1 + stride, *v3 = v2 + stride;
    const float s0 = share[0], s1 = share[1], s2 = share[2], s3 = share[3];
#pragma omp simd
    for (int64_t i = 0; i < (DIM ? DIM : dim); ++i)
        sum[i] += (s0 * wide(v0[i]) + s1 * wide(v1[i])) + (s2 * wide(v2[i]) + s3 * wide(v3[i]));
}

template <int64_t DIM, class T>
inline void add_one(float *sum, float share, const T *value, int64_t dim) {
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
template <int64_t DIM, class T>
void decode(T *out, const T *heads, const T *keys, const T *values, const int32_t *blocks,
            const int32_t *contexts, int64_t rows, int64_t max_blocks, int64_t block_size,
            int64_t num_heads, int64_t num_kv, int64_t dim, int64_t window) {
    const int64_t shared = num_heads / num_kv, stride = num_kv * dim;
    const int64_t parts = std::min(num_kv, 1 + 4 * omp_get_max_threads() / rows);
    const float scale = 1.0f / std::sqrt(float(dim));
#pragma omp parallel
    {
        std::vector<float> query(num_heads * dim), sums(num_heads * dim), totals(num_heads), scores;
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
            // Every query head of this part with where its key head begins in a token, and its own row of scores.
            const auto each_head = [&](auto use) {
                for (int64_t h = 0, offset = kv * dim; h < mine; offset += dim)
                    for (const int64_t next = h + shared; h < next; ++h) use(h * dim, offset, &scores[h * length]);
            };
            tokens.runs(keys, [&](int64_t t, int64_t count, const T *key, int64_t ahead) {
                int64_t end = t + count;
                for (; t + 4 <= end; t += 4, key += 4 * stride) {
                    fetch(key + ahead + kv * dim, 4, (last - kv) * dim, stride);
                    each_head([&](int64_t at, int64_t offset, float *score) {
                        dot_four<DIM>(score + t, &query[at], key + offset, stride, dim);
                    });
                }
                for (; t < end; ++t, key += stride)
                    each_head([&](int64_t at, int64_t offset, float *score) {
                        score[t] = dot<DIM>(&query[at], key + offset, dim);
                    });
            });
            for (int64_t h = 0; h < mine; ++h) totals[h] = exponentials(&scores[h * length], length);
            std::fill(sums.begin(), sums.end(), 0.0f);
            tokens.runs(values, [&](int64_t t, int64_t count, const T *value, int64_t ahead) {
                int64_t end = t + count;
                for (; t + 4 <= end; t += 4, value += 4 * stride) {
                    fetch(value + ahead + kv * dim, 4, (last - kv) * dim, stride);
                    each_head([&](int64_t at, int64_t offset, const float *share) {
                        add_four<DIM>(&sums[at], share + t, value + offset, stride, dim);
                    });
                }
                for (; t < end; ++t, value += stride)
                    each_head([&](int64_t at, int64_t offset, const float *share) {
                        add_one<DIM>(&sums[at], share[t], value + offset, dim);
                    });
            });
            T *to = out + (row * num_heads + kv * shared) * dim;
            for (int64_t h = 0; h < mine; ++h)
                for (int64_t i = 0; i < dim; ++i) to[h * dim + i] = narrow<T>(sums[h * dim + i] / totals[h]);
        }
    }
}

template <class T>
void decode_any(T *out, const T *heads, const T *keys, const T *values, const int32_t *blocks,
                const int32_t *contexts, int64_t rows, int64_t max_blocks, int64_t block_size,
                int64_t num_heads, int64_t num_kv, int64_t dim, int64_t window) {
    auto run = dim == 64 ? decode<64, T> : dim == 128 ? decode<128, T> : decode<0, T>;
    run(out, heads, keys, values, blocks, contexts, rows, max_blocks, block_size, num_heads, num_kv, dim, window);
}

}  // namespace

#define EXPORT(T, name)                                                                                  \
    extern "C" void rms_norm_##name(T *out, const T *in, const T *weight, int64_t rows, int64_t size,    \
                                    int64_t stride, float eps) {                                         \
        rms_norm(out, in, weight, rows, size, stride, eps);                                              \
    }                                                                                                    \
    extern "C" void gate_##name(T *out, const T *in, int64_t rows, int64_t size) {                       \
        gate(out, in, rows, size);                                                                       \
    }                                                                                                    \
    extern "C" void round_rows_##name(uint8_t *out, float *scales, const T *in, int64_t rows,            \
                                      int64_t size) {                                                    \
        round_rows(out, scales, in, rows, size);                                                         \
    }                                                                                                    \
    extern "C" void rotate_and_write_##name(T *heads, const T *cos, const T *sin, const int64_t *slots,  \
                                            T *keys, T *values, int64_t tokens, int64_t num_heads,       \
                                            int64_t num_kv, int64_t dim) {                               \
        rotate_and_write(heads, cos, sin, slots, keys, values, tokens, num_heads, num_kv, dim);          \
    }                                                                                                    \
    extern "C" void decode_##name(T *out, const T *heads, const T *keys, const T *values,                \
                                  const int32_t *blocks, const int32_t *contexts, int64_t rows,          \
                                  int64_t max_blocks, int64_t block_size, int64_t num_heads,             \
                                  int64_t num_kv, int64_t dim, int64_t window) {                         \
        decode_any(out, heads, keys, values, blocks, contexts, rows, max_blocks, block_size, num_heads,  \
                   num_kv, dim, window);                                                                 \
    }

EXPORT(float, float32)
EXPORT(bf16, bfloat16)
