#include "support/WireFormat.h"

#include <algorithm>
#include <google/protobuf/io/coded_stream.h>

namespace merak::wire {
namespace {

using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

constexpr int kMaxNumber = 10; // bytes of a number

// Takes a number off the front. A stream of protobuf counts in `int`, so that
// it is given no more of a file than the number may have.
bool takeNumber(std::string_view &rest, uint64_t &value) {
  const int window =
      static_cast<int>(std::min<size_t>(rest.size(), kMaxNumber));
  CodedInputStream stream(reinterpret_cast<const uint8_t *>(rest.data()),
                          window);
  const bool good = stream.ReadVarint64(&value);
  rest.remove_prefix(
      static_cast<size_t>(good ? stream.CurrentPosition() : window));
  return good;
}

void put(std::string &out, uint64_t value) {
  uint8_t bytes[kMaxNumber];
  const uint8_t *end = CodedOutputStream::WriteVarint64ToArray(value, bytes);
  out.append(reinterpret_cast<const char *>(bytes),
             static_cast<size_t>(end - bytes));
}

} // namespace

bool Reader::read(Field &field) {
  const std::string_view start = rest;
  uint64_t tag = 0, length = 0;
  if (!takeNumber(rest, tag) || tag >> 3 == 0 || tag >> 32)
    return false;
  field = {};
  field.number = static_cast<uint32_t>(tag >> 3);
  field.type = static_cast<int>(tag & 7);
  switch (field.type) {
  case kNumber:
    if (!takeNumber(rest, field.value))
      return false;
    break;
  case kFixed64:
    length = 8;
    break;
  case kFixed32:
    length = 4;
    break;
  case kBytes:
    if (!takeNumber(rest, length))
      return false;
    break;
  default: // groups, which nothing has written for long
    return false;
  }
  if (length > rest.size())
    return false;
  field.bytes = rest.substr(0, length);
  rest.remove_prefix(length);
  field.whole = start.substr(0, start.size() - rest.size());
  return true;
}

bool Reader::next(Field &field) {
  if (rest.empty() || isDamaged)
    return false;
  isDamaged = !read(field);
  return !isDamaged;
}

bool readMessage(std::string_view message, std::vector<Field> &fields) {
  Reader reader(message);
  for (Field field; reader.next(field);)
    fields.push_back(field);
  return !reader.damaged();
}

bool readNumbers(const Field &field, std::vector<int64_t> &numbers) {
  if (field.type == kNumber) {
    numbers.push_back(static_cast<int64_t>(field.value));
    return true;
  }
  for (std::string_view rest = field.bytes; !rest.empty();) {
    uint64_t value = 0;
    if (field.type != kBytes || !takeNumber(rest, value))
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
  put(out, uint64_t{field} << 3 | kBytes);
  put(out, length);
}

void putBytes(std::string &out, uint32_t field, std::string_view bytes) {
  putLength(out, field, bytes.size());
  out += bytes;
}

} // namespace merak::wire
