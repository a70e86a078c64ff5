#include "runtime/backends/cpu/Kernel.h"
#include "runtime/core/DType.h"

#include <charconv>
#include <fmt/ranges.h>

namespace merak::cpu {

using runtime::dtypeName;

bool Request::expect(bool condition, const std::string &message) {
  if (!condition)
    problems_.merge(
        Status::error(fmt::format("{}: {}", instruction.op(), message)));
  return condition;
}

bool Request::counts(size_t inputCount, size_t outputCount) {
  bool a = expect(
      inputs.size() == inputCount,
      fmt::format("expected {} inputs, found {}", inputCount, inputs.size()));
  bool b = expect(outputs.size() == outputCount,
                  fmt::format("expected {} outputs, found {}", outputCount,
                              outputs.size()));
  return a && b;
}

void Request::type(const View &view, const char *what, planpb::DType dtype) {
  expect(view.dtype == dtype,
         fmt::format("expected {} of type {}, found {}", what, dtypeName(dtype),
                     dtypeName(view.dtype)));
}

void Request::index(const View &view, const char *what) {
  expect(view.dtype == planpb::I64 || view.dtype == planpb::I32,
         fmt::format("expected {} of type i64 or i32, found {}", what,
                     dtypeName(view.dtype)));
}

void Request::allF32() {
  for (size_t i = 0; i < inputs.size(); ++i)
    type(inputs[i], fmt::format("input {}", i).c_str(), planpb::F32);
  for (size_t i = 0; i < outputs.size(); ++i)
    type(outputs[i], fmt::format("output {}", i).c_str(), planpb::F32);
}

void Request::sameShape(const View &a, const char *aName, const View &b,
                        const char *bName) {
  expect(a.shape == b.shape,
         fmt::format("expected {} of shape [{}] as {}, found [{}]", bName,
                     fmt::join(a.shape, ", "), aName,
                     fmt::join(b.shape, ", ")));
}

void Request::shape(const View &view, const char *what,
                    const std::vector<int64_t> &expected) {
  expect(view.shape == expected,
         fmt::format("expected {} of shape [{}], found [{}]", what,
                     fmt::join(expected, ", "), fmt::join(view.shape, ", ")));
}

bool Request::has(const char *name) const {
  return instruction.attrs().contains(name);
}

std::string Request::text(const char *name,
                          std::optional<std::string> missing) {
  auto found = instruction.attrs().find(name);
  if (found != instruction.attrs().end())
    return found->second;
  expect(missing.has_value(), fmt::format("attribute '{}' is missing", name));
  return missing.value_or("");
}

namespace {

template <typename T> bool parse(std::string_view text, T &value) {
  while (!text.empty() && text.front() == ' ')
    text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ')
    text.remove_suffix(1);
  auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

} // namespace

int64_t Request::integer(const char *name, std::optional<int64_t> missing) {
  if (missing && !has(name))
    return *missing;
  int64_t value = 0;
  std::string found = text(name);
  if (has(name))
    expect(
        parse(found, value),
        fmt::format("expected an integer for '{}', found '{}'", name, found));
  return value;
}

double Request::real(const char *name, std::optional<double> missing) {
  if (missing && !has(name))
    return *missing;
  double value = 0;
  std::string found = text(name);
  if (has(name))
    expect(parse(found, value),
           fmt::format("expected a number for '{}', found '{}'", name, found));
  return value;
}

std::vector<int64_t>
Request::list(const char *name, std::optional<std::vector<int64_t>> missing) {
  if (missing && !has(name))
    return *missing;
  std::string found = text(name);
  std::vector<int64_t> values;
  for (size_t at = 0; at < found.size();) {
    size_t end = std::min(found.find(',', at), found.size());
    int64_t value = 0;
    if (!expect(
            parse(std::string_view(found).substr(at, end - at), value),
            fmt::format("expected integers for '{}', found '{}'", name, found)))
      return {};
    values.push_back(value);
    at = end + 1;
  }
  return values;
}

int64_t Request::axis(int64_t rank, const char *name) {
  int64_t value = integer(name);
  if (!expect(value >= -rank && value < rank,
              fmt::format("expected '{}' in [{}, {}), found {}", name, -rank,
                          rank, value)))
    return 0;
  return value < 0 ? value + rank : value;
}

} // namespace merak::cpu
