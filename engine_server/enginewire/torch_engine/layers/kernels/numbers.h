// The numbers that kernels compute with: float, and bfloat16 that is widened and rounded as torch does it.

#pragma once

#include <cstdint>
#include <cstring>

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

}  // namespace
