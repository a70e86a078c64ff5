#include "onnx/Import/ExportProblems.h"

#include "onnx/Import/ExportedProgram.h"
#include "onnx/Import/Trainable.h"

#include <set>

using namespace merak;
using llvm::StringRef;

namespace {

constexpr const char *kKeepNames =
    "export with torch.onnx.export(..., training=TrainingMode.TRAINING, "
    "do_constant_folding=False), or with dynamo=True, optimize=False";
constexpr const char *kKeepSeparate =
    "export with optimize=False (dynamo), or with "
    "training=TrainingMode.TRAINING (TorchScript)";

std::string placeOf(const onnx::NodeProto &node) {
  if (!node.name().empty())
    return node.name();
  return node.output_size() ? node.output(0) : node.op_type();
}

class TrapFinder {
public:
  TrapFinder(OnnxFile &file, const ImportReport &report, bool train)
      : file(file), graph(file.model().graph()), report(report), train(train) {
    for (const onnx::NodeProto &node : graph.node())
      for (const std::string &input : node.input())
        readers[input].push_back(&node);
    for (const OnnxTensor &tensor : file.initializers())
      tensors[tensor.name] = &tensor;
    for (const onnx::ValueInfoProto &output : graph.output())
      outputs.insert(output.name());
  }

  std::vector<Finding> run() {
    if (!report.unmerged.empty())
      add("parameters of equal values were merged into one initializer; each "
          "use gets its own parameter again",
          report.unmerged, kKeepSeparate);
    readModules();
    findMissing();
    if (train)
      findDoubtful();
    findFolded();
    findUntied();
    findBatchNorms();
    if (train)
      findTrainingInfo();
    findDropouts();
    return std::move(findings);
  }

private:
  void add(const std::string &what, std::vector<std::string> places,
           const std::string &help) {
    if (!places.empty())
      findings.push_back({false, what, std::move(places), help});
  }

  bool isVector(const OnnxTensor &tensor) const {
    return tensor.elements() > 1 &&
           (tensor.dataType == onnx::TensorProto::FLOAT ||
            tensor.dataType == onnx::TensorProto::DOUBLE ||
            tensor.dataType == onnx::TensorProto::FLOAT16 ||
            tensor.dataType == onnx::TensorProto::BFLOAT16);
  }

  // The norms of a dynamo export whose node is a convolution now.
  void readModules() {
    const ExportedProgram program(graph);
    for (const std::string &name : program.buffers())
      if (StringRef(name).ends_with(".running_mean"))
        norms.insert(StringRef(name).rsplit('.').first.str());
    if (norms.empty())
      return;
    for (const onnx::NodeProto &node : graph.node()) {
      const std::string module = moduleOf(node);
      if (norms.count(module) && StringRef(node.op_type()).starts_with("Conv"))
        fusedNorms.insert(module);
    }
  }

  // Of an exported program: what is trained under another name, and what is
  // nowhere (the importer refuses what must be somewhere).
  void findMissing() {
    add("weights folded by the exporter: their names are lost, their elements "
        "may be in another order",
        report.moved, kKeepSeparate);
    add("parameters of the exported program that nothing in the file holds: "
        "unused, or another name of a tied one",
        report.lost, "");
  }

  // Without notes of the exporter, a buffer looks as a parameter does.
  void findDoubtful() {
    add("trained, though no module's parameter by their names: buffers are to "
        "be frozen",
        report.doubtful, "--freeze=NAME[,NAME...] for those that are none");
  }

  // TorchScript's folding writes transposed copies under names of its own, and
  // puts batch norm into the convolution before it.
  void findFolded() {
    std::vector<std::string> renamed, fused;
    for (const OnnxTensor &tensor : file.initializers()) {
      if (!StringRef(tensor.name).starts_with("onnx::") || !isVector(tensor))
        continue;
      bool convolves = false;
      for (const onnx::NodeProto *node : readers[tensor.name])
        convolves |= StringRef(node->op_type()).starts_with("Conv");
      (convolves ? fused : renamed).push_back(tensor.name);
    }
    add("weights folded by the exporter: their names are lost, matrices are "
        "stored transposed",
        renamed, kKeepNames);
    add("batch norm was fused into the convolutions before it: training the "
        "fused weights is another model",
        fused, kKeepNames);
  }

  // An embedding and a head that were one tensor before folding.
  void findUntied() {
    using Tensors = std::vector<const OnnxTensor *>;
    std::map<std::pair<int64_t, int64_t>, Tensors> bySize;
    std::vector<std::string> pairs;
    std::set<std::string> folded; // copies that were tied again
    for (const ImportReport::FoldedUse &use : report.foldedUses)
      folded.insert(use.initializer);
    constexpr uint64_t kMaxCompared = uint64_t(256) << 20;
    for (const OnnxTensor &tensor : file.initializers()) {
      if (tensor.dims.size() != 2 || !isVector(tensor) ||
          tensor.length > kMaxCompared || tensor.elements() <= 1024 ||
          folded.count(tensor.name))
        continue;
      if (isConstant(tensor))
        continue;
      auto size = std::minmax(tensor.dims[0], tensor.dims[1]);
      // One of each that are equal, so that many of them take no longer.
      Tensors &different = bySize[{size.first, size.second}];
      auto equal = llvm::find_if(different, [&](const OnnxTensor *other) {
        return sameValues(*other, tensor);
      });
      if (equal == different.end())
        different.push_back(&tensor);
      else
        pairs.push_back((*equal)->name + " = " + tensor.name);
    }
    add("initializers of equal values, perhaps transposed: if they were one "
        "tied parameter, they are trained apart now",
        pairs, kKeepNames);
  }

  // As a matrix of zeros that nobody has trained yet: says nothing about ties.
  bool isConstant(const OnnxTensor &tensor) {
    auto bytes = file.bytes(tensor);
    size_t size = onnxElementSize(tensor.dataType);
    return bytes && bytes->drop_front(size) == bytes->drop_back(size);
  }

  bool sameValues(const OnnxTensor &a, const OnnxTensor &b) {
    auto x = file.bytes(a), y = file.bytes(b);
    if (!x || !y || a.dataType != b.dataType || x->size() != y->size())
      return false;
    if (a.dims == b.dims && *x == *y)
      return true;
    size_t size = onnxElementSize(a.dataType);
    int64_t rows = a.dims[0], columns = a.dims[1];
    if (b.dims[0] != columns || b.dims[1] != rows)
      return false;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c)
        if (x->substr((r * columns + c) * size, size) !=
            y->substr((c * rows + r) * size, size))
          return false;
    return true;
  }

  void findBatchNorms() {
    std::vector<std::string> dangling, frozen;
    add("batch norm of the exported program was fused into the convolutions "
        "before it: training the fused weights is another model",
        {fusedNorms.begin(), fusedNorms.end()}, "export with optimize=False");
    for (const onnx::NodeProto &node : graph.node()) {
      if (node.op_type() != "BatchNormalization")
        continue;
      bool training = false;
      for (const auto &attr : node.attribute())
        training |= attr.name() == "training_mode" && attr.i();
      if (!training && train)
        frozen.push_back(placeOf(node));
      for (int i = 1; training && i < node.output_size(); ++i)
        if (!node.output(i).empty() && !readers.count(node.output(i)) &&
            !outputs.count(node.output(i)))
          dangling.push_back(node.output(i));
    }
    add("updated statistics of batch norm that nothing reads or returns: "
        "training keeps them as state, under the names of the initializers",
        dangling, "");
    add("batch norm with training_mode=0: it normalises with its running "
        "statistics, which training does not update",
        frozen,
        "the dynamo exporter writes it so in any case; TorchScript keeps the "
        "mode with training=TrainingMode.TRAINING");
  }

  // Options say all that it would.
  void findTrainingInfo() {
    if (report.training)
      return;
    std::vector<std::string> updates;
    for (const onnx::TrainingInfoProto &info : file.model().training_info())
      for (const onnx::StringStringEntryProto &binding : info.update_binding())
        updates.push_back(binding.key());
    add("--loss and --optimizer replace the training algorithm that the model "
        "brings (TrainingInfoProto), which updates",
        updates, "");
  }

  void findDropouts() {
    std::vector<std::string> idle;
    int64_t opset = 0;
    for (const auto &entry : file.model().opset_import())
      if (entry.domain().empty() || entry.domain() == "ai.onnx")
        opset = entry.version();
    for (const onnx::NodeProto &node : graph.node())
      if (train && node.op_type() == "Dropout" && opset >= 12 &&
          (node.input_size() < 3 || node.input(2).empty()))
        idle.push_back(placeOf(node));
    add("Dropout without training_mode does nothing", idle,
        "export attention with dropout by TorchScript and "
        "training=TrainingMode.TRAINING");
  }

  OnnxFile &file;
  const onnx::GraphProto &graph;
  const ImportReport &report;
  bool train;
  std::map<std::string, std::vector<const onnx::NodeProto *>> readers;
  std::map<std::string, const OnnxTensor *> tensors;
  std::set<std::string> outputs;
  // Of a dynamo export.
  std::set<std::string> norms, fusedNorms;
  std::vector<Finding> findings;
};

} // namespace

std::vector<Finding> merak::findExportProblems(OnnxFile &file,
                                               const ImportReport &report,
                                               bool train) {
  return TrapFinder(file, report, train).run();
}
