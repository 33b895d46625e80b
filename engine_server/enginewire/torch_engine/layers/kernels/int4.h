// How weights of 4 bits lie in memory, as int4/weights.py says it, and vectors with one number per output.
//
// Outputs lie in blocks of 16. A block begins with what a step is worth for each chunk of 256 inputs, 16 floats
// each. Then comes one pair of groups after the other, of 32 inputs each: 8 vectors of numbers, one group in the
// lower halves of the bytes and one in the upper, then 16 scales and 16 zeros of each group.

#pragma once

#include <cstdint>
#include <cstring>

namespace {

constexpr int64_t BLOCK = 16, GROUP = 32, PAIR = 2 * GROUP, CHUNK = 256, PAIRS = CHUNK / PAIR, WORD = 4;
constexpr int64_t VECTOR = 64, NUMBERS = BLOCK * GROUP, PAIR_BYTES = NUMBERS + 4 * BLOCK;

typedef int32_t Whole __attribute__((vector_size(VECTOR)));
typedef float Floats __attribute__((vector_size(VECTOR)));

inline int64_t pairs_of(int64_t inputs) { return (inputs + PAIR - 1) / PAIR; }

inline int64_t chunks_of(int64_t inputs) { return (inputs + CHUNK - 1) / CHUNK; }

inline int64_t block_bytes(int64_t inputs) {
    return chunks_of(inputs) * VECTOR + pairs_of(inputs) * PAIR_BYTES;
}

template <class Vector> inline Vector read(const void *from) {
    Vector found;
    std::memcpy(&found, from, sizeof(Vector));
    return found;
}

}  // namespace
