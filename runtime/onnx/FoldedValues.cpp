#include "runtime/onnx/FoldedValues.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>

namespace merak::runtime {
namespace {

using Function = std::function<double(double)>;

Function plainFunction(const std::string &type) {
  if (type == "Exp")
    return [](double x) { return std::exp(x); };
  if (type == "Log")
    return [](double x) { return std::log(x); };
  if (type == "Neg")
    return [](double x) { return -x; };
  if (type == "Sigmoid")
    return [](double x) { return 1 / (1 + std::exp(-x)); };
  if (type == "Softplus")
    return [](double x) { return x > 30 ? x : std::log1p(std::exp(x)); };
  if (type == "Tanh")
    return [](double x) { return std::tanh(x); };
  return nullptr;
}

// Null if it is none of those that import undoes.
Function functionOf(const std::string &text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos)
    return plainFunction(text);
  float number = 0;
  const char *end = text.data() + text.size();
  auto [last, error] = std::from_chars(text.data() + colon + 1, end, number);
  if (error != std::errc() || last != end)
    return nullptr;
  const std::string type = text.substr(0, colon);
  if (type == "Add")
    return [number](double x) { return x + number; };
  if (type == "Mul")
    return [number](double x) { return x * number; };
  return nullptr;
}

// The shape before the permutation; empty if that is none of so many axes.
std::vector<int64_t> unpermuted(const std::vector<int64_t> &to,
                                const std::vector<int64_t> &permutation) {
  if (permutation.empty())
    return to;
  std::vector<int64_t> shape(to.size(), -1);
  for (size_t i = 0; i < permutation.size() && i < to.size(); ++i) {
    const int64_t axis = permutation[i];
    if (axis < 0 || axis >= static_cast<int64_t>(to.size()) || shape[axis] >= 0)
      return {};
    shape[axis] = to[i];
  }
  return permutation.size() == to.size() ? shape : std::vector<int64_t>();
}

// Of a tensor [from...] that is broadcast to so many axes.
std::vector<int64_t> broadcastStrides(const std::vector<int64_t> &from,
                                      size_t rank) {
  std::vector<int64_t> strides(rank, 0);
  int64_t stride = 1;
  for (size_t i = 0; i < from.size() && i < rank; ++i) {
    const int64_t extent = from[from.size() - 1 - i];
    strides[rank - 1 - i] = extent == 1 ? 0 : stride;
    stride *= extent;
  }
  return strides;
}

} // namespace

bool FoldedUse::fits(const std::vector<int64_t> &from,
                     const std::vector<int64_t> &to) const {
  const std::vector<int64_t> shape = unpermuted(to, permutation);
  bool good = shape.size() == to.size() && from.size() <= shape.size();
  for (size_t i = 0; good && i < from.size(); ++i) {
    const int64_t extent = from[from.size() - 1 - i];
    good = extent == 1 || extent == shape[shape.size() - 1 - i];
  }
  return good;
}

bool isFoldedFunction(const std::string &function) {
  return functionOf(function) != nullptr;
}

void applyFunctions(const std::vector<std::string> &functions,
                    std::string &values) {
  for (const std::string &text : functions) {
    const Function function = functionOf(text);
    for (size_t at = 0; at + sizeof(float) <= values.size();
         at += sizeof(float)) {
      float value = 0;
      std::memcpy(&value, values.data() + at, sizeof(float));
      value = static_cast<float>(function(value));
      std::memcpy(values.data() + at, &value, sizeof(float));
    }
  }
}

std::string moveElements(const std::string &values,
                         const std::vector<int64_t> &from,
                         const std::vector<int64_t> &to,
                         const std::vector<int64_t> &permutation,
                         uint64_t elementSize) {
  const std::vector<int64_t> plain = broadcastStrides(from, to.size());
  std::vector<int64_t> strides = plain;
  for (size_t i = 0; i < permutation.size(); ++i)
    strides[i] = plain[permutation[i]];
  int64_t count = 1;
  for (int64_t extent : to)
    count *= extent;
  std::string moved(static_cast<uint64_t>(count) * elementSize, '\0');
  std::vector<int64_t> at(to.size(), 0);
  for (int64_t i = 0; i < count; ++i) {
    int64_t offset = 0;
    for (size_t d = 0; d < to.size(); ++d)
      offset += at[d] * strides[d];
    std::memcpy(moved.data() + static_cast<uint64_t>(i) * elementSize,
                values.data() + static_cast<uint64_t>(offset) * elementSize,
                elementSize);
    for (size_t d = to.size(); d-- > 0 && ++at[d] == to[d];)
      at[d] = 0;
  }
  return moved;
}

} // namespace merak::runtime
