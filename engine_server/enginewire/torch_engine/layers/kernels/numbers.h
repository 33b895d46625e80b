// The numbers that kernels compute with: float, bfloat16 that is widened and rounded as torch does it, steps of
// 8 bits, and e^x.

#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace {

struct bf16 {
    uint16_t bits;
};

// One number of a head in the cache; what a step of this head is worth lies behind its last one.
struct step {
    int8_t count;
};

inline float wide(step value) { return value.count; }

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

// What a 127th of the largest value is; NaN where one of them is NaN or infinite.
template <class T> inline float step_size(const T *from, int64_t size) {
    float largest = 0;
    int32_t faults = 0;
    for (int64_t i = 0; i < size; ++i) {
        float value = std::fabs(wide(from[i]));
        largest = value > largest ? value : largest;
        faults |= !(value <= FLT_MAX);
    }
    return faults ? NAN : std::max(largest / 127.0f, 1e-30f);
}

inline int32_t in_steps(float value, float size) {
    float steps = std::nearbyint(value / size);
    return int32_t(steps >= -127.0f && steps <= 127.0f ? steps : 0.0f);
}

// How many C a head of `dim` numbers takes in the cache.
template <class C> inline int64_t stored_size(int64_t dim) {
    return std::is_same_v<C, step> ? dim + int64_t(sizeof(float)) : dim;
}

// A head of the cache as floats.
template <class C> inline void widen(float *to, const C *head, int64_t dim) {
    float size = 1.0f;
    if constexpr (std::is_same_v<C, step>) std::memcpy(&size, head + dim, sizeof(float));
#pragma omp simd
    for (int64_t i = 0; i < dim; ++i) to[i] = wide(head[i]) * size;
}

// `count` heads that the model has computed, as the cache holds them.
template <class T, class C> inline void store(C *to, const T *from, int64_t count, int64_t dim) {
    if constexpr (std::is_same_v<T, C>) {
        std::memcpy(to, from, count * dim * sizeof(T));
    } else if constexpr (std::is_same_v<C, step>) {
        for (; count > 0; --count, from += dim, to += stored_size<C>(dim)) {
            const float size = step_size(from, dim);
            for (int64_t i = 0; i < dim; ++i) to[i] = {int8_t(in_steps(wide(from[i]), size))};
            std::memcpy(to + dim, &size, sizeof(float));
        }
    } else {
        for (int64_t i = 0; i < count * dim; ++i) to[i] = narrow<C>(wide(from[i]));
    }
}

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

}  // namespace
