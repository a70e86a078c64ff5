#include "onnx/Import/DeviceNotes.h"

#include "onnx/Import/NewerFields.h"

#include "google/protobuf/unknown_field_set.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/raw_ostream.h"

#include <set>

using namespace merak;
using google::protobuf::UnknownFieldSet;
using planning::Strategy;

namespace {

constexpr int kConfiguration = 26, kNodeConfigurations = 10;

// ShardingSpecProto, as far as it is a decision.
struct Spec {
  std::string tensor;
  std::map<int64_t, int64_t> shards; // axis -> number of parts
};

struct NodeNotes {
  std::string configuration;
  std::optional<int64_t> stage;
  std::vector<Spec> specs;
};

Spec readSpec(const std::string &bytes) {
  Spec spec;
  for (const WireField &field : readFields(bytes)) {
    if (field.number == 1)
      spec.tensor = field.bytes;
    if (field.number != 4)
      continue;
    int64_t axis = 0, shards = 1;
    for (const WireField &dim : readFields(field.bytes)) {
      if (dim.number == 1)
        axis = static_cast<int64_t>(dim.value);
      if (dim.number == 2)
        for (const WireField &simple : readFields(dim.bytes))
          if (simple.number == 3)
            shards *= static_cast<int64_t>(simple.value);
    }
    spec.shards[axis] = shards;
  }
  return spec;
}

NodeNotes readNode(const std::string &bytes) {
  NodeNotes notes;
  for (const WireField &field : readFields(bytes)) {
    if (field.number == 1)
      notes.configuration = field.bytes;
    if (field.number == 2)
      notes.specs.push_back(readSpec(field.bytes));
    if (field.number == 3)
      notes.stage = static_cast<int32_t>(field.value);
  }
  return notes;
}

std::string nameOf(const onnx::NodeProto &node) {
  if (!node.name().empty())
    return node.name();
  return node.output_size() ? node.output(0) : node.op_type();
}

class NotesReader {
public:
  explicit NotesReader(OnnxFile &file)
      : file(file), graph(file.model().graph()) {
    for (const OnnxTensor &tensor : file.initializers())
      ranks[tensor.name] = static_cast<int64_t>(tensor.dims.size());
    for (const onnx::ValueInfoProto &input : graph.input())
      if (!ranks.count(input.name()))
        inputs[input.name()] = input.type().tensor_type().shape().dim_size();
  }

  Result<std::optional<Strategy>> run() {
    for (const auto &property : file.model().metadata_props())
      if (property.key() == kStrategyProperty) {
        Result<Strategy> parsed =
            Strategy::parse(property.value(), kStrategyProperty);
        if (!parsed.ok())
          return parsed.status();
        return std::optional<Strategy>(*parsed);
      }
    eachMessage(file.model(), kConfiguration, [&](const std::string &bytes) {
      std::string name;
      int64_t devices = 0;
      for (const WireField &field : readFields(bytes)) {
        if (field.number == 1)
          name = field.bytes;
        if (field.number == 2)
          devices = static_cast<int64_t>(field.value);
      }
      configurations[name] = devices;
    });
    if (configurations.empty())
      return std::optional<Strategy>();
    int64_t stages = 1;
    for (const onnx::NodeProto &node : graph.node())
      eachMessage(node, kNodeConfigurations, [&](const std::string &bytes) {
        take(node, readNode(bytes), stages);
      });
    if (!problems.ok())
      return problems;
    finish(stages);
    if (!problems.ok())
      return problems;
    return std::optional<Strategy>(strategy);
  }

private:
  void fail(const onnx::NodeProto &node, const std::string &what) {
    problems.merge(Status::error("node '" + nameOf(node) + "': " + what));
  }

  void take(const onnx::NodeProto &node, const NodeNotes &notes,
            int64_t &stages) {
    if (!configurations.count(notes.configuration))
      return fail(node, "expected the name of a device configuration of the "
                        "model, found '" +
                            notes.configuration + "'");
    // Several configurations are alternatives; the first one counts.
    if (chosen.empty())
      chosen = notes.configuration;
    if (notes.configuration != chosen)
      return;
    if (notes.stage) {
      if (*notes.stage < 0)
        return fail(node, "expected a pipeline stage from 0, found " +
                              std::to_string(*notes.stage));
      begins.try_emplace(*notes.stage, nameOf(node));
      stages = std::max(stages, *notes.stage + 1);
    }
    for (const Spec &spec : notes.specs)
      takeSpec(node, spec);
  }

  void takeSpec(const onnx::NodeProto &node, const Spec &spec) {
    if (!llvm::is_contained(node.input(), spec.tensor) &&
        !llvm::is_contained(node.output(), spec.tensor))
      return fail(node, "expected the sharding of an input or output of the "
                        "node, found '" +
                            spec.tensor + "'");
    auto parameter = ranks.find(spec.tensor);
    auto input = inputs.find(spec.tensor);
    bool isParameter = parameter != ranks.end();
    // Others follow from these.
    if (!isParameter && input == inputs.end())
      return;
    int64_t rank = isParameter ? parameter->second : input->second;
    for (auto [axis, shards] : spec.shards) {
      int64_t at = axis < 0 ? axis + rank : axis;
      if (at < 0 || at >= rank || shards < 1) {
        fail(node, "expected a sharded axis of '" + spec.tensor + "' of rank " +
                       std::to_string(rank) + ", found axis " +
                       std::to_string(axis) + " in " + std::to_string(shards) +
                       " parts");
        continue;
      }
      if (shards == 1)
        continue;
      if (!isParameter && at != 0)
        continue; // only samples are split at the inputs
      int64_t &degree = isParameter ? tp : dp;
      if (degree != 1 && degree != shards)
        fail(node, std::string("expected one degree for all ") +
                       (isParameter ? "initializers" : "inputs") + ", found " +
                       std::to_string(degree) + " and " +
                       std::to_string(shards) + " ('" + spec.tensor + "')");
      degree = shards;
      if (isParameter) {
        auto &dims = strategy.parameters[spec.tensor].dims;
        dims.resize(rank);
        dims[at] = {"tp"};
      }
    }
  }

  void finish(int64_t stages) {
    int64_t devices = configurations[chosen];
    for (int64_t s = 1; s < stages; ++s)
      if (!begins.count(s)) {
        problems.merge(Status::error("pipeline stage " + std::to_string(s) +
                                     " has no node"));
        return;
      }
    int64_t inOne = stages * tp;
    // Data parallelism need not be noted: what is left are replicas.
    if (dp == 1 && devices > inOne && devices % inOne == 0)
      dp = devices / inOne;
    if (inOne * dp != devices) {
      problems.merge(Status::error(
          "device configuration '" + chosen + "' has " +
          std::to_string(devices) + " devices, the nodes ask for " +
          std::to_string(stages) + " stages of " + std::to_string(dp) +
          " replicas of " + std::to_string(tp) + " parts"));
      return;
    }
    strategy.mesh = {{"pp", stages}, {"dp", dp}, {"tp", tp}};
    if (stages > 1) {
      strategy.stageBegins.emplace();
      for (int64_t s = 1; s < stages; ++s)
        strategy.stageBegins->push_back(begins[s]);
    }
  }

  OnnxFile &file;
  const onnx::GraphProto &graph;
  std::map<std::string, int64_t> configurations, ranks, inputs;
  std::map<int64_t, std::string> begins;
  std::string chosen;
  int64_t tp = 1, dp = 1;
  Strategy strategy;
  Status problems;
};

//===----------------------------------------------------------------------===//
// Writing
//===----------------------------------------------------------------------===//

std::string bytesOf(const UnknownFieldSet &set) {
  std::string bytes;
  set.SerializeToString(&bytes);
  return bytes;
}

// Replaces all fields of the number.
void setUnknown(google::protobuf::Message &message, int field,
                const std::vector<std::string> &values) {
  const auto *reflection = message.GetReflection();
  if (const auto *known = message.GetDescriptor()->FindFieldByNumber(field)) {
    reflection->ClearField(&message, known);
    for (const std::string &value : values)
      reflection->AddMessage(&message, known)->ParsePartialFromString(value);
    return;
  }
  UnknownFieldSet *set = reflection->MutableUnknownFields(&message);
  set->DeleteByNumber(field);
  for (const std::string &value : values)
    set->AddLengthDelimited(field, value);
}

class NotesWriter {
public:
  NotesWriter(const DeviceNotes &notes) : notes(notes) {
    auto degree = [&](const char *axis) {
      auto it = notes.strategy.mesh.find(axis);
      return it == notes.strategy.mesh.end() ? int64_t(1) : it->second;
    };
    pp = degree("pp");
    dp = degree("dp");
    tp = degree("tp");
    for (const Strategy::SplitClass &split : notes.strategy.classes)
      if (split.anchor.outer == 1)
        for (const std::string &axis : split.axes)
          axes[split.anchor.tensor][split.anchor.dim] = axis;
  }

  void annotate(onnx::ModelProto &model) {
    if (model.ir_version() < 11)
      model.set_ir_version(11);
    UnknownFieldSet configuration;
    configuration.AddLengthDelimited(1, kName);
    configuration.AddVarint(2, static_cast<uint64_t>(pp * dp * tp));
    setUnknown(model, kConfiguration, {bytesOf(configuration)});
    for (int i = model.metadata_props_size() - 1; i >= 0; --i)
      if (model.metadata_props(i).key() == kStrategyProperty)
        model.mutable_metadata_props()->DeleteSubrange(i, 1);
    auto *property = model.add_metadata_props();
    property->set_key(kStrategyProperty);
    property->set_value(notes.strategy.toJson());
    int64_t stage = 0;
    for (onnx::NodeProto &node : *model.mutable_graph()->mutable_node()) {
      auto known = notes.stageOf.find(nameOf(node));
      // Folded nodes belong to what follows; they stay with what is before.
      if (known != notes.stageOf.end())
        stage = known->second;
      setUnknown(node, kNodeConfigurations, {nodeNotes(node, stage)});
    }
  }

private:
  static constexpr const char *kName = "merak";

  std::string nodeNotes(const onnx::NodeProto &node, int64_t stage) {
    UnknownFieldSet set;
    set.AddLengthDelimited(1, kName);
    std::set<std::string> done;
    for (const std::string &input : node.input())
      if (auto split = axes.find(input);
          split != axes.end() && done.insert(input).second)
        set.AddLengthDelimited(2, spec(input, split->second, stage));
    set.AddVarint(3, static_cast<uint64_t>(stage));
    return bytesOf(set);
  }

  // Ranks count stages, then replicas, then tensor parts.
  std::string spec(const std::string &tensor,
                   const std::map<int64_t, std::string> &dims, int64_t stage) {
    UnknownFieldSet set;
    set.AddLengthDelimited(1, tensor);
    // Shards in row-major order of the sharded axes, each with its holders.
    std::vector<std::map<std::string, int64_t>> shards = {{}};
    for (const auto &[dim, axis] : dims) {
      std::vector<std::map<std::string, int64_t>> finer;
      for (const auto &shard : shards)
        for (int64_t i = 0; i < (axis == "dp" ? dp : tp); ++i) {
          finer.push_back(shard);
          finer.back()[axis] = i;
        }
      shards = std::move(finer);
    }
    std::vector<std::string> groups;
    for (const auto &shard : shards) {
      std::vector<int64_t> holders;
      for (int64_t d = 0; d < dp; ++d)
        for (int64_t t = 0; t < tp; ++t) {
          auto at = [&](const char *axis, int64_t i) {
            auto it = shard.find(axis);
            return it == shard.end() || it->second == i;
          };
          if (at("dp", d) && at("tp", t))
            holders.push_back((stage * dp + d) * tp + t);
        }
      if (holders.size() == 1) {
        set.AddVarint(2, static_cast<uint64_t>(holders[0]));
        continue;
      }
      // A group of devices has a negative number.
      UnknownFieldSet group;
      int64_t key = -static_cast<int64_t>(groups.size() + 1);
      set.AddVarint(2, static_cast<uint64_t>(key));
      group.AddVarint(1, static_cast<uint64_t>(key));
      for (int64_t holder : holders)
        group.AddVarint(2, static_cast<uint64_t>(holder));
      groups.push_back(bytesOf(group));
    }
    for (const std::string &group : groups)
      set.AddLengthDelimited(3, group);
    for (const auto &[dim, axis] : dims) {
      UnknownFieldSet simple, sharded;
      simple.AddVarint(3, static_cast<uint64_t>(axis == "dp" ? dp : tp));
      sharded.AddVarint(1, static_cast<uint64_t>(dim));
      sharded.AddLengthDelimited(2, bytesOf(simple));
      set.AddLengthDelimited(4, bytesOf(sharded));
    }
    return bytesOf(set);
  }

  const DeviceNotes &notes;
  int64_t pp = 1, dp = 1, tp = 1;
  // tensor -> dimension -> mesh axis
  std::map<std::string, std::map<int64_t, std::string>> axes;
};

} // namespace

Result<std::optional<Strategy>> merak::readDeviceNotes(OnnxFile &file) {
  return NotesReader(file).run();
}

Status merak::writeAnnotated(const std::string &input,
                             const std::string &output,
                             const DeviceNotes &notes) {
  auto buffer = llvm::MemoryBuffer::getFile(input, false, false);
  if (!buffer)
    return Status::error("cannot read '" + input +
                         "': " + buffer.getError().message());
  onnx::ModelProto model;
  llvm::StringRef data = (*buffer)->getBuffer();
  if (data.size() > size_t(INT32_MAX) ||
      !model.ParsePartialFromArray(data.data(), static_cast<int>(data.size())))
    return Status::error("--emit-onnx: expected a binary model below 2 GiB, "
                         "found '" +
                         input + "'");
  NotesWriter(notes).annotate(model);
  std::string bytes;
  model.SerializePartialToString(&bytes);
  std::error_code failure;
  llvm::raw_fd_ostream out(output, failure);
  if (!failure) {
    out << bytes;
    out.close();
    failure = out.error();
    out.clear_error();
  }
  if (failure)
    return Status::error("cannot write '" + output + "': " + failure.message());
  return {};
}
