#include "runtime/onnx/OnnxFile.h"

#include <fmt/format.h>

namespace merak::runtime {
namespace {

std::string text(std::string_view bytes) { return std::string(bytes); }

bool readExternal(const wire::Field &field, Initializer &out) {
  std::vector<wire::Field> pair;
  if (!wire::readMessage(field.bytes, pair))
    return false;
  std::string key, value;
  for (const wire::Field &part : pair)
    (part.number == 1 ? key : value) = text(part.bytes);
  if (key == "location") {
    out.location = value;
  } else if (key == "offset" || key == "length") {
    if (value.empty() ||
        value.find_first_not_of("0123456789") != std::string::npos ||
        value.size() > 18)
      return false;
    (key == "offset" ? out.offset : out.length) = std::stoull(value);
  }
  return true;
}

} // namespace

uint64_t sizeOf(int64_t type) {
  switch (type) {
  case kFloat16:
  case kBfloat16:
    return 2;
  case kFloat:
    return 4;
  case kDouble:
    return 8;
  default:
    return 0;
  }
}

Initializer newInitializer(int64_t type, const std::vector<int64_t> &dims) {
  Initializer made;
  made.type = type;
  made.dims = dims;
  for (int64_t dim : dims) {
    std::string field;
    wire::putNumber(field, kDims, static_cast<uint64_t>(dim));
    made.head += field;
  }
  std::string field;
  wire::putNumber(field, kType, static_cast<uint64_t>(type));
  made.head += field;
  return made;
}

Status OnnxFile::fail(const std::string &what) const {
  return Status::error(fmt::format("\"{}\": {}", path, what));
}

Status OnnxFile::read() {
  const std::string_view data(file->data(), file->size());
  if (!wire::readMessage(data, fields))
    return fail("expected a binary ONNX model");
  const wire::Field *found = nullptr;
  for (const wire::Field &field : fields)
    if (field.number == kModelGraph && field.type == wire::kBytes) {
      if (found)
        return fail("expected one graph, found several");
      found = &field;
    }
  if (!found || !wire::readMessage(found->bytes, graph))
    return fail("expected a binary ONNX model, found no graph");
  for (const wire::Field &field : graph) {
    if (field.number == kGraphInitializer && field.type == wire::kBytes) {
      Initializer initializer;
      MERAK_RETURN_IF_ERROR(readInitializer(field, initializer));
      names.insert(initializer.name);
      initializers.push_back(std::move(initializer));
    } else if (field.number == kGraphNode && field.type == wire::kBytes) {
      std::vector<wire::Field> node;
      if (!wire::readMessage(field.bytes, node))
        return fail("a node is damaged");
      for (const wire::Field &part : node)
        if (part.number == kNodeOutput)
          values.insert(text(part.bytes));
    }
  }
  return {};
}

Status OnnxFile::readInitializer(const wire::Field &field,
                                 Initializer &out) const {
  if (!wire::readMessage(field.bytes, out.fields))
    return fail("an initializer is damaged");
  for (const wire::Field &part : out.fields) {
    bool good = true;
    if (part.number == kDims)
      good = wire::readNumbers(part, out.dims);
    else if (part.number == kType)
      out.type = static_cast<int64_t>(part.value);
    else if (part.number == kName)
      out.name = text(part.bytes);
    else if (part.number == kLocation)
      out.external = part.value == 1;
    else if (part.number == kExternal)
      good = readExternal(part, out);
    if (!good)
      return fail(fmt::format("initializer \"{}\" is damaged", out.name));
  }
  return {};
}

} // namespace merak::runtime
