// Errors of the runtime: a status that carries one sentence per problem and
// gains context while it rises. No exceptions cross a public interface, and no
// library function exits.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace merak {

// Success, or a list of located sentences (lower case, no full stop).
class [[nodiscard]] Status {
public:
  Status() = default;
  static Status error(std::string message) {
    Status status;
    status.messages_.push_back(std::move(message));
    return status;
  }
  bool ok() const { return messages_.empty(); }
  explicit operator bool() const { return ok(); }
  const std::vector<std::string> &messages() const { return messages_; }

  // Adds the problems of `other`, so that all are reported at once.
  void merge(const Status &other) {
    messages_.insert(messages_.end(), other.messages_.begin(),
                     other.messages_.end());
  }
  // Puts "<context>: " before each message: where it happened.
  Status withContext(const std::string &context) && {
    for (std::string &message : messages_)
      message = context + ": " + message;
    return std::move(*this);
  }
  // All messages, one a line.
  std::string str() const {
    std::string text;
    for (const std::string &message : messages_)
      text += (text.empty() ? "" : "\n") + message;
    return text;
  }

private:
  std::vector<std::string> messages_;
};

// A value or the status that says why there is none.
template <typename T> class [[nodiscard]] Result {
public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {}
  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  T &operator*() { return *value_; }
  const T &operator*() const { return *value_; }
  T *operator->() { return &*value_; }
  const T *operator->() const { return &*value_; }
  const Status &status() const { return status_; }

private:
  std::optional<T> value_;
  Status status_;
};

} // namespace merak

// Returns the failed status of `expr` from the calling function.
#define MERAK_RETURN_IF_ERROR(expr)                                            \
  do {                                                                         \
    if (::merak::Status merakStatus = (expr); !merakStatus.ok())               \
      return merakStatus;                                                      \
  } while (false)
