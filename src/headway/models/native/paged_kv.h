// One step's inputs, and the blocks that hold keys and values.
#pragma once

#include <cstdint>
#include <vector>

namespace headway {

constexpr int kKeyTile = 32;     // keys read at a time
constexpr int kKeyPadding = 8;   // pointers behind a whole tile that must be readable too

enum class NumberKind { kFloat = 0, kHalf = 1, kBFloat16 = 2 };

// See BatchMeta and the Attention seam for the meaning of the arrays.
struct Batch {
  const float *q, *k, *v;
  int64_t q_stride, k_stride, v_stride;  // between tokens, in floats
  void* kv_cache;
  NumberKind kv_kind;
  const int64_t *positions, *slot_mapping;
  const int32_t* block_tables;
  float* out;
  int64_t num_tokens, table_width;
  int num_heads, num_kv_heads, block_size, head_dim;
  float scale;

  int group() const { return num_heads / num_kv_heads; }
  // Where one head's keys (part 0) or values (1) of a token begin, in numbers from the start of the cache.
  int64_t place(int64_t block, int part, int head, int64_t offset) const {
    return (((block * 2 + part) * num_kv_heads + head) * block_size + offset) * head_dim;
  }
};

// Copy the step's keys and values to their slots, rounding to the cache's numbers.
void write_kv(const Batch& batch);

// A few neighbouring keys of one row and head, and their values, as floats. Pointers beyond the last key are valid to
// read, and mean nothing.
struct KeyTile {
  int first, count;
  const float *keys[kKeyTile + kKeyPadding], *values[kKeyTile + kKeyPadding];
};

// Reads the tiles of one row and head in order. What is not stored as floats is widened on the way, so `now` and `next`
// stay valid until the second call of `advance` after they came up.
class KeyReader {
 public:
  KeyReader(const Batch& batch, int row, int kv_head, std::vector<float>& memory);

  // Begin with the keys at positions first .. end - 1.
  void start(int first, int end);
  void advance();
  const KeyTile& now() const { return tiles_[turn_]; }
  const KeyTile& next() const { return tiles_[turn_ ^ 1]; }  // count <= 0 behind the last

 private:
  void find(int first, KeyTile& tile, float* wide);
  template <class T>
  void widen(KeyTile& tile, float* wide);

  const Batch& batch_;
  const int32_t* table_;
  int kv_head_, end_ = 0, turn_ = 0;
  float* wide_;
  KeyTile tiles_[2];
};

}  // namespace headway
