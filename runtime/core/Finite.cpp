#include "runtime/core/Finite.h"

#include "runtime/core/HalfFloat.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

namespace merak::runtime {
namespace {

double element(const View &view, int64_t offset) {
  switch (view.dtype) {
  case planpb::F32:
    return static_cast<const float *>(view.data)[offset];
  case planpb::F64:
    return static_cast<const double *>(view.data)[offset];
  case planpb::BF16:
    return bf16ToFloat(static_cast<const uint16_t *>(view.data)[offset]);
  case planpb::F16:
    return f16ToFloat(static_cast<const uint16_t *>(view.data)[offset]);
  default:
    return 0;
  }
}

} // namespace

bool isFloat(planpb::DType dtype) {
  return dtype == planpb::F32 || dtype == planpb::F64 ||
         dtype == planpb::BF16 || dtype == planpb::F16;
}

std::optional<NonFinite> findNonFinite(const View &view) {
  const int64_t count = view.elements();
  std::vector<int64_t> index(view.shape.size(), 0);
  int64_t offset = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double value = element(view, offset);
    if (std::isnan(value) || (std::isinf(value) && value > 0))
      return NonFinite{std::isnan(value) ? "nan" : "inf",
                       fmt::format("[{}]", fmt::join(index, ","))};
    for (size_t d = index.size(); d-- > 0;) {
      offset += view.strides[d];
      if (++index[d] < view.shape[d])
        break;
      offset -= view.strides[d] * view.shape[d];
      index[d] = 0;
    }
  }
  return std::nullopt;
}

} // namespace merak::runtime
