#include "runtime/onnx/ExportOnnx.h"

#include "runtime/checkpoint/Checkpoint.h"
#include "runtime/onnx/OnnxFile.h"
#include "runtime/onnx/Pieces.h"
#include "runtime/onnx/WeightUses.h"
#include "runtime/plan/FileIdentity.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

namespace merak::runtime {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kAlignment = 4096;
// A protobuf message must stay below 2 GiB; the graph needs some room too.
constexpr uint64_t kMaxInside = (uint64_t{2} << 30) - (uint64_t{64} << 20);

class Exporter {
public:
  Exporter(const LoadedPlan &plan, const OnnxExportOptions &options)
      : plan_(plan), options_(options) {}

  Result<OnnxExportSummary> run() {
    MERAK_RETURN_IF_ERROR(open());
    MERAK_RETURN_IF_ERROR(readUses());
    MERAK_RETURN_IF_ERROR(model_.read());
    Status placed = place();
    if (!placed.ok())
      return placed;
    chooseExternal();
    MERAK_RETURN_IF_ERROR(compose());
    MERAK_RETURN_IF_ERROR(write());
    return summary_;
  }

private:
  // That a file is the one that was compiled, unless the user named another.
  Status checkFile(const std::string &name, const std::string &path) const {
    const planpb::SourceFile *record = findSourceFile(plan_.file, name);
    return record && options_.model.empty()
               ? checkSourceFile(*record, path, SourceCheck::Sampled)
               : Status();
  }

  Status open() {
    model_.path = options_.model;
    std::error_code error;
    if (model_.path.empty()) {
      const fs::path name = fs::path(plan_.file.model()).filename();
      model_.path = (fs::path(plan_.file.model_dir()) / name).string();
      // Plan and model may have been moved together.
      if (!fs::exists(model_.path, error) &&
          fs::exists(fs::path(plan_.dir) / name, error))
        model_.path = (fs::path(plan_.dir) / name).string();
    }
    auto file = MappedFile::open(model_.path);
    if (!file)
      return file.status();
    model_.file = *file;
    MERAK_RETURN_IF_ERROR(checkFile(
        fs::path(plan_.file.model()).filename().string(), model_.path));
    if (fs::equivalent(model_.path, options_.output, error))
      return model_.fail(
          "expected another file to write than the model itself");
    CheckpointState state;
    return openCheckpoint(plan_, options_.checkpoint, store_, state);
  }

  // Of the parameters that are trained.
  Status readUses() {
    auto uses = readWeightUses(plan_.dir);
    if (!uses)
      return uses.status();
    const auto untrained = [&](const auto &use) {
      return !store_.find(use.parameter);
    };
    uses_ = std::move(*uses);
    std::erase_if(uses_.splits, untrained);
    std::erase_if(uses_.folds, untrained);
    return {};
  }

  // Which parameter goes where; all that have no place.
  Status place() {
    Status problems;
    std::map<std::string, const Initializer *> byName;
    for (const Initializer &initializer : model_.initializers)
      byName[initializer.name] = &initializer;
    std::set<std::string> split;
    for (const SplitUse &use : uses_.splits) {
      const auto source = byName.find(use.initializer);
      if (use.initializer.empty())
        split.insert(use.parameter);
      else if (source == byName.end())
        problems.merge(
            model_.fail(fmt::format("expected the initializer \"{}\" that "
                                    "parameter \"{}\" was taken from",
                                    use.initializer, use.parameter)));
      else
        split.insert(use.parameter);
      if (!model_.values.count(use.output))
        problems.merge(
            model_.fail(fmt::format("no node makes \"{}\", which reads "
                                    "parameter \"{}\"",
                                    use.output, use.parameter)));
    }
    for (const FoldedUse &use : uses_.folds) {
      const auto target = byName.find(use.initializer);
      if (target == byName.end() || !sizeOf(target->second->type) ||
          !use.fits(store_.find(use.parameter)->shape, target->second->dims))
        problems.merge(
            model_.fail(fmt::format("expected the initializer \"{}\" that "
                                    "was computed from parameter \"{}\"",
                                    use.initializer, use.parameter)));
      else if (!byName.count(use.parameter))
        split.insert(use.parameter);
    }
    for (const planpb::Tensor &tensor : plan_.file.tensors()) {
      if ((tensor.role() != planpb::Tensor::PARAMETER &&
           tensor.role() != planpb::Tensor::STATISTIC) ||
          split.count(tensor.name()))
        continue;
      const auto found = byName.find(tensor.name());
      const std::vector<int64_t> shape(tensor.shape().begin(),
                                       tensor.shape().end());
      if (found == byName.end())
        problems.merge(model_.fail(
            fmt::format("no initializer \"{}\" for the parameter of the plan",
                        tensor.name())));
      else if (found->second->dims != shape || !sizeOf(found->second->type))
        problems.merge(model_.fail(fmt::format(
            "initializer \"{}\": expected a float tensor of "
            "[{}], found type {} of [{}]",
            tensor.name(), fmt::join(shape, ","), found->second->type,
            fmt::join(found->second->dims, ","))));
      else
        trained_.insert(tensor.name());
    }
    return problems;
  }

  void chooseExternal() {
    external_ = options_.external;
    uint64_t inside = model_.file->size();
    for (const Initializer &initializer : model_.initializers)
      if (initializer.external)
        external_ = true;
    for (const SplitUse &use : uses_.splits)
      inside += bytesOf(*store_.find(use.parameter), kDouble);
    external_ |= inside > kMaxInside;
  }

  // Appends an initializer: its head, then its data here or in the data file.
  void addTensor(const Initializer &like, const std::string &name,
                 const Piece &data, std::vector<Piece> &graph) {
    std::string head = like.head;
    for (const wire::Field &part : like.fields) {
      // Data in any form (4-7, 9-11) and where it lies are written anew.
      const uint32_t n = part.number;
      if ((n >= 4 && n <= 7) || (n >= 9 && n <= 11) || n == kExternal ||
          n == kLocation || n == kName)
        continue;
      head += part.whole;
    }
    wire::putBytes(head, kName, name);
    const bool outside = external_ && data.size >= 1024;
    if (outside) {
      const uint64_t offset =
          (dataSize_ + kAlignment - 1) / kAlignment * kAlignment;
      for (const auto &[key, value] :
           {std::pair<const char *, std::string>{"location", dataName()},
            {"offset", std::to_string(offset)},
            {"length", std::to_string(data.size)}}) {
        std::string pair;
        wire::putBytes(pair, 1, key);
        wire::putBytes(pair, 2, value);
        wire::putBytes(head, kExternal, pair);
      }
      wire::putNumber(head, kLocation, 1);
      addText(data_, std::string(offset - dataSize_, '\0'));
      data_.push_back(data);
      dataSize_ = offset + data.size;
    } else {
      wire::putLength(head, kRaw, data.size);
    }
    std::string tag;
    wire::putLength(tag, kGraphInitializer,
                    head.size() + (outside ? 0 : data.size));
    addText(graph, tag + head);
    if (!outside)
      graph.push_back(data);
  }

  std::string dataName() const {
    return fs::path(options_.output).filename().string() + ".data";
  }

  Piece trained(const std::string &parameter, int64_t type) const {
    Piece piece;
    piece.parameter = parameter;
    piece.type = type;
    piece.size = bytesOf(*store_.find(parameter), type);
    return piece;
  }

  // The bytes of external data that stay what they are.
  Status mapExternal(const Initializer &initializer, Piece &piece) {
    const fs::path relative(initializer.location);
    bool escapes = relative.empty() || relative.is_absolute();
    for (const fs::path &part : relative)
      escapes |= part == "..";
    if (escapes)
      return model_.fail(
          fmt::format("initializer \"{}\": expected external data "
                      "below the model's folder, found \"{}\"",
                      initializer.name, initializer.location));
    const std::string full =
        (fs::path(model_.path).parent_path() / relative).string();
    auto found = files_.find(full);
    if (found == files_.end()) {
      auto file = MappedFile::open(full);
      if (!file)
        return file.status();
      MERAK_RETURN_IF_ERROR(checkFile(initializer.location, full));
      found = files_.emplace(full, *file).first;
    }
    const MappedFile &file = *found->second;
    const uint64_t length =
        initializer.length
            ? initializer.length
            : file.size() - std::min(file.size(), initializer.offset);
    if (initializer.offset > file.size() ||
        length > file.size() - initializer.offset)
      return model_.fail(
          fmt::format("initializer \"{}\": its bytes are beyond the "
                      "end of \"{}\"",
                      initializer.name, full));
    piece.mapped = {file.data() + initializer.offset, length};
    piece.size = length;
    return {};
  }

  // A node that reads un-merged parameters gets their names; an Identity whose
  // result became a parameter is left out. False: as it is.
  bool rewriteNode(const wire::Field &field, std::string &out) {
    std::vector<wire::Field> parts;
    wire::readMessage(field.bytes, parts);
    std::string first, type;
    for (const wire::Field &part : parts) {
      if (part.number == kNodeOutput && first.empty())
        first = part.bytes;
      if (part.number == kNodeType)
        type = part.bytes;
    }
    std::map<size_t, std::string> inputs;
    for (const SplitUse &use : uses_.splits)
      if (use.output == first) {
        if (type == "Identity" && use.parameter == first)
          return true;
        inputs[use.input] = use.name();
      }
    if (inputs.empty())
      return false;
    std::string node;
    size_t slot = 0;
    for (const wire::Field &part : parts) {
      if (part.number == kNodeInput) {
        const auto renamed = inputs.find(slot++);
        if (renamed != inputs.end()) {
          wire::putBytes(node, kNodeInput, nameFor(renamed->second));
          continue;
        }
      }
      node += part.whole;
    }
    // Inputs that the file does not have come behind those it has.
    for (auto more = inputs.lower_bound(slot); more != inputs.end(); ++more)
      wire::putBytes(node, kNodeInput, nameFor(more->second));
    wire::putBytes(out, kGraphNode, node);
    return true;
  }

  // Values of a graph have distinct names.
  std::string nameFor(const std::string &parameter) const {
    const bool replacesIdentity = std::any_of(
        uses_.splits.begin(), uses_.splits.end(), [&](const SplitUse &use) {
          return use.parameter == parameter && use.output == parameter;
        });
    std::string name = parameter;
    while (!replacesIdentity &&
           (model_.values.count(name) || model_.names.count(name)))
      name += ".trained";
    return name;
  }

  Status compose() {
    Status problems;
    size_t index = 0;
    for (const wire::Field &field : model_.graph) {
      if (field.number == kGraphNode && field.type == wire::kBytes) {
        std::string node;
        if (!rewriteNode(field, node))
          node = std::string(field.whole);
        addText(graph_, std::move(node));
        continue;
      }
      if (field.number != kGraphInitializer || field.type != wire::kBytes) {
        addText(graph_, std::string(field.whole));
        continue;
      }
      const Initializer &initializer = model_.initializers[index++];
      const auto fold = std::find_if(
          uses_.folds.begin(), uses_.folds.end(), [&](const FoldedUse &use) {
            return use.initializer == initializer.name;
          });
      if (fold != uses_.folds.end()) {
        ++summary_.written;
        Piece piece = trained(fold->parameter, initializer.type);
        piece.foldedTo = initializer.dims;
        piece.permutation = fold->permutation;
        piece.functions = fold->functions;
        piece.size = sizeOf(initializer.type);
        for (int64_t extent : initializer.dims)
          piece.size *= static_cast<uint64_t>(extent);
        addTensor(initializer, initializer.name, piece, graph_);
      } else if (trained_.count(initializer.name)) {
        ++summary_.written;
        addTensor(initializer, initializer.name,
                  trained(initializer.name, initializer.type), graph_);
      } else if (initializer.external) {
        ++summary_.kept;
        Piece bytes;
        problems.merge(mapExternal(initializer, bytes));
        addTensor(initializer, initializer.name, bytes, graph_);
      } else {
        ++summary_.kept;
        Piece same;
        same.mapped = field.whole;
        same.size = field.whole.size();
        graph_.push_back(same);
      }
    }
    std::set<std::string> added;
    for (const SplitUse &use : uses_.splits)
      if (use.initializer.empty() && added.insert(use.parameter).second) {
        ++summary_.added;
        addTensor(newInitializer(kFloat, store_.find(use.parameter)->shape),
                  nameFor(use.parameter), trained(use.parameter, kFloat),
                  graph_);
      }
    for (const SplitUse &use : uses_.splits)
      for (const Initializer &initializer : model_.initializers)
        if (initializer.name == use.initializer &&
            added.insert(use.name()).second) {
          ++summary_.added;
          Piece piece = trained(use.parameter, initializer.type);
          piece.functions = use.functions;
          addTensor(initializer, nameFor(use.name()), piece, graph_);
        }
    return problems;
  }

  Status write() {
    uint64_t size = 0;
    for (const Piece &piece : graph_)
      size += piece.size;
    if (dataSize_ > 0) {
      const std::string path =
          (fs::path(options_.output).parent_path() / dataName()).string();
      MERAK_RETURN_IF_ERROR(writeFile(path, [&](std::ofstream &file) {
        for (const Piece &piece : data_)
          MERAK_RETURN_IF_ERROR(writePiece(file, piece, store_));
        return Status();
      }));
      summary_.data = path;
    }
    return writeFile(options_.output, [&](std::ofstream &file) {
      for (const wire::Field &field : model_.fields) {
        if (field.number != kModelGraph) {
          file.write(field.whole.data(),
                     static_cast<std::streamsize>(field.whole.size()));
          continue;
        }
        std::string tag;
        wire::putLength(tag, kModelGraph, size);
        file << tag;
        for (const Piece &piece : graph_)
          MERAK_RETURN_IF_ERROR(writePiece(file, piece, store_));
      }
      return Status();
    });
  }

  const LoadedPlan &plan_;
  const OnnxExportOptions &options_;
  OnnxFile model_;
  WeightUses uses_;
  TensorStore store_;
  std::map<std::string, std::shared_ptr<MappedFile>> files_;
  std::set<std::string> trained_;
  bool external_ = false;
  std::vector<Piece> graph_, data_;
  uint64_t dataSize_ = 0;
  OnnxExportSummary summary_;
};

} // namespace

Result<OnnxExportSummary> exportOnnx(const LoadedPlan &plan,
                                     const OnnxExportOptions &options) {
  return Exporter(plan, options).run();
}

} // namespace merak::runtime
