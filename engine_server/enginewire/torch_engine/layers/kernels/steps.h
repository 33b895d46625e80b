// Numbers in steps of 8 bits: how a row becomes them, and what becomes of the sums of their products.

#pragma once

#include <cstdint>

#include "numbers.h"

namespace {

// A row in its own steps, around `zero`; gives what a step is worth.
template <class Step, class T> float round_row(Step *to, const T *from, int64_t size, int32_t zero) {
    const float worth = step_size(from, size);
    for (int64_t i = 0; i < size; ++i) to[i] = Step(in_steps(wide(from[i]), worth) + zero);
    return worth;
}

// One number of a product; `bias` and `other` may be null. Rounded where Int8Linear and Int4Linear round.
template <class T> inline T output_of(float sum, const T *bias, const T *other) {
    T value = narrow<T>(bias ? sum + wide(*bias) : sum);
    return other ? narrow<T>(wide(value) + wide(*other)) : value;
}

}  // namespace
