// Products with weights of 4 bits, as int4/weights.py packs them; int4/linear.py calls these.
//
// A block of weights is read in the order in which it lies, once for up to eight rows.
//
// A weight is step × scale × (16 × number − zero), and a row comes in steps of 8 bits: within a chunk all sums are
// whole numbers that 32 bits hold, and their order is free. The floats of the chunks are added from first to last,
// whatever the number of rows, so that no row depends on those beside it.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <omp.h>
#include <vector>
#if defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

#include "int4.h"
#include "numbers.h"
#include "steps.h"

namespace {

constexpr int64_t AHEAD = 4096, ROWS_AT_ONCE = 8;

#if defined(__AVX512VNNI__)
typedef uint8_t Bytes __attribute__((vector_size(BLOCK)));

inline Whole widened(const uint8_t *from) { return (Whole)_mm512_cvtepu8_epi32((__m128i)read<Bytes>(from)); }

// Four unsigned bytes of each output times four signed ones.
inline Whole add_products(Whole sums, Whole numbers, int32_t steps) {
    return (Whole)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)numbers, _mm512_set1_epi32(steps));
}
#else
inline Whole widened(const uint8_t *from) {
    int32_t found[BLOCK];
    for (int64_t i = 0; i < BLOCK; ++i) found[i] = from[i];
    return read<Whole>(found);
}

inline Whole add_products(Whole sums, Whole numbers, int32_t steps) {
    for (int32_t bit = 0; bit < 32; bit += 8) sums += (numbers >> bit & 255) * int32_t(int8_t(steps >> bit));
    return sums;
}
#endif

// Rows in steps, filled up with zeros to whole pairs, and the sum of each group with its sign turned.
struct Rows {
    int64_t count, pairs;
    std::vector<int8_t> steps;
    std::vector<int32_t> minus_sums;
    std::vector<float> scales;

    template <class T>
    Rows(const T *in, int64_t rows, int64_t inputs)
        : count(rows), pairs(pairs_of(inputs)), steps(rows * pairs * PAIR),
          minus_sums(rows * pairs * 2), scales(rows) {
#pragma omp parallel for if (rows * inputs > 16384)
        for (int64_t row = 0; row < rows; ++row) {
            int8_t *to = &steps[row * pairs * PAIR];
            scales[row] = round_row(to, in + row * inputs, inputs, 0);
            for (int64_t group = 0; group < pairs * 2; ++group) {
                int32_t sum = 0;
                for (int64_t i = 0; i < GROUP; ++i) sum += to[group * GROUP + i];
                minus_sums[row * pairs * 2 + group] = -sum;
            }
        }
    }
};

// Adds one group of each of ROWS rows: the lower halves of the numbers, or the upper ones.
template <int64_t ROWS, bool UPPER>
inline void add_group(Whole *sums, const int8_t *steps, const int32_t *minus_sums, const uint8_t *pair,
                      int64_t pairs) {
    constexpr int32_t half = UPPER ? int32_t(0xf0f0f0f0) : 0x0f0f0f0f;
    Whole dots[ROWS] = {};
    for (int64_t word = 0; word < GROUP / WORD; ++word) {
        const Whole numbers = read<Whole>(pair + word * VECTOR) & half;
        for (int64_t row = 0; row < ROWS; ++row) {
            const int8_t *from = steps + row * pairs * PAIR + UPPER * GROUP + word * WORD;
            dots[row] = add_products(dots[row], numbers, read<int32_t>(from));
        }
    }
    const Whole scales = widened(pair + NUMBERS + UPPER * BLOCK);
    const Whole zeros = widened(pair + NUMBERS + (2 + UPPER) * BLOCK);
    for (int64_t row = 0; row < ROWS; ++row) {
        // The upper halves are 16 times their numbers as they lie.
        const Whole dot = UPPER ? dots[row] : dots[row] << 4;
        sums[row] += scales * (dot + zeros * minus_sums[row * pairs * 2 + UPPER]);
    }
}

// The 16 sums of each of ROWS rows, in steps of the row.
template <int64_t ROWS>
void tile(float (*out)[BLOCK], const int8_t *steps, const int32_t *minus_sums, const uint8_t *block,
          int64_t pairs) {
    const int64_t chunks = (pairs + PAIRS - 1) / PAIRS;
    const uint8_t *worth = block, *next = block + chunks * VECTOR;
    Floats totals[ROWS] = {};
    for (int64_t pair = 0; pair < pairs; worth += VECTOR) {
        Whole sums[ROWS] = {};
        const int64_t end = std::min(pair + PAIRS, pairs);
        for (; pair < end; ++pair, next += PAIR_BYTES) {
            for (int64_t at = 0; at < PAIR_BYTES; at += VECTOR) __builtin_prefetch(next + AHEAD + at);
            add_group<ROWS, false>(sums, steps + pair * PAIR, minus_sums + pair * 2, next, pairs);
            add_group<ROWS, true>(sums, steps + pair * PAIR, minus_sums + pair * 2, next, pairs);
        }
        const Floats step = read<Floats>(worth);
        for (int64_t row = 0; row < ROWS; ++row)
            totals[row] += __builtin_convertvector(sums[row], Floats) * step;
    }
    std::memcpy(out, totals, sizeof(totals));
}

// in · weights + bias + other; `bias` [outputs] and `other` [rows, outputs] may be null.
template <class T>
void product(T *out, const T *in, const uint8_t *weights, const T *bias, const T *other, int64_t count,
             int64_t inputs, int64_t outputs) {
    constexpr decltype(&tile<1>) tiles[] = {tile<1>, tile<2>, tile<3>, tile<4>,
                                            tile<5>, tile<6>, tile<7>, tile<8>};
    const Rows rows(in, count, inputs);
    const int64_t pairs = rows.pairs, pitch = block_bytes(inputs);
    const int64_t blocks = (outputs + BLOCK - 1) / BLOCK, passes = (count + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
#pragma omp parallel for if (outputs * inputs > 65536)
    for (int64_t block = 0; block < blocks; ++block) {
        float sums[ROWS_AT_ONCE][BLOCK];
        const int64_t output = block * BLOCK, size = std::min(BLOCK, outputs - output);
        for (int64_t pass = 0; pass < passes; ++pass) {
            const int64_t first = count * pass / passes, end = count * (pass + 1) / passes;
            tiles[end - first - 1](sums, &rows.steps[first * pairs * PAIR], &rows.minus_sums[first * pairs * 2],
                                   weights + block * pitch, pairs);
            for (int64_t row = first; row < end; ++row)
                for (int64_t i = 0; i < size; ++i) {
                    const int64_t at = row * outputs + output + i;
                    const float sum = sums[row - first][i] * rows.scales[row];
                    out[at] = output_of(sum, bias ? bias + output + i : nullptr, other ? other + at : nullptr);
                }
        }
    }
}

}  // namespace

#define EXPORT(T, name)                                                                                  \
    extern "C" void product_of_int4_##name(T *out, const T *in, const uint8_t *weights, const T *bias,   \
                                           const T *other, int64_t rows, int64_t inputs,                 \
                                           int64_t outputs) {                                            \
        product(out, in, weights, bias, other, rows, inputs, outputs);                                   \
    }

EXPORT(float, float32)
EXPORT(bf16, bfloat16)
