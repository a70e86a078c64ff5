// Messages as bytes that are equal where the messages are.
#pragma once

#include <google/protobuf/message.h>

#include <string>

namespace merak {

// Maps are written in the order of their keys; protobuf's own order changes
// from one message to the next.
std::string serialized(const google::protobuf::Message &message);

} // namespace merak
