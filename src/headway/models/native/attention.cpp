// Paged attention over one flat batch, for prompt chunks and single tokens alike.
//
// Work is cut into tiles: the query heads that share one key/value head, for a few tokens. A tile is held transposed,
// one query per vector lane:
//
//     q [head_dim][lanes]     s = K q [keys][lanes]     o += V^T exp(s - max) [head_dim][lanes]
//
// so keys and values are read where they lie in their blocks, whatever the block size; nothing is gathered, and the
// softmax needs no sum across lanes. (Too few queries for that are arranged otherwise, with the same results.)
// Keys are taken in tiles and those in parts of fixed positions, with an online softmax (Milakov and Gimelshein,
// arXiv 1805.02867) within a part and a merge from part to part. A query's result is therefore the same number whether
// its row comes in one chunk or token by token, and whatever else is in the batch.

#include <algorithm>

#include "attention_kernels.h"
#include "attention_plan.h"
#include "paged_kv.h"
#include "pool.h"
#include "vector.h"

namespace headway {
namespace {

static_assert(kPart % kKeyTile == 0);

using AddKeys = void (*)(const KeyTile&, const KeyTile&, bool, const float*, const float*, int, State);
constexpr AddKeys kAddToPanel[kMaxVecs] = {add_keys<1>, add_keys<2>, add_keys<3>};
constexpr AddKeys kAddToFew[kFewQueries] = {FewQueries<1>::add_keys, FewQueries<2>::add_keys, FewQueries<3>::add_keys,
                                            FewQueries<4>::add_keys};

// What a thread works in.
struct Memory {
  std::vector<float> panels, keys;
};

// The queries of a tile, cut into panels of at most kMaxVecs vectors, with the state of each.
class Panels {
 public:
  Panels(const Batch& batch, Plan& plan, const Tile& tile, Memory& memory)
      : batch_(batch), plan_(plan), tile_(tile), reader_(batch, tile.row, tile.kv_head, memory.keys) {
    num_queries_ = tile.num_tokens * batch.group();
    width_ = (num_queries_ + kLanes - 1) / kLanes * kLanes;
    memory.panels.resize(size_t(width_) * (3 * batch.head_dim + 5));
    float* at = memory.panels.data();
    for (float** array : {&last_seen_, &result_.largest, &result_.total, &part_.largest, &part_.total}) {
      *array = at;
      at += width_;
    }
    for (float** array : {&q_, &result_.out, &part_.out}) {
      *array = at;
      at += int64_t(width_) * batch.head_dim;
    }
  }

  void run() {
    for (int i = 0; i < tile_.num_loads; ++i) {
      load_state(tile_.load + i * tile_.load_step, i == 0 ? result_ : part_);
      if (i > 0) merge_part();
    }
    if (tile_.first_part < tile_.last_part) attend_parts();
    if (tile_.save < 0) write_result();
    else if (tile_.save_step == 0) save_state(tile_.save);
  }

 private:
  bool few() const { return num_queries_ <= kFewQueries; }

  template <class Visit>
  void for_each_panel(const Visit& visit) const {
    for (int first = 0; first < width_; first += kMaxVecs * kLanes)
      visit(first, std::min(kMaxVecs, (width_ - first) / kLanes));
  }

  // visit(token in the tile, head, where the query's head_dim numbers begin in its array, their distance, its lane).
  template <class Visit>
  void for_each_query(const Visit& visit) const {
    for_each_panel([&](int first, int vecs) {
      for (int query = first; query < std::min(num_queries_, first + vecs * kLanes); ++query) {
        const int token = query / batch_.group(), head = tile_.kv_head * batch_.group() + query % batch_.group();
        if (few()) visit(token, head, int64_t(query) * batch_.head_dim, 1, query);
        else visit(token, head, int64_t(first) * batch_.head_dim + query - first, vecs * kLanes, query);
      }
    });
  }

  State panel_of(State all, int first) const {
    return {all.largest + first, all.total + first, all.out + int64_t(first) * batch_.head_dim};
  }

  int flat_token(int token) const { return plan_.tokens[tile_.first_token + token]; }

  void gather_queries() {
    std::fill_n(q_, int64_t(width_) * batch_.head_dim, 0.0f);
    std::fill_n(last_seen_, width_, 0.0f);
    for_each_query([&](int token, int head, int64_t at, int distance, int lane) {
      const float* from = batch_.q + flat_token(token) * batch_.q_stride + int64_t(head) * batch_.head_dim;
      for (int d = 0; d < batch_.head_dim; ++d) q_[at + d * distance] = from[d] * batch_.scale;
      last_seen_[lane] = float(batch_.positions[flat_token(token)]);
    });
    first_position_ = batch_.positions[flat_token(0)];
    last_position_ = first_position_;
    for (int token = 1; token < tile_.num_tokens; ++token) {
      first_position_ = std::min(first_position_, batch_.positions[flat_token(token)]);
      last_position_ = std::max(last_position_, batch_.positions[flat_token(token)]);
    }
  }

  void attend_parts() {
    gather_queries();
    bool joins = tile_.num_loads > 0;  // whether there is a result that this part must be merged into
    const int64_t end = std::min<int64_t>(tile_.last_part * kPart, last_position_ + 1);
    reader_.start(tile_.first_part * kPart, int(end));
    for (; reader_.now().count > 0; reader_.advance()) {
      const State into = joins ? part_ : result_;
      if (reader_.now().first % kPart == 0) clear(into);
      add_tile(into);
      if (reader_.next().count > 0 && reader_.next().first % kPart != 0) continue;
      if (joins) merge_part();
      joins = tile_.save_step == 0;
      if (!joins) save_state(tile_.save + (reader_.now().first / kPart - tile_.first_part) * tile_.save_step);
    }
  }

  void clear(State state) const {
    std::fill_n(state.largest, width_, kNever);
    std::fill_n(state.total, width_, 0.0f);
    std::fill_n(state.out, int64_t(width_) * batch_.head_dim, 0.0f);
  }

  void add_tile(State into) {
    const KeyTile &now = reader_.now(), &next = reader_.next();
    const bool masked = now.first + now.count - 1 > first_position_;
    if (few()) return kAddToFew[num_queries_ - 1](now, next, masked, q_, last_seen_, batch_.head_dim, into);
    for_each_panel([&](int lane, int vecs) {
      kAddToPanel[vecs - 1](now, next, masked, q_ + int64_t(lane) * batch_.head_dim, last_seen_ + lane, batch_.head_dim,
                         panel_of(into, lane));
    });
  }

  void merge_part() {
    if (few()) return merge_few(result_, part_, num_queries_, batch_.head_dim);
    for_each_panel([&](int first, int vecs) {
      merge_panel(panel_of(result_, first), panel_of(part_, first), vecs * kLanes, batch_.head_dim);
    });
  }

  // A slot holds, per query head, the values and then the largest score and the total.
  float* slot(int index, int head) const {
    return plan_.states.data() + (int64_t(index) * batch_.num_heads + head) * (batch_.head_dim + 2);
  }

  void save_state(int first_slot) const {
    for_each_query([&](int token, int head, int64_t at, int distance, int lane) {
      float* to = slot(first_slot + token, head);
      for (int d = 0; d < batch_.head_dim; ++d) to[d] = result_.out[at + d * distance];
      to[batch_.head_dim] = result_.largest[lane];
      to[batch_.head_dim + 1] = result_.total[lane];
    });
  }

  void load_state(int first_slot, State into) {
    std::fill_n(into.largest, width_, kNever);  // of lanes without a query
    std::fill_n(into.total, width_, 1.0f);
    for_each_query([&](int token, int head, int64_t at, int distance, int lane) {
      const float* from = slot(first_slot + token, head);
      for (int d = 0; d < batch_.head_dim; ++d) into.out[at + d * distance] = from[d];
      into.largest[lane] = from[batch_.head_dim];
      into.total[lane] = from[batch_.head_dim + 1];
    });
  }

  void write_result() const {
    for_each_query([&](int token, int head, int64_t at, int distance, int lane) {
      float* out = batch_.out + (int64_t(flat_token(token)) * batch_.num_heads + head) * batch_.head_dim;
      const float share = 1.0f / result_.total[lane];
      for (int d = 0; d < batch_.head_dim; ++d) out[d] = result_.out[at + d * distance] * share;
    });
  }

  const Batch& batch_;
  Plan& plan_;
  const Tile& tile_;
  KeyReader reader_;
  int num_queries_, width_;  // width: lanes of all panels
  int64_t first_position_ = 0, last_position_ = 0;  // of the tile's tokens
  float *q_, *last_seen_;
  State result_, part_;
};

void attend(const Batch& batch, Plan& plan) {
  plan.states.resize(size_t(plan.num_slots) * batch.num_heads * (batch.head_dim + 2));
  for (const std::vector<Tile>* tiles : {&plan.first, &plan.second})
    Pool::instance().run(int(tiles->size()), [&](int item) {
      static thread_local Memory memory;
      Panels(batch, plan, (*tiles)[item], memory).run();
    });
}

}  // namespace
}  // namespace headway

// The plan of a step, for headway_write_kv_and_attend; free it with headway_free_plan. Arrays as in BatchMeta.
extern "C" void* headway_make_plan(
    const int64_t* positions, const int32_t* qo_indptr, const int32_t* block_tables, int64_t num_rows,
    int64_t table_width, int group, int num_kv_heads, int block_size) {
  const headway::Rows rows{num_rows, table_width, positions, qo_indptr, block_tables, group, num_kv_heads, block_size};
  return new headway::Plan(headway::make_plan(rows, headway::Pool::instance().size()));
}

extern "C" void headway_free_plan(void* plan) { delete static_cast<headway::Plan*>(plan); }

// Arrays as in BatchMeta; kv_kind is a NumberKind; strides between tokens in floats; out is [num_tokens, num_heads,
// head_dim]. The plan must be of the same step, and serves one call at a time.
extern "C" void headway_write_kv_and_attend(
    void* plan, const float* q, const float* k, const float* v, int64_t q_stride, int64_t k_stride, int64_t v_stride,
    void* kv_cache, int kv_kind, const int64_t* positions, const int64_t* slot_mapping, const int32_t* block_tables,
    float* out, int64_t num_tokens, int64_t table_width, int num_heads, int num_kv_heads, int block_size, int head_dim,
    float scale) {
  const headway::Batch batch{q, k, v, q_stride, k_stride, v_stride, kv_cache, headway::NumberKind(kv_kind), positions,
                             slot_mapping, block_tables, out, num_tokens, table_width, num_heads, num_kv_heads,
                             block_size, head_dim, scale};
  headway::write_kv(batch);
  headway::attend(batch, *static_cast<headway::Plan*>(plan));
}
