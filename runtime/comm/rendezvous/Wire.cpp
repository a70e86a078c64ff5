#include "runtime/comm/rendezvous/Wire.h"

#include <cerrno>
#include <cstring>
#include <sys/socket.h>

namespace merak::runtime {
namespace {

// length of the rest, type, id, number, length of the key.
constexpr size_t kHead = 8 + 1 + 8 + 8 + 4;

template <typename T> void append(std::string &bytes, T value) {
  bytes.append(reinterpret_cast<const char *>(&value), sizeof(value));
}
template <typename T> T readAt(const std::string &bytes, size_t position) {
  T value;
  std::memcpy(&value, bytes.data() + position, sizeof(value));
  return value;
}

} // namespace

std::string encodeFrame(const Frame &frame) {
  std::string bytes;
  bytes.reserve(kHead + frame.key.size() + frame.value.size());
  append(bytes, uint64_t(kHead - 8 + frame.key.size() + frame.value.size()));
  append(bytes, uint8_t(frame.type));
  append(bytes, frame.id);
  append(bytes, frame.number);
  append(bytes, uint32_t(frame.key.size()));
  return bytes + frame.key + frame.value;
}

std::optional<Frame> decodeFrame(const std::string &bytes, size_t &position,
                                 bool &broken) {
  if (bytes.size() - position < kHead)
    return {};
  const uint64_t length = readAt<uint64_t>(bytes, position);
  const uint8_t type = readAt<uint8_t>(bytes, position + 8);
  const uint32_t key = readAt<uint32_t>(bytes, position + 25);
  if (length < kHead - 8 || length - (kHead - 8) > kLongestValue + key ||
      type > Frame::Leave || key > kLongestKey || key > length - (kHead - 8)) {
    broken = true;
    return {};
  }
  if (bytes.size() - position - 8 < length)
    return {};
  Frame frame;
  frame.type = Frame::Type(type);
  frame.id = readAt<uint64_t>(bytes, position + 9);
  frame.number = readAt<int64_t>(bytes, position + 17);
  frame.key = bytes.substr(position + kHead, key);
  frame.value =
      bytes.substr(position + kHead + key, length - (kHead - 8) - key);
  position += 8 + length;
  return frame;
}

std::string packStrings(const std::vector<std::string> &parts) {
  std::string bytes;
  for (const std::string &part : parts) {
    append(bytes, uint64_t(part.size()));
    bytes += part;
  }
  return bytes;
}

std::vector<std::string> unpackStrings(const std::string &bytes) {
  std::vector<std::string> parts;
  for (size_t at = 0; at + 8 <= bytes.size();) {
    const uint64_t size = readAt<uint64_t>(bytes, at);
    if (size > bytes.size() - at - 8)
      break;
    parts.push_back(bytes.substr(at + 8, size));
    at += 8 + size;
  }
  return parts;
}

bool sendAll(int socket, const std::string &bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t count =
        ::send(socket, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count > 0)
      sent += size_t(count);
    else if (count < 0 && errno != EINTR)
      return false;
  }
  return true;
}

} // namespace merak::runtime
