// Functions over rows of floats. Sums use a fixed number of running sums, so
// that their order depends only on the length.
#pragma once

#include "runtime/backends/cpu/simd/Simd.h"
#include "runtime/backends/cpu/simd/Vec.h"

namespace {
using merak::cpu::AdagradStep;
using merak::cpu::AdamWStep;
using merak::cpu::SgdStep;

// exp(x) within about 1 ulp; below -87.33 zero, above 88.37 clamped.
// exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln 2 / 2, and
// exp(r) = 1 + r + r^2 q(r), q fitted with relative error 3.1e-9.
MERAK_INLINE Vec vexp(Vec x) {
  const Vec low = vset(-87.33f);
  Vec y = vmin(vset(88.37f), vmax(low, x)); // keeps a NaN
  Vec n = vround(y * vset(1.44269504f));
  // ln 2 in two parts, the first with 9 bits, so that n * part is exact.
  Vec r = vfma(n, vset(-0.693359375f), y);
  r = vfma(n, vset(2.12194440e-4f), r);
  Vec q = vset(1.3814464910e-3f);
  q = vfma(q, r, vset(8.3687808365e-3f));
  q = vfma(q, r, vset(4.1668392718e-2f));
  q = vfma(q, r, vset(1.6666519642e-1f));
  q = vfma(q, r, vset(4.9999994040e-1f));
  Vec value = vfma(r * r, q, r) + vset(1);
  return vzeroBelow(vscalePow2(value, n), x, low);
}

// A sum of term(i-th vector) with four running sums.
template <typename Term> MERAK_INLINE Vec sumVectors(int64_t n, Term term) {
  Vec s0 = vset(0), s1 = vset(0), s2 = vset(0), s3 = vset(0);
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    s0 = s0 + term(Whole{i});
    s1 = s1 + term(Whole{i + kLanes});
    s2 = s2 + term(Whole{i + 2 * kLanes});
    s3 = s3 + term(Whole{i + 3 * kLanes});
  }
  for (; i + kLanes <= n; i += kLanes)
    s0 = s0 + term(Whole{i});
  if (i < n)
    s1 = s1 + term(Partial{i, n - i});
  return (s0 + s1) + (s2 + s3);
}

float rowMax(const float *x, int64_t n) {
  float best = -__builtin_inff();
  int64_t i = 0;
  if (n >= kLanes) {
    Vec m = vload(x);
    for (i = kLanes; i + kLanes <= n; i += kLanes)
      m = vmax(m, vload(x + i));
    best = vmaxOf(m);
  }
  for (; i < n; ++i)
    best = x[i] > best ? x[i] : best;
  return best;
}

// Loops that compilers make vectors of.
uint32_t rowLargestBits(const float *x, int64_t n) {
  uint32_t most = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = merak::runtime::floatToBits(x[i]) & 0x7fffffff;
    most = bits > most ? bits : most;
  }
  return most;
}

void rowRoundToFloat8(float *y, const float *x, int64_t n,
                      const merak::runtime::Float8 &type, int scale) {
  const merak::runtime::Float8 own = type;
  const float by = merak::runtime::powerOfTwo(scale);
  const float inverse = merak::runtime::powerOfTwo(-scale);
  for (int64_t i = 0; i < n; ++i)
    y[i] = merak::runtime::roundToFloat8(own, x[i], by, inverse);
}

float rowSum(const float *x, int64_t n) {
  return vsum(sumVectors(n, [=](auto at) { return at(x); }));
}

float rowDot(const float *x, const float *y, int64_t n) {
  return vsum(sumVectors(n, [=](auto at) { return at(x) * at(y); }));
}

double rowSquareSum(const float *x, int64_t n) {
  VecD low = vzeroD(), high = vzeroD();
  forVectors(
      n, [&](auto at) __attribute__((always_inline)) {
        Vec v = at(x);
        VecD a = vlow(v), b = vhigh(v);
        low = low + a * a;
        high = high + b * b;
      });
  return vsumD(low + high);
}

float rowExpSum(float *y, const float *x, int64_t n, float shift) {
  const Vec s = vset(shift);
  Vec sum0 = vset(0), sum1 = vset(0);
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    Vec e0 = vexp(vload(x + i) - s), e1 = vexp(vload(x + i + kLanes) - s);
    if (y) {
      vstore(y + i, e0);
      vstore(y + i + kLanes, e1);
    }
    sum0 = sum0 + e0;
    sum1 = sum1 + e1;
  }
  for (; i < n; i += kLanes) {
    int64_t count = n - i < kLanes ? n - i : kLanes;
    float lane[kLanes] = {};
    if (count == kLanes) {
      Vec e = vexp(vload(x + i) - s);
      if (y)
        vstore(y + i, e);
      sum0 = sum0 + e;
      continue;
    }
    Vec e = vexp(vloadFirst(x + i, count) - s);
    vstoreFirst(lane, e, count); // drops the lanes beyond the end
    if (y)
      vstoreFirst(y + i, e, count);
    sum1 = sum1 + vload(lane);
  }
  return vsum(sum0 + sum1);
}

void rowScale(float *y, const float *x, int64_t n, float factor) {
  const Vec f = vset(factor);
  forVectors(n, [=](auto at) { at(y, at(x) * f); });
}
void rowAdd(float *y, const float *x, int64_t n) {
  forVectors(n, [=](auto at) { at(y, at(y) + at(x)); });
}
// Columns in registers while the rows pass by.
void rowAddRows(float *total, const float *x, int64_t stride, int64_t rows,
                int64_t n) {
  int64_t j = 0;
  for (; j + 4 * kLanes <= n; j += 4 * kLanes) {
    Vec s0 = vset(0), s1 = vset(0), s2 = vset(0), s3 = vset(0);
    const float *p = x + j;
    for (int64_t i = 0; i < rows; ++i, p += stride) {
      s0 = s0 + vload(p);
      s1 = s1 + vload(p + kLanes);
      s2 = s2 + vload(p + 2 * kLanes);
      s3 = s3 + vload(p + 3 * kLanes);
    }
    float *out = total + j;
    vstore(out, vload(out) + s0);
    vstore(out + kLanes, vload(out + kLanes) + s1);
    vstore(out + 2 * kLanes, vload(out + 2 * kLanes) + s2);
    vstore(out + 3 * kLanes, vload(out + 3 * kLanes) + s3);
  }
  forVectors(
      n - j, [=](auto at) __attribute__((always_inline)) {
        Vec sum = vset(0);
        const float *p = x + j;
        for (int64_t i = 0; i < rows; ++i, p += stride)
          sum = sum + at(p);
        at(total + j, at(total + j) + sum);
      });
}
void rowAxpy(float *y, const float *x, int64_t n, float factor) {
  const Vec f = vset(factor);
  forVectors(n, [=](auto at) { at(y, at(y) + at(x) * f); });
}
void rowAddProduct(float *y, const float *a, const float *b, int64_t n) {
  forVectors(n, [=](auto at) { at(y, at(y) + at(a) * at(b)); });
}

float rowSquaredDeviation(const float *x, int64_t n, float mean) {
  const Vec m = vset(mean);
  int64_t whole = n / kLanes * kLanes;
  float s = vsum(sumVectors(whole, [=](auto at) {
    Vec d = at(x) - m;
    return d * d;
  }));
  for (int64_t i = whole; i < n; ++i)
    s += (x[i] - mean) * (x[i] - mean);
  return s;
}

void rowNormalize(float *y, const float *x, int64_t n, float mean, float rstd,
                  const float *scale, const float *bias) {
  const Vec m = vset(mean), r = vset(rstd);
  if (scale && bias)
    forVectors(n,
               [=](auto at) { at(y, (at(x) - m) * r * at(scale) + at(bias)); });
  else if (scale)
    forVectors(n, [=](auto at) { at(y, (at(x) - m) * r * at(scale)); });
  else if (bias)
    forVectors(n, [=](auto at) { at(y, (at(x) - m) * r + at(bias)); });
  else
    forVectors(n, [=](auto at) { at(y, (at(x) - m) * r); });
}

// Lanes beyond the end hold dy = 0 and so add nothing.
void rowNormGradSums(const float *dy, const float *x, const float *scale,
                     int64_t n, float mean, float rstd, float *sums) {
  const Vec m = vset(mean), r = vset(rstd);
  Vec a0 = vset(0), a1 = vset(0), b0 = vset(0), b1 = vset(0);
  auto term = [=](auto at, Vec &a, Vec &b) __attribute__((always_inline)) {
    Vec g = scale ? at(dy) * at(scale) : at(dy);
    a = a + g;
    b = b + g * ((at(x) - m) * r);
  };
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    term(Whole{i}, a0, b0);
    term(Whole{i + kLanes}, a1, b1);
  }
  for (; i + kLanes <= n; i += kLanes)
    term(Whole{i}, a0, b0);
  if (i < n)
    term(Partial{i, n - i}, a1, b1);
  sums[0] = vsum(a0 + a1) / static_cast<float>(n);
  sums[1] = vsum(b0 + b1) / static_cast<float>(n);
}

void rowNormGrad(float *dx, const float *dy, const float *x, const float *scale,
                 int64_t n, float mean, float rstd, float a, float b) {
  const Vec m = vset(mean), r = vset(rstd), va = vset(a), vb = vset(b);
  if (scale)
    forVectors(n, [=](auto at) {
      at(dx, r * (at(dy) * at(scale) - va - (at(x) - m) * r * vb));
    });
  else
    forVectors(
        n, [=](auto at) { at(dx, r * (at(dy) - va - (at(x) - m) * r * vb)); });
}

void rowNormParamGrad(float *dscale, float *dbias, const float *dy,
                      const float *x, int64_t n, float mean, float rstd) {
  const Vec m = vset(mean), r = vset(rstd);
  if (dbias)
    forVectors(n, [=](auto at) {
      Vec g = at(dy);
      at(dscale, at(dscale) + g * ((at(x) - m) * r));
      at(dbias, at(dbias) + g);
    });
  else
    forVectors(n, [=](auto at) {
      at(dscale, at(dscale) + at(dy) * ((at(x) - m) * r));
    });
}

void rowSoftmaxGrad(float *dx, const float *y, const float *dy, int64_t n,
                    float d) {
  const Vec vd = vset(d);
  forVectors(n, [=](auto at) { at(dx, at(y) * (at(dy) - vd)); });
}

void rowAttentionGrad(float *ds, const float *p, const float *dp, int64_t n,
                      float d, float factor) {
  const Vec vd = vset(d), f = vset(factor);
  forVectors(n, [=](auto at) { at(ds, at(p) * (at(dp) - vd) * f); });
}

void rowRotate(float *y1, float *y2, const float *x1, const float *x2,
               const float *c, const float *s, int64_t n) {
  forVectors(n, [=](auto at) {
    Vec a = at(x1), b = at(x2), cs = at(c), sn = at(s);
    at(y1, a * cs - b * sn);
    at(y2, b * cs + a * sn);
  });
}

void rowAdamW(float *param, float *m, float *v, const float *grad, int64_t n,
              float factor, const AdamWStep &step) {
  const Vec f = vset(factor), decay = vset(step.decay);
  const Vec b1 = vset(step.beta1), b2 = vset(step.beta2);
  const Vec c1 = vset(step.oneMinusBeta1), c2 = vset(step.oneMinusBeta2);
  const Vec root = vset(step.rootCorrection), eps = vset(step.eps);
  const Vec size = vset(step.stepSize);
  const Vec l2 = vset(step.l2), keep = vset(step.keep);
  forVectors(n, [=](auto at) {
    Vec p = at(param);
    Vec g = at(grad) * f + l2 * p;
    Vec first = at(m) * b1 + g * c1;
    Vec second = at(v) * b2 + g * g * c2;
    at(m, first);
    at(v, second);
    Vec denominator = vsqrt(second) / root + eps;
    at(param, (p * decay - size * (first / denominator)) * keep);
  });
}

// Elements of `kVectors` vectors at once, which hides how long each operation
// takes. Once no step that is left moves a parameter by a quarter of the
// distance to its neighbours, the root and the divisions are left out: what is
// subtracted is rounded away.
template <int kVectors, typename At>
MERAK_INLINE void adamWReplay(const At *at, float *param, float *m, float *v,
                              const merak::cpu::AdamWReplayStep *steps,
                              int64_t count) {
  constexpr int64_t kBetweenTests = 8;
  const Vec zero = vset(0), tiny = vset(0x1p-27f), floor = vset(1e-36f);
  Vec p[kVectors], first[kVectors], second[kVectors];
  for (int i = 0; i < kVectors; ++i) {
    p[i] = at[i](param);
    first[i] = at[i](m);
    second[i] = at[i](v);
  }
  int64_t s = 0;
  for (; s < count; ++s) {
    const AdamWStep &step = steps[s].step;
    if (s % kBetweenTests == 0 && step.l2 == 0) {
      const Vec size = vset(steps[s].mostSize), kept = vset(steps[s].leastKept);
      const Vec left = vset(steps[s].leastSecond), eps = vset(step.eps);
      float room[kVectors * kLanes];
      for (int i = 0; i < kVectors; ++i) {
        const Vec root = vsqrt(vmax(zero, second[i] * left - floor)) + eps;
        const Vec bound = tiny * vmax(p[i], zero - p[i]) * kept * root;
        const Vec most = size * vmax(first[i], zero - first[i]);
        vstore(room + i * kLanes, bound - most);
      }
      bool isRounded = true;
      for (int i = 0; i < kVectors * kLanes; ++i)
        isRounded &= room[i] > 0; // no NaN is
      if (isRounded)
        break;
    }
    const Vec decay = vset(step.decay), b1 = vset(step.beta1),
              b2 = vset(step.beta2), c1 = vset(step.oneMinusBeta1),
              c2 = vset(step.oneMinusBeta2), root = vset(step.rootCorrection),
              eps = vset(step.eps), size = vset(step.stepSize),
              l2 = vset(step.l2), keep = vset(step.keep);
    for (int i = 0; i < kVectors; ++i) {
      const Vec g = zero + l2 * p[i];
      first[i] = first[i] * b1 + g * c1;
      second[i] = second[i] * b2 + g * g * c2;
      const Vec denominator = vsqrt(second[i]) / root + eps;
      p[i] = (p[i] * decay - size * (first[i] / denominator)) * keep;
    }
  }
  for (; s < count; ++s) {
    const AdamWStep &step = steps[s].step;
    const Vec decay = vset(step.decay), keep = vset(step.keep),
              b1 = vset(step.beta1), b2 = vset(step.beta2);
    for (int i = 0; i < kVectors; ++i) {
      first[i] = first[i] * b1 + zero;
      second[i] = second[i] * b2 + zero;
      p[i] = p[i] * decay * keep;
    }
  }
  for (int i = 0; i < kVectors; ++i) {
    at[i](param, p[i]);
    at[i](m, first[i]);
    at[i](v, second[i]);
  }
}

void rowAdamWReplay(float *param, float *m, float *v, int64_t n,
                    const merak::cpu::AdamWReplayStep *steps, int64_t count) {
  constexpr int kVectors = 4;
  const int64_t many = n - n % (kVectors * kLanes);
  for (int64_t i = 0; i < many; i += kVectors * kLanes) {
    const Whole at[kVectors] = {
        {i}, {i + kLanes}, {i + 2 * kLanes}, {i + 3 * kLanes}};
    adamWReplay<kVectors>(at, param, m, v, steps, count);
  }
  forVectors(n - many, [=](auto at) {
    adamWReplay<1>(&at, param + many, m + many, v + many, steps, count);
  });
}

void rowSgd(float *param, float *buffer, const float *grad, int64_t n,
            float factor, const SgdStep &step) {
  const Vec f = vset(factor), lr = vset(step.lr);
  const Vec decay = vset(step.weightDecay), momentum = vset(step.momentum);
  const Vec rest = vset(step.oneMinusDampening);
  const bool useBuffer = buffer, nesterov = step.nesterov, first = step.first;
  forVectors(n, [=](auto at) {
    Vec p = at(param);
    Vec g = at(grad) * f + decay * p;
    if (useBuffer) {
      Vec b = first ? g : at(buffer) * momentum + rest * g;
      at(buffer, b);
      g = nesterov ? g + momentum * b : b;
    }
    at(param, p - lr * g);
  });
}

void rowAdagrad(float *param, float *sum, const float *grad, int64_t n,
                float factor, const AdagradStep &step) {
  const Vec f = vset(factor), l2 = vset(step.l2);
  const Vec rate = vset(step.rate), eps = vset(step.eps);
  forVectors(n, [=](auto at) {
    Vec p = at(param);
    Vec g = at(grad) * f + l2 * p;
    Vec squares = at(sum) + g * g;
    at(sum, squares);
    at(param, p - rate * (g / (vsqrt(squares) + eps)));
  });
}

// As HalfFloat.h has them, without branches, so that the compiler makes
// vectors of both; inline functions from there would be one for all sets of
// instructions.
MERAK_INLINE uint16_t narrowToBf16(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const bool isNan = (bits & 0x7fffffff) > 0x7f800000;
  return static_cast<uint16_t>(isNan ? (bits >> 16) | 0x40 : rounded);
}
MERAK_INLINE uint16_t narrowToF16(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t magnitude = bits & 0x7fffffff;
  // Below 2^-14 the spacing is 2^-24: adding 0.5 leaves it in the low bits.
  const uint32_t small =
      __builtin_bit_cast(uint32_t,
                         __builtin_bit_cast(float, magnitude) + 0.5f) -
      0x3f000000;
  const uint32_t normal =
      (magnitude + 0xfff + ((magnitude >> 13) & 1) - 0x38000000) >> 13;
  uint32_t result = magnitude < 0x38800000 ? small : normal;
  result = magnitude >= 0x477ff000 ? 0x7c00 : result; // 65536 or more
  result = magnitude > 0x7f800000 ? 0x7e00 : result;  // not a number
  return static_cast<uint16_t>(result | ((bits >> 16) & 0x8000));
}
void rowNarrow(uint16_t *y, const float *x, int64_t n, bool isF16) {
  if (isF16)
    for (int64_t i = 0; i < n; ++i)
      y[i] = narrowToF16(x[i]);
  else
    for (int64_t i = 0; i < n; ++i)
      y[i] = narrowToBf16(x[i]);
}

} // namespace
