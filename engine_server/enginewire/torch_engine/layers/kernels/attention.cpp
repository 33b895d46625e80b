// Attention, and what it reads: rotation and cache write. Built for one pair of types: COMPUTED by the model, CACHED.
//
// Plain C interface, called with pointers into torch's memory by compiled_ops.py. Every function mirrors the
// torch code beside it, down to where half precision is rounded. NaN goes through.

#include <cstdint>
#include <omp.h>

#include "decode.h"
#include "numbers.h"
#include "prefill.h"

namespace {

inline void rotate(COMPUTED *head, const COMPUTED *cos, const COMPUTED *sin, int64_t half) {
#pragma omp simd
    for (int64_t i = 0; i < half; ++i) {
        float first = wide(head[i]), second = wide(head[i + half]), c = wide(cos[i]), s = wide(sin[i]);
        head[i] = narrow<COMPUTED>(rounded<COMPUTED>(first * c) - rounded<COMPUTED>(second * s));
        head[i + half] = narrow<COMPUTED>(rounded<COMPUTED>(second * c) + rounded<COMPUTED>(first * s));
    }
}

}  // namespace

// heads: [tokens, num_heads + 2 * num_kv, dim]. Rotates queries and keys, and stores keys and values.
extern "C" void write_cache(COMPUTED *heads, const COMPUTED *cos, const COMPUTED *sin, const int64_t *slots,
                            CACHED *keys, CACHED *values, int64_t tokens, int64_t num_heads, int64_t num_kv,
                            int64_t dim) {
#pragma omp parallel for if (tokens * (num_heads + 2 * num_kv) * dim > 16384)
    for (int64_t token = 0; token < tokens; ++token) {
        COMPUTED *head = heads + token * (num_heads + 2 * num_kv) * dim;
        const COMPUTED *c = cos + token * (dim / 2), *s = sin + token * (dim / 2);
        int64_t slot = slots[token] * num_kv * stored_size<CACHED>(dim);
        for (int64_t h = 0; h < num_heads + num_kv; ++h, head += dim) rotate(head, c, s, dim / 2);
        store(keys + slot, head - num_kv * dim, num_kv, dim);
        store(values + slot, head, num_kv, dim);
    }
}

extern "C" void attend_rows(COMPUTED *out, const COMPUTED *heads, const CACHED *keys, const CACHED *values,
                            const int32_t *blocks, const int32_t *contexts, int64_t rows, int64_t max_blocks,
                            int64_t block_size, int64_t num_heads, int64_t num_kv, int64_t dim,
                            int64_t window) {
    decode_any(out, heads, keys, values, blocks, contexts, rows, max_blocks, block_size, num_heads, num_kv, dim,
               window);
}

extern "C" void attend_chunk(COMPUTED *out, const COMPUTED *heads, const CACHED *keys, const CACHED *values,
                             const int32_t *blocks, int64_t num_new, int64_t context, int64_t block_size,
                             int64_t num_heads, int64_t num_kv, int64_t dim, int64_t window) {
    prefill(out, heads, keys, values, blocks, num_new, context, block_size, num_heads, num_kv, dim, window);
}
