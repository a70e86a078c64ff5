// The protobuf wire format, walked without a schema: a message is a list of
// numbered fields whose bytes can be kept as they are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace merak::runtime {

struct WireField {
  uint32_t number = 0;
  int wire = 0;           // 0 a number, 1 and 5 fixed, 2 bytes
  uint64_t value = 0;     // of a number
  std::string_view bytes; // payload of wire type 2
  std::string_view whole; // with its tag
};

// False for what is no message.
bool readMessage(std::string_view message, std::vector<WireField> &fields);

// Numbers of a repeated field: packed, or one a field.
bool readNumbers(const WireField &field, std::vector<int64_t> &numbers);

void putNumber(std::string &out, uint32_t field, uint64_t value);
void putBytes(std::string &out, uint32_t field, std::string_view bytes);
// Tag and length only; the bytes follow by other means.
void putLength(std::string &out, uint32_t field, uint64_t length);

} // namespace merak::runtime
