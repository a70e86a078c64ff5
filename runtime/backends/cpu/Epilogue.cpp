#include "runtime/backends/cpu/Epilogue.h"

#include <fmt/format.h>
#include <map>

namespace merak::cpu {

namespace {

// Positions among the inputs.
constexpr size_t kBias = 2;
size_t slopeInput(const Epilogue &e) { return e.biased ? 3 : 2; }

// reduce_sum of a factor over its letters that the output lacks.
planpb::Instruction sumAlone(const planpb::Instruction &instruction,
                             int summed) {
  std::string equation;
  for (char c : instruction.attrs().at("equation"))
    if (c != ' ')
      equation += c;
  const size_t comma = equation.find(','), arrow = equation.find("->");
  const std::string letters =
      summed == 0 ? equation.substr(0, comma)
                  : equation.substr(comma + 1, arrow - comma - 1);
  planpb::Instruction sum;
  sum.set_kind(planpb::Instruction::LIBRARY);
  sum.set_op("reduce_sum");
  sum.set_accumulate(instruction.accumulate());
  std::string axes;
  for (size_t d = 0; d < letters.size(); ++d)
    if (equation.find(letters[d], arrow) == std::string::npos)
      axes += (axes.empty() ? "" : ",") + std::to_string(d);
  (*sum.mutable_attrs())["axes"] = axes;
  return sum;
}

} // namespace

bool readEpilogue(Request &request, Epilogue &e) {
  e.biased = request.integer("bias", 0) != 0;
  const std::string gelu = request.text("gelu", "none");
  const std::map<std::string, Epilogue::Gelu> kinds = {
      {"none", Epilogue::None},
      {"forward", Epilogue::Forward},
      {"keep", Epilogue::Keep},
      {"gradient", Epilogue::Gradient}};
  auto kind = kinds.find(gelu);
  if (!request.expect(kind != kinds.end(),
                      fmt::format("expected 'gelu' to be none, forward, keep "
                                  "or gradient, found '{}'",
                                  gelu)))
    return false;
  e.gelu = kind->second;
  if (request.has("sum")) {
    e.summed = static_cast<int>(request.integer("sum", 0));
    if (!request.expect((e.summed == 0 || e.summed == 1) && !e.any(),
                        "expected 'sum' to be 0 or 1, without bias and gelu"))
      return false;
  }
  if (!request.counts(2 + e.biased + (e.slopes()),
                      1 + (e.keeps() || e.summed >= 0)))
    return false;
  const View &out = request.outputs[0];
  std::vector<int64_t> strides;
  if (e.biased)
    request.expect(broadcastStrides(request.inputs[kBias], out.shape, strides),
                   "the bias does not broadcast to the output");
  if (e.keeps())
    request.sameShape(out, "output", request.outputs[1], "GELU's argument");
  if (e.slopes())
    request.sameShape(out, "output", request.inputs[slopeInput(e)],
                      "GELU's argument");
  return request.ok();
}

EpilogueOperands operandsOf(const Epilogue &e, std::span<const View> inputs,
                            std::span<const View> outputs) {
  EpilogueOperands out;
  if (e.biased)
    out.bias = &inputs[kBias];
  if (e.slopes())
    out.slopeAt = &inputs[slopeInput(e)];
  if (e.keeps())
    out.keep = &outputs[1];
  return out;
}

Nest epilogueNest(const Request &request, const Epilogue &e) {
  const View &out = request.outputs[0];
  const std::vector<int64_t> none(out.shape.size(), 0);
  std::vector<std::vector<int64_t>> strides = {out.strides, none, none};
  const EpilogueOperands operands =
      operandsOf(e, request.inputs, request.outputs);
  if (operands.bias)
    broadcastStrides(*operands.bias, out.shape, strides[1]);
  if (const View *argument = operands.keep ? operands.keep : operands.slopeAt)
    strides[2] = argument->strides;
  return Nest(out.shape, strides);
}

ProductAndSum::ProductAndSum(const planpb::Instruction &both, int summed)
    : product_(both), sum_(sumAlone(both, summed)),
      summed_(static_cast<size_t>(summed)) {
  product_.mutable_attrs()->erase("sum");
}

KernelCall ProductAndSum::product(const KernelCall &both) const {
  KernelCall call = both;
  call.instruction = &product_;
  call.outputs = both.outputs.first(1);
  return call;
}

KernelCall ProductAndSum::sum(const KernelCall &both) const {
  KernelCall call = both;
  call.instruction = &sum_;
  call.inputs = both.inputs.subspan(summed_, 1);
  call.outputs = both.outputs.subspan(1);
  return call;
}

} // namespace merak::cpu
