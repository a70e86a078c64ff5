// dropout: whole tensors, boxes of larger ones, and what it is to be random.
#include "test/unit/conformance/Harness.h"

#include "runtime/core/Philox.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace merak::conformance {
namespace {

struct Place {
  Shape extents, strides;
  std::vector<int64_t> offsets;
};

Case dropoutCase(const Shape &shape, const Place &place, double ratio,
                 int64_t id, int64_t seed, int64_t step) {
  Case c;
  c.op = "dropout";
  c.name = fmt::format("dropout [{}] as [{}] by [{}] ratio {} id {} seed {} "
                       "step {}",
                       fmt::join(shape, " "), fmt::join(place.extents, " "),
                       fmt::join(place.strides, " "), ratio, id, seed, step);
  c.attrs = {{"ratio", fmt::format("{}", ratio)},
             {"id", std::to_string(id)},
             {"extents", fmt::format("{}", fmt::join(place.extents, ","))},
             {"strides", fmt::format("{}", fmt::join(place.strides, ","))}};
  c.scalars = {runtime::ScalarValue::integer(seed),
               runtime::ScalarValue::integer(step)};
  for (int64_t offset : place.offsets)
    c.scalars.push_back(runtime::ScalarValue::integer(offset));
  c.inputs = {random(shape, 1)};
  c.outputs = {random(shape, 2)};
  c.reference = [=](const Case &k) {
    Tensor y = k.inputs[0];
    philox::Stream stream{static_cast<uint64_t>(seed),
                          static_cast<uint32_t>(id),
                          static_cast<uint32_t>(step)};
    for (int64_t i = 0; i < y.size(); ++i) {
      int64_t element = 0, rest = i;
      for (int64_t offset : place.offsets)
        element += offset;
      for (size_t d = place.extents.size(); d-- > 0;) {
        element += rest % place.extents[d] * place.strides[d];
        rest /= place.extents[d];
      }
      bool kept = philox::wordOf(stream, static_cast<uint64_t>(element)) >=
                  philox::thresholdOf(ratio);
      y.v[i] = kept ? y.v[i] / (1 - ratio) : 0;
    }
    return Tensors{y};
  };
  c.tolerance = 1e-6;
  return c;
}

} // namespace

std::vector<Case> dropoutCases() {
  return {
      dropoutCase({5, 9, 7}, {{315}, {1}, {}}, 0.1, 0, 0, 1),
      dropoutCase({40, 130}, {{5200}, {1}, {}}, 0.5, 3, -1, 7),
      dropoutCase({}, {{1}, {1}, {}}, 0.5, 1, 2, 3),
      dropoutCase({0, 4}, {{0}, {1}, {}}, 0.5, 1, 2, 3),
      dropoutCase({6, 8}, {{48}, {1}, {}}, 0, 1, 2, 3),
      // The second half of a batch, a third of the columns.
      dropoutCase({4, 6, 20}, {{24, 20}, {60, 1}, {1440, 20}}, 0.3, 2, 9, 4),
      // Three boxes of a dimension, and rows that begin anywhere in a group.
      dropoutCase({7, 15}, {{7, 3, 5}, {45, 15, 1}, {5}}, 0.25, 2, 9, 4),
      // The fastest dimension is split to the last element.
      dropoutCase({30, 3}, {{30, 3}, {12, 4}, {2, 1}}, 0.5, 2, 9, 4),
      // Beyond 2^32 and 2^34 elements.
      dropoutCase({3, 50}, {{3, 50}, {int64_t{1} << 35, 1}, {70}}, 0.5, 4,
                  int64_t{1} << 40, 5),
      dropoutCase({100}, {{100}, {1}, {(int64_t{1} << 34) - 30}}, 0.5,
                  0xFFFFFFFF, 6, 5),
      dropoutCase({2, 30000}, {{2, 30000}, {60000, 1}, {30000}}, 0.9, 0, 1, 1),
  };
}

} // namespace merak::conformance
