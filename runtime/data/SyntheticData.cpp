#include "runtime/core/DType.h"
#include "runtime/core/HalfFloat.h"
#include "runtime/data/DataSource.h"

#include <fmt/format.h>

namespace merak::runtime {
namespace {

// A well mixed 64-bit word for each counter (Steele et al., SplitMix).
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

class SyntheticData : public DataSource {
public:
  SyntheticData(const planpb::PlanFile &plan, uint64_t seed)
      : DataSource(plan), seed_(seed) {}

  std::string identity() const override {
    return fmt::format("synthetic samples of seed {}", seed_);
  }

protected:
  // Element (sample, rest) has the number sample * elements(rest) + flat(rest),
  // so that its value does not depend on how the batch is cut.
  Status readBox(int input, int64_t row, const layout::Box &box, void *data,
                 const std::vector<int64_t> &shape) override {
    const planpb::Input &proto = plan().inputs(input);
    const uint64_t key = mix(mix(seed_) + uint64_t(input));
    std::vector<int64_t> index(shape.size(), 0);
    for (int64_t i = 0; i < box.elements(); ++i) {
      int64_t number = 0, to = 0;
      for (size_t d = 0; d < shape.size(); ++d) {
        const int64_t origin =
            d == 0 && proto.batched() ? row : box.globalOrigin[d];
        number = number * proto.shape(int(d)) + origin + index[d];
        to = to * shape[d] + box.localOrigin[d] + index[d];
      }
      store(proto, mix(key ^ uint64_t(number)), data, to);
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
    default:
      static_cast<uint8_t *>(data)[at] = static_cast<uint8_t>(id);
      break;
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
