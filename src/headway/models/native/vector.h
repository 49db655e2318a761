// Vectors of floats as wide as the machine the library is built for, with what the kernels need of them.
// Only GCC's vector extensions, so the same source serves AVX-512, AVX2 and others; half precision needs intrinsics.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace headway {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Vec __attribute__((vector_size(sizeof(float) * kLanes)));
typedef int32_t IntVec __attribute__((vector_size(sizeof(float) * kLanes)));

struct Half { uint16_t bits; };      // IEEE binary16
struct BFloat16 { uint16_t bits; };  // the upper half of a float

inline Vec splat(float x) { return x - Vec{}; }

inline Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }

inline float widen(Half h) {
#if defined(__F16C__)
  return _cvtsh_ss(h.bits);
#else
  const uint32_t sign = uint32_t(h.bits & 0x8000) << 16, rest = h.bits & 0x7fff;
  float magnitude;
  const uint32_t shifted = rest << 13;
  std::memcpy(&magnitude, &shifted, sizeof magnitude);
  magnitude *= 0x1p112f;  // moves the exponent's bias from 15 to 127, subnormals included
  uint32_t bits;
  std::memcpy(&bits, &magnitude, sizeof bits);
  if (rest >= 0x7c00) bits |= 0x7f800000;
  bits |= sign;
  std::memcpy(&magnitude, &bits, sizeof bits);
  return magnitude;
#endif
}

inline float widen(BFloat16 b) {
  const uint32_t bits = uint32_t(b.bits) << 16;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline Half narrow(float x, Half) {
#if defined(__F16C__)
  return {_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)};
#else
  // Nearest, ties to even: let float arithmetic round at the place of half's last bit.
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return {uint16_t(sign | 0x7e00)};
  if (bits >= 0x477ff000) return {uint16_t(sign | 0x7c00)};
  if (bits < 0x38800000) {  // subnormal: adding 0.5 leaves the value in units of 2^-24 in the low bits
    float magnitude;
    std::memcpy(&magnitude, &bits, sizeof magnitude);
    magnitude += 0.5f;
    std::memcpy(&bits, &magnitude, sizeof bits);
    return {uint16_t(sign | (bits - 0x3f000000))};
  }
  bits += 0xfff + (bits >> 13 & 1);
  return {uint16_t(sign | ((bits - 0x38000000) >> 13))};
#endif
}

inline BFloat16 narrow(float x, BFloat16) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return {0x7fc0};
  return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

inline Vec load(const Half* p) {
#if defined(__AVX512F__)
  return Vec(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif defined(__AVX2__) && defined(__F16C__)
  return Vec(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  Vec v;
  for (int i = 0; i < kLanes; ++i) v[i] = widen(p[i]);
  return v;
#endif
}

inline Vec load(const BFloat16* p) {
  typedef uint16_t Narrow __attribute__((vector_size(sizeof(uint16_t) * kLanes)));
  Narrow narrow;
  std::memcpy(&narrow, p, sizeof narrow);
  return Vec(__builtin_convertvector(narrow, IntVec) << 16);
}

inline Vec maximum(Vec a, Vec b) { return a > b ? a : b; }  // b if either is not a number

// a * b + c, rounded once where the machine can, and never otherwise in one place than in another.
inline Vec multiply_add(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return Vec(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
#elif defined(__AVX2__) && defined(__FMA__)
  return Vec(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c)));
#elif defined(__ARM_NEON)
  return Vec(vfmaq_f32(float32x4_t(c), float32x4_t(a), float32x4_t(b)));
#else
  return a * b + c;
#endif
}

#if defined(__clang__) || __GNUC__ >= 12
#define HEADWAY_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define HEADWAY_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, IntVec{__VA_ARGS__})
#endif

// One step of a transposition: swap a's lanes that have bit `step` with b's that have not.
template <int step, int... lane>
inline void exchange(Vec& a, Vec& b, std::integer_sequence<int, lane...>) {
  const Vec low = HEADWAY_SHUFFLE(a, b, ((lane & step) ? kLanes + (lane ^ step) : lane)...);
  const Vec high = HEADWAY_SHUFFLE(a, b, ((lane & step) ? kLanes + lane : (lane | step))...);
  a = low;
  b = high;
}

// rows[r][c] becomes rows[c][r].
template <int step = kLanes / 2>
inline void transpose(Vec* rows) {
#pragma GCC unroll 16
  for (int r = 0; r < kLanes; ++r)
    if (!(r & step)) exchange<step>(rows[r], rows[r | step], std::make_integer_sequence<int, kLanes>{});
  if constexpr (step > 1) transpose<step / 2>(rows);
}

inline float sum(Vec v) {
  float total = 0.0f;
  for (int i = 0; i < kLanes; ++i) total += v[i];
  return total;
}

// exp(x) for x <= 88, within 2 units in the last place; 0 below -87, where the result would be subnormal; NaN for NaN.
// x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor series, 2^n by the exponent's bits.
inline Vec exponential(Vec x) {
  const Vec floor = splat(-87.0f);
  const Vec shifter = splat(0x1.8p23f);  // adding it leaves the nearest whole number in the low bits
  const Vec bounded = maximum(floor, x);
  const Vec shifted = bounded * 1.44269504f + shifter;
  const Vec n = shifted - shifter;
  const Vec r = (bounded - n * 0.693359375f) - n * -2.12194440e-4f;
  Vec series = splat(1.0f / 720);
  series = series * r + 1.0f / 120;
  series = series * r + 1.0f / 24;
  series = series * r + 1.0f / 6;
  series = series * r + 0.5f;
  series = series * r + 1.0f;
  series = series * r + 1.0f;
  const IntVec power = (IntVec(shifted) - IntVec(shifter) + 127) << 23;
  return x < floor ? Vec{} : series * Vec(power);
}

}  // namespace headway
