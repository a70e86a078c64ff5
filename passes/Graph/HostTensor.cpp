#include "passes/Graph/HostTensor.h"

#include "mlir/IR/BuiltinAttributeInterfaces.h"
#include "mlir/IR/Types.h"

#include <algorithm>
#include <type_traits>

using namespace mlir;
using namespace merak;

double merak::roundTo(Type element, double value) {
  if (element.isF64())
    return value;
  if (element.isF32())
    return static_cast<float>(value);
  APFloat number(value);
  bool loses;
  number.convert(cast<FloatType>(element).getFloatSemantics(),
                 APFloat::rmNearestTiesToEven, &loses);
  return number.convertToDouble();
}

std::optional<HostTensor> merak::toHost(DenseElementsAttr value) {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  if (!type)
    return std::nullopt;
  HostTensor result{type, {}, {}};
  if (type.getNumElements() == 0)
    return result;
  Type element = type.getElementType();
  if (auto real = dyn_cast<FloatType>(element)) {
    if (real.getWidth() > 64)
      return std::nullopt;
    if (value.isSplat()) {
      APFloat number = value.getSplatValue<APFloat>();
      result.reals.push_back(number.convertToDouble());
    } else if (element.isF32()) {
      auto values = value.getValues<float>();
      result.reals.assign(values.begin(), values.end());
    } else {
      result.reals.reserve(type.getNumElements());
      for (const APFloat &number : value.getValues<APFloat>())
        result.reals.push_back(number.convertToDouble());
    }
    return result;
  }
  auto integer = dyn_cast<IntegerType>(element);
  if (!integer || integer.getWidth() > 64)
    return std::nullopt;
  bool isUnsigned = integer.isUnsigned() || integer.getWidth() == 1;
  auto read = [&](const APInt &number) {
    return isUnsigned ? static_cast<int64_t>(number.getZExtValue())
                      : number.getSExtValue();
  };
  if (value.isSplat()) {
    result.integers.push_back(read(value.getSplatValue<APInt>()));
  } else if (element.isSignlessInteger(64)) {
    auto values = value.getValues<int64_t>();
    result.integers.assign(values.begin(), values.end());
  } else if (element.isInteger(1)) {
    auto values = value.getValues<bool>();
    result.integers.assign(values.begin(), values.end());
  } else {
    result.integers.reserve(type.getNumElements());
    for (const APInt &number : value.getValues<APInt>())
      result.integers.push_back(read(number));
  }
  return result;
}

template <typename T, typename From>
static DenseElementsAttr pack(RankedTensorType type, ArrayRef<From> values) {
  if constexpr (std::is_same_v<T, From>)
    return DenseElementsAttr::get(type, values);
  std::vector<T> packed(values.begin(), values.end());
  return DenseElementsAttr::get(type, ArrayRef<T>(packed));
}

// Equal elements are stored once, as attributes do.
template <typename T> static ArrayRef<T> shrunk(ArrayRef<T> all) {
  const bool areEqual =
      all.size() > 1 && std::equal(all.begin() + 1, all.end(), all.begin());
  return areEqual ? all.take_front() : all;
}

DenseElementsAttr merak::toAttribute(const HostTensor &tensor) {
  const auto reals = shrunk(ArrayRef(tensor.reals));
  const auto integers = shrunk(ArrayRef(tensor.integers));
  Type element = tensor.type.getElementType();
  if (tensor.isFloat()) {
    if (element.isF32())
      return pack<float>(tensor.type, reals);
    if (element.isF64())
      return pack<double>(tensor.type, reals);
    SmallVector<APFloat> values;
    for (double real : reals) {
      APFloat number(real);
      bool loses;
      number.convert(cast<FloatType>(element).getFloatSemantics(),
                     APFloat::rmNearestTiesToEven, &loses);
      values.push_back(number);
    }
    return DenseElementsAttr::get(tensor.type, values);
  }
  if (element.isSignlessInteger(64))
    return pack<int64_t>(tensor.type, integers);
  if (element.isSignlessInteger(32))
    return pack<int32_t>(tensor.type, integers);
  if (element.isInteger(1)) {
    SmallVector<bool> values;
    values.reserve(integers.size());
    for (int64_t integer : integers)
      values.push_back(integer != 0);
    return DenseElementsAttr::get(tensor.type, values);
  }
  SmallVector<APInt> values;
  for (int64_t integer : integers)
    values.push_back(APInt(element.getIntOrFloatBitWidth(), integer, true,
                           /*implicitTrunc=*/true));
  return DenseElementsAttr::get(tensor.type, values);
}

std::optional<SmallVector<int64_t>> merak::integersOf(DenseElementsAttr value) {
  if (!value || !isa<IntegerType>(value.getElementType()) ||
      value.getNumElements() > kMaxEvaluated)
    return std::nullopt;
  std::optional<HostTensor> host = toHost(value);
  if (!host)
    return std::nullopt;
  SmallVector<int64_t> result;
  for (int64_t i = 0; i < host->size(); ++i)
    result.push_back(host->integer(i));
  return result;
}
