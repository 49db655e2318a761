#include "attention_plan.h"

#include <algorithm>
#include <unordered_map>

namespace headway {
namespace {

int parts_of(int64_t num_keys) { return int((num_keys + kPart - 1) / kPart); }

// Rows with the same blocks in front, as they come from a shared prompt: the queries of all of them attend to those
// blocks together, so that keys are read once and vectors are full.
struct PrefixGroup {
  std::vector<int> rows;
  int num_parts;  // that all rows share, whole, and that all their tokens see
};

class Planner {
 public:
  Planner(const Rows& rows, int num_threads) : rows_(rows), num_threads_(num_threads) {}

  Plan make() {
    std::vector<bool> grouped(rows_.num_rows, false);
    for (const PrefixGroup& group : find_groups()) {
      if (group.rows.size() < 2) continue;
      for (int row : group.rows) grouped[row] = true;
      add_group(group);
    }
    for (int row = 0; row < rows_.num_rows; ++row)
      if (!grouped[row]) add_row(row);
    const int pieces_wanted = 4 * num_threads_, num_tiles = int(plan_.first.size());
    if (num_threads_ > 1 && num_tiles > 0 && num_tiles < pieces_wanted)
      split((pieces_wanted + num_tiles - 1) / num_tiles);
    return std::move(plan_);
  }

 private:
  int begin(int row) const { return rows_.qo_indptr[row]; }
  int end(int row) const { return rows_.qo_indptr[row + 1]; }
  const int32_t* table(int row) const { return rows_.block_tables + row * rows_.table_width; }
  int most_tokens() const { return std::max(1, kTileQueries / rows_.group); }

  // Parts at the front that every token of the row sees whole.
  int whole_parts(int row) const { return int((rows_.positions[begin(row)] + 1) / kPart); }

  int shared_parts(int row, int other) const {
    const int most = std::min(whole_parts(row), whole_parts(other));
    const int num_blocks = (most * kPart + rows_.block_size - 1) / rows_.block_size;
    const int32_t *a = table(row), *b = table(other);
    const int64_t same = std::mismatch(a, a + num_blocks, b).first - a;
    return std::min<int64_t>(most, same * rows_.block_size / kPart);
  }

  std::vector<PrefixGroup> find_groups() const {
    std::vector<PrefixGroup> groups;
    std::unordered_map<int32_t, size_t> by_first_block;
    for (int row = 0; row < rows_.num_rows; ++row) {
      // Longer chunks fill the vectors by themselves.
      if (whole_parts(row) == 0 || (end(row) - begin(row)) * 2 > most_tokens()) continue;
      const auto [found, is_new] = by_first_block.emplace(table(row)[0], groups.size());
      if (is_new) {
        groups.push_back({{row}, whole_parts(row)});
        continue;
      }
      PrefixGroup& group = groups[found->second];
      const int shared = std::min(group.num_parts, shared_parts(row, group.rows[0]));
      // A row that shares little stays alone rather than shorten what the others share; one row alone shares all.
      if (shared == 0 || (group.rows.size() > 1 && shared * 2 < group.num_parts)) continue;
      group.rows.push_back(row);
      group.num_parts = shared;
    }
    return groups;
  }

  void add_group(const PrefixGroup& group) {
    const int first_token = int(plan_.tokens.size()), first_slot = plan_.num_slots;
    for (int row : group.rows) add_tokens(begin(row), end(row));
    const int num_tokens = int(plan_.tokens.size()) - first_token;
    plan_.num_slots += num_tokens;
    for (int token = 0; token < num_tokens; token += most_tokens())
      for (int head = 0; head < rows_.num_kv_heads; ++head) {
        const int count = std::min(most_tokens(), num_tokens - token);
        Tile tile{group.rows[0], head, first_token + token, count, 0, group.num_parts};
        tile.save = first_slot + token;
        plan_.first.push_back(tile);
      }
    int token = 0;
    for (int row : group.rows) {
      for (int head = 0; head < rows_.num_kv_heads; ++head) {
        Tile tile{row, head, first_token + token, end(row) - begin(row), group.num_parts, num_parts(row)};
        tile.load = first_slot + token;
        tile.num_loads = 1;
        plan_.second.push_back(tile);
      }
      token += end(row) - begin(row);
    }
  }

  // The tiles with the most keys first, so that no long one is left for the end.
  void add_row(int row) {
    for (int last = end(row); last > begin(row);) {
      const int first = std::max(begin(row), last - most_tokens());
      const int at = int(plan_.tokens.size()), parts = parts_of(rows_.positions[last - 1] + 1);
      add_tokens(first, last);
      for (int head = 0; head < rows_.num_kv_heads; ++head)
        plan_.first.push_back(Tile{row, head, at, last - first, 0, parts});
      last = first;
    }
  }

  // Too few tiles to keep all threads busy: let some tiles compute a few parts each, and others fold those.
  void split(int pieces_per_tile) {
    std::vector<Tile> pieces;
    for (Tile tile : plan_.first) {
      const int num_parts = tile.last_part, step = (num_parts + pieces_per_tile - 1) / pieces_per_tile;
      if (tile.save >= 0 || num_parts == 1) {
        pieces.push_back(tile);
        continue;
      }
      Tile fold = tile;
      fold.first_part = fold.last_part;
      fold.load = plan_.num_slots;
      fold.num_loads = num_parts;
      fold.load_step = tile.num_tokens;
      plan_.second.push_back(fold);
      for (int part = 0; part < num_parts; part += step) {
        tile.first_part = part;
        tile.last_part = std::min(num_parts, part + step);
        tile.save = fold.load + part * tile.num_tokens;
        tile.save_step = tile.num_tokens;
        pieces.push_back(tile);
      }
      plan_.num_slots += num_parts * tile.num_tokens;
    }
    plan_.first = std::move(pieces);
  }

  int num_parts(int row) const { return parts_of(rows_.positions[end(row) - 1] + 1); }

  void add_tokens(int first, int last) {
    for (int token = first; token < last; ++token) plan_.tokens.push_back(token);
  }

  const Rows& rows_;
  const int num_threads_;
  Plan plan_;
};

}  // namespace

Plan make_plan(const Rows& rows, int num_threads) { return Planner(rows, num_threads).make(); }

}  // namespace headway
