// What a decode step does between its matrix products: norm, rotation, cache write, attention.
//
// Plain C interface, called with pointers into torch's memory; kernels.py builds and checks it. Every
// function mirrors the torch code beside it, down to where half precision is rounded. NaN goes through.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

struct bf16 {
    uint16_t bits;
};

inline float wide(float value) { return value; }

inline float wide(bf16 value) {
    uint32_t bits = uint32_t(value.bits) << 16;
    float result;
    std::memcpy(&result, &bits, 4);
    return result;
}

template <class T> inline T narrow(float value);

template <> inline float narrow<float>(float value) { return value; }

template <> inline bf16 narrow<bf16>(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
    return {uint16_t(is_nan ? 0x7fc0 : rounded)};
}

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

// One query token per row over its own blocks; reads exactly the tokens it may see.
template <class T>
void decode(T *out, const T *heads, const T *keys, const T *values, const int32_t *blocks,
            const int32_t *contexts, int64_t rows, int64_t max_blocks, int64_t block_size,
            int64_t num_heads, int64_t num_kv, int64_t dim, int64_t window) {
    const int64_t shared = num_heads / num_kv;
    const float scale = 1.0f / std::sqrt(float(dim));
#pragma omp parallel
    {
        std::vector<float> query(shared * dim), sums(shared * dim), scores;
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < rows * num_kv; ++task) {
            const int64_t row = task / num_kv, kv = task % num_kv, context = contexts[row];
            const int64_t first = window > 0 && context > window ? context - window : 0;
            const int64_t length = context - first;
            const int32_t *table = blocks + row * max_blocks;
            const T *from = heads + (row * (num_heads + 2 * num_kv) + kv * shared) * dim;
            for (int64_t i = 0; i < shared * dim; ++i) query[i] = wide(from[i]) * scale;
            scores.resize(shared * length);
            for (int64_t t = 0; t < length; ++t) {
                const int64_t at = first + t;
                const T *key =
                    keys + ((table[at / block_size] * block_size + at % block_size) * num_kv + kv) * dim;
                for (int64_t h = 0; h < shared; ++h) {
                    const float *q = &query[h * dim];
                    float dot = 0;
                    for (int64_t i = 0; i < dim; ++i) dot += q[i] * wide(key[i]);
                    scores[h * length + t] = dot;
                }
            }
            for (int64_t h = 0; h < shared; ++h) {
                float *score = &scores[h * length];
                float best = score[0], total = 0;
                for (int64_t t = 1; t < length; ++t) best = score[t] > best ? score[t] : best;
                for (int64_t t = 0; t < length; ++t) {
                    score[t] = exp_negative(score[t] - best);
                    total += score[t];
                }
                for (int64_t t = 0; t < length; ++t) score[t] /= total;
            }
            std::fill(sums.begin(), sums.end(), 0.0f);
            for (int64_t t = 0; t < length; ++t) {
                const int64_t at = first + t;
                const T *value =
                    values + ((table[at / block_size] * block_size + at % block_size) * num_kv + kv) * dim;
                for (int64_t h = 0; h < shared; ++h) {
                    const float share = scores[h * length + t];
                    float *sum = &sums[h * dim];
                    for (int64_t i = 0; i < dim; ++i) sum[i] += share * wide(value[i]);
                }
            }
            T *to = out + (row * num_heads + kv * shared) * dim;
            for (int64_t i = 0; i < shared * dim; ++i) to[i] = narrow<T>(sums[i]);
        }
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
    extern "C" void rotate_and_write_##name(T *heads, const T *cos, const T *sin, const int64_t *slots,  \
                                            T *keys, T *values, int64_t tokens, int64_t num_heads,       \
                                            int64_t num_kv, int64_t dim) {                               \
        rotate_and_write(heads, cos, sin, slots, keys, values, tokens, num_heads, num_kv, dim);          \
    }                                                                                                    \
    extern "C" void decode_##name(T *out, const T *heads, const T *keys, const T *values,                \
                                  const int32_t *blocks, const int32_t *contexts, int64_t rows,          \
                                  int64_t max_blocks, int64_t block_size, int64_t num_heads,             \
                                  int64_t num_kv, int64_t dim, int64_t window) {                         \
        decode(out, heads, keys, values, blocks, contexts, rows, max_blocks, block_size, num_heads,      \
               num_kv, dim, window);                                                                     \
    }

EXPORT(float, float32)
EXPORT(bf16, bfloat16)
