// JSON files of a user.
#pragma once

#include "runtime/core/Status.h"

#include <nlohmann/json.hpp>

#include <string>
#include <utility>
#include <vector>

namespace merak::costmodel {

// The text as JSON, fields in their order. `file` opens each message. Errors: a
// syntax error with its line and column; numbers that are too large; keys that
// come twice in one object, of which one value would be lost silently.
Result<nlohmann::ordered_json> parseJson(const std::string &text,
                                         const std::string &file);

// All that is wrong with the fields of such a file, each by its path.
class JsonProblems {
public:
  explicit JsonProblems(std::string file) : file(std::move(file)) {}

  void problem(const std::string &path, const std::string &text);
  void problems(const std::string &path, const Status &found);
  // What an object has besides these fields is wrong.
  void known(const nlohmann::ordered_json &object, const std::string &path,
             const std::vector<std::string> &fields);
  static std::string join(const std::string &path, const std::string &field) {
    return path.empty() ? field : path + "." + field;
  }

  const std::string file;
  Status status;
};

} // namespace merak::costmodel
