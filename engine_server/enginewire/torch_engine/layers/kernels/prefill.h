// Attention of prompts: many new tokens of one sequence, over its blocks of the cache.
//
// A tile of queries of one head lies side by side in vector registers, and keys and values are read number by
// number: so nothing is summed across a register, and a query's bits do not depend on the tile it is in.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "decode.h"
#include "numbers.h"

namespace {

#ifdef __AVX512F__
constexpr int64_t LANES = 16, AT_ONCE = 8;
#else
constexpr int64_t LANES = 8, AT_ONCE = 4;
#endif
typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));
constexpr int64_t TILE = 2 * LANES;
// So many tokens at a time, whose scores stay in the cache of the processor.
constexpr int64_t RUN = 256;
// Below every score, and still a number: what is hidden is below it.
constexpr float LOWEST = -1e30f;

struct Row {
    lanes first, second;
};

inline float *numbers(Row *rows) { return reinterpret_cast<float *>(rows); }

// to[i] += the sum of from[i * row + k * step] * by[k] over k: AT_ONCE rows, which stay in registers.
inline void add_products(Row *to, const float *from, int64_t row, int64_t step, const Row *by, int64_t size) {
    Row sums[AT_ONCE];
#pragma GCC unroll 8
    for (int64_t i = 0; i < AT_ONCE; ++i) sums[i] = to[i];
    for (int64_t k = 0; k < size; ++k) {
        const Row other = by[k];
#pragma GCC unroll 8
        for (int64_t i = 0; i < AT_ONCE; ++i) {
            const float value = from[i * row + k * step];
            sums[i].first += other.first * value;
            sums[i].second += other.second * value;
        }
    }
#pragma GCC unroll 8
    for (int64_t i = 0; i < AT_ONCE; ++i) to[i] = sums[i];
}

// What one thread needs for a tile of queries.
struct Tile {
    int64_t dim, width;  // width: dim filled up with zeros
    std::vector<Row> query, scores, sums;
    std::vector<float> read;
    float best[TILE], totals[TILE];
    int64_t last[TILE];  // the last token that each query sees

    explicit Tile(int64_t dim)
        : dim(dim), width((dim + AT_ONCE - 1) / AT_ONCE * AT_ONCE), query(dim), scores(RUN), sums(width),
          read(RUN * width) {}

    // Queries from..from + TILE; those behind the last one of `num_new` repeat it.
    template <class T> void begin(const T *heads, int64_t stride, int64_t from, int64_t num_new, int64_t before) {
        const float scale = 1.0f / std::sqrt(float(dim));
        for (int64_t q = 0; q < TILE; ++q) {
            const int64_t token = std::min(from + q, num_new - 1);
            for (int64_t d = 0; d < dim; ++d) numbers(&query[d])[q] = wide(heads[token * stride + d]) * scale;
            last[q] = before + token, best[q] = LOWEST, totals[q] = 0;
        }
        std::fill(sums.begin(), sums.end(), Row{});
    }

    // `count` tokens from `at` on, of one key head; AT_ONCE of them are read together.
    template <class C>
    void gather(const C *from, const int32_t *blocks, int64_t at, int64_t count, int64_t block_size, int64_t stride) {
        float *to = read.data();
        const Tokens tokens{blocks, at, at + count, block_size, stride};
        tokens.runs(from, [&](int64_t, int64_t size, const C *here, int64_t) {
            for (int64_t t = 0; t < size; ++t, to += width, here += stride) widen(to, here, dim);
        });
        std::fill(to, to + (-count & (AT_ONCE - 1)) * width, 0.0f);
    }

    // Scores of `count` tokens from `at` on become shares, beside what came before them.
    void weigh(int64_t at, int64_t count, int64_t window) {
        for (int64_t t = 0; t < count; ++t) {
            float *row = numbers(&scores[t]);
            const int64_t token = at + t;
            for (int64_t q = 0; q < TILE; ++q) {
                const bool seen = token <= last[q] && (window <= 0 || token > last[q] - window);
                row[q] = seen ? row[q] : -INFINITY;
            }
        }
        float factors[TILE];
        for (int64_t q = 0; q < TILE; ++q) factors[q] = best[q];
        for (int64_t t = 0; t < count; ++t) {
            const float *row = numbers(&scores[t]);
            for (int64_t q = 0; q < TILE; ++q) best[q] = row[q] > best[q] ? row[q] : best[q];
        }
        for (int64_t q = 0; q < TILE; ++q) totals[q] *= factors[q] = exp_negative(factors[q] - best[q]);
        for (int64_t t = 0; t < count; ++t) {
            float *row = numbers(&scores[t]);
            for (int64_t q = 0; q < TILE; ++q) totals[q] += row[q] = exp_negative(row[q] - best[q]);
        }
        for (Row &sum : sums)
            for (int64_t q = 0; q < TILE; ++q) numbers(&sum)[q] *= factors[q];
    }

    // The first `count` queries have seen all.
    template <class T> void end(T *out, int64_t stride, int64_t count) {
        for (int64_t q = 0; q < TILE; ++q) totals[q] = 1.0f / totals[q];
        for (int64_t q = 0; q < count; ++q) {
            float *row = read.data();
            for (int64_t d = 0; d < dim; ++d) row[d] = numbers(&sums[d])[q] * totals[q];
            for (int64_t d = 0; d < dim; ++d) out[q * stride + d] = narrow<T>(row[d]);
        }
    }
};

// The `num_new` tokens at the end of `context`, of which `heads` holds queries, keys and values side by side.
template <class T, class C>
void prefill(T *out, const T *heads, const C *keys, const C *values, const int32_t *blocks, int64_t num_new,
             int64_t context, int64_t block_size, int64_t num_heads, int64_t num_kv, int64_t dim, int64_t window) {
    const int64_t shared = num_heads / num_kv, stride = num_kv * stored_size<C>(dim), tiles = (num_new + TILE - 1) / TILE;
#pragma omp parallel
    {
        Tile tile(dim);
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < tiles * num_heads; ++task) {
            // The last ones see most: they come first.
            const int64_t from = (tiles - 1 - task / num_heads) * TILE, head = task % num_heads;
            const int64_t offset = head / shared * stored_size<C>(dim), before = context - num_new;
            const int64_t end = std::min(before + from + TILE, context);
            tile.begin(heads + head * dim, (num_heads + 2 * num_kv) * dim, from, num_new, before);
            for (int64_t at = window > 0 ? std::max<int64_t>(before + from - window + 1, 0) : 0; at < end; at += RUN) {
                const int64_t count = std::min(RUN, end - at);
                tile.gather(keys + offset, blocks, at, count, block_size, stride);
                std::fill_n(tile.scores.begin(), (count + AT_ONCE - 1) / AT_ONCE * AT_ONCE, Row{});
                for (int64_t t = 0; t < count; t += AT_ONCE)
                    add_products(&tile.scores[t], &tile.read[t * tile.width], tile.width, 1, tile.query.data(), dim);
                tile.weigh(at, count, window);
                tile.gather(values + offset, blocks, at, count, block_size, stride);
                for (int64_t d = 0; d < dim; d += AT_ONCE)
                    add_products(&tile.sums[d], &tile.read[d], 1, tile.width, tile.scores.data(), count);
            }
            tile.end(out + (from * num_heads + head) * dim, num_heads * dim, std::min(TILE, num_new - from));
        }
    }
}

}  // namespace
