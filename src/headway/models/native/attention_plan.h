// How the work of one step's attention is cut up. The plan depends on the rows, not on the layer, so it is made once
// per step. It decides only who computes what and when: every query's arithmetic is the same under any plan.
#pragma once

#include <cstdint>
#include <vector>

#include "vector.h"

namespace headway {

constexpr int kPart = 128;                           // keys per part: results of parts are merged in their order
constexpr int kMaxVecs = 3;                          // vectors of queries in a panel
constexpr int kTileQueries = 2 * kMaxVecs * kLanes;  // queries per tile, at most, unless one token has more

// What a plan is made from; see BatchMeta. Block tables have table_width entries per row.
struct Rows {
  int64_t num_rows, table_width;
  const int64_t* positions;
  const int32_t *qo_indptr, *block_tables;
  int group, num_kv_heads, block_size;  // group: query heads per key/value head
};

// The queries of some tokens for one key/value head, over parts first_part .. last_part - 1 of one row's context.
// Before that the states in num_loads slots, load_step apart, are folded in their order. A token's slots follow those
// of the token before it.
struct Tile {
  int row, kv_head;
  int first_token, num_tokens;  // a range of Plan::tokens
  int first_part, last_part;
  int load = 0, num_loads = 0, load_step = 0;
  int save = -1;      // the slot that takes the state; -1: nothing is left to do, write the result
  int save_step = 0;  // if not 0, the parts are not merged: each leaves its state so far behind the one before
};

struct Plan {
  std::vector<int32_t> tokens;  // indices into the flat batch
  std::vector<Tile> first;      // these depend on nothing
  std::vector<Tile> second;     // these load what the first have saved
  int num_slots = 0;
  std::vector<float> states;    // memory of the slots, for attend()
};

Plan make_plan(const Rows& rows, int num_threads);

}  // namespace headway
