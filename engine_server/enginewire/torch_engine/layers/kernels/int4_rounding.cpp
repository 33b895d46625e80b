// Floats become weights of 4 bits; int4/weights.py calls this. It mirrors the torch code there and in
// int4/grids.py, operation by operation, so that both make the same bytes. Each vector has 16 outputs.

#include <algorithm>
#include <cstdint>
#include <omp.h>

#include "int4.h"
#include "numbers.h"

namespace {

constexpr float MOST = 15, ZERO_PARTS = 16, MOST_BYTE = 255, SMALLEST = 1e-30f;
constexpr int64_t REFINEMENTS = 2, GROUPS = CHUNK / GROUP;

inline Floats splat(float value) { return value - Floats{}; }

inline Floats between(Floats value, float low, float high) {
    value = value < low ? splat(low) : value;
    return value > high ? splat(high) : value;
}

// To the nearest whole number, as torch does it, below 2^22: what is added leaves no bits behind the point.
inline Floats rounded(Floats value) { return value + 12582912.0f - 12582912.0f; }

// In the order of halves, as torch adds them too.
inline Floats mean(Floats (&parts)[GROUP]) {
    for (int64_t half = GROUP / 2; half; half /= 2)
        for (int64_t i = 0; i < half; ++i) parts[i] += parts[i + half];
    return parts[0] / float(GROUP);
}

struct Grid {
    Floats worth, zeros;
    Floats per() const { return 1.0f / (worth < SMALLEST ? splat(SMALLEST) : worth); }
};

struct Group {
    Floats weights[GROUP], average;

    void find_average() {
        Floats parts[GROUP];
        std::copy(weights, weights + GROUP, parts);
        average = mean(parts);
    }

    void numbers(Floats (&found)[GROUP], const Grid &grid) const {
        const Floats per = grid.per(), zero = grid.zeros / ZERO_PARTS;
        for (int64_t i = 0; i < GROUP; ++i) found[i] = rounded(between(weights[i] * per + zero, 0, MOST));
    }

    Grid centred(Floats worth, Floats mean_number) const {
        Grid grid{worth, {}};
        grid.zeros = rounded(between((mean_number - average * grid.per()) * ZERO_PARTS, 0, MOST_BYTE));
        return grid;
    }

    Grid with_worth(Floats worth, const Grid &now) const {
        Floats found[GROUP];
        numbers(found, now);
        return centred(worth, mean(found));
    }

    Grid refined(const Grid &now) const {
        Floats found[GROUP], parts[GROUP];
        numbers(found, now);
        std::copy(found, found + GROUP, parts);
        const Floats mean_number = mean(parts);
        for (int64_t i = 0; i < GROUP; ++i) parts[i] = (found[i] - mean_number) * (found[i] - mean_number);
        const Floats spread = mean(parts);
        for (int64_t i = 0; i < GROUP; ++i) parts[i] = (found[i] - mean_number) * weights[i];
        const Floats fitted = mean(parts) / spread;
        return centred(spread > 0.0f ? fitted : now.worth, mean_number);
    }

    Floats error(const Grid &grid) const {
        Floats found[GROUP];
        numbers(found, grid);
        const Floats zero = grid.zeros / ZERO_PARTS;
        for (int64_t i = 0; i < GROUP; ++i) {
            const Floats away = (found[i] - zero) * grid.worth - weights[i];
            found[i] = away * away;
        }
        return mean(found);
    }

    Grid guessed(int32_t steps) const {
        Floats lowest{}, highest{};
        for (const Floats &each : weights) {
            lowest = each < lowest ? each : lowest;
            highest = each > highest ? each : highest;
        }
        Grid grid{(highest - lowest) / float(steps), {}};
        const float cut = std::max(float(steps) - MOST, 0.0f) / 2;
        grid.zeros = rounded(between((-lowest * grid.per() - cut) * ZERO_PARTS, 0, MOST_BYTE));
        for (int64_t i = 0; i < REFINEMENTS; ++i) grid = refined(grid);
        return grid;
    }

    Grid fitted(const int32_t *guesses, int64_t count) const {
        Grid best = guessed(guesses[0]);
        Floats least = error(best);
        for (int64_t i = 1; i < count; ++i) {
            const Grid grid = guessed(guesses[i]);
            const Floats found = error(grid);
            const auto is_better = found < least;
            best.worth = is_better ? grid.worth : best.worth;
            best.zeros = is_better ? grid.zeros : best.zeros;
            least = is_better ? found : least;
        }
        return best;
    }
};

// One group of 16 outputs; what is not there is zero.
template <class T>
void gather(Group &group, const T *weight, int64_t outputs, int64_t inputs, int64_t output, int64_t input) {
    float rows[GROUP][BLOCK] = {};
    const int64_t size = std::min(GROUP, inputs - input);
    for (int64_t lane = 0; lane < std::min(BLOCK, outputs - output); ++lane)
        for (int64_t i = 0; i < size; ++i) rows[i][lane] = wide(weight[(output + lane) * inputs + input + i]);
    std::memcpy(group.weights, rows, sizeof(rows));
    group.find_average();
}

inline void store(uint8_t *to, const Floats &values) {
    for (int64_t lane = 0; lane < BLOCK; ++lane) to[lane] = uint8_t(values[lane]);
}

// Four numbers of an output fill a word.
void store_numbers(uint8_t *pair, const Floats (&numbers)[GROUP], bool upper) {
    for (int64_t i = 0; i < GROUP; i += WORD, pair += VECTOR) {
        Whole words{};
        for (int64_t at = 0; at < WORD; ++at)
            words |= __builtin_convertvector(numbers[i + at], Whole) << int32_t(8 * at);
        if (upper) words = words << 4 | read<Whole>(pair);
        std::memcpy(pair, &words, VECTOR);
    }
}

template <class T>
void round_all(uint8_t *packed, const T *weight, int64_t outputs, int64_t inputs, const int32_t *guesses,
               int64_t count) {
    const int64_t blocks = (outputs + BLOCK - 1) / BLOCK, groups = pairs_of(inputs) * 2;
#pragma omp parallel for if (outputs * inputs > 16384)
    for (int64_t block = 0; block < blocks; ++block) {
        uint8_t *to = packed + block * block_bytes(inputs), *pairs = to + chunks_of(inputs) * VECTOR;
        for (int64_t first = 0; first < groups; first += GROUPS) {
            const int64_t here = std::min(GROUPS, groups - first);
            Group found[GROUPS];
            Grid grids[GROUPS];
            Floats most{};
            for (int64_t i = 0; i < here; ++i) {
                gather(found[i], weight, outputs, inputs, block * BLOCK, (first + i) * GROUP);
                grids[i] = found[i].fitted(guesses, count);
                most = grids[i].worth > most ? grids[i].worth : most;
            }
            Floats step = most / MOST_BYTE;
            step = step < SMALLEST ? splat(SMALLEST) : step;
            const Floats worth = step / ZERO_PARTS;
            std::memcpy(to + first / GROUPS * VECTOR, &worth, VECTOR);
            for (int64_t i = 0; i < here; ++i) {
                const Floats scales = rounded(grids[i].worth / step);
                const Grid grid = found[i].with_worth(scales * step, grids[i]);
                Floats numbers[GROUP];
                found[i].numbers(numbers, grid);
                uint8_t *pair = pairs + (first + i) / 2 * PAIR_BYTES;
                const int64_t upper = (first + i) % 2;
                store_numbers(pair, numbers, upper);
                store(pair + NUMBERS + upper * BLOCK, scales);
                store(pair + NUMBERS + (2 + upper) * BLOCK, grid.zeros);
            }
        }
    }
}

}  // namespace

#define EXPORT(T, name)                                                                                  \
    extern "C" void round_to_int4_##name(uint8_t *packed, const T *weight, const int32_t *guesses,       \
                                         int64_t outputs, int64_t inputs, int64_t count) {               \
        round_all(packed, weight, outputs, inputs, guesses, count);                                      \
    }

EXPORT(float, float32)
EXPORT(bf16, bfloat16)
