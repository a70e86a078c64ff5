#include "runtime/onnx/Fields.h"

namespace merak::runtime {
namespace {

bool varint(std::string_view data, size_t &at, uint64_t &value) {
  value = 0;
  for (int shift = 0; shift < 64 && at < data.size(); shift += 7) {
    const uint8_t byte = static_cast<uint8_t>(data[at++]);
    value |= uint64_t{byte & 127u} << shift;
    if (byte < 128)
      return true;
  }
  return false;
}

void put(std::string &out, uint64_t value) {
  for (; value >= 128; value >>= 7)
    out += static_cast<char>(value | 128);
  out += static_cast<char>(value);
}

} // namespace

bool readMessage(std::string_view message, std::vector<WireField> &fields) {
  for (size_t at = 0; at < message.size();) {
    const size_t start = at;
    uint64_t tag = 0, length = 0;
    if (!varint(message, at, tag) || tag >> 3 == 0 || tag >> 32)
      return false;
    WireField field;
    field.number = static_cast<uint32_t>(tag >> 3);
    field.wire = static_cast<int>(tag & 7);
    if (field.wire == 0) {
      if (!varint(message, at, field.value))
        return false;
    } else if (field.wire == 2) {
      if (!varint(message, at, length))
        return false;
    } else if (field.wire == 1 || field.wire == 5) {
      length = field.wire == 1 ? 8 : 4;
    } else {
      return false;
    }
    if (length > message.size() - at)
      return false;
    field.bytes = message.substr(at, length);
    at += length;
    field.whole = message.substr(start, at - start);
    fields.push_back(field);
  }
  return true;
}

bool readNumbers(const WireField &field, std::vector<int64_t> &numbers) {
  if (field.wire == 0) {
    numbers.push_back(static_cast<int64_t>(field.value));
    return true;
  }
  for (size_t at = 0; at < field.bytes.size();) {
    uint64_t value = 0;
    if (field.wire != 2 || !varint(field.bytes, at, value))
      return false;
    numbers.push_back(static_cast<int64_t>(value));
  }
  return true;
}

void putNumber(std::string &out, uint32_t field, uint64_t value) {
  put(out, uint64_t{field} << 3);
  put(out, value);
}

void putLength(std::string &out, uint32_t field, uint64_t length) {
  put(out, uint64_t{field} << 3 | 2);
  put(out, length);
}

void putBytes(std::string &out, uint32_t field, std::string_view bytes) {
  putLength(out, field, bytes.size());
  out += bytes;
}

} // namespace merak::runtime
