// The arithmetic of attention: adding a tile of keys to the running result of some queries, and merging two results.
//
// Two arrangements compute the very same numbers, in the same order of operations:
// - a panel of 1 to kMaxVecs vectors, one query per lane. Keys and values are read one number at a time.
// - up to kFewQueries queries, as of a lone token: lanes are keys for the scores and dimensions for the values, so no
//   lane is idle. It costs more per query, and a transposition of the keys.
#pragma once

#include <algorithm>

#include "attention_plan.h"
#include "paged_kv.h"
#include "vector.h"

namespace headway {

constexpr int kFewQueries = 4;
constexpr int kRows = kLanes == 16 ? 8 : 4;  // keys, or head dimensions, computed together
constexpr int kNarrowRows = 8;               // the same for a panel of one vector
constexpr int kLine = 16;                    // floats in a cache line
constexpr float kNever = -1e30f;             // score of a key that is not seen
static_assert(kKeyTile == 32 && kKeyTile % kLanes == 0 && kFewQueries <= kLanes);

// Running result of some queries: of each the largest score, the sum of exponentials, and head_dim weighted values.
// A panel keeps values [head_dim][lanes]; few queries keep them [query][head_dim].
struct State {
  float *largest, *total, *out;
};

// A lone token reads each key once, straight from memory. So the kernels for few queries fetch, line by line as they
// go, what the next tile of keys needs; all lines at once would take turns with the arithmetic, not go along with it.

// s[r] = keys[r] . q for kCount keys, summed in the order of the dimensions.
template <int kVecs, int kCount>
inline void scores(const float* const* keys, const float* const* next, const float* q, int head_dim, float* s) {
  Vec acc[kCount][kVecs] = {};
  for (int d = 0; d < head_dim; ++d) {
    if (kVecs == 1 && d % kLine == 0)
      for (int r = 0; r < kCount; ++r) __builtin_prefetch(next[r] + d);
    Vec b[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) b[v] = load(q + (d * kVecs + v) * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
      const Vec a = splat(keys[r][d]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) acc[r][v] = multiply_add(a, b[v], acc[r][v]);
    }
  }
  for (int r = 0; r < kCount; ++r)
    for (int v = 0; v < kVecs; ++v) store(s + (r * kVecs + v) * kLanes, acc[r][v]);
}

// out[r] = out[r] * shrink + sum over keys, in their order, of values[key][first + r] * p[key]; kCount dimensions.
template <int kVecs, int kCount>
inline void accumulate(const KeyTile& tile, const KeyTile& next, int first, const float* p, const Vec* shrink,
                       float* out) {
  Vec acc[kCount][kVecs];
  for (int r = 0; r < kCount; ++r)
    for (int v = 0; v < kVecs; ++v) acc[r][v] = load(out + (r * kVecs + v) * kLanes) * shrink[v];
  for (int key = 0; key < tile.count; ++key) {
    const float* value = tile.values[key] + first;
    if (kVecs == 1) __builtin_prefetch(next.values[key] + first);
    Vec b[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) b[v] = load(p + (key * kVecs + v) * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
      const Vec a = splat(value[r]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) acc[r][v] = multiply_add(a, b[v], acc[r][v]);
    }
  }
  for (int r = 0; r < kCount; ++r)
    for (int v = 0; v < kVecs; ++v) store(out + (r * kVecs + v) * kLanes, acc[r][v]);
}

// Softmax of one vector of queries: s[key * width] becomes exp(s - largest), 0 for keys that are not there.
// Sums are taken over halves of the tile, then of the halves, and so on.
inline Vec exponentials(float* s, int width, int count, float* largest_at, float* total_at) {
  const Vec before = load(largest_at);
  Vec largest = before;
  for (int key = 0; key < count; ++key) largest = maximum(largest, load(s + key * width));
  Vec sums[kKeyTile / 2];
  for (int key = 0; key < kKeyTile / 2; ++key) {
    Vec p[2] = {};
    for (int half = 0; half < 2; ++half) {
      const int at = key + half * kKeyTile / 2;
      if (at < count) p[half] = exponential(load(s + at * width) - largest);
      store(s + at * width, p[half]);
    }
    sums[key] = p[0] + p[1];
  }
  for (int half = kKeyTile / 4; half > 0; half /= 2)
    for (int key = 0; key < half; ++key) sums[key] += sums[key + half];
  const Vec shrink = exponential(before - largest);
  store(largest_at, largest);
  store(total_at, multiply_add(load(total_at), shrink, sums[0]));
  return shrink;
}

// Add one tile of keys to a panel's state. last_seen holds, per lane, the last position the query sees.
template <int kVecs>
void add_keys(const KeyTile& tile, const KeyTile& next, bool masked, const float* q, const float* last_seen,
              int head_dim, State state) {
  constexpr int kCount = kVecs == 1 ? kNarrowRows : kRows;
  constexpr int kWidth = kVecs * kLanes;
  alignas(64) float s[kKeyTile * kWidth];
  for (int key = 0; key < tile.count; key += kCount) {
    scores<kVecs, kCount>(tile.keys + key, next.keys + key, q, head_dim, s + key * kWidth);
  }
  Vec shrink[kVecs];
  for (int v = 0; v < kVecs; ++v) {
    float* at = s + v * kLanes;
    if (masked)
      for (int key = 0; key < tile.count; ++key) {
        const Vec seen = load(last_seen + v * kLanes);
        store(at + key * kWidth, splat(float(tile.first + key)) <= seen ? load(at + key * kWidth) : splat(kNever));
      }
    shrink[v] = exponentials(at, kWidth, tile.count, state.largest + v * kLanes, state.total + v * kLanes);
  }
  int d = 0;
  for (; d + kCount <= head_dim; d += kCount)
    accumulate<kVecs, kCount>(tile, next, d, s, shrink, state.out + d * kWidth);
  for (; d < head_dim; ++d) accumulate<kVecs, 1>(tile, next, d, s, shrink, state.out + d * kWidth);
}

// The same for up to kFewQueries queries q [query][head_dim].
template <int kQueries>
class FewQueries {
 public:
  static void add_keys(const KeyTile& tile, const KeyTile& next, bool masked, const float* q, const float* last_seen,
                       int head_dim, State state) {
    alignas(64) float s[kQueries][kKeyTile];
    for (int key = 0; key < kKeyTile; key += kLanes) {
      scores(tile.keys + key, next.keys + key, q, head_dim, &s[0][key]);
    }
    float shrink[kLanes] = {};
    for (int i = 0; i < kQueries; ++i) {
      const int seen = masked ? std::min(tile.count, int(last_seen[i]) - tile.first + 1) : tile.count;
      for (int key = std::max(0, seen); key < tile.count; ++key) s[i][key] = kNever;
      exponentials(s[i], tile.count, state.largest + i, state.total + i, shrink + i);
    }
    int d = 0;
    for (; d + 4 * kLanes <= head_dim; d += 4 * kLanes) accumulate<4>(tile, next, s[0], shrink, d, head_dim, state.out);
    for (; d + kLanes <= head_dim; d += kLanes) accumulate<1>(tile, next, s[0], shrink, d, head_dim, state.out);
    for (; d < head_dim; ++d) accumulate_one(tile, s[0], shrink, d, head_dim, state.out);
  }

 private:
  // Scores of kLanes keys: s[i * kKeyTile + key].
  static void scores(const float* const* keys, const float* const* next, const float* q, int head_dim, float* s) {
    Vec acc[kQueries] = {};
    for (int d = 0; d < head_dim; d += kLanes) {
      const int count = std::min(kLanes, head_dim - d);
      Vec rows[kLanes];
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; ++r) rows[r] = count == kLanes ? load(keys[r] + d) : load_some(keys[r] + d, count);
      for (int r = 0; r < kLanes; ++r) __builtin_prefetch(next[r] + d);
      transpose(rows);
      if (count == kLanes) {
#pragma GCC unroll 16
        for (int c = 0; c < kLanes; ++c) add_dimension(rows[c], q + d + c, head_dim, acc);
      } else {
        for (int c = 0; c < count; ++c) add_dimension(rows[c], q + d + c, head_dim, acc);
      }
    }
    for (int i = 0; i < kQueries; ++i) store(s + i * kKeyTile, acc[i]);
  }

  static void add_dimension(Vec row, const float* q, int head_dim, Vec* acc) {
#pragma GCC unroll 4
    for (int i = 0; i < kQueries; ++i) acc[i] = multiply_add(row, splat(q[i * head_dim]), acc[i]);
  }

  static void exponentials(float* s, int count, float* largest_at, float* total_at, float* shrink) {
    const float before = *largest_at;
    float largest = before;
    for (int key = 0; key < count; ++key) largest = largest > s[key] ? largest : s[key];
    for (int key = 0; key < kKeyTile; key += kLanes) store(s + key, exponential(load(s + key) - splat(largest)));
    std::fill(s + count, s + kKeyTile, 0.0f);
    float sums[kKeyTile / 2];
    for (int key = 0; key < kKeyTile / 2; ++key) sums[key] = s[key] + s[key + kKeyTile / 2];
    for (int half = kKeyTile / 4; half > 0; half /= 2)
      for (int key = 0; key < half; ++key) sums[key] += sums[key + half];
    *shrink = exponential(splat(before) - splat(largest))[0];
    *largest_at = largest;
    *total_at = multiply_add(splat(*total_at), splat(*shrink), splat(sums[0]))[0];
  }

  // kWide vectors of dimensions, from `first`.
  template <int kWide>
  static void accumulate(const KeyTile& tile, const KeyTile& next, const float* p, const float* shrink, int first,
                         int head_dim, float* out) {
    Vec acc[kQueries][kWide];
    for (int i = 0; i < kQueries; ++i)
      for (int v = 0; v < kWide; ++v) acc[i][v] = load(out + i * head_dim + first + v * kLanes) * splat(shrink[i]);
    for (int key = 0; key < tile.count; ++key) {
      for (int v = 0; v < kWide * kLanes; v += kLine) __builtin_prefetch(next.values[key] + first + v);
      Vec value[kWide];
#pragma GCC unroll 4
      for (int v = 0; v < kWide; ++v) value[v] = load(tile.values[key] + first + v * kLanes);
#pragma GCC unroll 4
      for (int i = 0; i < kQueries; ++i) {
        const Vec share = splat(p[i * kKeyTile + key]);
#pragma GCC unroll 4
        for (int v = 0; v < kWide; ++v) acc[i][v] = multiply_add(value[v], share, acc[i][v]);
      }
    }
    for (int i = 0; i < kQueries; ++i)
      for (int v = 0; v < kWide; ++v) store(out + i * head_dim + first + v * kLanes, acc[i][v]);
  }

  static void accumulate_one(const KeyTile& tile, const float* p, const float* shrink, int d, int head_dim,
                             float* out) {
    for (int i = 0; i < kQueries; ++i) {
      Vec acc = splat(out[i * head_dim + d]) * splat(shrink[i]);
      for (int key = 0; key < tile.count; ++key)
        acc = multiply_add(splat(tile.values[key][d]), splat(p[i * kKeyTile + key]), acc);
      out[i * head_dim + d] = acc[0];
    }
  }

  static Vec load_some(const float* from, int count) {
    float padded[kLanes] = {};
    std::copy_n(from, count, padded);
    return load(padded);
  }
};

// Take a later part's result into an earlier one's; arrays of `width` lanes.
inline void merge_panel(State into, State from, int width, int head_dim) {
  for (int lane = 0; lane < width; lane += kLanes) {
    const Vec a = load(into.largest + lane), b = load(from.largest + lane), largest = maximum(a, b);
    const Vec keep = exponential(a - largest), add = exponential(b - largest);
    store(into.largest + lane, largest);
    store(into.total + lane, multiply_add(load(from.total + lane), add, load(into.total + lane) * keep));
    for (int d = 0; d < head_dim; ++d) {
      float* at = into.out + d * width + lane;
      store(at, multiply_add(load(from.out + d * width + lane), add, load(at) * keep));
    }
  }
}

// The same for few queries.
inline void merge_few(State into, State from, int num_queries, int head_dim) {
  const Vec a = load(into.largest), b = load(from.largest), largest = maximum(a, b);
  const Vec keep = exponential(a - largest), add = exponential(b - largest);
  store(into.largest, largest);
  store(into.total, multiply_add(load(from.total), add, load(into.total) * keep));
  for (int i = 0; i < num_queries; ++i) {
    float *to = into.out + i * head_dim, *more = from.out + i * head_dim;
    int d = 0;
    for (; d + kLanes <= head_dim; d += kLanes)
      store(to + d, multiply_add(load(more + d), splat(add[i]), load(to + d) * splat(keep[i])));
    for (; d < head_dim; ++d) to[d] = multiply_add(splat(more[d]), splat(add[i]), splat(to[d]) * splat(keep[i]))[0];
  }
}

}  // namespace headway
