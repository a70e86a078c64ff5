// Messages between a store's processes (private to this folder).
#pragma once

#include "runtime/core/Status.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace merak::runtime {

struct Frame {
  enum Type : uint8_t {
    Welcome,    // number: milliseconds of silence allowed; key: host of rank
                // 0; value: a proof (Handshake.h)
    Refuse,     // value: a proof and why, or nothing
    Put,        // key, value
    Get,        // number: milliseconds; key
    Take,       // the same
    Contribute, // key (with round), value
    Collect,    // number: milliseconds; key
    Number,     // key
    Answer,     // id of the question; number or value
    Failure,    // id of the question; value: why
    Notice,     // number: from; key: topic; value
    Abort,      // number: who is to blame; value: messages, one a line
    Alive,      // a sign of life
    Leave
  };
  Type type = Alive;
  uint64_t id = 0;
  int64_t number = 0;
  std::string key, value;
};

// A rank's box of a tensor is a value; keys are names.
constexpr uint64_t kLongestValue = uint64_t(1) << 34;
constexpr uint64_t kLongestKey = uint64_t(1) << 20;

// Bytes of a frame on the wire; both ends have one byte order.
std::string encodeFrame(const Frame &frame);
// Takes the first whole frame off `bytes`, from `position` on; none if there is
// none yet. `broken` is set if the bytes are no frame.
std::optional<Frame> decodeFrame(const std::string &bytes, size_t &position,
                                 bool &broken);

std::string packStrings(const std::vector<std::string> &parts);
std::vector<std::string> unpackStrings(const std::string &bytes);

// Writes all bytes to a blocking socket; false if the other end is gone.
bool sendAll(int socket, const std::string &bytes);

} // namespace merak::runtime
