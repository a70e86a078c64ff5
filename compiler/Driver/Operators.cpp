#include "compiler/Driver/Operators.h"

#include "dialects/Train/TrainDialect.h"
#include "onnx/Conversion/OnnxNode.h"

#include <nlohmann/json.hpp>

using namespace mlir;
using Json = nlohmann::ordered_json;

namespace merak {

static Json describe(const OnnxEntry &entry) {
  const OnnxGradient &gradient = entry.gradient;
  Json inputs = "all";
  if (gradient.inputs != OnnxGradient::kAll) {
    inputs = Json::array();
    for (size_t i = 0; i < 31; ++i)
      if (gradient.passes(i))
        inputs.push_back(i);
  }
  return {{"operator", entry.type},   {"domain", entry.domain},
          {"since", entry.since},     {"until", entry.until},
          {"import", !entry.convert}, {"gradient", inputs},
          {"why", gradient.why}};
}

void printOperators(MLIRContext &context, llvm::raw_ostream &out) {
  Json operators = Json::array(), ops = Json::array();
  for (const OnnxEntry &entry : onnxEntries())
    operators.push_back(describe(entry));
  for (RegisteredOperationName name : context.getRegisteredOperations())
    if (name.getDialectNamespace() == "train")
      ops.push_back(
          {{"op", name.getStringRef().str()},
           {"rule", name.hasInterface<train::ShardingRuleOpInterface>()},
           {"gradient", name.hasInterface<train::DifferentiableOpInterface>()},
           {"decomposes",
            name.hasInterface<train::DecomposableOpInterface>()}});
  out << Json{{"operators", operators}, {"ops", ops}}.dump(1) << "\n";
}

} // namespace merak
