// The protobuf wire format, walked without a schema: a message is a list of
// numbered fields whose bytes stay where they are. Models are walked so on
// their way in (their weights are never copied, and may exceed the 2 GiB of a
// message) and on their way out (the runtime has no schema of ONNX).
// docs/rationale/wire-format.md
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace merak::wire {

enum Type { kNumber = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

struct Field {
  uint32_t number = 0;
  int type = kNumber;
  uint64_t value = 0;     // of a number
  std::string_view bytes; // the payload, but of a number
  std::string_view whole; // with its tag
};

// Takes the fields off a message one by one.
class Reader {
public:
  explicit Reader(std::string_view message) : rest(message) {}
  // False behind the last field, and at what is none: then damaged() holds.
  bool next(Field &field);
  bool damaged() const { return isDamaged; }
  // Where reading goes on; if damaged, the first byte that makes no sense.
  const char *position() const { return rest.data(); }

private:
  bool read(Field &field);

  std::string_view rest;
  bool isDamaged = false;
};

// Appends all fields. False for what is no message.
bool readMessage(std::string_view message, std::vector<Field> &fields);

// Appends the numbers of a repeated field: packed, or one a field.
bool readNumbers(const Field &field, std::vector<int64_t> &numbers);

void putNumber(std::string &out, uint32_t field, uint64_t value);
void putBytes(std::string &out, uint32_t field, std::string_view bytes);
// Tag and length only; the bytes follow by other means.
void putLength(std::string &out, uint32_t field, uint64_t length);

} // namespace merak::wire
