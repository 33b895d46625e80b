// Products of few rows with weights that oneDNN has packed; few_rows.py checks their layout and calls these.
//
// The layout: outputs in blocks of 64, and in a block one group of inputs after the other, with the weights of
// all 64 outputs for that group side by side. A group fills 4 bytes: one float, two bf16 or four int8. oneDNN
// reads such weights at half of what the memory gives when there are few rows. Here each thread reads its blocks
// in the order in which they lie, once for up to seven rows. The sums of a row have the same order however many
// rows there are.

#if defined(__AVX512F__)

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <immintrin.h>
#include <omp.h>

#include "numbers.h"
#include "steps.h"

namespace {

constexpr int64_t BLOCK = 64, LANES = 16, VECTORS = BLOCK / LANES, GROUP = 4, AHEAD = 4096;
constexpr int64_t ROWS_AT_ONCE = 7;  // their sums and a group of weights fill the 32 registers

// The sums of 16 outputs; `add` takes one group of a row and of the weights.
struct Float32 {
    using Sum = float;
    __m512 sums = _mm512_setzero_ps();
    inline void add(int32_t group, __m512i weights) {
        __m512 value = _mm512_castsi512_ps(_mm512_set1_epi32(group));
        sums = _mm512_fmadd_ps(value, _mm512_castsi512_ps(weights), sums);
    }
    inline void get(float *to) const { _mm512_storeu_ps(to, sums); }
};

#if defined(__AVX512BF16__)
struct Bfloat16 {
    using Sum = float;
    __m512 sums = _mm512_setzero_ps();
    inline void add(int32_t group, __m512i weights) {
        sums = _mm512_dpbf16_ps(sums, (__m512bh)_mm512_set1_epi32(group), (__m512bh)weights);
    }
    inline void get(float *to) const { _mm512_storeu_ps(to, sums); }
};
#endif

#if defined(__AVX512VNNI__)
struct Int8 {  // rows are unsigned, weights signed
    using Sum = int32_t;
    __m512i sums = _mm512_setzero_si512();
    inline void add(int32_t group, __m512i weights) {
        sums = _mm512_dpbusd_epi32(sums, _mm512_set1_epi32(group), weights);
    }
    inline void get(int32_t *to) const { _mm512_storeu_si512(to, sums); }
};
#endif

// What is multiplied: `rows` of `size` bytes each, and blocks of weights that lie `pitch` bytes apart.
struct Factors {
    const uint8_t *in, *weights;
    int64_t rows, size, outputs, pitch;
};

// The 64 sums of each of ROWS rows.
template <class Kind, int64_t ROWS>
void tile(typename Kind::Sum (*out)[BLOCK], const uint8_t *in, const uint8_t *weights, int64_t size) {
    Kind sums[ROWS][VECTORS];
    for (int64_t at = 0; at < size; at += GROUP, weights += BLOCK * GROUP) {
        __m512i here[VECTORS];
        for (int64_t v = 0; v < VECTORS; ++v) {
            __builtin_prefetch(weights + AHEAD + v * 64);
            here[v] = _mm512_loadu_si512(weights + v * 64);
        }
        for (int64_t row = 0; row < ROWS; ++row) {
            int32_t group;
            std::memcpy(&group, in + row * size + at, GROUP);
            for (int64_t v = 0; v < VECTORS; ++v) sums[row][v].add(group, here[v]);
        }
    }
    for (int64_t row = 0; row < ROWS; ++row)
        for (int64_t v = 0; v < VECTORS; ++v) sums[row][v].get(out[row] + v * LANES);
}

// use(row, first output, number of outputs, their sums), for each row and block.
template <class Kind, class Use> void multiply(const Factors &by, Use use) {
    constexpr decltype(&tile<Kind, 1>) tiles[] = {tile<Kind, 1>, tile<Kind, 2>, tile<Kind, 3>, tile<Kind, 4>,
                                                  tile<Kind, 5>, tile<Kind, 6>, tile<Kind, 7>};
    const int64_t blocks = (by.outputs + BLOCK - 1) / BLOCK;
    const int64_t passes = (by.rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
#pragma omp parallel for if (by.outputs * by.size > 65536)
    for (int64_t block = 0; block < blocks; ++block) {
        typename Kind::Sum sums[ROWS_AT_ONCE][BLOCK];
        const int64_t output = block * BLOCK, count = std::min(BLOCK, by.outputs - output);
        for (int64_t pass = 0; pass < passes; ++pass) {
            const int64_t first = by.rows * pass / passes, end = by.rows * (pass + 1) / passes;
            tiles[end - first - 1](sums, by.in + first * by.size, by.weights + block * by.pitch, by.size);
            for (int64_t row = first; row < end; ++row) use(row, output, count, sums[row - first]);
        }
    }
}

// in · weights + bias + other; `bias` [outputs] and `other` [rows, outputs] may be null.
template <class Kind, class T>
void product(T *out, const T *in, const void *weights, const T *bias, const T *other, int64_t rows,
             int64_t inputs, int64_t outputs, int64_t pitch) {
    const int64_t size = inputs * int64_t(sizeof(T));
    const Factors by{(const uint8_t *)in, (const uint8_t *)weights, rows, size, outputs, pitch};
    multiply<Kind>(by, [=](int64_t row, int64_t output, int64_t count, const float *sums) {
        const int64_t at = row * outputs + output;
        for (int64_t i = 0; i < count; ++i) {
            float sum = sums[i] + (bias ? wide(bias[output + i]) : 0.0f);
            out[at + i] = narrow<T>(sum + (other ? wide(other[at + i]) : 0.0f));
        }
    });
}

// The same of steps: a row's lie around 128, and `zeros` has what 128 makes of each output.
#if defined(__AVX512VNNI__)
template <class T>
void product_of_steps(T *out, const uint8_t *in, const float *row_scales, const void *weights,
                      const float *scales, const int32_t *zeros, const T *bias, const T *other, int64_t rows,
                      int64_t inputs, int64_t outputs, int64_t pitch) {
    const Factors by{in, (const uint8_t *)weights, rows, inputs, outputs, pitch};
    multiply<Int8>(by, [=](int64_t row, int64_t output, int64_t count, const int32_t *sums) {
        const int64_t at = row * outputs + output;
        for (int64_t i = 0; i < count; ++i) {
            float sum = float(sums[i] - zeros[output + i]) * scales[output + i] * row_scales[row];
            out[at + i] = output_of(sum, bias ? bias + output + i : nullptr, other ? other + at + i : nullptr);
        }
    });
}
#endif

}  // namespace

#define EXPORT(T, Kind, name)                                                                            \
    extern "C" void product_##name(T *out, const T *in, const void *weights, const T *bias,              \
                                   const T *other, int64_t rows, int64_t inputs, int64_t outputs,        \
                                   int64_t pitch) {                                                      \
        product<Kind>(out, in, weights, bias, other, rows, inputs, outputs, pitch);                      \
    }

#define EXPORT_STEPS(T, name)                                                                            \
    extern "C" void product_of_steps_##name(                                                             \
        T *out, const uint8_t *in, const float *row_scales, const void *weights, const float *scales,    \
        const int32_t *zeros, const T *bias, const T *other, int64_t rows, int64_t inputs,               \
        int64_t outputs, int64_t pitch) {                                                                \
        product_of_steps(out, in, row_scales, weights, scales, zeros, bias, other, rows, inputs,         \
                         outputs, pitch);                                                                \
    }

EXPORT(float, Float32, float32)
#if defined(__AVX512BF16__)
EXPORT(bf16, Bfloat16, bfloat16)
#endif
#if defined(__AVX512VNNI__)
EXPORT_STEPS(float, float32)
EXPORT_STEPS(bf16, bfloat16)
#endif

#endif
