// The checksum of the files that we write: 64 bits, depends on every byte and
// on the length. It finds damage and mix-ups; it is no defence against someone
// who wants two files to look alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace merak {

// Of bytes that come in pieces; how many there are is known before.
class Checksum {
public:
  explicit Checksum(uint64_t bytes);
  void add(const void *data, size_t bytes);
  uint64_t value() const;

  static uint64_t of(const void *data, size_t bytes);

private:
  void mix(uint64_t word);

  uint64_t hash_;
  char tail_[8] = {};
  size_t tailBytes_ = 0;
};

// As files spell it: 16 hexadecimal digits.
std::string checksumText(uint64_t checksum);

} // namespace merak
