// Walks the protobuf wire format of a model far enough to find the bytes of
// its initializers without copying them.
#pragma once

#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <string>
#include <vector>

namespace merak {

// The bytes of one initializer: field 9 raw_data, 4 float_data (packed),
// 10 double_data (packed); field 0: held in another way.
struct WireBulk {
  int field = 0;
  uint64_t offset = 0, length = 0;
};

class WireScan {
public:
  explicit WireScan(llvm::StringRef data) : data(data) {}

  // Appends the model without those bytes to `out`, and one entry per
  // initializer to `found`. False for data that is no protobuf message.
  bool stripModel(std::string &out, std::vector<WireBulk> &found);
  uint64_t errorOffset() const { return at; }

private:
  struct Field {
    uint32_t number = 0, wire = 0;
    uint64_t start = 0;          // of the tag
    uint64_t begin = 0, end = 0; // of the payload
  };
  bool varint(uint64_t end, uint64_t &value);
  bool next(uint64_t end, Field &field);
  bool stripGraph(uint64_t end, std::string &out, std::vector<WireBulk> &found);
  bool stripTensor(uint64_t end, std::string &out, WireBulk &found);

  llvm::StringRef data;
  uint64_t at = 0;
};

} // namespace merak
