#include "runtime/onnx/ExportOnnx.h"

#include "runtime/checkpoint/Checkpoint.h"
#include "runtime/core/HalfFloat.h"
#include "runtime/onnx/FoldedValues.h"
#include "runtime/plan/FileIdentity.h"
#include "support/ReadFile.h"
#include "support/WireFormat.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>

namespace merak::runtime {
namespace {

namespace fs = std::filesystem;

// Field numbers of onnx.proto.
constexpr uint32_t kModelGraph = 7;
constexpr uint32_t kGraphNode = 1, kGraphInitializer = 5;
constexpr uint32_t kNodeInput = 1, kNodeOutput = 2, kNodeType = 4;
constexpr uint32_t kDims = 1, kType = 2, kName = 8, kRaw = 9;
constexpr uint32_t kExternal = 13, kLocation = 14;
constexpr uint64_t kAlignment = 4096;
// A protobuf message must stay below 2 GiB; the graph needs some room too.
constexpr uint64_t kMaxInside = (uint64_t{2} << 30) - (uint64_t{64} << 20);

// Codes of TensorProto.DataType.
enum OnnxType { kFloat = 1, kFloat16 = 10, kDouble = 11, kBfloat16 = 16 };

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

struct Initializer {
  std::string name;
  int64_t type = 0;
  std::vector<int64_t> dims;
  std::vector<wire::Field> fields;
  std::string head; // in place of fields, of a new one
  bool external = false;
  std::string location;
  uint64_t offset = 0, length = 0;
};

// One piece of the output: text that is there, bytes of a mapped file, or a
// tensor that is read from the checkpoint when its turn comes.
struct Piece {
  std::string text;
  std::string_view mapped;
  std::string parameter;
  int64_t type = 0;
  uint64_t size = 0;
  // An initializer that was computed from the parameter.
  std::vector<std::string> functions; // applied first
  std::vector<int64_t> foldedTo, permutation;
};

struct SplitUse {
  std::string parameter, initializer, output;
  size_t input = 0;
  // Where the initializer was computed from the parameter: what the copy of it
  // is called.
  std::string copy = {};
  std::vector<std::string> functions = {};

  const std::string &name() const { return copy.empty() ? parameter : copy; }
};

// Fields of an initializer that the file does not have.
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

class Exporter {
public:
  Exporter(const LoadedPlan &plan, const OnnxExportOptions &options)
      : plan_(plan), options_(options) {}

  Result<OnnxExportSummary> run() {
    MERAK_RETURN_IF_ERROR(open());
    MERAK_RETURN_IF_ERROR(readSplitUses());
    MERAK_RETURN_IF_ERROR(readGraph());
    Status placed = place();
    if (!placed.ok())
      return placed;
    chooseExternal();
    MERAK_RETURN_IF_ERROR(compose());
    MERAK_RETURN_IF_ERROR(write());
    return summary_;
  }

private:
  Status fail(const std::string &what) const {
    return Status::error(fmt::format("\"{}\": {}", path_, what));
  }

  // That a file is the one that was compiled, unless the user named another.
  Status checkFile(const std::string &name, const std::string &path) const {
    const planpb::SourceFile *record = findSourceFile(plan_.file, name);
    return record && options_.model.empty()
               ? checkSourceFile(*record, path, SourceCheck::Sampled)
               : Status();
  }

  Status open() {
    path_ = options_.model;
    std::error_code error;
    if (path_.empty()) {
      const fs::path name = fs::path(plan_.file.model()).filename();
      path_ = (fs::path(plan_.file.model_dir()) / name).string();
      // Plan and model may have been moved together.
      if (!fs::exists(path_, error) &&
          fs::exists(fs::path(plan_.dir) / name, error))
        path_ = (fs::path(plan_.dir) / name).string();
    }
    auto file = MappedFile::open(path_);
    if (!file)
      return file.status();
    model_ = *file;
    MERAK_RETURN_IF_ERROR(
        checkFile(fs::path(plan_.file.model()).filename().string(), path_));
    if (fs::equivalent(path_, options_.output, error))
      return fail("expected another file to write than the model itself");
    CheckpointState state;
    return openCheckpoint(plan_, options_.checkpoint, store_, state);
  }

  Status readSplitUses() {
    std::string text;
    if (!readFile(plan_.dir + "/weights.json", text).empty())
      return {};
    const auto json = nlohmann::json::parse(text, nullptr, false);
    auto bad = [&] {
      return Status::error(fmt::format(
          "\"{}/weights.json\": expected the uses of parameters", plan_.dir));
    };
    if (!json.is_object() || !json.contains("split_uses") ||
        !json["split_uses"].is_array())
      return bad();
    for (const auto &entry : json["split_uses"]) {
      SplitUse use;
      if (!entry.is_object() || !readName(entry, "parameter", use.parameter) ||
          !readName(entry, "initializer", use.initializer) ||
          !readName(entry, "output", use.output) ||
          !entry.value("input", nlohmann::json()).is_number_unsigned() ||
          !readFunctions(entry, use.functions))
        return bad();
      use.input = entry["input"];
      readName(entry, "copy", use.copy);
      if (store_.find(use.parameter)) // else not trained
        splits_.push_back(use);
    }
    for (const auto &entry :
         json.value("folded_uses", nlohmann::json::array())) {
      FoldedUse use;
      if (!entry.is_object() || !readName(entry, "parameter", use.parameter) ||
          !readName(entry, "initializer", use.initializer) ||
          !readFunctions(entry, use.functions) ||
          !readAxes(entry, use.permutation))
        return bad();
      if (entry.value("transposed", false)) // as older plans have it
        use.permutation = {1, 0};
      if (store_.find(use.parameter))
        folds_.push_back(use);
    }
    return {};
  }

  static bool readName(const nlohmann::json &entry, const char *key,
                       std::string &out) {
    const auto found = entry.find(key);
    if (found == entry.end() || !found->is_string())
      return false;
    out = *found;
    return true;
  }

  static bool readFunctions(const nlohmann::json &entry,
                            std::vector<std::string> &out) {
    for (const auto &type : entry.value("functions", nlohmann::json::array())) {
      if (!type.is_string() || !isFoldedFunction(type))
        return false;
      out.push_back(type);
    }
    return true;
  }

  static bool readAxes(const nlohmann::json &entry, std::vector<int64_t> &out) {
    for (const auto &axis :
         entry.value("permutation", nlohmann::json::array())) {
      if (!axis.is_number_unsigned())
        return false;
      out.push_back(axis);
    }
    return true;
  }

  static std::string text(std::string_view bytes) { return std::string(bytes); }

  Status readGraph() {
    const std::string_view data(model_->data(), model_->size());
    if (!wire::readMessage(data, modelFields_))
      return fail("expected a binary ONNX model");
    const wire::Field *graph = nullptr;
    for (const wire::Field &field : modelFields_)
      if (field.number == kModelGraph && field.type == wire::kBytes) {
        if (graph)
          return fail("expected one graph, found several");
        graph = &field;
      }
    if (!graph || !wire::readMessage(graph->bytes, graphFields_))
      return fail("expected a binary ONNX model, found no graph");
    for (const wire::Field &field : graphFields_) {
      if (field.number == kGraphInitializer && field.type == wire::kBytes) {
        Initializer initializer;
        MERAK_RETURN_IF_ERROR(readInitializer(field, initializer));
        names_.insert(initializer.name);
        initializers_.push_back(std::move(initializer));
      } else if (field.number == kGraphNode && field.type == wire::kBytes) {
        std::vector<wire::Field> node;
        if (!wire::readMessage(field.bytes, node))
          return fail("a node is damaged");
        for (const wire::Field &part : node)
          if (part.number == kNodeOutput)
            values_.insert(text(part.bytes));
      }
    }
    return {};
  }

  Status readInitializer(const wire::Field &field, Initializer &out) {
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

  static bool readExternal(const wire::Field &field, Initializer &out) {
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

  // Which parameter goes where; all that have no place.
  Status place() {
    Status problems;
    std::map<std::string, const Initializer *> byName;
    for (const Initializer &initializer : initializers_)
      byName[initializer.name] = &initializer;
    std::set<std::string> split;
    for (const SplitUse &use : splits_) {
      const auto source = byName.find(use.initializer);
      if (use.initializer.empty())
        split.insert(use.parameter);
      else if (source == byName.end())
        problems.merge(fail(fmt::format("expected the initializer \"{}\" that "
                                        "parameter \"{}\" was taken from",
                                        use.initializer, use.parameter)));
      else
        split.insert(use.parameter);
      if (!values_.count(use.output))
        problems.merge(fail(fmt::format("no node makes \"{}\", which reads "
                                        "parameter \"{}\"",
                                        use.output, use.parameter)));
    }
    for (const FoldedUse &use : folds_) {
      const auto target = byName.find(use.initializer);
      if (target == byName.end() || !sizeOf(target->second->type) ||
          !use.fits(store_.find(use.parameter)->shape, target->second->dims))
        problems.merge(fail(fmt::format("expected the initializer \"{}\" that "
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
        problems.merge(fail(
            fmt::format("no initializer \"{}\" for the parameter of the plan",
                        tensor.name())));
      else if (found->second->dims != shape || !sizeOf(found->second->type))
        problems.merge(fail(fmt::format(
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
    uint64_t inside = model_->size();
    for (const Initializer &initializer : initializers_)
      if (initializer.external)
        external_ = true;
    for (const SplitUse &use : splits_)
      inside += bytesOf(use.parameter, kDouble);
    external_ |= inside > kMaxInside;
  }

  uint64_t bytesOf(const std::string &parameter, int64_t type) const {
    const StoredTensor *tensor = store_.find(parameter);
    uint64_t count = sizeOf(type);
    for (int64_t size : tensor ? tensor->shape : std::vector<int64_t>())
      count *= static_cast<uint64_t>(size);
    return count;
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
      data_.push_back({std::string(offset - dataSize_, '\0'),
                       {},
                       {},
                       0,
                       offset - dataSize_});
      data_.push_back(data);
      dataSize_ = offset + data.size;
    } else {
      wire::putLength(head, kRaw, data.size);
    }
    std::string tag;
    wire::putLength(tag, kGraphInitializer,
                    head.size() + (outside ? 0 : data.size));
    Piece front;
    front.text = tag + head;
    front.size = front.text.size();
    graph.push_back(std::move(front));
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
    piece.size = bytesOf(parameter, type);
    return piece;
  }

  // The bytes of external data that stay what they are.
  Status mapExternal(const Initializer &initializer, Piece &piece) {
    const fs::path relative(initializer.location);
    bool escapes = relative.empty() || relative.is_absolute();
    for (const fs::path &part : relative)
      escapes |= part == "..";
    if (escapes)
      return fail(fmt::format("initializer \"{}\": expected external data "
                              "below the model's folder, found \"{}\"",
                              initializer.name, initializer.location));
    const std::string full =
        (fs::path(path_).parent_path() / relative).string();
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
      return fail(fmt::format("initializer \"{}\": its bytes are beyond the "
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
        first = text(part.bytes);
      if (part.number == kNodeType)
        type = text(part.bytes);
    }
    std::map<size_t, std::string> inputs;
    for (const SplitUse &use : splits_)
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
    const bool replacesIdentity =
        std::any_of(splits_.begin(), splits_.end(), [&](const SplitUse &use) {
          return use.parameter == parameter && use.output == parameter;
        });
    std::string name = parameter;
    while (!replacesIdentity && (values_.count(name) || names_.count(name)))
      name += ".trained";
    return name;
  }

  Status compose() {
    Status problems;
    size_t index = 0;
    for (const wire::Field &field : graphFields_) {
      if (field.number == kGraphNode && field.type == wire::kBytes) {
        std::string node;
        if (!rewriteNode(field, node))
          node = text(field.whole);
        addText(graph_, std::move(node));
        continue;
      }
      if (field.number != kGraphInitializer || field.type != wire::kBytes) {
        addText(graph_, text(field.whole));
        continue;
      }
      const Initializer &initializer = initializers_[index++];
      const auto fold =
          std::find_if(folds_.begin(), folds_.end(), [&](const FoldedUse &use) {
            return use.initializer == initializer.name;
          });
      if (fold != folds_.end()) {
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
    for (const SplitUse &use : splits_)
      if (use.initializer.empty() && added.insert(use.parameter).second) {
        ++summary_.added;
        addTensor(newInitializer(kFloat, store_.find(use.parameter)->shape),
                  nameFor(use.parameter), trained(use.parameter, kFloat),
                  graph_);
      }
    for (const SplitUse &use : splits_)
      for (const Initializer &initializer : initializers_)
        if (initializer.name == use.initializer &&
            added.insert(use.name()).second) {
          ++summary_.added;
          Piece piece = trained(use.parameter, initializer.type);
          piece.functions = use.functions;
          addTensor(initializer, nameFor(use.name()), piece, graph_);
        }
    return problems;
  }

  static void addText(std::vector<Piece> &pieces, std::string text) {
    Piece piece;
    piece.size = text.size();
    piece.text = std::move(text);
    pieces.push_back(std::move(piece));
  }

  Status writePiece(std::ofstream &file, const Piece &piece) {
    if (!piece.parameter.empty()) {
      std::string bytes;
      MERAK_RETURN_IF_ERROR(convert(piece, bytes));
      file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    } else if (!piece.mapped.empty()) {
      file.write(piece.mapped.data(),
                 static_cast<std::streamsize>(piece.mapped.size()));
    } else {
      file.write(piece.text.data(),
                 static_cast<std::streamsize>(piece.text.size()));
    }
    return {};
  }

  // The trained values in the type of the initializer.
  Status convert(const Piece &piece, std::string &bytes) {
    const StoredTensor *tensor = store_.find(piece.parameter);
    const std::vector<int64_t> origin(tensor->shape.size(), 0);
    const layout::Box whole{origin, origin, tensor->shape};
    const uint64_t count = bytesOf(piece.parameter, kFloat) / sizeOf(kFloat);
    std::string values(count * dtypeSize(tensor->dtype), '\0');
    MERAK_RETURN_IF_ERROR(
        store_.read(piece.parameter, whole, values.data(), tensor->shape));
    if (tensor->dtype == planpb::F32)
      applyFunctions(piece.functions, values);
    convertTo(piece.type, tensor->dtype, count, values, bytes);
    if (!piece.foldedTo.empty())
      bytes = moveElements(bytes, tensor->shape, piece.foldedTo,
                           piece.permutation, sizeOf(piece.type));
    return {};
  }

  static void convertTo(int64_t type, planpb::DType dtype, uint64_t count,
                        std::string &values, std::string &bytes) {
    if ((dtype == planpb::F32 && type == kFloat) ||
        (dtype == planpb::F64 && type == kDouble)) {
      bytes = std::move(values);
      return;
    }
    bytes.resize(count * sizeOf(type));
    for (uint64_t i = 0; i < count; ++i) {
      double value = 0;
      if (dtype == planpb::F64) {
        std::memcpy(&value, values.data() + 8 * i, 8);
      } else if (dtype == planpb::F32) {
        float narrow = 0;
        std::memcpy(&narrow, values.data() + 4 * i, 4);
        value = narrow;
      } else {
        uint16_t bits = 0;
        std::memcpy(&bits, values.data() + 2 * i, 2);
        value = dtype == planpb::BF16 ? bf16ToFloat(bits) : f16ToFloat(bits);
      }
      const float single = static_cast<float>(value);
      const uint16_t half =
          type == kBfloat16 ? floatToBf16(single) : floatToF16(single);
      char *to = bytes.data() + i * sizeOf(type);
      if (type == kDouble)
        std::memcpy(to, &value, 8);
      else if (type == kFloat)
        std::memcpy(to, &single, 4);
      else
        std::memcpy(to, &half, 2);
    }
  }

  Status writeFile(const std::string &path,
                   const std::function<Status(std::ofstream &)> &body) {
    const std::string part = path + ".part";
    std::error_code error;
    Status status;
    {
      std::ofstream file(part, std::ios::binary);
      if (file)
        status = body(file);
      file.flush();
      if (status.ok() && !file)
        status = Status::error(fmt::format("{}: cannot be written", path));
    }
    if (status.ok()) {
      fs::rename(part, path, error);
      if (error)
        status = Status::error(
            fmt::format("{}: cannot be written: {}", path, error.message()));
    }
    if (!status.ok())
      fs::remove(part, error);
    return status;
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
          MERAK_RETURN_IF_ERROR(writePiece(file, piece));
        return Status();
      }));
      summary_.data = path;
    }
    return writeFile(options_.output, [&](std::ofstream &file) {
      for (const wire::Field &field : modelFields_) {
        if (field.number != kModelGraph) {
          file.write(field.whole.data(),
                     static_cast<std::streamsize>(field.whole.size()));
          continue;
        }
        std::string tag;
        wire::putLength(tag, kModelGraph, size);
        file << tag;
        for (const Piece &piece : graph_)
          MERAK_RETURN_IF_ERROR(writePiece(file, piece));
      }
      return Status();
    });
  }

  const LoadedPlan &plan_;
  const OnnxExportOptions &options_;
  std::string path_;
  std::shared_ptr<MappedFile> model_;
  std::map<std::string, std::shared_ptr<MappedFile>> files_;
  TensorStore store_;
  std::vector<wire::Field> modelFields_, graphFields_;
  std::vector<Initializer> initializers_;
  std::vector<SplitUse> splits_;
  std::vector<FoldedUse> folds_;
  std::set<std::string> names_, values_, trained_;
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
