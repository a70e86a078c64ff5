#include "runtime/data/Npy.h"

#include "runtime/core/DType.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace merak::runtime {
namespace {

struct Descr {
  const char *name;
  planpb::DType dtype;
};
// As written by NumPy on a little-endian machine; it knows bf16 as two bytes.
constexpr Descr kDescrs[] = {
    {"<f4", planpb::F32},  {"<i8", planpb::I64}, {"<i4", planpb::I32},
    {"|b1", planpb::BOOL}, {"<f2", planpb::F16}, {"<f8", planpb::F64},
    {"|u1", planpb::U8},   {"|i1", planpb::I8},  {"<i2", planpb::I16},
    {"<u2", planpb::U16},  {"<u4", planpb::U32}, {"<u8", planpb::U64},
    {"<V2", planpb::BF16},
};

// The text after "'key':" in the header's dictionary, blanks skipped.
std::string_view valueOf(std::string_view header, const char *key) {
  const size_t at = header.find(fmt::format("'{}'", key));
  if (at == std::string_view::npos)
    return {};
  size_t colon = header.find(':', at);
  if (colon == std::string_view::npos)
    return {};
  const size_t begin = header.find_first_not_of(" \t", colon + 1);
  return begin == std::string_view::npos ? std::string_view()
                                         : header.substr(begin);
}

// "(8, 32)" or "(8,)" or "()". False if it is none.
bool parseShape(std::string_view text, std::vector<int64_t> &shape) {
  if (text.empty() || text[0] != '(')
    return false;
  size_t i = 1;
  while (i < text.size() && text[i] != ')') {
    if (text[i] == ' ' || text[i] == ',' || text[i] == 'L') {
      ++i;
      continue;
    }
    int64_t size = 0;
    const size_t begin = i;
    for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) {
      if (size > (int64_t{1} << 48))
        return false;
      size = size * 10 + (text[i] - '0');
    }
    if (i == begin)
      return false;
    shape.push_back(size);
  }
  return i < text.size();
}

} // namespace

Result<NpyArray> openNpy(const std::string &path) {
  auto file = MappedFile::open(path);
  if (!file)
    return file.status();
  auto fail = [&](const std::string &what) {
    return Status::error(fmt::format("\"{}\": {}", path, what));
  };
  NpyArray array;
  array.file = *file;
  const std::string_view bytes(array.file->data(), array.file->size());
  if (bytes.size() < 10 || bytes.substr(0, 6) != "\x93NUMPY")
    return fail("not a .npy file");
  const int major = bytes[6];
  if (major < 1 || major > 3)
    return fail(fmt::format("version {} of .npy is not known", major));
  const auto byteAt = [&](size_t i) {
    return static_cast<uint64_t>(static_cast<unsigned char>(bytes[i]));
  };
  const size_t start = major == 1 ? 10 : 12;
  if (bytes.size() < start)
    return fail("the header is cut off");
  uint64_t length = byteAt(8) | byteAt(9) << 8;
  if (major > 1)
    length |= byteAt(10) << 16 | byteAt(11) << 24;
  if (length > bytes.size() - start)
    return fail("the header is cut off");
  const std::string_view header = bytes.substr(start, length);
  const std::string_view descr = valueOf(header, "descr");
  if (descr.size() < 5 || descr[0] != '\'')
    return fail("the header has no simple type");
  const std::string_view type = descr.substr(1, descr.find('\'', 1) - 1);
  for (const Descr &entry : kDescrs)
    if (type == entry.name)
      array.dtype = entry.dtype;
  if (array.dtype == planpb::DTYPE_INVALID)
    return fail(fmt::format("elements of type \"{}\" are not supported", type));
  if (valueOf(header, "fortran_order").substr(0, 5) != "False")
    return fail("the array is in column-major order; save it in row-major "
                "order (numpy.ascontiguousarray)");
  if (!parseShape(valueOf(header, "shape"), array.shape))
    return fail("the header has no shape");
  uint64_t expected = dtypeSize(array.dtype);
  for (int64_t size : array.shape)
    if (__builtin_mul_overflow(expected, uint64_t(size), &expected))
      return fail("the shape is too large");
  const uint64_t found = bytes.size() - start - length;
  if (found < expected)
    return fail(fmt::format("{} bytes of data, expected {} for shape {}", found,
                            expected, fmt::join(array.shape, "x")));
  array.data = bytes.data() + start + length;
  return array;
}

Status writeNpy(const std::string &path, planpb::DType dtype,
                const std::vector<int64_t> &shape, const void *data) {
  const char *descr = nullptr;
  for (const Descr &entry : kDescrs)
    if (entry.dtype == dtype)
      descr = entry.name;
  if (!descr)
    return Status::error(
        fmt::format("\"{}\": {} has no NumPy type", path, dtypeName(dtype)));
  std::string header = fmt::format(
      "{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", descr,
      fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
  // The data start at a multiple of 64.
  header.append(63 - (10 + header.size()) % 64, ' ');
  header += '\n';
  std::string start = "\x93NUMPY";
  start += '\1';
  start += '\0';
  start += static_cast<char>(header.size() & 255);
  start += static_cast<char>(header.size() >> 8);
  size_t bytes = dtypeSize(dtype);
  for (int64_t size : shape)
    bytes *= size;
  std::FILE *file = std::fopen(path.c_str(), "wb");
  bool good = file != nullptr;
  if (file) {
    good =
        std::fwrite(start.data(), 1, start.size(), file) == start.size() &&
        std::fwrite(header.data(), 1, header.size(), file) == header.size() &&
        (bytes == 0 || std::fwrite(data, 1, bytes, file) == bytes);
    good = std::fclose(file) == 0 && good;
  }
  if (!good)
    return Status::error(
        fmt::format("cannot write \"{}\": {}", path, std::strerror(errno)));
  return {};
}

} // namespace merak::runtime
