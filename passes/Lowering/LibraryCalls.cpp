#include "passes/Lowering/LibraryCalls.h"

#include "dialects/Pipe/PipeDialect.h"
#include "dialects/Train/SparseAttributes.h"
#include "mlir/IR/Builders.h"
#include "runtime/plan/LossScaled.h"
#include "llvm/ADT/TypeSwitch.h"

#include <fmt/format.h>

using namespace mlir;
using namespace merak::train;

namespace merak::lowering {

std::string listText(ArrayRef<int64_t> list) {
  std::string text;
  for (int64_t value : list)
    text += (text.empty() ? "" : ",") + std::to_string(value);
  return text;
}

std::string numberText(double value) { return fmt::format("{}", value); }

plan::ScalarAttr integerScalar(MLIRContext *context, int64_t value) {
  return plan::ScalarAttr::get(context,
                               Builder(context).getI64IntegerAttr(value), 0);
}

plan::ScalarAttr realScalar(MLIRContext *context, double value) {
  return plan::ScalarAttr::get(context, Builder(context).getF64FloatAttr(value),
                               0);
}

plan::ScalarAttr namedScalar(MLIRContext *context, StringRef name) {
  return plan::ScalarAttr::get(context, StringAttr::get(context, name), 0);
}

plan::ScalarAttr offsetScalar(MLIRContext *context,
                              std::optional<StringRef> axis, int64_t scale) {
  if (!axis)
    return integerScalar(context, 0);
  return plan::ScalarAttr::get(context, StringAttr::get(context, *axis), scale);
}

// Which submicrobatch of the tokens is known here, unlike the coordinates of a
// rank.
static plan::ScalarAttr partOffset(Operation *op, std::optional<StringRef> axis,
                                   int64_t scale) {
  if (axis != kSubmicrobatchAxis)
    return offsetScalar(op->getContext(), axis, scale);
  auto submicrobatch = op->getAttrOfType<IntegerAttr>(pipe::kSubmicrobatchAttr);
  return integerScalar(op->getContext(),
                       submicrobatch ? submicrobatch.getInt() * scale : 0);
}

namespace {

int64_t sizeOf(Value value, int64_t dim) {
  auto shape = cast<RankedTensorType>(value.getType()).getShape();
  return shape[dim < 0 ? dim + shape.size() : dim];
}

// Fills a LibraryCall; `text`, `number`... add attributes.
struct Caller {
  LibraryCall call;
  Operation *op;
  MLIRContext *context;

  Caller(Operation *op, StringRef name) : op(op), context(op->getContext()) {
    call.op = name;
    call.inputs.assign(op->getOperands().begin(), op->getOperands().end());
    call.outputs.assign(op->getResults().begin(), op->getResults().end());
  }
  Caller &text(StringRef name, StringRef value) {
    call.attrs.push_back(
        {StringAttr::get(context, name), StringAttr::get(context, value)});
    return *this;
  }
  Caller &integer(StringRef name, int64_t value) {
    return text(name, std::to_string(value));
  }
  Caller &number(StringRef name, double value) {
    return text(name, numberText(value));
  }
  Caller &list(StringRef name, ArrayRef<int64_t> value) {
    return text(name, listText(value));
  }
  Caller &ignore(std::optional<uint64_t> index) {
    return index ? integer("ignore_index", static_cast<int64_t>(*index))
                 : *this;
  }
  // Scalar 0: global index of the first local row or column.
  Caller &first(std::optional<StringRef> axis, int64_t localSize) {
    call.scalars.push_back(partOffset(op, axis, localSize));
    return *this;
  }
};

Caller windowed(Operation *op, StringRef name, ArrayRef<int64_t> strides,
                ArrayRef<int64_t> pads, ArrayRef<int64_t> dilations,
                int64_t group) {
  return Caller(op, name)
      .list("strides", strides)
      .list("pads", pads)
      .list("dilations", dilations)
      .integer("group", group);
}

template <typename Op> Caller conv(Op op, StringRef name) {
  return windowed(op, name, op.getStrides(), op.getPads(), op.getDilations(),
                  op.getGroup());
}

template <typename Op> Caller attention(Op op, StringRef name) {
  StringRef mask = "none";
  if (Value value = op.getMask())
    mask = cast<RankedTensorType>(value.getType()).getElementType().isInteger(1)
               ? "bool"
               : "float";
  Caller caller(op, name);
  caller.number("scale", op.getScale().convertToDouble())
      .integer("causal", op.getCausal())
      .text("mask", mask);
  if (std::optional<uint64_t> all = op.getQueries())
    caller.integer("queries", static_cast<int64_t>(*all))
        .first(op.getSplitAxis(), sizeOf(op.getQ(), 1));
  return caller;
}

// "e4m3,e5m2"
std::string roundsText(ArrayAttr types) {
  std::string text;
  for (Attribute type : types)
    text += std::string(text.empty() ? "" : ",") +
            (isa<Float8E5M2Type>(cast<TypeAttr>(type).getValue()) ? "e5m2"
                                                                  : "e4m3");
  return text;
}

using Call = std::optional<LibraryCall>;

} // namespace

std::optional<LibraryCall> libraryCallOf(Operation *operation) {
  auto done = [](const Caller &caller) -> Call { return caller.call; };
  return llvm::TypeSwitch<Operation *, Call>(operation)
      .Case([&](EinsumOp op) {
        Caller caller(op, "einsum");
        caller.text("equation", op.getEquation());
        if (ArrayAttr rounds = op.getRoundsAttr())
          caller.text("rounds", roundsText(rounds));
        return done(caller);
      })
      .Case([&](ReduceSumOp op) {
        return done(Caller(op, "reduce_sum").list("axes", op.getAxes()));
      })
      .Case([&](ReduceMaxOp op) {
        return done(Caller(op, "reduce_max").list("axes", op.getAxes()));
      })
      .Case([&](TopKOp op) {
        return done(Caller(op, "top_k").integer("smallest", op.getSmallest()));
      })
      .Case([&](GatherOp op) {
        int64_t local = sizeOf(op.getTable(), op.getAxis());
        return done(Caller(op, "gather")
                        .integer("axis", op.getAxis())
                        .integer("batch", op.getBatch())
                        .integer("rows_global", op.getRows().value_or(local))
                        .first(op.getSplitAxis(), local));
      })
      .Case([&](ScatterAddOp op) {
        int64_t local = sizeOf(op.getTable(), op.getAxis());
        return done(Caller(op, "scatter_add")
                        .integer("axis", op.getAxis())
                        .integer("batch", op.getBatch())
                        .integer("rows_global", op.getRows().value_or(local))
                        .first(op.getSplitAxis(), local));
      })
      .Case([&](CoalesceOp op) {
        Caller caller(op, "coalesce");
        caller.integer("size", op.getSize());
        if (op->hasAttr(kCompactAttr))
          caller.integer("compact", 1);
        if (auto block = op->getAttrOfType<IntegerAttr>(kBlockAttr))
          caller.integer("block", block.getInt());
        return done(caller);
      })
      .Case([&](SplitIdsOp op) {
        return done(Caller(op, "split_ids").integer("size", op.getSize()));
      })
      .Case([&](ScatterReduceOp op) {
        return done(Caller(op, "scatter_reduce")
                        .integer("axis", op.getBatch())
                        .integer("batch", op.getBatch())
                        .text("reduction", op.getReduction()));
      })
      .Case([&](DropoutOp op) {
        int64_t whole = cast<RankedTensorType>(op.getType()).getNumElements();
        Caller caller(op, "dropout");
        caller.number("ratio", op.getRatio().convertToDouble())
            .integer("id", op.getId())
            .list("extents", op.getExtents().value_or(whole))
            .list("strides", op.getStrides().value_or(int64_t{1}));
        caller.call.scalars = {namedScalar(op.getContext(), "seed"),
                               namedScalar(op.getContext(), "step")};
        if (op.getAxes())
          for (auto [axis, scale] :
               llvm::zip(op.getAxesAttr().getValue(), *op.getScales()))
            caller.call.scalars.push_back(
                partOffset(op, cast<StringAttr>(axis).getValue(), scale));
        return done(caller);
      })
      .Case([&](SoftmaxOp op) {
        return done(Caller(op, "softmax").integer("axis", op.getAxis()));
      })
      .Case([&](SoftmaxGradOp op) {
        return done(Caller(op, "softmax_grad").integer("axis", op.getAxis()));
      })
      .Case([&](LayerNormOp op) {
        return done(Caller(op, "layer_norm")
                        .integer("axis", op.getAxis())
                        .number("epsilon", op.getEpsilon().convertToDouble())
                        .integer("scale", op.getScale() ? 1 : 0)
                        .integer("bias", op.getBias() ? 1 : 0));
      })
      .Case([&](LayerNormGradOp op) {
        return done(Caller(op, "layer_norm_grad")
                        .integer("axis", op.getAxis())
                        .integer("scale", op.getScale() ? 1 : 0));
      })
      .Case([&](LayerNormParamGradOp op) {
        return done(
            Caller(op, "layer_norm_param_grad").integer("axis", op.getAxis()));
      })
      .Case([&](RmsNormOp op) {
        return done(Caller(op, "rms_norm")
                        .integer("axis", op.getAxis())
                        .number("epsilon", op.getEpsilon().convertToDouble())
                        .integer("scale", op.getScale() ? 1 : 0));
      })
      .Case([&](RmsNormGradOp op) {
        return done(Caller(op, "rms_norm_grad")
                        .integer("axis", op.getAxis())
                        .integer("scale", op.getScale() ? 1 : 0));
      })
      .Case([&](RmsNormParamGradOp op) {
        return done(
            Caller(op, "rms_norm_param_grad").integer("axis", op.getAxis()));
      })
      .Case([&](SoftmaxCrossEntropyOp op) {
        return done(
            Caller(op, "softmax_cross_entropy").ignore(op.getIgnoreIndex()));
      })
      .Case([&](SoftmaxCrossEntropyGradOp op) {
        return done(Caller(op, "softmax_cross_entropy_grad")
                        .ignore(op.getIgnoreIndex())
                        .first(op.getSplitAxis(), sizeOf(op.getLogits(), -1)));
      })
      .Case([&](PickOp op) {
        return done(Caller(op, "pick")
                        .ignore(op.getIgnoreIndex())
                        .first(op.getSplitAxis(), sizeOf(op.getX(), -1)));
      })
      .Case([&](PickGradOp op) {
        return done(Caller(op, "pick_grad")
                        .ignore(op.getIgnoreIndex())
                        .first(op.getSplitAxis(), sizeOf(op.getDx(), -1)));
      })
      .Case([&](AttentionOp op) { return done(attention(op, "attention")); })
      .Case([&](AttentionGradOp op) {
        return done(attention(op, "attention_grad"));
      })
      .Case([&](RotaryOp op) {
        return done(Caller(op, "rotary")
                        .integer("interleaved", op.getInterleaved())
                        .integer("inverse", op.getInverse()));
      })
      .Case(
          [&](ConvOp op) { return done(conv(op, "conv").integer("bias", 0)); })
      .Case(
          [&](ConvGradInputOp op) { return done(conv(op, "conv_grad_input")); })
      .Case([&](ConvGradWeightOp op) {
        return done(conv(op, "conv_grad_weight"));
      })
      .Case([&](MaxPoolOp op) {
        return done(Caller(op, "max_pool")
                        .list("kernel", op.getKernel())
                        .list("strides", op.getStrides())
                        .list("pads", op.getPads())
                        .list("dilations", op.getDilations()));
      })
      .Case([&](MaxPoolGradOp op) { return done(Caller(op, "max_pool_grad")); })
      .Case([&](AvgPoolOp op) {
        return done(Caller(op, "avg_pool")
                        .list("kernel", op.getKernel())
                        .list("strides", op.getStrides())
                        .list("pads", op.getPads())
                        .integer("count_include_pad", op.getCountIncludePad()));
      })
      .Case([&](AvgPoolGradOp op) {
        return done(Caller(op, "avg_pool_grad")
                        .list("kernel", op.getKernel())
                        .list("strides", op.getStrides())
                        .list("pads", op.getPads())
                        .integer("count_include_pad", op.getCountIncludePad()));
      })
      .Case([&](SquareSumOp op) { return done(Caller(op, "square_sum")); })
      .Case([&](LossScaleOp op) {
        Caller caller(op, "scale");
        caller.call.scalars = {namedScalar(op.getContext(), kGradScale)};
        return done(caller);
      })
      .Case([&](ClipFactorOp op) {
        Caller caller(op, "clip_factor");
        caller.number("max_norm", op.getMaxNorm().convertToDouble());
        if (op.getScaled())
          caller.call.scalars = {namedScalar(op.getContext(), kGradScale)};
        return done(caller);
      })
      .Default([](Operation *) -> Call { return std::nullopt; });
}

} // namespace merak::lowering
