// The table of functions of the instruction set this file is compiled for.
#pragma once

#include "runtime/backends/cpu/simd/DropoutImpl.h"
#include "runtime/backends/cpu/simd/GemmImpl.h"
#include "runtime/backends/cpu/simd/RowsImpl.h"

namespace {
using merak::cpu::Simd;

constexpr Simd makeTable(const char *name) {
  return {name,
          kTileRows,
          kTileCols,
          kPanelRows,
          pack,
          multiply,
          rowMax,
          rowLargestBits,
          rowRoundToFloat8,
          rowSum,
          rowDot,
          rowSquareSum,
          rowExpSum,
          rowScale,
          rowAdd,
          rowAddRows,
          rowAxpy,
          rowAddProduct,
          rowSquaredDeviation,
          rowNormalize,
          rowNormGradSums,
          rowNormGrad,
          rowNormParamGrad,
          rowSoftmaxGrad,
          rowAttentionGrad,
          rowRotate,
          rowAdamW,
          rowAdamWReplay,
          rowSgd,
          rowAdagrad,
          rowNarrow,
          rowDropout,
          transpose32};
}

} // namespace
