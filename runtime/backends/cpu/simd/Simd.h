// The inner loops of the CPU kernels, compiled once for each instruction set
// and chosen at run time, so that one binary runs on any x86-64.
//
// All functions work on contiguous f32 unless they say otherwise, run on one
// thread, allow unaligned pointers, and give bits that depend only on their
// arguments, never on alignment. Output may equal an input, but not overlap it
// otherwise.
#pragma once

#include "runtime/core/Float8.h"

#include <cstdint>

namespace merak::cpu {

// Scalars of one step of Adam in any form: torch.optim's AdamW and Adam, ONNX's
// Adam.
struct AdamWStep {
  float l2 = 0; // times the parameter, added to the gradient
  float decay;  // 1 - lr * weight_decay
  float beta1, beta2;
  float oneMinusBeta1, oneMinusBeta2;
  float stepSize;       // lr / (1 - beta1^t)
  float rootCorrection; // sqrt(1 - beta2^t)
  float eps;
  float keep = 1; // a factor on the new parameter
};

// One of several steps of Adam without a gradient, taken one after the other;
// the bounds are those from this one to the last.
struct AdamWReplayStep {
  AdamWStep step;
  float mostSize = 0;    // the largest step size
  float leastKept = 0;   // what is left of a parameter by decay alone
  float leastSecond = 0; // what is left of the average of squares
};

// Scalars of one Adagrad step.
struct AdagradStep {
  float l2; // times the parameter, added to the gradient
  float rate, eps;
};

// Scalars of one SGD step; `momentum` 0: `buffer` is not touched.
struct SgdStep {
  float lr, momentum, oneMinusDampening, weightDecay;
  bool nesterov, first; // first: the buffer starts as the gradient
};

// What one dropout op draws in one step; see runtime/core/Philox.h.
struct DropoutRow {
  uint64_t seed = 0;
  uint32_t op = 0, step = 0;
  uint32_t threshold = 0; // smaller words drop
  float scale = 1;
};

struct Simd {
  const char *name; // "avx512", "avx2", "baseline"

  // ---- matrix product ----
  int64_t tileRows;  // rows of a tile (A panel)
  int64_t tileCols;  // columns of a tile (B panel)
  int64_t panelRows; // pitch of a packed A panel, >= tileRows
  // dst[p * pitch + i] = src[i * inner + p * outer] for i < count, p < k;
  // zero for count <= i < width. The pitch is a multiple of the vector length
  // and at least width; elements up to it may be written.
  void (*pack)(float *dst, int64_t pitch, int64_t width, const float *src,
               int64_t inner, int64_t outer, int64_t count, int64_t k);
  // C[rows x n] = alpha * A B (+ C if add), rows <= tileRows.
  // A: element (i, p) at a[p * lda + i]. B: panels of tileCols columns, panel j
  // at b + j * panelStride, element (p, c) at [p * ldb + c]; the columns of the
  // last panel beyond n are readable. C has unit column stride.
  // Every element is one chain of fused multiply-adds in the order of p.
  void (*multiply)(int64_t rows, int64_t n, int64_t k, const float *a,
                   int64_t lda, const float *b, int64_t ldb,
                   int64_t panelStride, float *c, int64_t ldc, float alpha,
                   bool add);

  // ---- rows ----
  float (*max)(const float *x, int64_t n);
  // The largest bits of a magnitude; those of a NaN are above infinity's.
  uint32_t (*largestBits)(const float *x, int64_t n);
  // See runtime/core/Float8.h; `scale`: its exponent.
  void (*roundToFloat8)(float *y, const float *x, int64_t n,
                        const runtime::Float8 &type, int scale);
  float (*sum)(const float *x, int64_t n);
  float (*dot)(const float *x, const float *y, int64_t n);
  double (*squareSum)(const float *x, int64_t n);
  // y = exp(x - shift), returns the sum; y may be null.
  float (*expSum)(float *y, const float *x, int64_t n, float shift);
  void (*scale)(float *y, const float *x, int64_t n, float factor);
  // y += x
  void (*add)(float *y, const float *x, int64_t n);
  // total[j] += the sum over i < rows of x[i * stride + j], in order of i.
  void (*addRows)(float *total, const float *x, int64_t stride, int64_t rows,
                  int64_t n);
  // y += factor * x
  void (*axpy)(float *y, const float *x, int64_t n, float factor);
  // y += a * b
  void (*addProduct)(float *y, const float *a, const float *b, int64_t n);
  // Sum of (x - mean)^2.
  float (*squaredDeviation)(const float *x, int64_t n, float mean);
  // y = (x - mean) * rstd [* scale] [+ bias]; scale and bias may be null.
  void (*normalize)(float *y, const float *x, int64_t n, float mean, float rstd,
                    const float *scale, const float *bias);
  // The two means of the layer norm gradient: of dy * scale, and of
  // dy * scale * (x - mean) * rstd. scale may be null.
  void (*normGradSums)(const float *dy, const float *x, const float *scale,
                       int64_t n, float mean, float rstd, float *sums);
  // dx = rstd * (dy * scale - a - (x - mean) * rstd * b)
  void (*normGrad)(float *dx, const float *dy, const float *x,
                   const float *scale, int64_t n, float mean, float rstd,
                   float a, float b);
  // dscale += dy * (x - mean) * rstd; dbias += dy. dbias may be null.
  void (*normParamGrad)(float *dscale, float *dbias, const float *dy,
                        const float *x, int64_t n, float mean, float rstd);
  // dx = y * (dy - d)
  void (*softmaxGrad)(float *dx, const float *y, const float *dy, int64_t n,
                      float d);
  // ds = p * (dp - d) * factor
  void (*attentionGrad)(float *ds, const float *p, const float *dp, int64_t n,
                        float d, float factor);
  // y1 = x1 * c - x2 * s; y2 = x2 * c + x1 * s
  void (*rotate)(float *y1, float *y2, const float *x1, const float *x2,
                 const float *c, const float *s, int64_t n);
  // `factor` multiplies the gradient before anything else.
  void (*adamW)(float *param, float *m, float *v, const float *grad, int64_t n,
                float factor, const AdamWStep &step);
  // `count` steps with gradients of zero: the bits of so many calls of adamW.
  void (*adamWReplay)(float *param, float *m, float *v, int64_t n,
                      const AdamWReplayStep *steps, int64_t count);
  void (*sgd)(float *param, float *buffer, const float *grad, int64_t n,
              float factor, const SgdStep &step);
  void (*adagrad)(float *param, float *sum, const float *grad, int64_t n,
                  float factor, const AdagradStep &step);
  // y = x as bf16, or as f16: floatToBf16 and floatToF16 (HalfFloat.h).
  void (*narrow)(uint16_t *y, const float *x, int64_t n, bool isF16);

  // y = x * scale or 0; x[0] is element `first` of the global tensor.
  void (*dropout)(float *y, const float *x, int64_t n, uint64_t first,
                  const DropoutRow &row);

  // ---- moving ----
  // dst[j * dstPitch + i] = src[i * srcPitch + j], i < rows, j < cols; 4-byte
  // elements of any type.
  void (*transpose32)(void *dst, int64_t dstPitch, const void *src,
                      int64_t srcPitch, int64_t rows, int64_t cols);
};

// The best set this machine runs; MERAK_SIMD=avx512|avx2|baseline asks for a
// lower one.
const Simd &simd();
// A set by name; null if unknown or not runnable here.
const Simd *findSimd(const char *name);

} // namespace merak::cpu
