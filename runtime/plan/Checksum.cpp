#include "runtime/plan/Checksum.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>

namespace merak {

Checksum::Checksum(uint64_t bytes) : hash_(0x9e3779b97f4a7c15u ^ bytes) {}

// Eight bytes a round: multiply by an odd constant, fold the high half down.
void Checksum::mix(uint64_t word) {
  hash_ = (hash_ ^ word) * 0xd6e8feb86659fd93u;
  hash_ ^= hash_ >> 32;
}

void Checksum::add(const void *data, size_t bytes) {
  const char *at = static_cast<const char *>(data);
  uint64_t word;
  if (tailBytes_ > 0) {
    const size_t taken = std::min(bytes, 8 - tailBytes_);
    std::memcpy(tail_ + tailBytes_, at, taken);
    at += taken;
    bytes -= taken;
    tailBytes_ += taken;
    if (tailBytes_ < 8)
      return;
    std::memcpy(&word, tail_, 8);
    mix(word);
    tailBytes_ = 0;
  }
  for (; bytes >= 8; bytes -= 8, at += 8) {
    std::memcpy(&word, at, 8);
    mix(word);
  }
  std::memcpy(tail_, at, bytes);
  tailBytes_ = bytes;
}

uint64_t Checksum::value() const {
  uint64_t word = 0;
  std::memcpy(&word, tail_, tailBytes_);
  Checksum last = *this;
  last.mix(word);
  return last.hash_;
}

uint64_t Checksum::of(const void *data, size_t bytes) {
  Checksum checksum(bytes);
  checksum.add(data, bytes);
  return checksum.value();
}

std::string checksumText(uint64_t checksum) {
  return fmt::format("{:016x}", checksum);
}

} // namespace merak
