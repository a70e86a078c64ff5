#include "runtime/core/ConvertFloats.h"

#include "runtime/core/DType.h"
#include "runtime/core/Finite.h"
#include "runtime/core/HalfFloat.h"

#include <cstring>

namespace merak::runtime {

namespace {

double readFloat(planpb::DType dtype, const char *at) {
  uint16_t half = 0;
  float single = 0;
  double wide = 0;
  switch (dtype) {
  case planpb::BF16:
  case planpb::F16:
    std::memcpy(&half, at, sizeof(half));
    return dtype == planpb::BF16 ? bf16ToFloat(half) : f16ToFloat(half);
  case planpb::F32:
    std::memcpy(&single, at, sizeof(single));
    return single;
  default:
    std::memcpy(&wide, at, sizeof(wide));
    return wide;
  }
}

void writeFloat(planpb::DType dtype, double value, char *at) {
  const float single = static_cast<float>(value);
  const uint16_t half =
      dtype == planpb::BF16 ? floatToBf16(single) : floatToF16(single);
  switch (dtype) {
  case planpb::BF16:
  case planpb::F16:
    std::memcpy(at, &half, sizeof(half));
    return;
  case planpb::F32:
    std::memcpy(at, &single, sizeof(single));
    return;
  default:
    std::memcpy(at, &value, sizeof(value));
  }
}

} // namespace

bool convertFloats(planpb::DType from, const char *in, planpb::DType to,
                   char *out, size_t count) {
  if (!isFloat(from) || !isFloat(to))
    return false;
  const size_t read = dtypeSize(from), written = dtypeSize(to);
  for (size_t i = 0; i < count; ++i)
    writeFloat(to, readFloat(from, in + i * read), out + i * written);
  return true;
}

} // namespace merak::runtime
