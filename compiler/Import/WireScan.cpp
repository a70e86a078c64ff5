#include "compiler/Import/WireScan.h"

using namespace merak;

namespace {
// Field numbers of onnx.proto.
constexpr uint32_t kModelGraph = 7, kGraphInitializer = 5;
constexpr uint32_t kRaw = 9, kFloats = 4, kDoubles = 10;
constexpr uint32_t kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;
} // namespace

bool WireScan::varint(uint64_t end, uint64_t &value) {
  value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (at >= end)
      return false;
    uint8_t byte = data[at++];
    value |= uint64_t(byte & 127) << shift;
    if (byte < 128)
      return true;
  }
  return false;
}

bool WireScan::next(uint64_t end, Field &field) {
  field.start = at;
  uint64_t tag, length = 0;
  if (!varint(end, tag) || tag >> 3 == 0 || tag >> 32)
    return false;
  field.number = static_cast<uint32_t>(tag >> 3);
  field.wire = tag & 7;
  field.begin = at;
  switch (field.wire) {
  case kVarint:
    if (!varint(end, length))
      return false;
    field.end = at;
    return true;
  case kFixed64:
    length = 8;
    break;
  case kFixed32:
    length = 4;
    break;
  case kBytes:
    if (!varint(end, length))
      return false;
    field.begin = at;
    break;
  default:
    return false;
  }
  if (length > end - at)
    return false;
  at += length;
  field.end = at;
  return true;
}

static void putVarint(std::string &out, uint64_t value) {
  for (; value >= 128; value >>= 7)
    out += static_cast<char>(value | 128);
  out += static_cast<char>(value);
}

static void putMessage(std::string &out, uint32_t number,
                       const std::string &message) {
  putVarint(out, uint64_t(number) << 3 | kBytes);
  putVarint(out, message.size());
  out += message;
}

bool WireScan::stripModel(std::string &out, std::vector<WireBulk> &found) {
  Field field;
  while (at < data.size()) {
    if (!next(data.size(), field))
      return false;
    if (field.number == kModelGraph && field.wire == kBytes) {
      std::string graph;
      at = field.begin;
      if (!stripGraph(field.end, graph, found))
        return false;
      putMessage(out, field.number, graph);
    } else {
      out.append(data.data() + field.start, field.end - field.start);
    }
  }
  return true;
}

bool WireScan::stripGraph(uint64_t end, std::string &out,
                          std::vector<WireBulk> &found) {
  Field field;
  while (at < end) {
    if (!next(end, field))
      return false;
    if (field.number == kGraphInitializer && field.wire == kBytes) {
      std::string tensor;
      at = field.begin;
      found.emplace_back();
      if (!stripTensor(field.end, tensor, found.back()))
        return false;
      putMessage(out, field.number, tensor);
    } else {
      out.append(data.data() + field.start, field.end - field.start);
    }
  }
  return true;
}

bool WireScan::stripTensor(uint64_t end, std::string &out, WireBulk &found) {
  Field field;
  std::vector<Field> bulk;
  while (at < end) {
    if (!next(end, field))
      return false;
    bool isBulk = field.number == kRaw || field.number == kFloats ||
                  field.number == kDoubles;
    if (isBulk && field.wire == kBytes)
      bulk.push_back(field);
    else
      out.append(data.data() + field.start, field.end - field.start);
  }
  // A packed field in several pieces, or beside other data, is left to
  // protobuf.
  if (bulk.size() == 1) {
    found = {static_cast<int>(bulk[0].number), bulk[0].begin,
             bulk[0].end - bulk[0].begin};
    return true;
  }
  for (const Field &piece : bulk)
    out.append(data.data() + piece.start, piece.end - piece.start);
  return true;
}
