// #train.optimizer and #train.config.
#include "dialects/Train/TrainDialect.h"

#include "mlir/IR/DialectImplementation.h"

using namespace mlir;
using namespace merak;
using namespace merak::train;

//===----------------------------------------------------------------------===//
// #train.optimizer
//===----------------------------------------------------------------------===//

namespace {

struct FieldPrinter {
  AsmPrinter &out;

  void operator()(double value) { out.printFloat(APFloat(value)); }
  void operator()(bool value) { out << (value ? "true" : "false"); }
  void operator()(int64_t value) { out << value; }
  void operator()(const std::optional<int64_t> &value) { out << *value; }
  void operator()(const std::string &value) { out.printString(value); }
  void operator()(RateSchedule value) { out << kRateSchedules[int(value)]; }
};

struct FieldReader {
  AsmParser &in;

  ParseResult operator()(double &value) { return in.parseFloat(value); }
  ParseResult operator()(bool &value) {
    value = succeeded(in.parseOptionalKeyword("true"));
    return value ? success() : in.parseKeyword("false");
  }
  ParseResult operator()(int64_t &value) { return in.parseInteger(value); }
  ParseResult operator()(std::optional<int64_t> &value) {
    return in.parseInteger(value.emplace());
  }
  ParseResult operator()(std::string &value) { return in.parseString(&value); }
  ParseResult operator()(RateSchedule &value) {
    SMLoc location = in.getCurrentLocation();
    StringRef name;
    if (in.parseKeyword(&name))
      return failure();
    std::optional<RateSchedule> found = parseRateSchedule(name);
    if (!found)
      return in.emitError(
                 location,
                 "expected a schedule constant, linear or cosine, found '")
             << name << "'";
    value = *found;
    return success();
  }
};

} // namespace

llvm::hash_code merak::hash_value(const Optimizer &optimizer) {
  llvm::hash_code hash = llvm::hash_value(int(optimizer.kind));
  eachField([&](StringRef, auto member) {
    const auto &value = optimizer.*member;
    using Value = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<Value, double>)
      hash = llvm::hash_combine(hash, APFloat(value));
    else if constexpr (std::is_same_v<Value, RateSchedule>)
      hash = llvm::hash_combine(hash, int(value));
    else
      hash = llvm::hash_combine(hash, value);
  });
  return hash;
}

static ParseResult parseField(AsmParser &parser, Optimizer &optimizer) {
  SMLoc location = parser.getCurrentLocation();
  StringRef name;
  if (parser.parseKeyword(&name))
    return failure();
  bool known = false;
  ParseResult result = success();
  eachField([&](StringRef field, auto member) {
    if (field != name)
      return;
    known = true;
    result =
        failure(parser.parseEqual() || FieldReader{parser}(optimizer.*member));
  });
  if (!known)
    return parser.emitError(location, "optimizers have no field '")
           << name << "'";
  return result;
}

Attribute OptimizerAttr::parse(AsmParser &parser, Type) {
  Optimizer optimizer;
  StringRef kind;
  SMLoc location;
  if (parser.parseLess() || (location = parser.getCurrentLocation(), false) ||
      parser.parseKeyword(&kind))
    return {};
  std::optional<OptimizerKind> found = parseOptimizerKind(kind);
  if (!found) {
    parser.emitError(location, "expected sgd, adamw, adam or adagrad, found '")
        << kind << "'";
    return {};
  }
  optimizer.kind = *found;
  while (succeeded(parser.parseOptionalComma()))
    if (parseField(parser, optimizer))
      return {};
  if (parser.parseGreater())
    return {};
  return get(parser.getContext(), optimizer);
}

void OptimizerAttr::print(AsmPrinter &printer) const {
  printer << "<" << llvm::StringRef(getValue().name());
  const Optimizer plain;
  eachField([&](StringRef name, auto member) {
    if (getValue().*member == plain.*member)
      return;
    printer << ", " << name << " = ";
    FieldPrinter{printer}(getValue().*member);
  });
  printer << ">";
}

//===----------------------------------------------------------------------===//
// #train.config
//===----------------------------------------------------------------------===//

LogicalResult ConfigAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                                 StepMode mode, StringRef, int64_t globalBatch,
                                 OptimizerAttr optimizer, FloatAttr gradClip,
                                 Type lowPrecision) {
  if (lowPrecision && !isHalf(lowPrecision) &&
      !isa<Float8E4M3FNType>(lowPrecision))
    return emitError() << "expected low_precision bf16, f16 or f8E4M3FN, got "
                       << lowPrecision;
  if (globalBatch < 0)
    return emitError() << "expected global_batch of at least 0, got "
                       << globalBatch;
  if (gradClip && !(gradClip.getValueAsDouble() > 0))
    return emitError() << "expected grad_clip above 0, got " << gradClip;
  if (mode == StepMode::infer && optimizer)
    return emitError() << "expected no optimizer with mode infer";
  return success();
}

ConfigAttr ConfigAttr::of(Operation *module) {
  if (auto config = module->getAttrOfType<ConfigAttr>(kConfigAttr))
    return config;
  return get(module->getContext(), StepMode::train, "", 0, {}, {}, {});
}

ConfigAttr ConfigAttr::withBatch(int64_t samples) const {
  return get(getContext(), getMode(), getModel(), samples, getOptimizer(),
             getGradClip(), getLowPrecision());
}

ConfigAttr ConfigAttr::withLowPrecision(Type type) const {
  return get(getContext(), getMode(), getModel(), getGlobalBatch(),
             getOptimizer(), getGradClip(), type);
}
