// y = x W^T + b with W in float, half or bfloat16 and all arithmetic in float.
//
// W is packed in panels of kPanel output features, [panel][in_features][kPanel], the last one padded with zeros.
// Every output is one sum over the input features in their order, whatever the number of rows: a row's result
// does not depend on the rows beside it.

#include <algorithm>
#include <utility>

#include "pool.h"
#include "vector.h"

namespace headway {
namespace {

constexpr int kVecs = 2;  // vectors per panel
constexpr int kPanel = kVecs * kLanes;
constexpr int kMaxRows = kLanes == 16 ? 12 : 6;  // rows x kVecs accumulators fill the vector registers
constexpr int kRowBlock = 8 * kMaxRows;          // rows of x that stay in the cache while panels pass
constexpr int64_t kItemWork = 1 << 18;           // multiplications per work item, at least: some 5 microseconds

struct Shape {
  int64_t in_features, out_features;
};

inline void store_some(float* out, Vec value, int64_t count) {
  if (count >= kLanes) return store(out, value);
  for (int i = 0; i < count; ++i) out[i] = value[i];
}

// One tile: kRows rows of x times kPanels neighbouring panels, the first of which begins at output `column`.
// What follows these panels is fetched meanwhile: the next tile's weights, if there are no more rows for these.
template <class T, int kRows, int kPanels>
void multiply_tile(const float* x, const T* weight, Shape shape, const float* bias, int64_t column, float* y) {
  constexpr int kWide = kPanels * kVecs;
  const int64_t depth = shape.in_features;
  Vec acc[kRows][kWide] = {};
  for (int64_t k = 0; k < depth; ++k) {
    const T* row = weight + k * kPanel;
    for (size_t byte = 0; byte < kPanel * sizeof(T); byte += 64)
      __builtin_prefetch(reinterpret_cast<const char*>(row + kPanels * depth * kPanel) + byte);
    Vec w[kWide];
#pragma GCC unroll 16
    for (int v = 0; v < kWide; ++v) w[v] = load(row + (v / kVecs) * depth * kPanel + (v % kVecs) * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Vec a = splat(x[r * depth + k]);
#pragma GCC unroll 16
      for (int v = 0; v < kWide; ++v) acc[r][v] += a * w[v];
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kWide; ++v) {
      const int64_t first = column + v * kLanes, count = shape.out_features - first;
      if (bias && count > 0) {
        float padded[kLanes] = {};
        std::copy_n(bias + first, std::min<int64_t>(count, kLanes), padded);
        acc[r][v] += load(padded);
      }
      store_some(y + r * shape.out_features + first, acc[r][v], count);
    }
  }
}

template <class T>
using TileFunction = void (*)(const float*, const T*, Shape, const float*, int64_t, float*);

template <class T, int kPanels, int... kRows>
TileFunction<T> tile_for(int64_t rows, std::integer_sequence<int, kRows...>) {
  static constexpr TileFunction<T> table[] = {multiply_tile<T, kRows + 1, kPanels>...};
  return table[rows - 1];
}

template <class T>
struct Job {
  const float* x;
  int64_t rows;
  const T* weight;
  Shape shape;
  const float* bias;
  float* y;

  void run(int64_t first_row, int64_t last_row, int64_t panel, int64_t last_panel) const {
    // Few rows: several panels at once, for enough independent sums to hide the latency of each.
    constexpr int kFewRows = kMaxRows / 3;
    const int64_t most = rows <= kFewRows ? kFewRows : kMaxRows;
    while (panel < last_panel) {
      const bool three = rows <= kFewRows && panel + 3 <= last_panel;
      // Groups of nearly equal size, so that none is left with a single row.
      int64_t row = first_row;
      for (int64_t groups = (last_row - row + most - 1) / most; groups > 0; --groups) {
        const int64_t take = (last_row - row + groups - 1) / groups;
        const TileFunction<T> tile = three ? tile_for<T, 3>(take, std::make_integer_sequence<int, kFewRows>{})
                                           : tile_for<T, 1>(take, std::make_integer_sequence<int, kMaxRows>{});
        tile(x + row * shape.in_features, weight + panel * shape.in_features * kPanel, shape, bias, panel * kPanel,
             y + row * shape.out_features);
        row += take;
      }
      panel += three ? 3 : 1;
    }
  }
};

template <class T>
void linear(const float* x, int64_t rows, const void* weight, Shape shape, const float* bias, float* y) {
  const Job<T> job{x, rows, static_cast<const T*>(weight), shape, bias, y};
  const int64_t panels = (shape.out_features + kPanel - 1) / kPanel;
  const int64_t row_blocks = (rows + kRowBlock - 1) / kRowBlock;
  const int64_t panel_work = shape.in_features * kPanel * std::min<int64_t>(rows, kRowBlock);
  const int64_t group = std::max<int64_t>(3, kItemWork / panel_work);
  const int64_t groups = (panels + group - 1) / group;
  Pool::instance().run(int(row_blocks * groups), [&](int item) {
    const int64_t row = item / groups * kRowBlock, panel = item % groups * group;
    job.run(row, std::min(rows, row + kRowBlock), panel, std::min(panels, panel + group));
  });
}

}  // namespace
}  // namespace headway

extern "C" int headway_panel_width() { return headway::kPanel; }

// weight_kind: 0 float, 1 half, 2 bfloat16. bias may be null. x and y are contiguous.
extern "C" void headway_linear(
    const float* x, int64_t rows, const void* weight, int weight_kind, int64_t in_features, int64_t out_features,
    const float* bias, float* y) {
  using namespace headway;
  const Shape shape{in_features, out_features};
  if (weight_kind == 0) linear<float>(x, rows, weight, shape, bias, y);
  else if (weight_kind == 1) linear<Half>(x, rows, weight, shape, bias, y);
  else linear<BFloat16>(x, rows, weight, shape, bias, y);
}
