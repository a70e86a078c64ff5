#include "runtime/core/DType.h"
#include "runtime/core/HalfFloat.h"
#include "runtime/data/DataSource.h"
#include "runtime/data/Shuffle.h"

#include <fmt/format.h>

#include <cstring>

namespace merak::runtime {
namespace {

class SyntheticData : public DataSource {
public:
  SyntheticData(const planpb::PlanFile &plan, uint64_t seed)
      : DataSource(plan), seed_(seed) {}

  std::string contents() const override {
    return fmt::format("synthetic samples of seed {}", seed_);
  }

  int64_t samples() const override { return 0; }

  // Element (sample, rest) has the number sample * elements(rest) + flat(rest),
  // so that its value does not depend on how the batch is cut.
  Status readBox(int input, int64_t row, const layout::Box &box, void *data,
                 const std::vector<int64_t> &shape) override {
    const planpb::Input &proto = plan().inputs(input);
    const uint64_t key = mixBits(mixBits(seed_) + uint64_t(input));
    std::vector<int64_t> index(shape.size(), 0);
    for (int64_t i = 0; i < box.elements(); ++i) {
      uint64_t number = 0;
      int64_t to = 0;
      for (size_t d = 0; d < shape.size(); ++d) {
        const int64_t origin =
            d == 0 && proto.batched() ? row : box.globalOrigin[d];
        number = number * uint64_t(proto.shape(int(d))) + uint64_t(origin) +
                 uint64_t(index[d]);
        to = to * shape[d] + box.localOrigin[d] + index[d];
      }
      store(proto, mixBits(key ^ number), data, to);
      for (size_t d = shape.size(); d-- > 0;) {
        if (++index[d] < box.extent[d])
          break;
        index[d] = 0;
      }
    }
    return {};
  }

  std::string describe(int, int64_t row) const override {
    return fmt::format("synthetic sample {}", row);
  }

private:
  static void store(const planpb::Input &input, uint64_t word, void *data,
                    int64_t at) {
    // Uniform in [-1, 1) for floats, in [0, limit) for ids.
    const float value = float(int64_t(word >> 40)) * 0x1p-23f - 1.0f;
    const int64_t id =
        int64_t(word >> 16) % (input.limit() > 0 ? input.limit() : 2);
    switch (input.dtype()) {
    case planpb::F32:
      static_cast<float *>(data)[at] = value;
      break;
    case planpb::F64:
      static_cast<double *>(data)[at] = value;
      break;
    case planpb::BF16:
      static_cast<uint16_t *>(data)[at] = floatToBf16(value);
      break;
    case planpb::F16:
      static_cast<uint16_t *>(data)[at] = floatToF16(value);
      break;
    case planpb::I64:
      static_cast<int64_t *>(data)[at] = id;
      break;
    case planpb::I32:
      static_cast<int32_t *>(data)[at] = static_cast<int32_t>(id);
      break;
    default: { // other integers: their low bytes
      const int64_t size = dtypeSize(input.dtype());
      std::memcpy(static_cast<char *>(data) + at * size, &id, size_t(size));
      break;
    }
    }
  }

  uint64_t seed_;
};

} // namespace

std::unique_ptr<DataSource> makeSyntheticData(const planpb::PlanFile &plan,
                                              const DataOptions &options) {
  return std::make_unique<SyntheticData>(plan, options.seed);
}

} // namespace merak::runtime
