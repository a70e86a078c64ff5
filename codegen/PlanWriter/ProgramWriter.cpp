#include "codegen/PlanWriter/ProgramWriter.h"

#include "dialects/Dist/Trim.h"
#include "dialects/Support/RanksAxis.h"
#include "passes/Lowering/StageLowering.h"
#include "runtime/plan/Ahead.h"
#include "runtime/plan/Dependences.h"
#include "runtime/plan/Joined.h"
#include "runtime/plan/LibraryKernels.h"
#include "runtime/plan/Trim.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Transforms/RegionUtils.h"
#include "llvm/ADT/SmallBitVector.h"
#include "llvm/ADT/TypeSwitch.h"

#include <fmt/format.h>

using namespace mlir;

namespace merak {

planpb::DType dtypeOf(Type type) {
  if (type.isF32())
    return planpb::F32;
  if (type.isF64())
    return planpb::F64;
  if (type.isBF16())
    return planpb::BF16;
  if (type.isF16())
    return planpb::F16;
  bool isUnsigned = type.isUnsignedInteger();
  if (type.isInteger(64) || type.isIndex())
    return isUnsigned ? planpb::U64 : planpb::I64;
  if (type.isInteger(32))
    return isUnsigned ? planpb::U32 : planpb::I32;
  if (type.isInteger(16))
    return isUnsigned ? planpb::U16 : planpb::I16;
  if (type.isInteger(8))
    return isUnsigned ? planpb::U8 : planpb::I8;
  if (type.isInteger(1))
    return planpb::BOOL;
  return planpb::DTYPE_INVALID;
}

namespace {

// The IR counts collectives and reductions as the schema does.
using plan::Collective;
using planpb::Instruction;
static_assert(int(Collective::all_reduce) == Instruction::ALL_REDUCE);
static_assert(int(Collective::all_gather) == Instruction::ALL_GATHER);
static_assert(int(Collective::reduce_scatter) == Instruction::REDUCE_SCATTER);
static_assert(int(Collective::all_to_all) == Instruction::ALL_TO_ALL);
static_assert(int(Collective::broadcast) == Instruction::BROADCAST);
static_assert(plan::getMaxEnumValForCollective() ==
              Instruction::Collective_MAX);
static_assert(int(plan::Reduction::sum) == Instruction::SUM);
static_assert(int(plan::Reduction::max) == Instruction::MAX);
static_assert(plan::getMaxEnumValForReduction() == Instruction::Reduction_MAX);

Instruction::Collective numberOf(Collective kind) {
  return Instruction::Collective(int(kind));
}
Instruction::Reduction numberOf(plan::Reduction reduction) {
  return Instruction::Reduction(int(reduction));
}

class ProgramWriter {
public:
  ProgramWriter(plan::ProgramOp program,
                const llvm::StringMap<codegen::CompiledKernel> &kernels,
                const Boundaries &boundaries, int64_t rank)
      : program_(program), kernels_(kernels), boundaries_(boundaries),
        rank_(rank), functions_(program->getParentOfType<ModuleOp>()) {}

  planpb::Program run() {
    proto_.set_version(kPlanVersion);
    proto_.set_index(program_.getIndex());
    proto_.set_arena_bytes(program_.getArenaBytes());
    proto_.set_events(program_.getEvents());
    for (const Step &step : program_.getSchedule().getSteps())
      *proto_.add_schedule() = toProto(step);
    for (Attribute stream : program_.getStreams())
      proto_.add_streams()->set_name(cast<StringAttr>(stream).str());
    for (Attribute group : program_.getGroups()) {
      planpb::Group *out = proto_.add_groups();
      for (Attribute axis : cast<ArrayAttr>(group))
        if (isListed(cast<StringAttr>(axis).getValue()))
          out->set_named(cast<StringAttr>(axis).str());
        else
          out->add_axes(cast<StringAttr>(axis).str());
    }
    for (auto buffer : program_.getOps<plan::BufferOp>())
      writeBuffer(buffer);
    for (auto procedure : program_.getOps<plan::ProcedureOp>())
      writeProcedure(procedure);
    for (auto call : program_.getOps<plan::CallOp>())
      writeCall(call);
    for (auto output : program_.getOps<plan::OutputOp>())
      writeOutput(output);
    return std::move(proto_);
  }

private:
  void writeBuffer(plan::BufferOp buffer) {
    auto type = cast<RankedTensorType>(buffer.getType());
    bufferIndex_[buffer.getSymNameAttr()] = proto_.buffers_size();
    elementBytes_.push_back(plan::elementBytes(type.getElementType()));
    planpb::Buffer *out = proto_.add_buffers();
    out->set_name(buffer.getSymName().str());
    out->set_category(
        static_cast<planpb::Buffer::Category>(buffer.getCategory()));
    out->set_dtype(dtypeOf(type.getElementType()));
    for (int64_t size : type.getShape())
      out->add_shape(size);
    out->set_offset(buffer.getOffset().value_or(0));
    out->set_bytes(buffer.getBytes());
    out->set_slots(buffer.getSlots());
    out->set_slot_stride(buffer.getSlotStride());
    out->set_slot_class(static_cast<int32_t>(buffer.getSlotClass()));
    if (auto tensor = buffer.getTensor()) {
      // The runtime finds the gradient of parameter w as "grad:w".
      bool gradient = buffer.getCategory() == plan::Category::gradients;
      out->set_tensor((gradient ? "grad:" : "") + tensor->str());
    }
    if (auto layout = buffer.getLayout())
      *out->mutable_layout() = toProto(layout->getLayout());
  }

  void writeView(plan::ViewAttr view, planpb::Operand *out) {
    out->set_buffer(bufferIndex_.at(view.getBuffer().getAttr()));
    out->set_offset(view.getOffset());
    for (int64_t size : view.getShape())
      out->add_shape(size);
    for (int64_t stride : view.getStrides())
      out->add_strides(stride);
  }

  double touchedBy(plan::InstructionOpInterface op) {
    const double in = touchedByAll(op.getInputs()),
                 out = touchedByAll(op.getOutputs());
    auto library = dyn_cast<plan::LibraryOp>(op.getOperation());
    const LibraryKernel *kernel =
        library ? findLibraryKernel(library.getOp()) : nullptr;
    const double all = in + out * (op.accumulates() ? 2 : 1);
    switch (kernel ? kernel->touches : Touches::All) {
    case Touches::All:
      break;
    case Touches::Part:
      return 2 * in + (op.accumulates() ? 0 : out);
    case Touches::Named:
      return touchedByRows(op);
    case Touches::Looked:
      return all - std::max(0.0, touched(op.getInputs()[0]) - out);
    case Touches::Behind:
      return touchedByReplay(library);
    }
    return all;
  }
  double touchedByRows(plan::InstructionOpInterface op) {
    const ArrayRef<int64_t> table =
        cast<plan::ViewAttr>(op.getOutputs()[0]).getShape();
    const double rows = touched(op.getInputs()[0]);
    double bytes = 0;
    for (ArrayAttr views : {op.getInputs(), op.getOutputs()})
      for (auto view : views.getAsRange<plan::ViewAttr>())
        bytes += view.getShape() == table ? rows : touched(view);
    return bytes;
  }
  // Read and written, of rows of which nothing says how many steps they are
  // owed.
  double touchedByReplay(plan::LibraryOp op) {
    auto table = cast<plan::ViewAttr>(op.getOutputs()[0]);
    double share = 1, ids = 0;
    if (op.getInputs().size() > 1) {
      auto named = cast<plan::ViewAttr>(op.getInputs()[1]);
      ids = touched(named);
      share = std::min(
          1.0, double(named.getNumElements()) /
                   double(std::max<int64_t>(1, table.getShape().front())));
    } else if (auto stripes = op.getAttrs().getAs<StringAttr>("stripes")) {
      int64_t count = 1;
      (void)stripes.getValue().getAsInteger(10, count);
      share = 1.0 / double(std::max<int64_t>(1, count));
    }
    return ids + 2 * share * touchedByAll(op.getOutputs());
  }

  // Bytes of the distinct elements of views.
  double touched(Attribute attr) {
    auto view = cast<plan::ViewAttr>(attr);
    double count = 1;
    for (auto [size, stride] : llvm::zip(view.getShape(), view.getStrides()))
      count *= stride == 0 ? 1 : size;
    return count * elementBytes_[bufferIndex_.at(view.getBuffer().getAttr())];
  }
  double touchedByAll(ArrayAttr views) {
    double bytes = 0;
    for (Attribute view : views)
      bytes += touched(view);
    return bytes;
  }

  static void writeScalars(ArrayAttr scalars, planpb::Instruction *out) {
    for (Attribute attr : scalars) {
      auto scalar = cast<plan::ScalarAttr>(attr);
      planpb::Scalar *proto = out->add_scalars();
      if (auto integer = dyn_cast<IntegerAttr>(scalar.getValue())) {
        proto->set_i(integer.getInt());
      } else if (auto real = dyn_cast<FloatAttr>(scalar.getValue())) {
        proto->set_f(real.getValueAsDouble());
      } else {
        std::string name = cast<StringAttr>(scalar.getValue()).str();
        if (scalar.getScale()) {
          proto->set_coordinate(name);
          proto->set_scale(scalar.getScale());
        } else {
          proto->set_runtime(name);
        }
      }
    }
  }

  static void writePeer(DictionaryAttr peer, planpb::Instruction *out) {
    for (NamedAttribute coordinate : peer) {
      planpb::Axis *axis = out->add_peer();
      axis->set_name(coordinate.getName().str());
      axis->set_size(cast<IntegerAttr>(coordinate.getValue()).getInt());
    }
  }

  // By result of a kernel's function, the arguments that it is made from.
  using Dependences = std::vector<llvm::SmallBitVector>;
  static Dependences dependencesOf(func::FuncOp function) {
    Block &body = function.getBody().front();
    llvm::SmallBitVector none(body.getNumArguments());
    llvm::DenseMap<Value, llvm::SmallBitVector> madeFrom;
    for (BlockArgument argument : body.getArguments()) {
      madeFrom[argument] = none;
      madeFrom[argument].set(argument.getArgNumber());
    }
    Dependences results;
    for (Operation &op : body) {
      llvm::SetVector<Value> read(op.operand_begin(), op.operand_end());
      getUsedValuesDefinedAbove(op.getRegions(), read);
      llvm::SmallBitVector all = none;
      for (Value value : read)
        all |= madeFrom.at(value);
      for (Value result : op.getResults())
        madeFrom[result] = all;
      if (isa<func::ReturnOp>(op))
        for (Value value : op.getOperands())
          results.push_back(madeFrom.at(value));
    }
    return results;
  }

  // Operations that share a kernel need not have anything else in common.
  void writeIndependence(StringRef name, planpb::Instruction *out) {
    auto function = functions_.lookup<func::FuncOp>(name);
    if (!function || out->outputs_size() < 2)
      return;
    auto [it, fresh] = dependences_.try_emplace(name);
    if (fresh)
      it->second = dependencesOf(function);
    for (auto [k, made] : llvm::enumerate(it->second)) {
      std::vector<int> others;
      for (int i = 0; i < out->inputs_size(); ++i)
        if (!made.test(i))
          others.push_back(i);
      if (!others.empty())
        (*out->mutable_attrs())[independenceAttr(static_cast<int>(k))] =
            independenceText(others);
    }
  }

  void writeProcedure(plan::ProcedureOp procedure) {
    procedureIndex_[procedure.getSymNameAttr()] = proto_.procedures_size();
    planpb::Procedure *out = proto_.add_procedures();
    out->set_name(procedure.getSymName().str());
    out->set_action(toProto(procedure.getAction()));
    for (auto op : procedure.getOps<plan::InstructionOpInterface>())
      if (op->hasAttr(lowering::kTransferLayoutsAttr))
        writeParts(op, out);
      else
        writeInstruction(op, out->add_instructions());
  }

  // One message for each box of the value that the rank shares with another.
  void writeParts(plan::InstructionOpInterface op, planpb::Procedure *out) {
    const bool sends = isa<plan::SendOp>(*op);
    const StringRef channel = sends ? cast<plan::SendOp>(*op).getChannel()
                                    : cast<plan::RecvOp>(*op).getChannel();
    planpb::Instruction whole;
    writeInstruction(op, &whole);
    boxes_.write(boundaries_.parts().of(channel.str(), sends, rank_), whole,
                 static_cast<uint32_t>(program_.getEvents()), *out);
  }

  void writeInstruction(plan::InstructionOpInterface op,
                        planpb::Instruction *out) {
    out->set_stream(op.getStream());
    out->set_name(lowering::nameOf(op.getLoc()));
    out->set_accumulate(op.accumulates());
    if (auto part = op->getAttrOfType<IntegerAttr>(plan::kSubmicrobatchAttr))
      out->set_submicrobatch(part.getInt());
    for (Attribute view : op.getInputs())
      writeView(cast<plan::ViewAttr>(view), out->add_inputs());
    for (Attribute view : op.getOutputs())
      writeView(cast<plan::ViewAttr>(view), out->add_outputs());
    out->set_bytes(touchedBy(op));
    if (auto flops = op->getAttrOfType<FloatAttr>("flops"))
      out->set_flops(flops.getValueAsDouble());
    llvm::TypeSwitch<Operation *>(op)
        .Case([&](plan::KernelOp kernel) {
          out->set_kind(Instruction::KERNEL);
          auto compiled = kernels_.find(kernel.getKernel());
          if (compiled != kernels_.end()) {
            out->set_op(compiled->second.symbol);
            out->set_rows(compiled->second.range.rows);
            out->set_flops(compiled->second.range.flops);
          }
          writeScalars(kernel.getScalars(), out);
          writeIndependence(kernel.getKernel(), out);
        })
        .Case([&](plan::LibraryOp library) {
          out->set_kind(Instruction::LIBRARY);
          out->set_op(library.getOp().str());
          for (NamedAttribute attr : library.getAttrs())
            (*out->mutable_attrs())[attr.getName().str()] =
                cast<StringAttr>(attr.getValue()).str();
          writeScalars(library.getScalars(), out);
        })
        .Case([&](plan::CollectiveOp collective) {
          out->set_kind(Instruction::COLLECTIVE);
          out->set_collective(numberOf(collective.getOp()));
          out->set_group(collective.getGroup());
          if (std::optional<plan::Reduction> reduction =
                  collective.getReduction())
            out->set_reduction(numberOf(*reduction));
          out->set_dim(collective.getDim());
          out->set_dim2(collective.getDim2());
          if (collective->hasAttr(plan::kJoinedAttr))
            (*out->mutable_attrs())[kJoinedAttr] = "1";
          if (auto share =
                  collective->getAttrOfType<FloatAttr>(dist::kTrimAttr))
            (*out->mutable_attrs())[kTrimAttr] =
                fmt::format("{}", share.getValueAsDouble());
        })
        .Case([&](plan::SendOp send) {
          out->set_kind(Instruction::SEND);
          out->set_channel(send.getChannel().str());
          writePeer(send.getPeer(), out);
        })
        .Case([&](plan::RecvOp recv) {
          out->set_kind(Instruction::RECV);
          out->set_channel(recv.getChannel().str());
          writePeer(recv.getPeer(), out);
        })
        .Case([&](plan::RecordOp record) {
          out->set_kind(Instruction::RECORD);
          out->set_event(record.getEvent());
        })
        .Case([&](plan::WaitOp wait) {
          out->set_kind(Instruction::WAIT);
          out->set_event(wait.getEvent());
        })
        .Case([&](plan::LoadInputOp load) {
          out->set_kind(Instruction::LOAD_INPUT);
          out->set_op(load.getInput().str());
          if (auto ahead = load->getAttrOfType<IntegerAttr>(plan::kAheadAttr))
            (*out->mutable_attrs())[kAheadAttr] =
                std::to_string(ahead.getInt());
        });
  }

  void writeCall(plan::CallOp call) {
    planpb::Call *out = proto_.add_calls();
    out->set_procedure(procedureIndex_.at(call.getProcedureAttr().getAttr()));
    out->set_microbatch(static_cast<int64_t>(call.getMicrobatch()));
    for (int64_t slot : call.getSlots())
      out->add_slots(slot);
    ArrayRef<int64_t> waits = call.getWaits();
    for (size_t i = 0; i + 2 < waits.size(); i += 3) {
      planpb::CallWait *wait = out->add_waits();
      wait->set_stream(waits[i]);
      wait->set_on(waits[i + 1]);
      wait->set_call(waits[i + 2]);
    }
  }

  void writeOutput(plan::OutputOp output) {
    planpb::Output *out = proto_.add_outputs();
    out->set_name(output.getName().str());
    out->set_buffer(bufferIndex_.at(output.getBufferAttr().getAttr()));
    for (int64_t size : output.getShape())
      out->add_shape(size);
    if (auto layout = output.getLayout())
      *out->mutable_layout() = toProto(layout->getLayout());
    out->set_per_microbatch(output.getPerMicrobatch());
  }

  plan::ProgramOp program_;
  const llvm::StringMap<codegen::CompiledKernel> &kernels_;
  const Boundaries &boundaries_;
  int64_t rank_;
  SymbolTable functions_;
  llvm::StringMap<Dependences> dependences_; // by kernel
  planpb::Program proto_;
  llvm::DenseMap<StringAttr, uint32_t> bufferIndex_, procedureIndex_;
  std::vector<int64_t> elementBytes_;
  resharding::BoxWriter boxes_{proto_};
};

} // namespace

planpb::Program
writeProgram(plan::ProgramOp program,
             const llvm::StringMap<codegen::CompiledKernel> &kernels,
             const Boundaries &boundaries, int64_t rank) {
  return ProgramWriter(program, kernels, boundaries, rank).run();
}

} // namespace merak
