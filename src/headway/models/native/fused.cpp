// The small operations between the products: norm with residual, rotary embedding, gated activation.
// Each token is computed on its own, in an order that does not depend on the others.

#include <algorithm>
#include <cmath>

#include "pool.h"
#include "vector.h"

namespace headway {
namespace {

constexpr int64_t kItemFloats = 1 << 14;  // per work item, about: a few microseconds

// visit(first, last) over all tokens, in pieces worth a thread's while.
template <class Visit>
void for_tokens(int64_t num_tokens, int64_t floats_per_token, const Visit& visit) {
  const int64_t piece = std::max<int64_t>(1, kItemFloats / floats_per_token);
  Pool::instance().run(int((num_tokens + piece - 1) / piece), [&](int item) {
    visit(item * piece, std::min(num_tokens, (item + 1) * piece));
  });
}

// out = x / sqrt(mean(x^2) + eps) * weight; out may be x.
void normalize(const float* x, const float* weight, float eps, int64_t width, float* out) {
  Vec squares[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes)
    for (int v = 0; v < 4; ++v) squares[v] += load(x + i + v * kLanes) * load(x + i + v * kLanes);
  float total = sum((squares[0] + squares[1]) + (squares[2] + squares[3]));
  for (; i < width; ++i) total += x[i] * x[i];
  const float factor = 1.0f / std::sqrt(total / float(width) + eps);
  for (i = 0; i < width; ++i) out[i] = x[i] * factor * weight[i];
}

// Pairs are the two halves of a head.
void rotate_head(float* head, const float* cosines, const float* sines, int half) {
  for (int i = 0; i < half; ++i) {
    const float first = head[i], second = head[half + i];
    head[i] = first * cosines[i] - second * sines[i];
    head[half + i] = second * cosines[i] + first * sines[i];
  }
}

}  // namespace
}  // namespace headway

// out[t] = norm(x[t]), or, if residual is given, residual[t] += x[t] and out[t] = norm(residual[t]).
extern "C" void headway_rms_norm(
    const float* x, float* residual, const float* weight, float eps, int64_t num_tokens, int64_t width, float* out) {
  using namespace headway;
  for_tokens(num_tokens, width, [&](int64_t first, int64_t last) {
    for (int64_t token = first; token < last; ++token) {
      const float* source = x + token * width;
      if (residual) {
        float* sums = residual + token * width;
        for (int64_t i = 0; i < width; ++i) sums[i] += source[i];
        source = sums;
      }
      normalize(source, weight, eps, width, out + token * width);
    }
  });
}

// Normalise (where a weight is given) and rotate the first num_heads + num_kv_heads heads of each row of qkv, in place.
// table: [position][2][head_dim / 2], cosines then sines.
extern "C" void headway_rotate(
    float* qkv, int64_t stride, const int64_t* positions, const float* table, const float* q_norm, const float* k_norm,
    float eps, int64_t num_tokens, int num_heads, int num_kv_heads, int head_dim) {
  using namespace headway;
  for_tokens(num_tokens, stride, [&](int64_t first, int64_t last) {
    for (int64_t token = first; token < last; ++token) {
      const float* cosines = table + positions[token] * head_dim;
      for (int head = 0; head < num_heads + num_kv_heads; ++head) {
        float* at = qkv + token * stride + head * head_dim;
        const float* norm = head < num_heads ? q_norm : k_norm;
        if (norm) normalize(at, norm, eps, head_dim, at);
        rotate_head(at, cosines, cosines + head_dim / 2, head_dim / 2);
      }
    }
  });
}

// out[t] = silu(gate) * up, for rows gate_up[t] = (gate, up) of `width` numbers each.
extern "C" void headway_silu_mul(const float* gate_up, int64_t num_tokens, int64_t width, float* out) {
  using namespace headway;
  for_tokens(num_tokens, 4 * width, [&](int64_t first, int64_t last) {
    for (int64_t token = first; token < last; ++token) {
      const float *gate = gate_up + token * 2 * width, *up = gate + width;
      float* to = out + token * width;
      int64_t i = 0;
      for (; i + kLanes <= width; i += kLanes) {
        const Vec x = maximum(splat(-88.0f), load(gate + i));  // e^88 is still finite
        const Vec power = exponential(splat(0.0f) - x);
        store(to + i, x / (power + 1.0f) * load(up + i));
      }
      for (; i < width; ++i) to[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
    }
  });
}
