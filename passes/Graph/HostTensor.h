// Small tensors the compiler computes with: shape arithmetic, masks, tables.
// Integers and bools are held as int64, floats as double rounded to the element
// type after every operation. A splat holds one element.
#pragma once

#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Operation.h"

#include <functional>
#include <optional>

namespace merak {

// Larger results are not evaluated.
inline constexpr int64_t kMaxEvaluated = int64_t(1) << 24;

struct HostTensor {
  mlir::RankedTensorType type;
  std::vector<double> reals;     // of float types
  std::vector<int64_t> integers; // of integer types and bool

  bool isFloat() const {
    return llvm::isa<mlir::FloatType>(type.getElementType());
  }
  size_t stored() const { return isFloat() ? reals.size() : integers.size(); }
  bool isSplat() const { return stored() == 1; }
  int64_t size() const { return type.getNumElements(); }
  double real(int64_t i) const {
    size_t at = isSplat() ? 0 : i;
    return isFloat() ? reals[at] : static_cast<double>(integers[at]);
  }
  int64_t integer(int64_t i) const {
    size_t at = isSplat() ? 0 : i;
    return isFloat() ? static_cast<int64_t>(reals[at]) : integers[at];
  }
};

// Null for element types other than floats up to 64 bits and integers.
std::optional<HostTensor> toHost(mlir::DenseElementsAttr value);
mlir::DenseElementsAttr toAttribute(const HostTensor &tensor);

// The integers of a constant, if it is of an integer type.
std::optional<llvm::SmallVector<int64_t>>
integersOf(mlir::DenseElementsAttr value);

// Result of a train op on tensors; nothing: as below.
std::optional<HostTensor> evaluateOnHost(mlir::Operation *op,
                                         llvm::ArrayRef<HostTensor> operands);

// Result of a train op on constants; null if the op has no such meaning, or
// the result would be too large.
mlir::DenseElementsAttr
evaluate(mlir::Operation *op, llvm::ArrayRef<mlir::DenseElementsAttr> operands);

// result[i] = f(a[i], b[i]) with broadcasting, in the type of `type`.
std::optional<HostTensor>
zip(const HostTensor &a, const HostTensor &b, mlir::RankedTensorType type,
    const std::function<double(double, double)> &real,
    const std::function<int64_t(int64_t, int64_t)> &integer);

// `value` rounded to the float type `element`.
double roundTo(mlir::Type element, double value);

} // namespace merak
