// What a step does between its matrix products: norm, rotation, cache write, attention.
//
// Plain C interface, called with pointers into torch's memory; compiled_ops.py builds and checks it. Every
// function mirrors the torch code beside it, down to where half precision is rounded. NaN goes through.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <omp.h>
#include <vector>

#include "decode.h"
#include "numbers.h"
#include "prefill.h"
#include "steps.h"

namespace {

template <class T> inline float rounded(float value) { return wide(narrow<T>(value)); }

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

// Each row in steps around 128.
template <class T> void round_rows(uint8_t *out, float *scales, const T *in, int64_t rows, int64_t size) {
#pragma omp parallel for if (rows * size > 16384)
    for (int64_t row = 0; row < rows; ++row)
        scales[row] = round_row(out + row * size, in + row * size, size, 128);
}

template <class T> inline void rotate(T *head, const T *cos, const T *sin, int64_t half) {
#pragma omp simd
    for (int64_t i = 0; i < half; ++i) {
        float first = wide(head[i]), second = wide(head[i + half]), c = wide(cos[i]), s = wide(sin[i]);
        head[i] = narrow<T>(rounded<T>(first * c) - rounded<T>(second * s));
        head[i + half] = narrow<T>(rounded<T>(second * c) + rounded<T>(first * s));
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

// heads: [tokens, num_heads + 2 * num_kv, dim]. Rotates queries and keys, and stores keys and values.
template <class T, class C>
void rotate_and_write(T *heads, const T *cos, const T *sin, const int64_t *slots, C *keys, C *values,
                      int64_t tokens, int64_t num_heads, int64_t num_kv, int64_t dim) {
#pragma omp parallel for if (tokens * (num_heads + 2 * num_kv) * dim > 16384)
    for (int64_t token = 0; token < tokens; ++token) {
        T *head = heads + token * (num_heads + 2 * num_kv) * dim;
        const T *c = cos + token * (dim / 2), *s = sin + token * (dim / 2);
        int64_t slot = slots[token] * num_kv * stored_size<C>(dim);
        for (int64_t h = 0; h < num_heads + num_kv; ++h, head += dim) rotate(head, c, s, dim / 2);
        store(keys + slot, head - num_kv * dim, num_kv, dim);
        store(values + slot, head, num_kv, dim);
    }
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
    }

// What has to do with the cache, whose numbers are C.
#define EXPORT_CACHED(T, C, name)                                                                        \
    extern "C" void rotate_and_write_##name(T *heads, const T *cos, const T *sin, const int64_t *slots,  \
                                            C *keys, C *values, int64_t tokens, int64_t num_heads,       \
                                            int64_t num_kv, int64_t dim) {                               \
        rotate_and_write(heads, cos, sin, slots, keys, values, tokens, num_heads, num_kv, dim);          \
    }                                                                                                    \
    extern "C" void decode_##name(T *out, const T *heads, const C *keys, const C *values,                \
                                  const int32_t *blocks, const int32_t *contexts, int64_t rows,          \
                                  int64_t max_blocks, int64_t block_size, int64_t num_heads,             \
                                  int64_t num_kv, int64_t dim, int64_t window) {                         \
        decode_any(out, heads, keys, values, blocks, contexts, rows, max_blocks, block_size, num_heads,  \
                   num_kv, dim, window);                                                                 \
    }                                                                                                    \
    extern "C" void prefill_##name(T *out, const T *heads, const C *keys, const C *values,               \
                                   const int32_t *blocks, int64_t num_new, int64_t context,              \
                                   int64_t block_size, int64_t num_heads, int64_t num_kv, int64_t dim,   \
                                   int64_t window) {                                                     \
        prefill(out, heads, keys, values, blocks, num_new, context, block_size, num_heads, num_kv, dim,  \
                window);                                                                                 \
    }

EXPORT(float, float32)
EXPORT(bf16, bfloat16)
EXPORT_CACHED(float, float, float32_of_float32)
EXPORT_CACHED(float, bf16, bfloat16_of_float32)
EXPORT_CACHED(float, step, int8_of_float32)
EXPORT_CACHED(bf16, bf16, bfloat16_of_bfloat16)
EXPORT_CACHED(bf16, step, int8_of_bfloat16)
