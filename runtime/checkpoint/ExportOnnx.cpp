#include "runtime/checkpoint/ExportOnnx.h"

#include "runtime/checkpoint/Checkpoint.h"
#include "runtime/core/DType.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <map>

namespace merak::runtime {
namespace {

namespace fs = std::filesystem;

uint64_t bytesOf(const planpb::Tensor &tensor) {
  uint64_t bytes = dtypeSize(tensor.dtype());
  for (int64_t size : tensor.shape())
    bytes *= static_cast<uint64_t>(size);
  return bytes;
}

// What goes where, by file of the model.
struct Patch {
  const planpb::Tensor *tensor;
  uint64_t offset;
};
using Patches = std::map<std::string, std::vector<Patch>>;

Status collect(const LoadedPlan &plan, Patches &patches) {
  Status problems;
  std::map<std::pair<std::string, uint64_t>, std::string> taken;
  for (const planpb::Tensor &tensor : plan.file.tensors()) {
    if (tensor.role() != planpb::Tensor::PARAMETER)
      continue;
    const planpb::Source &source = tensor.source();
    if (source.kind() != planpb::Source::FILE) {
      problems.merge(Status::error(fmt::format(
          "parameter \"{}\" has no bytes of its own in the model; export it "
          "with raw or external data",
          tensor.name())));
      continue;
    }
    const auto [it, fresh] =
        taken.emplace(std::pair(source.path(), source.offset()), tensor.name());
    if (!fresh)
      problems.merge(Status::error(fmt::format(
          "parameters \"{}\" and \"{}\" are one initializer in the model; "
          "compile with --keep-shared, or export without merged initializers",
          it->second, tensor.name())));
    patches[source.path()].push_back({&tensor, source.offset()});
  }
  return problems;
}

// A copy of `from` with the new values.
Status writeFile(const std::string &from, const std::string &to,
                 const std::vector<Patch> &patches, const TensorStore &store) {
  std::error_code error;
  if (fs::equivalent(from, to, error))
    return Status::error(
        fmt::format("\"{}\" is the model itself; choose another file", to));
  fs::copy_file(from, to, fs::copy_options::overwrite_existing, error);
  if (error)
    return Status::error(fmt::format("cannot copy \"{}\" to \"{}\": {}", from,
                                     to, error.message()));
  fs::permissions(to, fs::perms::owner_write, fs::perm_options::add, error);
  std::fstream file(to, std::ios::binary | std::ios::in | std::ios::out);
  std::vector<char> bytes;
  for (const Patch &patch : patches) {
    const std::vector<int64_t> shape(patch.tensor->shape().begin(),
                                     patch.tensor->shape().end());
    bytes.resize(bytesOf(*patch.tensor));
    const std::vector<int64_t> zero(shape.size(), 0);
    MERAK_RETURN_IF_ERROR(store.read(patch.tensor->name(), {zero, zero, shape},
                                     bytes.data(), shape));
    file.seekp(static_cast<std::streamoff>(patch.offset));
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  file.flush();
  if (!file)
    return Status::error(fmt::format("cannot write \"{}\"", to));
  return {};
}

} // namespace

Status exportOnnx(const LoadedPlan &plan, const std::string &checkpoint,
                  const std::string &output) {
  Patches patches;
  Status problems = collect(plan, patches);
  TensorStore store;
  CheckpointState state;
  problems.merge(openCheckpoint(plan, checkpoint, store, state));
  const std::string model = fs::path(plan.file.model()).filename().string();
  patches[model]; // copied even if all weights are external
  if (!problems.ok())
    return problems;
  const fs::path folder = fs::path(output).parent_path();
  for (const auto &[name, list] : patches) {
    const std::string from = plan.file.model_dir().empty() || name[0] == '/'
                                 ? name
                                 : plan.file.model_dir() + "/" + name;
    const fs::path to = name == model ? fs::path(output) : folder / name;
    std::error_code error;
    if (!to.parent_path().empty())
      fs::create_directories(to.parent_path(), error);
    problems.merge(writeFile(from, to.string(), list, store));
  }
  return problems;
}

} // namespace merak::runtime
