#include "runtime/checkpoint/TensorStore.h"

#include "runtime/core/DType.h"
#include "runtime/plan/SourceType.h"

#include <fmt/format.h>

#include <cstring>
#include <filesystem>

namespace merak::runtime {
namespace {

// Where the model was when the plan was made; or in the plan's own folder, if
// plan and model were moved together.
std::string resolvePath(const LoadedPlan &plan, const planpb::Source &source) {
  if (source.kind() == planpb::Source::CONSTANTS)
    return plan.dir + "/" +
           (source.path().empty() ? plan.file.constants() : source.path());
  if (source.path().empty() || source.path()[0] == '/' ||
      plan.file.model_dir().empty())
    return source.path();
  const std::string path = plan.file.model_dir() + "/" + source.path();
  const std::string inside = plan.dir + "/" + source.path();
  std::error_code error;
  return !std::filesystem::exists(path, error) &&
                 std::filesystem::exists(inside, error)
             ? inside
             : path;
}

// The file, if it is the one that the plan was made of.
Result<std::shared_ptr<MappedFile>>
openSource(const LoadedPlan &plan, const planpb::Source &source,
           const std::string &path, SourceCheck check, std::string *note) {
  auto file = MappedFile::open(path);
  const planpb::SourceFile *record =
      source.kind() == planpb::Source::FILE
          ? findSourceFile(plan.file, source.path())
          : nullptr;
  if (!file.ok() || !record)
    return file;
  MERAK_RETURN_IF_ERROR(checkSourceFile(*record, path, check, note));
  return file;
}

} // namespace

Result<TensorStore> TensorStore::fromPlan(const LoadedPlan &plan,
                                          const TensorStore *skip,
                                          SourceCheck check,
                                          std::string *note) {
  TensorStore store;
  std::map<std::string, Result<std::shared_ptr<MappedFile>>> files;
  Status problems;
  for (const planpb::Tensor &tensor : plan.file.tensors()) {
    if (skip && skip->find(tensor.name()))
      continue;
    StoredTensor stored;
    stored.dtype = sourceType(tensor);
    stored.shape.assign(tensor.shape().begin(), tensor.shape().end());
    const planpb::Source &source = tensor.source();
    if (source.kind() == planpb::Source::ABSENT) {
      problems.merge(Status::error(fmt::format(
          "tensor \"{}\" has no values: the model came without them; give a "
          "checkpoint with --load",
          tensor.name())));
      continue;
    }
    if (source.kind() != planpb::Source::ZERO) {
      const std::string path = resolvePath(plan, source);
      auto found = files.find(path);
      if (found == files.end()) {
        found = files.emplace(path, openSource(plan, source, path, check, note))
                    .first;
        if (!found->second.ok())
          problems.merge(
              Status(found->second.status())
                  .withContext(fmt::format("tensor \"{}\"", tensor.name())));
      }
      if (!found->second.ok())
        continue;
      const std::shared_ptr<MappedFile> &file = *found->second;
      uint64_t bytes = dtypeSize(stored.dtype);
      for (int64_t size : tensor.shape())
        bytes *= size;
      if (source.offset() > file->size() ||
          bytes > file->size() - source.offset()) {
        problems.merge(Status::error(fmt::format(
            "tensor \"{}\": bytes {}..{} are beyond the end of \"{}\" ({} "
            "bytes)",
            tensor.name(), source.offset(), source.offset() + bytes, path,
            file->size())));
        continue;
      }
      stored.pieces.push_back({file, file->data() + source.offset(),
                               std::vector<int64_t>(stored.shape.size(), 0),
                               stored.shape});
    }
    store.add(tensor.name(), std::move(stored));
  }
  if (!problems.ok())
    return problems;
  return store;
}

const StoredTensor *TensorStore::find(const std::string &name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

Status TensorStore::read(const std::string &name, const layout::Box &box,
                         void *data, const std::vector<int64_t> &shape) const {
  const StoredTensor *tensor = find(name);
  if (!tensor)
    return Status::error(fmt::format("no values for tensor \"{}\"", name));
  const int64_t size = dtypeSize(tensor->dtype);
  int64_t copied = 0;
  for (const StoredPiece &piece : tensor->pieces) {
    const layout::Box from{piece.origin,
                           std::vector<int64_t>(piece.origin.size(), 0),
                           piece.extent};
    for (const layout::Overlap &overlap : layout::overlaps({from}, {box})) {
      layout::copyBox(piece.data, piece.extent, overlap.originA, data, shape,
                      overlap.originB, overlap.extent, size);
      int64_t elements = 1;
      for (int64_t extent : overlap.extent)
        elements *= extent;
      copied += elements;
    }
    if (piece.file)
      MERAK_RETURN_IF_ERROR(piece.file->intact());
  }
  if (tensor->pieces.empty()) { // zeros
    const std::vector<char> zeros(box.elements() * size, 0);
    layout::copyBox(zeros.data(), box.extent,
                    std::vector<int64_t>(box.extent.size(), 0), data, shape,
                    box.localOrigin, box.extent, size);
  } else if (copied < box.elements()) {
    return Status::error(
        fmt::format("tensor \"{}\": the pieces hold {} of {} elements of a box",
                    name, copied, box.elements()));
  }
  return {};
}

} // namespace merak::runtime
