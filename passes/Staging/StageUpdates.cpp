#include "passes/Staging/StageUpdates.h"

#include "dialects/Train/Builders.h"
#include "dialects/Train/SparseAttributes.h"
#include "runtime/plan/Norms.h"

#include <cmath>
#include <numeric>
#include <string>

using namespace mlir;
using namespace merak;
using namespace merak::dist;
using namespace merak::pipe;
using namespace merak::train;

namespace {

// A bound that no norm reaches: nothing is clipped.
constexpr double kNoClipping = 1e30;

Value withLayout(Value value, LayoutAttr layout) {
  value.getDefiningOp()->setAttr(kLayoutsAttr,
                                 ArrayAttr::get(layout.getContext(), {layout}));
  return value;
}

Value sumOver(OpBuilder &builder, Location loc, Value value,
              ArrayRef<StringRef> axes, LayoutAttr layout) {
  return withLayout(AllReduceOp::create(builder, loc, value.getType(), value,
                                        builder.getStrArrayAttr(axes),
                                        Reduction::sum),
                    layout);
}

// The norm of all gradients. Each parameter has one place in a vector, so
// that the sum over stages adds zeros and its order is the same for every
// cut: of parameters a, b and c, the first on stage 0 and the others on stage
// 1, that is [|a|^2, 0, 0] + [0, |b|^2, |c|^2].
class NormEmitter {
public:
  NormEmitter(StageBuilder &program, const OutlineOptions &options,
              ArrayRef<train::UpdateOp> updates, const Holders &holders)
      : program(program), options(options), holders(holders) {
    for (auto [index, update] : llvm::enumerate(updates))
      position[train::UpdateOp(update).getParameter()] = index;
  }

  // The factor of a stage's gradients: 1 where nothing is clipped, and not a
  // number where the norm is none, so that no update changes anything. Of a
  // scaled loss every stage gives the norm out: each process of a run decides
  // by it how the next step is scaled.
  Value emit(int64_t stage, ArrayRef<StageGradient> work, Location loc) {
    OpBuilder builder =
        OpBuilder::atBlockEnd(program.bodyOf({stage, pipe::Action::U}));
    Value squares =
        sumSquares(builder, loc, stage, squaresOf(builder, loc, stage, work));
    auto scalar = RankedTensorType::get({}, builder.getF32Type());
    const double bound = options.gradClip > 0 ? options.gradClip : kNoClipping;
    auto factor = ClipFactorOp::create(
        builder, loc, TypeRange{scalar, scalar}, squares,
        builder.getF64FloatAttr(bound),
        options.scalesLoss ? builder.getUnitAttr() : UnitAttr());
    auto none = LayoutAttr::get(builder.getContext(), layout::Layout{});
    factor->setAttr(kLayoutsAttr, builder.getArrayAttr({none, none}));
    if (options.scalesLoss || stage == options.stages - 1)
      program.storeResult(factor.getNorm(), {stage, pipe::Action::U}, kGradNorm,
                          none);
    return factor.getFactor();
  }

private:
  // The vectors of squares by the axes over which parameters are split: each
  // rank has a part of their squares.
  using Squares = std::map<SmallVector<StringRef>, SmallVector<Value>>;

  // The axes over which ranks hold different parts of a parameter, in one
  // order.
  SmallVector<StringRef> splitOver(train::UpdateOp update,
                                   int64_t stage) const {
    layout::Layout parameter = layoutOf(update.getParameterValue()).getLayout();
    std::set<std::string> axes;
    for (const layout::DimLayout &dim : parameter.dims)
      for (const layout::Factor &factor : dim.factors)
        axes.insert(factor.axes.begin(), factor.axes.end());
    SmallVector<StringRef> ranks;
    for (StringRef whole : {kDataAxis, kTensorAxis})
      for (StringRef axis : program.mesh(stage).getAxesOn(whole))
        if (axes.count(axis.str()))
          ranks.push_back(axis);
    return ranks;
  }

  Squares squaresOf(OpBuilder &builder, Location loc, int64_t stage,
                    ArrayRef<StageGradient> work) const {
    auto one = RankedTensorType::get({1}, builder.getF32Type());
    auto replicated =
        LayoutAttr::get(builder.getContext(), layout::Layout{{{}}, {}});
    const SmallVector<Value> zeros(
        position.size(), withLayout(zerosLike(builder, loc, one), replicated));
    Squares out;
    out[{}] = zeros;
    for (const auto &[constUpdate, gradient, ids] : work) {
      train::UpdateOp update = constUpdate;
      // Of a parameter on several stages the first one counts.
      if (*holders.at(update.getParameter()).begin() != stage)
        continue;
      SmallVector<Value> &squares =
          out.try_emplace(splitOver(update, stage), zeros).first->second;
      squares[position.at(update.getParameter())] = withLayout(
          SquareSumOp::create(builder, loc, one, gradient), replicated);
    }
    return out;
  }

  // Of all ranks that have parts of parameters, and of all stages.
  Value sumSquares(OpBuilder &builder, Location loc, int64_t stage,
                   const Squares &squaresOf) const {
    layout::Layout vector;
    vector.dims.push_back({});
    if (position.size() > 1)
      vector.dims[0].factors.push_back(
          {static_cast<int64_t>(position.size()), {}});
    LayoutAttr layout = LayoutAttr::get(builder.getContext(), vector);
    Value squares;
    for (auto &[axes, parts] : squaresOf) { // that of no axes first
      Value sum = withLayout(
          ConcatOp::create(builder, loc, ValueRange(parts), 0), layout);
      if (!squares) {
        squares = sum;
        continue;
      }
      sum = sumOver(builder, loc, sum, axes, layout);
      squares = withLayout(AddOp::create(builder, loc, squares, sum), layout);
    }
    if (!options.meshes.empty())
      return sumOverMeshes(builder, loc, stage, squares, layout);
    return options.stages > 1
               ? sumOver(builder, loc, squares, {kPipelineAxis}, layout)
               : squares;
  }

  // All ranks of a stage have its squares. Each keeps its part of the vector
  // among zeros, so that the sum over the ranks of all stages has each square
  // once: of a stage with two ranks [a, 0] + [0, b].
  Value sumOverMeshes(OpBuilder &builder, Location loc, int64_t stage,
                      Value squares, LayoutAttr layout) const {
    const auto size = static_cast<int64_t>(position.size());
    int64_t parts = 1;
    for (dist::MeshAttr mesh : options.meshes)
      parts =
          std::lcm(parts, mesh.getSize(kDataAxis) * mesh.getSize(kTensorAxis));
    const int64_t padded = (size + parts - 1) / parts * parts;
    auto type = RankedTensorType::get({padded}, builder.getF32Type());
    auto laid = [&](std::vector<std::string> split,
                    std::vector<std::string> partial) {
      layout::Layout of;
      of.dims.push_back({{{padded, std::move(split)}}});
      of.partial = std::move(partial);
      return LayoutAttr::get(builder.getContext(), of);
    };
    const LayoutAttr whole = laid({}, {});
    if (padded != size) {
      auto rest = RankedTensorType::get({padded - size}, builder.getF32Type());
      layout::Layout zeros;
      zeros.dims.push_back({{{padded - size, {}}}});
      squares = withLayout(
          ConcatOp::create(
              builder, loc,
              ValueRange{squares, withLayout(zerosLike(builder, loc, rest),
                                             LayoutAttr::get(
                                                 builder.getContext(), zeros))},
              0),
          whole);
    }
    const dist::MeshAttr mesh = program.mesh(stage);
    std::vector<std::string> axes;
    SmallVector<StringRef> names;
    for (const char *axis : {kDataAxis, kTensorAxis})
      if (mesh.getSize(axis) > 1) {
        axes.push_back(axis);
        names.push_back(axis);
      }
    if (!axes.empty()) {
      ArrayAttr over = builder.getStrArrayAttr(names);
      auto convert = [&](Operation *op, LayoutAttr from, LayoutAttr to) {
        op->setAttr("dist.from", from);
        op->setAttr("dist.factor", builder.getI64IntegerAttr(0));
        return withLayout(op->getResult(0), to);
      };
      const LayoutAttr split = laid(axes, {}), summand = laid({}, axes);
      Value part = convert(
          ShardSliceOp::create(builder, loc, type, squares, over, 0, 1, 1),
          whole, split);
      squares =
          convert(PlaceOp::create(builder, loc, type, part, over, 0, 1, 1),
                  split, summand);
    }
    Value sum = sumOver(builder, loc, squares, {kRanksAxis}, whole);
    if (padded == size)
      return sum;
    return withLayout(
        train::SliceOp::create(builder, loc, sum, ArrayRef<int64_t>{0},
                               ArrayRef<int64_t>{size}, ArrayRef<int64_t>{1}),
        layout);
  }

  StageBuilder &program;
  const OutlineOptions &options;
  const Holders &holders;
  std::map<StringRef, size_t> position; // of parameters in the vector
};

void emitUpdate(StageBuilder &program, const OutlineOptions &options,
                Place place, StageGradient work, Value clip) {
  auto [update, gradient, ids] = work;
  ValueOp parameter = program.declared(place.first, update.getParameter());
  SmallVector<Attribute> states;
  for (StringRef suffix : options.optimizer.states()) {
    std::string name = (update.getParameter() + "." + suffix).str();
    ValueOp state =
        program.declareOnce(place.first, name, parameter.getType(),
                            ValueKind::state, parameter.getLayoutAttr(), name);
    states.push_back(FlatSymbolRefAttr::get(state.getSymNameAttr()));
  }
  // The gradient's buffer carries the parameter's name, for --save-grads.
  MLIRContext *context = update.getContext();
  if (Operation *op = gradient.getDefiningOp(); op && !ids)
    op->setAttr("train.gradient_of",
                StringAttr::get(context, update.getParameter()));
  OpBuilder builder = OpBuilder::atBlockEnd(program.bodyOf(place));
  auto made = pipe::UpdateOp::create(
      builder, update.getLoc(), gradient, clip, ids,
      FlatSymbolRefAttr::get(parameter.getSymNameAttr()),
      builder.getArrayAttr(states),
      train::OptimizerAttr::get(context, options.optimizer),
      /*split_axis=*/StringAttr());
  if (Attribute replayed = update->getAttr(kReplayedAttr))
    made->setAttr(kReplayedAttr, replayed);
}

void averageValue(StageBuilder &program, const OutlineOptions &options,
                  Place place, ValueOp value) {
  OpBuilder builder = OpBuilder::atBlockEnd(program.bodyOf(place));
  Location loc = value.getLoc();
  LayoutAttr layout = value.getLayoutAttr();
  Value own = program.load(place, value, loc);
  Value sum = sumOver(builder, loc, own,
                      program.mesh(place.first).getAxesOn(kDataAxis), layout);
  Value part = withLayout(
      scalarConstant(builder, loc, tensorTypeOf(own).getElementType(),
                     1.0 / static_cast<double>(
                               program.mesh(place.first).getSize(kDataAxis))),
      LayoutAttr::get(builder.getContext(), layout::Layout{}));
  Value mean = withLayout(MulOp::create(builder, loc, sum, part), layout);
  StoreOp::create(builder, loc, mean,
                  FlatSymbolRefAttr::get(value.getSymNameAttr()), UnitAttr());
}

} // namespace

void merak::emitUpdates(StageBuilder &program, const OutlineOptions &options,
                        ArrayRef<train::UpdateOp> updates,
                        ArrayRef<StageGradients> gradients,
                        const Holders &holders) {
  if (updates.empty())
    return;
  Location step = updates.front()->getParentOp()->getLoc();
  NormEmitter norm(program, options, updates, holders);
  for (auto [stage, work] : llvm::enumerate(gradients)) {
    const auto at = static_cast<int64_t>(stage);
    Value clip = norm.emit(at, work, step);
    for (const StageGradient &gradient : work)
      emitUpdate(program, options, {at, pipe::Action::U}, gradient, clip);
  }
}

void merak::averageTracked(StageBuilder &program, const OutlineOptions &options,
                           const Tracked &tracked) {
  for (auto &[stage, values] : tracked)
    if (program.mesh(stage).getSize(kDataAxis) > 1)
      for (const auto &[value, keep] : values)
        averageValue(program, options, {stage, pipe::Action::U}, value);
}

namespace {

Value scaled(OpBuilder &builder, Location loc, Value value, double factor,
             LayoutAttr layout) {
  Value number =
      withLayout(scalarConstant(builder, loc,
                                tensorTypeOf(value).getElementType(), factor),
                 LayoutAttr::get(builder.getContext(), layout::Layout{}));
  return withLayout(MulOp::create(builder, loc, value, number), layout);
}

// A statistic on one stage of each pipeline. With k kept a microbatch, after m
// of them r is k^m r + (what these add), and what a pipeline adds is kept
// k^(microbatches behind its own) times:
//   r = before + sum over pipelines of k^behind * (own - before)
class JoinedStatistic {
public:
  struct Part {
    int64_t stage;
    ValueOp value;
    double keep; // k^behind
  };

  JoinedStatistic(StageBuilder &program, ArrayRef<Part> parts)
      : program(program), parts(parts) {}

  void emit() {
    SmallVector<int64_t> stages;
    for (const Part &part : parts)
      stages.push_back(part.stage);
    StringRef holders = program.holdersOf(stages);
    for (const Part &part : parts)
      emit(part, holders, /*isLast=*/&part == &parts.back());
  }

private:
  // The last pipeline's share of `before` is nothing: k^0 of it is replaced.
  void emit(const Part &part, StringRef holders, bool isLast) {
    const Place update{part.stage, pipe::Action::U};
    const Location loc = ValueOp(part.value).getLoc();
    const LayoutAttr layout = ValueOp(part.value).getLayoutAttr();
    ValueOp before = isLast ? ValueOp() : keepBefore(part);
    OpBuilder builder = OpBuilder::atBlockEnd(program.bodyOf(update));
    Value own = program.load(update, part.value, loc);
    own = scaled(builder, loc, own, part.keep, layout);
    if (before)
      own = withLayout(
          AddOp::create(builder, loc, own, program.load(update, before, loc)),
          layout);
    Value sum = sumOver(builder, loc, own, {holders}, layout);
    const int64_t replicas = program.mesh(part.stage).getSize(kDataAxis);
    if (replicas > 1)
      sum = scaled(builder, loc, sum, 1.0 / static_cast<double>(replicas),
                   layout);
    StoreOp::create(
        builder, loc, sum,
        FlatSymbolRefAttr::get(ValueOp(part.value).getSymNameAttr()),
        UnitAttr());
  }

  // What is left out of it again, from before the first microbatch.
  ValueOp keepBefore(const Part &part) {
    const Place begin{part.stage, pipe::Action::G};
    ValueOp value = part.value;
    ValueOp before = program.declare(
        part.stage, (value.getSymName() + ".before").str(), value.getType(),
        ValueKind::step, value.getLayoutAttr(), "", value.getLoc());
    OpBuilder builder = OpBuilder::atBlockEnd(program.bodyOf(begin));
    Value old = program.load(begin, value, value.getLoc());
    program.storeAfter(
        scaled(builder, value.getLoc(), old, -part.keep, value.getLayoutAttr()),
        begin, before, /*accumulate=*/false);
    return before;
  }

  StageBuilder &program;
  ArrayRef<Part> parts;
};

} // namespace

LogicalResult merak::joinTracked(StageBuilder &program,
                                 const OutlineOptions &options,
                                 ArrayRef<Tracked> tracked) {
  // By name: all ranks sum them in one order.
  std::map<std::string, SmallVector<JoinedStatistic::Part>> statistics;
  int64_t all = 0;
  for (const PipelineSpan &span : options.pipelines)
    all += span.microbatches;
  for (auto [pipeline, stages] : llvm::enumerate(tracked)) {
    const PipelineSpan &span = options.pipelines[pipeline];
    const auto behind =
        static_cast<double>(all - span.firstMicrobatch - span.microbatches);
    for (const auto &[stage, values] : stages)
      for (auto [value, keep] : values) {
        auto &parts = statistics[value.getTensorAttr().getValue().str()];
        if (parts.size() > pipeline)
          return value.emitError("several stages of a pipeline track '")
                 << value.getTensorAttr().getValue()
                 << "', which plans of several pipelines cannot yet";
        parts.push_back({stage, value, std::pow(keep, behind)});
      }
  }
  for (const auto &[name, parts] : statistics)
    JoinedStatistic(program, parts).emit();
  return success();
}
