#include "paged_kv.h"

#include <algorithm>

#include "pool.h"
#include "vector.h"

namespace headway {
namespace {

constexpr int kTokensPerItem = 16;

template <class T>
void write_numbers(const float* from, int count, T* to) {
  for (int i = 0; i < count; ++i) to[i] = narrow(from[i], T{});
}

template <>
void write_numbers(const float* from, int count, float* to) {
  std::copy_n(from, count, to);
}

template <class T>
void write_token(const Batch& batch, int64_t token) {
  T* cache = static_cast<T*>(batch.kv_cache);
  const int64_t slot = batch.slot_mapping[token], block = slot / batch.block_size, offset = slot % batch.block_size;
  for (int head = 0; head < batch.num_kv_heads; ++head) {
    const float* k = batch.k + token * batch.k_stride + int64_t(head) * batch.head_dim;
    const float* v = batch.v + token * batch.v_stride + int64_t(head) * batch.head_dim;
    write_numbers(k, batch.head_dim, cache + batch.place(block, 0, head, offset));
    write_numbers(v, batch.head_dim, cache + batch.place(block, 1, head, offset));
  }
}

template <class T>
void read_numbers(const T* from, int count, float* to) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
  for (; i < count; ++i) to[i] = widen(from[i]);
}

}  // namespace

void write_kv(const Batch& batch) {
  const auto write = batch.kv_kind == NumberKind::kFloat  ? write_token<float>
                     : batch.kv_kind == NumberKind::kHalf ? write_token<Half>
                                                          : write_token<BFloat16>;
  Pool::instance().run(int((batch.num_tokens + kTokensPerItem - 1) / kTokensPerItem), [&](int item) {
    const int64_t first = int64_t(item) * kTokensPerItem, last = std::min(batch.num_tokens, first + kTokensPerItem);
    for (int64_t token = first; token < last; ++token) write(batch, token);
  });
}

KeyReader::KeyReader(const Batch& batch, int row, int kv_head, std::vector<float>& memory)
    : batch_(batch), table_(batch.block_tables + row * batch.table_width), kv_head_(kv_head) {
  if (batch.kv_kind != NumberKind::kFloat) memory.resize(size_t(2) * 2 * kKeyTile * batch.head_dim);
  wide_ = memory.data();
}

void KeyReader::start(int first, int end) {
  end_ = end;
  turn_ = 1;
  find(first, tiles_[0], wide_);
  advance();
}

void KeyReader::advance() {
  turn_ ^= 1;
  const int64_t half = int64_t(2) * kKeyTile * batch_.head_dim;
  find(now().first + now().count, tiles_[turn_ ^ 1], wide_ + (turn_ ^ 1) * half);
}

void KeyReader::find(int first, KeyTile& tile, float* wide) {
  tile.first = first;
  tile.count = std::min(kKeyTile, end_ - first);
  if (batch_.kv_kind == NumberKind::kHalf) return widen<Half>(tile, wide);
  if (batch_.kv_kind == NumberKind::kBFloat16) return widen<BFloat16>(tile, wide);
  const float* cache = static_cast<const float*>(batch_.kv_cache);
  for (int i = 0; i < tile.count; ++i) {
    const int64_t block = table_[(first + i) / batch_.block_size], offset = (first + i) % batch_.block_size;
    tile.keys[i] = cache + batch_.place(block, 0, kv_head_, offset);
    tile.values[i] = cache + batch_.place(block, 1, kv_head_, offset);
  }
  std::fill(tile.keys + std::max(0, tile.count), std::end(tile.keys), cache);
  std::fill(tile.values + std::max(0, tile.count), std::end(tile.values), cache);
}

template <class T>
void KeyReader::widen(KeyTile& tile, float* wide) {
  const T* cache = static_cast<const T*>(batch_.kv_cache);
  const int ahead = std::min(2 * kKeyTile, end_ - tile.first);
  const auto from = [&](int i, int part) {
    const int64_t block = table_[(tile.first + i) / batch_.block_size], offset = (tile.first + i) % batch_.block_size;
    return cache + batch_.place(block, part, kv_head_, offset);
  };
  std::fill(std::begin(tile.keys), std::end(tile.keys), wide);
  std::fill(std::begin(tile.values), std::end(tile.values), wide);
  for (int i = 0; i < tile.count; ++i) {
    if (i + kKeyTile < ahead)  // the tile after this one is fetched while this one is widened
      for (int part = 0; part < 2; ++part)
        for (int d = 0; d < batch_.head_dim; d += 64 / int(sizeof(T))) __builtin_prefetch(from(i + kKeyTile, part) + d);
    float *key = wide + int64_t(2 * i) * batch_.head_dim, *value = key + batch_.head_dim;
    read_numbers(from(i, 0), batch_.head_dim, key);
    read_numbers(from(i, 1), batch_.head_dim, value);
    tile.keys[i] = key;
    tile.values[i] = value;
  }
}

}  // namespace headway
