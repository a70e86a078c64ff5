// Finds the bytes of a model's initializers without copying them.
#pragma once

#include "llvm/ADT/StringRef.h"

#include <cstdint>
#include <string>
#include <string_view>
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
  explicit WireScan(llvm::StringRef data) : data(data), at(data.data()) {}

  // Appends the model without those bytes to `out`, and one entry per
  // initializer to `found`. False for data that is no protobuf message.
  bool stripModel(std::string &out, std::vector<WireBulk> &found);
  uint64_t errorOffset() const { return at - data.data(); }

private:
  template <typename Visit>
  bool forEachField(std::string_view message, Visit &&visit);
  bool stripGraph(std::string_view graph, std::string &out,
                  std::vector<WireBulk> &found);
  bool stripTensor(std::string_view tensor, std::string &out, WireBulk &found);

  llvm::StringRef data;
  const char *at; // where a message is damaged
};

} // namespace merak
