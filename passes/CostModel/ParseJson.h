// JSON files of a user.
#pragma once

#include "runtime/core/Status.h"

#include <nlohmann/json.hpp>

namespace merak::costmodel {

// The text as JSON, fields in their order. `file` opens each message. Errors: a
// syntax error with its line and column; numbers that are too large; keys that
// come twice in one object, of which one value would be lost silently.
Result<nlohmann::ordered_json> parseJson(const std::string &text,
                                         const std::string &file);

} // namespace merak::costmodel
