#include "test/fuzz/Mutate.h"

#include "support/WireFormat.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace merak::fuzz {
namespace {

using wire::Field;

size_t below(Random &random, size_t bound) {
  return bound ? random() % bound : 0;
}

uint64_t oddNumber(Random &random) {
  static const uint64_t kOdd[] = {0,
                                  1,
                                  2,
                                  7,
                                  16,
                                  127,
                                  128,
                                  255,
                                  1023,
                                  65536,
                                  0x7fffffff,
                                  0x80000000,
                                  0xffffffff,
                                  uint64_t{1} << 40,
                                  ~uint64_t{0},
                                  ~uint64_t{0} - 1,
                                  uint64_t{1} << 62,
                                  uint64_t{1} << 63,
                                  (uint64_t{1} << 63) - 1};
  return random() % 4 ? kOdd[below(random, std::size(kOdd))] : random() % 64;
}

std::string mutateBytes(std::string data, Random &random) {
  const size_t at = below(random, data.size());
  const size_t length = std::min(data.size() - at, 1 + below(random, 64));
  switch (random() % 5) {
  case 0:
    if (!data.empty())
      data[at] = static_cast<char>(data[at] ^ (1 << random() % 8));
    break;
  case 1:
    if (!data.empty())
      data[at] = static_cast<char>(random());
    break;
  case 2:
    data.erase(at, length);
    break;
  case 3:
    data.insert(at, data.substr(below(random, data.size() + 1), length));
    break;
  default:
    data.resize(data.size() - (random() % 8 ? 0 : length));
    for (size_t i = 0; i < 4 && at + i < data.size(); ++i)
      data[at + i] = static_cast<char>(random());
  }
  return data;
}

std::string encode(const Field &field, const std::string &payload) {
  std::string out;
  wire::putBytes(out, field.number, payload);
  return out;
}

// Any piece of `data` that stands as a field somewhere inside.
std::string someField(const std::string &data, Random &random) {
  std::string_view inside = data;
  for (int depth = 0; depth < 6; ++depth) {
    std::vector<Field> fields;
    if (!wire::readMessage(inside, fields) || fields.empty())
      break;
    const Field &field = fields[below(random, fields.size())];
    if (field.type != wire::kBytes || random() % 4 == 0)
      return std::string(field.whole);
    inside = field.bytes;
  }
  return "";
}

// A message with one field changed, at any depth.
std::string mutateFields(std::string_view message, const std::string &other,
                         Random &random, int depth) {
  std::vector<Field> fields;
  if (depth > 8 || !wire::readMessage(message, fields) || fields.empty())
    return mutateBytes(std::string(message), random);
  size_t at = below(random, fields.size());
  const Field &field = fields[at];
  std::string changed(field.whole);
  if (field.type == wire::kBytes && random() % 8 != 0) {
    changed =
        encode(field, mutateFields(field.bytes, other, random, depth + 1));
  } else {
    switch (random() % 6) {
    case 0:
      changed.clear();
      break;
    case 1:
      changed += changed;
      break;
    case 2:
      changed += someField(other, random);
      break;
    case 3: { // the payload of another field of this message
      const Field &from = fields[below(random, fields.size())];
      if (field.type == wire::kBytes)
        changed = encode(field, std::string(from.bytes));
      break;
    }
    case 4:
      std::swap(fields[at], fields[below(random, fields.size())]);
      changed = std::string(fields[at].whole);
      break;
    default:
      changed.clear();
      if (field.type == wire::kNumber)
        wire::putNumber(changed, field.number, oddNumber(random));
      else
        changed = encode(field, mutateBytes(std::string(field.bytes), random));
    }
  }
  std::string out;
  for (size_t i = 0; i < fields.size(); ++i)
    out += i == at ? changed : std::string(fields[i].whole);
  return out;
}

// Where tokens begin: numbers, words and single characters; the end last.
std::vector<size_t> tokensOf(const std::string &text) {
  std::vector<size_t> starts;
  auto isWord = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' ||
           c == '.' || c == '-';
  };
  for (size_t i = 0; i < text.size();) {
    starts.push_back(i);
    const bool word = isWord(text[i]);
    for (++i; word && i < text.size() && isWord(text[i]);)
      ++i;
  }
  starts.push_back(text.size());
  return starts;
}

std::string oddToken(Random &random) {
  static const char *const kOdd[] = {"null",
                                     "true",
                                     "[]",
                                     "{}",
                                     "\"\"",
                                     "-1",
                                     "1e400",
                                     "1e-400",
                                     "0.5",
                                     "-0",
                                     "\"\\u0000\"",
                                     "[[[[",
                                     "\xff",
                                     "nan",
                                     "99999999999999999999",
                                     "-9223372036854775808"};
  return random() % 2 ? kOdd[below(random, std::size(kOdd))]
                      : std::to_string(oddNumber(random));
}

std::string mutateTokens(const std::string &text, Random &random) {
  const std::vector<size_t> starts = tokensOf(text);
  const size_t at = below(random, starts.size() - 1);
  const size_t begin = starts[at], end = starts[at + 1];
  const size_t other = below(random, starts.size() - 1);
  const std::string taken =
      text.substr(starts[other], starts[other + 1] - starts[other]);
  const std::string before = text.substr(0, begin), after = text.substr(end);
  switch (random() % 4) {
  case 0:
    return before + after;
  case 1:
    return before + text.substr(begin, end - begin) + taken + after;
  case 2:
    return before + taken + after;
  default:
    return before + oddToken(random) + after;
  }
}

} // namespace

std::string mutateText(const std::string &text, Random &random) {
  std::string data = text;
  const int count = 1 << random() % 4;
  for (int i = 0; i < count && !data.empty(); ++i)
    data = random() % 8 ? mutateTokens(data, random)
                        : mutateBytes(std::move(data), random);
  return data;
}

std::string mutate(const std::string &model,
                   const std::vector<std::string> &others, Random &random) {
  std::string data = model;
  const int count = 1 << random() % 4;
  for (int i = 0; i < count; ++i) {
    const std::string &other = others[below(random, others.size())];
    data = random() % 8 ? mutateFields(data, other, random, 0)
                        : mutateBytes(std::move(data), random);
  }
  return data;
}

} // namespace merak::fuzz
