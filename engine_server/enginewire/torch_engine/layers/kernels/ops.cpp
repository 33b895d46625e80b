// What a step does between its matrix products and its attention: norm, gate, rows in steps.
//
// Plain C interface, called with pointers into torch's memory by compiled_ops.py. Every function mirrors the
// torch code beside it, down to where half precision is rounded. NaN goes through.

#include <cmath>
#include <cstdint>
#include <omp.h>

#include "numbers.h"
#include "steps.h"

namespace {

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

EXPORT(float, float32)
EXPORT(bf16, bfloat16)
