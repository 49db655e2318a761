// Paged attention over one flat batch, for prompt chunks and single tokens alike.
//
// Work is cut into query tiles: the query heads that share one key/value head, for a few neighbouring tokens of one
// row. A tile is held transposed, one query per vector lane:
//
//     q [head_dim][lanes]     s = K q [keys][lanes]     o += V^T exp(s - max) [head_dim][lanes]
//
// so keys and values are read where they lie in their blocks, one number at a time, whatever the block size; nothing
// is gathered or transposed, and the softmax needs no sum across lanes. Keys are taken in tiles and those in parts
// of fixed positions, with an online softmax (Milakov and Gimelshein, arXiv 1805.02867) within a part and a merge
// between parts. A query's result is therefore the same number whether its row comes in one chunk or token by
// token, and whatever else is in the batch.

#include <algorithm>
#include <cmath>
#include <vector>

#include "paged_kv.h"
#include "pool.h"
#include "vector.h"

namespace headway {
namespace {

constexpr int kMaxVecs = 3;                          // vectors of queries in a panel
constexpr int kRows = kLanes == 16 ? 8 : 4;          // keys, or head dimensions, computed together
constexpr int kNarrowRows = 8;                       // the same for a panel of one vector
constexpr int kPart = 512;                           // keys per part; a multiple of kKeyTile
constexpr int kTileQueries = 2 * kMaxVecs * kLanes;  // queries per tile, at most, if a token has fewer
constexpr float kNever = -1e30f;                     // score of a key that is not seen
static_assert(kKeyTile % kNarrowRows == 0 && kKeyTile % kRows == 0 && kPart % kKeyTile == 0);

struct Tile {
  int row, kv_head;
  int first_token, num_tokens;  // in the flat batch
  int first_position;
  int part, num_parts;          // parts first to last of the context: all of them, or one
  int64_t state;                // where the partial result goes if it is one of several, else -1

  int num_keys() const { return first_position + num_tokens; }
};

// Running result of a panel: per lane the largest score, the sum of exponentials, and head_dim weighted values.
struct State {
  float *largest, *total, *out;
};

// A lone token reads each key once, straight from memory: fetch what the next tile of keys needs.
template <int kCount>
inline void prefetch(const float* const* rows, int head_dim) {
  for (int r = 0; r < kCount; ++r)
    for (int d = 0; d < head_dim; d += 16) __builtin_prefetch(rows[r] + d);
}

// s[r] = keys[r] . q for kCount keys.
template <int kVecs, int kCount>
inline void scores(const float* const* keys, const float* q, int head_dim, float* s) {
  Vec acc[kCount][kVecs] = {};
  for (int d = 0; d < head_dim; ++d) {
    Vec b[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) b[v] = load(q + (d * kVecs + v) * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
      const Vec a = splat(keys[r][d]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) acc[r][v] += a * b[v];
    }
  }
  for (int r = 0; r < kCount; ++r)
    for (int v = 0; v < kVecs; ++v) store(s + (r * kVecs + v) * kLanes, acc[r][v]);
}

// out[r] = out[r] * shrink + sum over keys of values[key][r] * p[key], for kCount dimensions from values' start.
template <int kVecs, int kCount>
inline void accumulate(const KeyTile& tile, const KeyTile& next, int first, const float* p, const Vec* shrink, float* out) {
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
      for (int v = 0; v < kVecs; ++v) acc[r][v] += a * b[v];
    }
  }
  for (int r = 0; r < kCount; ++r)
    for (int v = 0; v < kVecs; ++v) store(out + (r * kVecs + v) * kLanes, acc[r][v]);
}

// Add one tile of keys to a panel's state. last_seen holds, per lane, the last position the query sees.
template <int kVecs>
void add_keys(const KeyTile& tile, const KeyTile& next, bool masked, const float* q, const float* last_seen, int head_dim,
              State state) {
  constexpr int kCount = kVecs == 1 ? kNarrowRows : kRows;
  constexpr int kWidth = kVecs * kLanes;
  alignas(64) float s[kKeyTile * kWidth];
  for (int key = 0; key < tile.count; key += kCount) {
    if (kVecs == 1) prefetch<kCount>(next.keys + key, head_dim);
    scores<kVecs, kCount>(tile.keys + key, q, head_dim, s + key * kWidth);
  }
  Vec shrink[kVecs];
  for (int v = 0; v < kVecs; ++v) {
    const Vec before = load(state.largest + v * kLanes), seen = load(last_seen + v * kLanes);
    Vec largest = before;
    for (int key = 0; key < tile.count; ++key) {
      float* at = s + key * kWidth + v * kLanes;
      if (masked) store(at, splat(float(tile.first + key)) <= seen ? load(at) : splat(kNever));
      largest = maximum(largest, load(at));
    }
    shrink[v] = exponential(before - largest);
    Vec total = load(state.total + v * kLanes) * shrink[v];
    for (int key = 0; key < tile.count; ++key) {
      float* at = s + key * kWidth + v * kLanes;
      const Vec p = exponential(load(at) - largest);
      store(at, p);
      total += p;
    }
    store(state.largest + v * kLanes, largest);
    store(state.total + v * kLanes, total);
  }
  int d = 0;
  for (; d + kCount <= head_dim; d += kCount)
    accumulate<kVecs, kCount>(tile, next, d, s, shrink, state.out + d * kWidth);
  for (; d < head_dim; ++d) accumulate<kVecs, 1>(tile, next, d, s, shrink, state.out + d * kWidth);
}

using AddKeys = void (*)(const KeyTile&, const KeyTile&, bool, const float*, const float*, int, State);
constexpr AddKeys kAddKeys[kMaxVecs] = {add_keys<1>, add_keys<2>, add_keys<3>};

void clear(State state, int width, int head_dim) {
  std::fill_n(state.largest, width, kNever);
  std::fill_n(state.total, width, 0.0f);
  std::fill_n(state.out, int64_t(width) * head_dim, 0.0f);
}

// Take a later part's result into an earlier one's.
__attribute__((noinline)) void merge(State into, State from, int width, int head_dim) {
  for (int lane = 0; lane < width; lane += kLanes) {
    const Vec a = load(into.largest + lane), b = load(from.largest + lane), largest = maximum(a, b);
    const Vec keep = exponential(a - largest), add = exponential(b - largest);
    store(into.largest + lane, largest);
    store(into.total + lane, load(into.total + lane) * keep + load(from.total + lane) * add);
    for (int d = 0; d < head_dim; ++d) {
      float* at = into.out + d * width + lane;
      store(at, load(at) * keep + load(from.out + d * width + lane) * add);
    }
  }
}

// What a thread works in.
struct Memory {
  std::vector<float> panels, keys;
};

// The queries of a tile, cut into panels of at most kMaxVecs vectors, with the state of each.
class Panels {
 public:
  Panels(const Batch& batch, const Tile& tile, Memory& memory)
      : batch_(batch), tile_(tile), reader_(batch, tile.row, tile.kv_head, memory.keys) {
    const int vecs = (tile.num_tokens * batch.group() + kLanes - 1) / kLanes;
    width_ = vecs * kLanes;
    memory.panels.resize(size_t(width_) * (3 * batch.head_dim + 5));
    float* at = memory.panels.data();
    for (float** part : {&last_seen_, &result_.largest, &result_.total, &part_.largest, &part_.total}) {
      *part = at;
      at += width_;
    }
    for (float** part : {&q_, &result_.out, &part_.out}) {
      *part = at;
      at += int64_t(width_) * batch.head_dim;
    }
    gather_queries();
  }

  static int64_t state_floats(const Batch& batch, const Tile& tile) {
    const int vecs = (tile.num_tokens * batch.group() + kLanes - 1) / kLanes;
    return int64_t(vecs) * kLanes * (batch.head_dim + 2);
  }

  // Attend to parts first .. last; the result replaces or joins what was there.
  void attend(int first_part, int last_part) {
    for (int part = first_part; part < last_part; ++part) {
      const State into = part == first_part ? result_ : part_;
      clear(into, width_, batch_.head_dim);
      attend_part(part, into);
      if (part != first_part) merge_all(into);
    }
  }

  void save(float* to) const { copy_state(result_, to, true); }
  void restore(float* from) { copy_state(result_, from, false); }
  void merge_saved(float* from) {
    copy_state(part_, from, false);
    merge_all(part_);
  }

  void write_result() const {
    for_each_panel([&](int first, int vecs) {
      const int panel = vecs * kLanes;
      const State state = panel_of(result_, first);
      const int queries = std::min(panel, tile_.num_tokens * batch_.group() - first);
      for (int lane = 0; lane < queries; ++lane) {
        const int token = tile_.first_token + (first + lane) / batch_.group();
        const int head = tile_.kv_head * batch_.group() + (first + lane) % batch_.group();
        float* out = batch_.out + (int64_t(token) * batch_.num_heads + head) * batch_.head_dim;
        const float share = 1.0f / state.total[lane];
        for (int d = 0; d < batch_.head_dim; ++d) out[d] = state.out[d * panel + lane] * share;
      }
    });
  }

 private:
  template <class Visit>
  void for_each_panel(const Visit& visit) const {
    for (int first = 0; first < width_; first += kMaxVecs * kLanes)
      visit(first, std::min(kMaxVecs, (width_ - first) / kLanes));
  }

  State panel_of(State all, int first) const {
    return {all.largest + first, all.total + first, all.out + int64_t(first) * batch_.head_dim};
  }

  void gather_queries() {
    std::fill_n(q_, int64_t(width_) * batch_.head_dim, 0.0f);
    std::fill_n(last_seen_, width_, 0.0f);
    for_each_panel([&](int first, int vecs) {
      const int panel = vecs * kLanes;
      const int queries = std::min(panel, tile_.num_tokens * batch_.group() - first);
      for (int lane = 0; lane < queries; ++lane) {
        const int token = (first + lane) / batch_.group();
        const int head = tile_.kv_head * batch_.group() + (first + lane) % batch_.group();
        const float* from = batch_.q + (tile_.first_token + token) * batch_.q_stride + head * batch_.head_dim;
        float* to = q_ + int64_t(first) * batch_.head_dim + lane;
        for (int d = 0; d < batch_.head_dim; ++d) to[d * panel] = from[d] * batch_.scale;
        last_seen_[first + lane] = float(tile_.first_position + token);
      }
    });
  }

  void attend_part(int part, State into) {
    reader_.start(part * kPart, std::min((part + 1) * kPart, tile_.num_keys()));
    for (; reader_.now().count > 0; reader_.advance()) {
      const KeyTile& now = reader_.now();
      const bool masked = now.first + now.count - 1 > tile_.first_position;
      for_each_panel([&](int lane, int vecs) {
        kAddKeys[vecs - 1](now, reader_.next(), masked, q_ + int64_t(lane) * batch_.head_dim, last_seen_ + lane,
                           batch_.head_dim, panel_of(into, lane));
      });
    }
  }

  void merge_all(State from) {
    for_each_panel([&](int first, int vecs) {
      merge(panel_of(result_, first), panel_of(from, first), vecs * kLanes, batch_.head_dim);
    });
  }

  void copy_state(State state, float* other, bool out) const {
    const int64_t sizes[] = {width_, width_, int64_t(width_) * batch_.head_dim};
    float* parts[] = {state.largest, state.total, state.out};
    for (int i = 0; i < 3; ++i) {
      std::copy_n(out ? parts[i] : other, sizes[i], out ? other : parts[i]);
      other += sizes[i];
    }
  }

  const Batch& batch_;
  const Tile& tile_;
  KeyReader reader_;
  int width_;  // lanes of all panels
  float *q_, *last_seen_;
  State result_, part_;
};

// Query tiles of all rows, the ones with the most keys of a row first.
std::vector<Tile> cut_tiles(const Batch& batch) {
  std::vector<Tile> tiles;
  const int most = std::max(1, kTileQueries / batch.group());
  for (int row = 0; row < batch.num_rows; ++row) {
    const int begin = batch.qo_indptr[row], end = batch.qo_indptr[row + 1];
    const int start = batch.context_lens[row] - (end - begin);
    for (int last = end; last > begin; last -= std::min(most, last - begin)) {
      const int first = std::max(begin, last - most);
      for (int head = 0; head < batch.num_kv_heads; ++head) {
        Tile tile{row, head, first, last - first, start + first - begin, 0, 0, -1};
        tile.num_parts = (tile.num_keys() + kPart - 1) / kPart;
        tiles.push_back(tile);
      }
    }
  }
  return tiles;
}

// Too few tiles to keep all threads busy: one item per part, then a merge of each tile's parts in their order.
void attend_in_parts(const Batch& batch, const std::vector<Tile>& tiles) {
  static std::vector<float> saved;
  std::vector<Tile> parts;
  int64_t floats = 0;
  for (const Tile& tile : tiles)
    for (int part = 0; part < tile.num_parts; ++part) {
      Tile one = tile;
      one.part = part;
      one.state = floats;
      floats += Panels::state_floats(batch, tile);
      parts.push_back(one);
    }
  saved.resize(floats);
  Pool::instance().run(int(parts.size()), [&](int item) {
    static thread_local Memory memory;
    Panels panels(batch, parts[item], memory);
    panels.attend(parts[item].part, parts[item].part + 1);
    panels.save(&saved[parts[item].state]);
  });
  Memory memory;
  for (size_t first = 0; first < parts.size(); first += parts[first].num_parts) {
    Panels panels(batch, parts[first], memory);
    panels.restore(&saved[parts[first].state]);
    for (int part = 1; part < parts[first].num_parts; ++part) panels.merge_saved(&saved[parts[first + part].state]);
    panels.write_result();
  }
}

void attend(const Batch& batch) {
  const std::vector<Tile> tiles = cut_tiles(batch);
  const bool long_tiles = std::any_of(tiles.begin(), tiles.end(), [](const Tile& tile) { return tile.num_parts > 1; });
  if (long_tiles && int(tiles.size()) < 4 * Pool::instance().size()) return attend_in_parts(batch, tiles);
  Pool::instance().run(int(tiles.size()), [&](int item) {
    static thread_local Memory memory;
    Panels panels(batch, tiles[item], memory);
    panels.attend(0, tiles[item].num_parts);
    panels.write_result();
  });
}

}  // namespace
}  // namespace headway

// Pointers and sizes as in BatchMeta; kv_kind is a NumberKind; strides between tokens in floats; out is [num_tokens, num_heads, head_dim].
extern "C" void headway_write_kv_and_attend(
    const float* q, const float* k, const float* v, int64_t q_stride, int64_t k_stride, int64_t v_stride,
    void* kv_cache, int kv_kind, const int64_t* slot_mapping, const int32_t* qo_indptr, const int32_t* context_lens,
    const int32_t* block_tables, float* out, int64_t num_tokens, int64_t num_rows, int64_t table_width, int num_heads,
    int num_kv_heads, int block_size, int head_dim, float scale) {
  const headway::Batch batch{q, k, v, q_stride, k_stride, v_stride, kv_cache, headway::NumberKind(kv_kind), slot_mapping,
                             qo_indptr, context_lens, block_tables, out, num_tokens, num_rows, table_width, num_heads,
                             num_kv_heads, block_size, head_dim, scale};
  headway::write_kv(batch);
  headway::attend(batch);
}
