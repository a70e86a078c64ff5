#include "codegen/PlanWriter/Manifest.h"

#include "codegen/PlanWriter/ProgramWriter.h"
#include "dialects/Dist/StageMesh.h"
#include "dialects/Pipe/PipeDialect.h"
#include "dialects/Train/FirstStates.h"
#include "dialects/Train/ModelFiles.h"
#include "passes/Memory/Passes.h"

#include "llvm/ADT/StringSet.h"

#include <filesystem>
#include <fmt/format.h>
#include <set>

using namespace mlir;

namespace merak {

namespace {

// Only what the kind reads is set.
void writeOptimizer(const Optimizer &optimizer, planpb::Optimizer &out) {
  const bool isSgd = optimizer.kind == OptimizerKind::Sgd;
  out.set_kind(isSgd                                   ? planpb::Optimizer::SGD
               : optimizer.kind == OptimizerKind::Adam ? planpb::Optimizer::ADAM
               : optimizer.kind == OptimizerKind::Adagrad
                   ? planpb::Optimizer::ADAGRAD
                   : planpb::Optimizer::ADAMW);
  out.set_lr(optimizer.lr);
  out.set_weight_decay(optimizer.weightDecay);
  out.set_schedule(optimizer.schedule == RateSchedule::Linear
                       ? planpb::Optimizer::LINEAR
                   : optimizer.schedule == RateSchedule::Cosine
                       ? planpb::Optimizer::COSINE
                       : planpb::Optimizer::CONSTANT);
  out.set_warmup(optimizer.warmup);
  out.set_total(optimizer.total);
  out.set_min_factor(optimizer.minFactor);
  out.set_rate(optimizer.rate);
  if (optimizer.firstCount)
    out.set_first_count(*optimizer.firstCount);
  if (isSgd) {
    out.set_momentum(optimizer.momentum);
    out.set_dampening(optimizer.dampening);
    out.set_nesterov(optimizer.nesterov);
    return;
  }
  out.set_eps(optimizer.eps);
  if (optimizer.isAdam()) {
    out.set_beta1(optimizer.beta1);
    out.set_beta2(optimizer.beta2);
    out.set_plain_root(optimizer.plainRoot);
    if (optimizer.plainRoot)
      out.set_post_decay(optimizer.postDecay);
  } else {
    out.set_lr_decay(optimizer.lrDecay);
  }
}

// Row-major bytes of a constant as buffers hold them: a bool takes a byte.
std::string bytesOf(ElementsAttr value) {
  auto type = cast<RankedTensorType>(value.getShapedType());
  std::string bytes;
  if (type.getElementType().isInteger(1)) {
    for (bool element : value.getValues<bool>())
      bytes += static_cast<char>(element);
    return bytes;
  }
  if (auto resource = dyn_cast<DenseResourceElementsAttr>(value)) {
    ArrayRef<char> data = resource.getData();
    return std::string(data.begin(), data.end());
  }
  auto dense = cast<DenseElementsAttr>(value);
  ArrayRef<char> data = dense.getRawData();
  int64_t count = dense.isSplat() ? type.getNumElements() : 1;
  for (int64_t i = 0; i < count; ++i)
    bytes.append(data.begin(), data.end());
  return bytes;
}

class ManifestWriter {
public:
  ManifestWriter(ModuleOp module, planpb::PlanFile &file,
                 std::string &constants)
      : module_(module), file_(file), constants_(constants),
        mesh_(module->getAttrOfType<dist::MeshAttr>(dist::kMeshAttr)) {
    for (auto program : module.getOps<plan::ProgramOp>())
      programs_.push_back(program);
  }

  LogicalResult run() {
    if (!mesh_)
      return module_.emitError("expected the attribute '")
             << dist::kMeshAttr << "'";
    writeSetup();
    if (failed(writeRanks()))
      return failure();
    collectUpdated();
    LogicalResult result = success();
    for (plan::ProgramOp program : programs_)
      for (auto buffer : program.getOps<plan::BufferOp>())
        if (buffer.getTensor() && failed(writeHeld(buffer)))
          result = failure();
    writeSourceFiles();
    writeMemory();
    writeHash();
    return result;
  }

private:
  // ------------------------------------------------------------ setup

  void writeSetup() {
    const auto config = train::ConfigAttr::of(module_);
    const auto cluster = dist::ClusterAttr::of(module_);
    file_.set_mode(train::stringifyStepMode(config.getMode()).str());
    writeModel(config.getModel());
    if (auto decision =
            module_->getAttrOfType<pipe::DecisionAttr>(pipe::kDecisionAttr))
      file_.set_schedule(decision.getSchedule().str());
    file_.set_device(cluster.getBackend().str());
    file_.set_cluster(cluster.getDocument().str());
    const int64_t parts = pipe::submicrobatches(module_);
    const int64_t microbatches = mesh_.getSize(kMicrobatchAxis) / parts;
    if (parts > 1)
      file_.set_submicrobatches(parts);
    // Of the first stage, where they differ.
    const dist::MeshAttr first =
        programs_.empty() ? mesh_ : dist::meshOf(programs_.front());
    const int64_t all = microbatches * first.getSize(kDataAxis);
    file_.set_microbatches(microbatches);
    file_.set_global_batch(config.getGlobalBatch() > 0 ? config.getGlobalBatch()
                                                       : all);
    file_.set_microbatch(file_.global_batch() / all);
    planpb::Optimizer *optimizer = file_.mutable_optimizer();
    if (!config.getOptimizer())
      return;
    writeOptimizer(config.getOptimizer().getValue(), *optimizer);
    optimizer->set_grad_clip(config.getClip());
    optimizer->set_guarded(true); // the factor that updates take
  }

  void writeModel(StringRef model) {
    file_.set_model(model.str());
    if (model.empty())
      return;
    std::error_code failed;
    std::filesystem::path path(model.str());
    auto absolute = std::filesystem::absolute(path, failed);
    file_.set_model_dir(absolute.parent_path().string());
    modelFile_ = path.filename().string();
  }

  static bool isOfRanks(StringRef axis) {
    return axis != kMicrobatchAxis && axis != kSubmicrobatchAxis &&
           !isListed(axis);
  }

  // Each stage on a mesh of its own: its ranks row major over the mesh.
  void writeMeshes() {
    planpb::RankList all;
    for (auto [index, program] : llvm::enumerate(programs_)) {
      const dist::MeshAttr mesh = dist::meshOf(program);
      planpb::Mesh *out = file_.add_meshes();
      for (auto [axis, size] : llvm::zip(mesh.getAxes(), mesh.getSizes()))
        if (isOfRanks(axis.getValue())) {
          planpb::Axis *proto = out->add_axes();
          proto->set_name(axis.str());
          proto->set_size(size);
        }
      auto devices =
          program->getAttrOfType<DenseI64ArrayAttr>(dist::kDevicesAttr);
      int64_t place = 0;
      for (int64_t device : devices.asArrayRef()) {
        while (file_.ranks_size() <= device)
          file_.add_ranks();
        planpb::Rank *rank = file_.mutable_ranks(int(device));
        rank->set_program(index);
        rank->set_mesh(index);
        int64_t inner = devices.size(), rest = place++;
        for (const planpb::Axis &axis : out->axes()) {
          planpb::Axis *coordinate = rank->add_coords();
          coordinate->set_name(axis.name());
          if (axis.name() == kPipelineAxis) {
            coordinate->set_size(static_cast<int64_t>(program.getIndex()));
            continue;
          }
          inner /= axis.size();
          coordinate->set_size(rest / inner);
          rest %= inner;
        }
      }
    }
    for (int rank = 0; rank < file_.ranks_size(); ++rank)
      all.add_ranks(static_cast<uint32_t>(rank));
    planpb::NamedGroup *group = file_.add_groups();
    group->set_name(kRanksAxis);
    *group->add_lists() = all;
    auto module = programs_.front()->getParentOfType<ModuleOp>();
    auto holders = module->getAttrOfType<DictionaryAttr>(dist::kHoldersAttr);
    if (holders)
      for (NamedAttribute axis : holders)
        writeGroup(axis.getName(), cast<ArrayAttr>(axis.getValue()));
  }

  void writeGroup(StringRef name, ArrayAttr lists) {
    planpb::NamedGroup *group = file_.add_groups();
    group->set_name(name.str());
    for (auto list : lists.getAsRange<DenseI64ArrayAttr>()) {
      planpb::RankList *ranks = group->add_lists();
      for (int64_t rank : list.asArrayRef())
        ranks->add_ranks(static_cast<uint32_t>(rank));
    }
  }

  // Row major over the mesh: the last axis is innermost.
  LogicalResult writeRanks() {
    if (!programs_.empty() && programs_.front()->hasAttr(dist::kDevicesAttr)) {
      writeMeshes();
      return success();
    }
    int64_t ranks = 1;
    for (auto [axis, size] : llvm::zip(mesh_.getAxes(), mesh_.getSizes())) {
      if (!isOfRanks(axis.getValue()))
        continue;
      planpb::Axis *out = file_.add_mesh();
      out->set_name(axis.str());
      out->set_size(size);
      ranks *= size;
    }
    for (int64_t rank = 0; rank < ranks; ++rank) {
      planpb::Rank *out = file_.add_ranks();
      int64_t inner = ranks, rest = rank, stage = 0;
      for (const planpb::Axis &axis : file_.mesh()) {
        inner /= axis.size();
        planpb::Axis *coordinate = out->add_coords();
        coordinate->set_name(axis.name());
        coordinate->set_size(rest / inner);
        if (axis.name() == kPipelineAxis)
          stage = rest / inner;
        rest %= inner;
      }
      auto program = llvm::find_if(programs_, [&](plan::ProgramOp p) {
        return static_cast<int64_t>(p.getIndex()) == stage;
      });
      if (program == programs_.end())
        return module_.emitError("the mesh has pp = ")
               << mesh_.getSize(kPipelineAxis)
               << ", but there is no program of stage " << stage;
      out->set_program(program - programs_.begin());
    }
    return success();
  }

  // ------------------------------------------------------------ tensors

  // Names of tensors that an update writes.
  void collectUpdated() {
    for (plan::ProgramOp program : programs_) {
      llvm::DenseMap<StringAttr, StringRef> tensorOf;
      for (auto buffer : program.getOps<plan::BufferOp>())
        if (auto tensor = buffer.getTensor())
          tensorOf[buffer.getSymNameAttr()] = *tensor;
      program.walk([&](plan::LibraryOp op) {
        if (op->hasAttr(plan::kUpdateAttr))
          for (Attribute view : op.getOutputs())
            updated_.insert(tensorOf.lookup(
                cast<plan::ViewAttr>(view).getBuffer().getAttr()));
      });
    }
  }

  LogicalResult writeHeld(plan::BufferOp buffer) {
    std::string name = buffer.getTensor()->str();
    if (buffer.getCategory() == plan::Category::parameters)
      return writeParameter(buffer, name);
    if (buffer.getCategory() == plan::Category::optimizer)
      return writeState(buffer, name);
    if (buffer.isTransient())
      return writeInput(buffer, name);
    return success(); // a gradient: named after its parameter
  }

  static void setShape(plan::BufferOp buffer,
                       google::protobuf::RepeatedField<int64_t> *shape) {
    if (auto layout = buffer.getLayout()) {
      for (int64_t size : layout->getLayout().globalShape())
        shape->Add(size);
      return;
    }
    for (int64_t size : cast<RankedTensorType>(buffer.getType()).getShape())
      shape->Add(size);
  }

  LogicalResult writeParameter(plan::BufferOp buffer, const std::string &name) {
    if (!known_.insert(name).second)
      return success();
    auto parameter = module_.lookupSymbol<train::ParameterOp>(name);
    if (!parameter)
      return buffer.emitOpError("holds '")
             << name << "', which is no train.parameter of the module";
    auto type = cast<RankedTensorType>(parameter.getType());
    planpb::Tensor *tensor = file_.add_tensors();
    tensor->set_name(name);
    tensor->set_dtype(dtypeOf(type.getElementType()));
    for (int64_t size : type.getShape())
      tensor->add_shape(size);
    tensor->set_role(updated_.contains(name) ? planpb::Tensor::PARAMETER
                     : parameter->hasAttr(train::kStatisticAttr)
                         ? planpb::Tensor::STATISTIC
                     : parameter.getValueAttr() ? planpb::Tensor::CONSTANT
                                                : planpb::Tensor::FROZEN);
    planpb::Source *source = tensor->mutable_source();
    if (type.getNumElements() == 0) {
      source->set_kind(planpb::Source::ZERO);
    } else if (ElementsAttr value = parameter.getValueAttr()) {
      setSource(source, value);
    } else if (auto from = parameter.getSourceAttr()) {
      setSource(source, from, parameter);
    } else {
      source->set_kind(planpb::Source::ABSENT);
    }
    return success();
  }

  void setSource(planpb::Source *source, ElementsAttr value) {
    std::string bytes = bytesOf(value);
    constants_.resize((constants_.size() + 63) / 64 * 64, '\0');
    source->set_kind(planpb::Source::CONSTANTS);
    source->set_offset(constants_.size());
    source->set_length(bytes.size());
    constants_ += bytes;
  }

  void setSource(planpb::Source *source, train::SourceAttr from,
                 train::ParameterOp parameter) {
    source->set_kind(planpb::Source::FILE);
    source->set_path(from.getPath().empty() ? modelFile_
                                            : from.getPath().str());
    source->set_offset(from.getOffset());
    source->set_length(from.getLength());
    if (auto type = parameter->getAttrOfType<TypeAttr>(train::kSourceTypeAttr))
      source->set_dtype(dtypeOf(type.getValue()));
  }

  LogicalResult writeState(plan::BufferOp buffer, const std::string &name) {
    if (!known_.insert(name).second)
      return success();
    planpb::Tensor *tensor = file_.add_tensors();
    tensor->set_name(name);
    tensor->set_dtype(
        dtypeOf(cast<RankedTensorType>(buffer.getType()).getElementType()));
    setShape(buffer, tensor->mutable_shape());
    tensor->set_role(planpb::Tensor::OPTIMIZER);
    // "<parameter>.<state>"
    auto [of, state] = StringRef(name).rsplit('.');
    DictionaryAttr states;
    auto parameter = module_.lookupSymbol<train::ParameterOp>(of);
    if (parameter)
      states = parameter->getAttrOfType<DictionaryAttr>(train::kStatesAttr);
    Attribute first = states ? states.get(state) : Attribute();
    planpb::Source *source = tensor->mutable_source();
    if (auto value = dyn_cast_or_null<ElementsAttr>(first))
      setSource(source, value);
    else if (auto from = dyn_cast_or_null<train::SourceAttr>(first))
      setSource(source, from, parameter);
    else
      source->set_kind(planpb::Source::ZERO);
    return success();
  }

  LogicalResult writeInput(plan::BufferOp buffer, const std::string &name) {
    planpb::Input *input = nullptr;
    for (planpb::Input &other : *file_.mutable_inputs())
      if (other.name() == name)
        input = &other;
    if (!input) {
      input = file_.add_inputs();
      input->set_name(name);
      Type element = cast<RankedTensorType>(buffer.getType()).getElementType();
      input->set_dtype(dtypeOf(element));
      setShape(buffer, input->mutable_shape());
      input->set_batched(input->shape_size() > 0 &&
                         input->shape(0) == file_.global_batch());
      if (!file_.tokens_per_step() && isa<IntegerType>(element)) {
        int64_t tokens = 1;
        for (int64_t size : input->shape())
          tokens *= size;
        file_.set_tokens_per_step(tokens);
      }
    }
    // Every use of the ids must find them in range.
    auto limit = buffer->getAttrOfType<IntegerAttr>(plan::kLimitAttr);
    if (!limit)
      return success();
    auto allowed = buffer->getAttrOfType<IntegerAttr>(plan::kAllowedAttr);
    bool first = input->limit() == 0;
    bool agrees = allowed && (first || (input->has_allowed() &&
                                        input->allowed() == allowed.getInt()));
    input->set_limit(first ? limit.getInt()
                           : std::min(input->limit(), limit.getInt()));
    input->set_has_allowed(agrees);
    input->set_allowed(agrees ? allowed.getInt() : 0);
    return success();
  }

  // ------------------------------------------------------------ the rest

  // The model and what the sources point into.
  void writeSourceFiles() {
    std::set<std::string> used = {modelFile_};
    for (const planpb::Tensor &tensor : file_.tensors())
      if (tensor.source().kind() == planpb::Source::FILE)
        used.insert(tensor.source().path());
    auto files = module_->getAttrOfType<ArrayAttr>(train::kFilesAttr);
    if (!files)
      return;
    for (auto note : files.getAsRange<DictionaryAttr>()) {
      auto path = note.getAs<StringAttr>("path");
      auto bytes = note.getAs<IntegerAttr>("bytes");
      auto hash = note.getAs<IntegerAttr>("hash");
      if (!path || !bytes || !hash || !used.count(path.str()))
        continue;
      planpb::SourceFile *out = file_.add_source_files();
      out->set_path(path.str());
      out->set_bytes(static_cast<uint64_t>(bytes.getInt()));
      out->set_hash(static_cast<uint64_t>(hash.getInt()));
      if (auto written = note.getAs<IntegerAttr>("sampled")) {
        out->set_sampled(true);
        out->set_modified(written.getInt());
      }
    }
  }

  void writeMemory() {
    for (auto [index, program] : llvm::enumerate(programs_)) {
      planpb::MemoryRow *row = file_.add_memory();
      row->set_program(index);
      for (auto &[name, bytes] : memoryRow(program))
        (*row->mutable_bytes())[name] = bytes;
    }
  }

  // What must be equal for checkpoints to fit: the model's own tensors.
  void writeHash() {
    std::vector<std::string> lines;
    for (const planpb::Tensor &tensor : file_.tensors()) {
      if (tensor.role() != planpb::Tensor::PARAMETER &&
          tensor.role() != planpb::Tensor::STATISTIC &&
          tensor.role() != planpb::Tensor::FROZEN)
        continue;
      std::string line = tensor.name() + " " + dtypeName(tensor.dtype());
      for (int64_t size : tensor.shape())
        line += " " + std::to_string(size);
      lines.push_back(line + "\n");
    }
    std::sort(lines.begin(), lines.end());
    std::string all;
    for (const std::string &line : lines)
      all += line;
    file_.set_model_hash(
        fmt::format("{:016x}", planChecksum(all.data(), all.size())));
  }

  ModuleOp module_;
  planpb::PlanFile &file_;
  std::string &constants_;
  dist::MeshAttr mesh_;
  SmallVector<plan::ProgramOp> programs_;
  std::string modelFile_;
  llvm::StringSet<> known_, updated_;
};

} // namespace

LogicalResult writeManifest(ModuleOp module, planpb::PlanFile &file,
                            std::string &constants) {
  return ManifestWriter(module, file, constants).run();
}

} // namespace merak
