#include "test/unit-compiler/codegen/KernelRunner.h"

#include "codegen/Kernels/GridLowering.h"
#include "codegen/Kernels/KernelGraph.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/Parser/Parser.h"
#include "runtime/core/HalfFloat.h"
#include "llvm/ADT/DenseSet.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <dlfcn.h>
#include <filesystem>
#include <numeric>
#include <unistd.h>

using namespace mlir;

namespace merak::codegen::test {

static std::string temporaryPath() {
  static int count = 0;
  return (std::filesystem::temp_directory_path() /
          ("merak-kernels-" + std::to_string(getpid()) + "-" +
           std::to_string(count++) + ".so"))
      .string();
}

Kernels::Kernels(const std::string &text, const std::string &targetName) {
  ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diagnostic) {
    error += diagnostic.str() + "\n";
    return success();
  });
  DialectRegistry registry;
  registerKernelDialects(registry);
  context.appendDialectRegistry(registry);
  context.loadAllAvailableDialects();
  module = parseSourceString<ModuleOp>(text, &context);
  if (!module)
    return;
  CompileOptions options;
  isGrid = targetName == "grid";
  isPtx = targetName == "ptx";
  Result<KernelTarget> target = KernelTarget::fromName(isGrid  ? "native"
                                                       : isPtx ? "sm_80"
                                                               : targetName);
  if (target.ok())
    target = target->asEnvironmentAsks();
  if (!target.ok()) {
    error += target.status().str();
    return;
  }
  options.target = *target;
  options.target.isGrid |= isGrid;
  options.target.hasSmallGrids = isGrid || isPtx;
  FailureOr<KernelObject> compiled = compileKernels(*module, {}, options);
  if (failed(compiled))
    return;
  object = std::move(*compiled);
  if (isPtx) {
    auto parsed = ptx::Module::parse(object.object);
    if (parsed.ok())
      ptx = std::move(*parsed);
    else
      error += parsed.status().str();
  }
  if (options.target.isGpu) // not to be loaded here
    return;
  std::string path = temporaryPath();
  Status linked =
      linkSharedObject({object.object}, path, options.target.sanitizer);
  if (!linked.ok()) {
    error += linked.str();
    return;
  }
  handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    error += dlerror();
  std::filesystem::remove(path);
  if (handle && isGrid)
    if (void *table = dlsym(handle, kGridTable))
      fillGridTable(static_cast<void **>(table));
}

Kernels::~Kernels() {
  if (handle)
    dlclose(handle);
}

func::FuncOp Kernels::function(const std::string &name) {
  return module->lookupSymbol<func::FuncOp>(name);
}

bool Kernels::isApproximate(const std::string &name) {
  const ptx::Entry *entry = ptx.find(object.kernels[name].symbol);
  return entry && entry->isApproximate;
}

//===----------------------------------------------------------------------===//
// Buffers
//===----------------------------------------------------------------------===//

namespace {
struct Buffer {
  std::vector<char> bytes;
  std::vector<int64_t> strides;
  int64_t front = 0; // bytes before the first element
};
} // namespace

static int64_t widthOf(Type element) {
  return std::max<int64_t>(1, element.getIntOrFloatBitWidth() / 8);
}

static void writeNumber(char *at, Type element, Number n) {
  auto put = [&](auto value) { std::memcpy(at, &value, sizeof value); };
  if (element.isF32())
    put(static_cast<float>(n.f));
  else if (element.isF64())
    put(n.f);
  else if (element.isBF16())
    put(static_cast<uint16_t>(
        std::bit_cast<uint32_t>(static_cast<float>(n.f)) >> 16));
  else if (element.isF16())
    put(runtime::floatToF16(static_cast<float>(n.f)));
  else if (element.isInteger(64))
    put(n.i);
  else if (element.isInteger(32))
    put(static_cast<int32_t>(n.i));
  else
    put(static_cast<int8_t>(n.i));
}

static Number readNumber(const char *at, Type element) {
  Number n;
  auto get = [&](auto value) {
    std::memcpy(&value, at, sizeof value);
    return value;
  };
  if (element.isF32())
    n.f = get(float());
  else if (element.isF64())
    n.f = get(double());
  else if (element.isBF16())
    n.f = std::bit_cast<float>(static_cast<uint32_t>(get(uint16_t())) << 16);
  else if (element.isF16())
    n.f = runtime::f16ToFloat(get(uint16_t()));
  else if (element.isInteger(64))
    n.i = get(int64_t());
  else if (element.isInteger(32))
    n.i = get(int32_t());
  else
    n.i = get(int8_t());
  return n;
}

static void forEachIndex(
    const std::vector<int64_t> &shape,
    const std::function<void(const std::vector<int64_t> &, int64_t)> &visit) {
  int64_t total = 1;
  for (int64_t size : shape)
    total *= size;
  std::vector<int64_t> index(shape.size(), 0);
  for (int64_t linear = 0; linear < total; ++linear) {
    visit(index, linear);
    for (size_t d = shape.size(); d-- > 0;) {
      if (++index[d] < shape[d])
        break;
      index[d] = 0;
    }
  }
}

static constexpr int64_t kGuard = 64; // bytes that must stay as they are

// Behind a multiple of 16 bytes by `skipped` elements.
static Buffer allocate(const KernelOperand &operand, int64_t skipped) {
  Buffer buffer;
  buffer.front = kGuard + skipped * widthOf(operand.element);
  buffer.strides.assign(operand.strides.begin(), operand.strides.end());
  int64_t last = 0;
  for (auto [size, stride] : llvm::zip(operand.shape, operand.strides))
    last += std::max<int64_t>(size - 1, 0) * stride;
  buffer.bytes.assign(
      buffer.front + (last + 1) * widthOf(operand.element) + kGuard, 0x5a);
  return buffer;
}

static char *address(Buffer &buffer, Type element,
                     const std::vector<int64_t> &index) {
  int64_t offset = 0;
  for (size_t d = 0; d < index.size(); ++d)
    offset += index[d] * buffer.strides[d];
  return buffer.bytes.data() + buffer.front + offset * widthOf(element);
}

static void pack(Buffer &buffer, const Tensor &tensor) {
  forEachIndex(tensor.shape, [&](const std::vector<int64_t> &index, int64_t i) {
    writeNumber(address(buffer, tensor.element, index), tensor.element,
                tensor.data[i]);
  });
}

static std::string
runPtx(const ptx::Module &module, const CompiledKernel &kernel,
       const std::vector<Buffer> &buffers, const std::vector<void *> &pointers,
       const std::vector<int64_t> &scalars, uint64_t seed, int64_t &executed) {
  const ptx::Entry *entry = module.find(kernel.symbol);
  if (!entry)
    return "no entry " + kernel.symbol + " in the PTX";
  std::vector<uint64_t> words;
  std::vector<ptx::Region> regions;
  for (size_t i = 0; i < buffers.size(); ++i) {
    words.push_back(reinterpret_cast<uint64_t>(pointers[i]));
    // All but the guards, which belong to nobody.
    regions.push_back({static_cast<char *>(pointers[i]),
                       buffers[i].bytes.size() - buffers[i].front - kGuard,
                       "operand " + std::to_string(i)});
  }
  // Operands that lie in another's place: that one's bytes.
  for (size_t i = 0; i < regions.size(); ++i)
    for (size_t k = 0; k < i; ++k)
      if (regions[k].data == regions[i].data) {
        regions[k].bytes = std::min(regions[k].bytes, regions[i].bytes);
        regions[k].isInPlace = true;
        regions[i].bytes = 0;
      }
  words.insert(words.end(), scalars.begin(), scalars.end());
  return ptx::run(*entry, words, kernel.range.rows, regions, seed, &executed)
      .str();
}

std::vector<Tensor> Kernels::run(const std::string &name,
                                 const std::vector<Tensor> &inputs,
                                 const std::vector<int64_t> &scalars,
                                 const std::vector<double> &cuts,
                                 const std::vector<Tensor> *initial) {
  FailureOr<KernelGraph> graph = KernelGraph::build(function(name));
  const CompiledKernel &kernel = object.kernels[name];
  // Packs of grids are loaded at once or one by one.
  ++runs;
  auto call =
      isPtx ? nullptr
            : reinterpret_cast<Call>(dlsym(handle, kernel.symbol.c_str()));
  std::vector<Buffer> buffers;
  std::vector<void *> pointers;
  for (const KernelOperand &operand : graph->operands)
    buffers.push_back(allocate(operand, (isGrid || isPtx) && runs % 2));
  for (size_t i = 0; i < inputs.size(); ++i)
    pack(buffers[i], inputs[i]);
  if (initial)
    for (size_t i = 0; i < initial->size(); ++i)
      pack(buffers[graph->firstOutput + i], (*initial)[i]);
  for (Buffer &buffer : buffers)
    pointers.push_back(buffer.bytes.data() + buffer.front);
  // Now and then results lie where operands do that may share their memory.
  std::vector<size_t> lies(buffers.size());
  std::iota(lies.begin(), lies.end(), 0);
  llvm::SmallDenseSet<size_t> taken;
  for (auto [input, output] : kernel.inPlace) {
    const size_t number = graph->firstOutput + output;
    if (runs % 3 != 0 || graph->operands[number].accumulate ||
        lies[number] != number || !taken.insert(input).second)
      continue;
    lies[number] = input;
    pointers[number] = pointers[input];
  }
  int64_t begin = 0, rows = kernel.range.rows;
  std::vector<std::pair<int64_t, int64_t>> parts;
  for (double cut : cuts) {
    int64_t end = std::max(begin, static_cast<int64_t>(cut * rows));
    parts.emplace_back(begin, end);
    begin = end;
  }
  parts.emplace_back(begin, rows);
  if (isGrid) {
    error += runGrid(call, pointers.data(), scalars.data(), rows,
                     kernel.blockThreads, cuts.size());
    parts.clear();
  }
  if (isPtx) {
    error +=
        runPtx(ptx, kernel, buffers, pointers, scalars, cuts.size(), executed);
    parts.clear();
  }
  // Any order must do.
  for (size_t i = parts.size(); i-- > 0;)
    call(pointers.data(), scalars.data(), parts[i].first, parts[i].second);

  std::vector<Tensor> outputs;
  for (unsigned i = graph->firstOutput; i < graph->operands.size(); ++i) {
    const KernelOperand &operand = graph->operands[i];
    Tensor tensor;
    tensor.element = operand.element;
    tensor.shape.assign(operand.shape.begin(), operand.shape.end());
    forEachIndex(tensor.shape, [&](const std::vector<int64_t> &index, int64_t) {
      tensor.data.push_back(readNumber(
          address(buffers[lies[i]], operand.element, index), operand.element));
    });
    outputs.push_back(std::move(tensor));
    for (int64_t g = 0; g < kGuard; ++g)
      if (buffers[i].bytes[g] != 0x5a ||
          buffers[i].bytes[buffers[i].bytes.size() - 1 - g] != 0x5a)
        error += "output " + std::to_string(i - graph->firstOutput) +
                 " was written outside of its bounds\n";
  }
  return outputs;
}

//===----------------------------------------------------------------------===//
// The interpreter
//===----------------------------------------------------------------------===//

static double roundTo(Type type, double value) {
  if (type.isF64())
    return value;
  float f = static_cast<float>(value);
  if (type.isF16())
    return runtime::f16ToFloat(runtime::floatToF16(f));
  if (!type.isBF16() || std::isnan(f))
    return f;
  uint32_t bits = std::bit_cast<uint32_t>(f);
  bits += 0x7fff + ((bits >> 16) & 1);
  return std::bit_cast<float>(bits & 0xffff0000);
}

static int64_t wrap(Type type, int64_t value) {
  if (type.isInteger(1))
    return value & 1;
  if (type.isInteger(32))
    return static_cast<int32_t>(value);
  if (type.isInteger(8))
    return static_cast<int8_t>(value);
  return value;
}

static bool compare(arith::CmpFPredicate p, double a, double b) {
  using P = arith::CmpFPredicate;
  bool unordered = std::isnan(a) || std::isnan(b);
  switch (p) {
  case P::OEQ:
    return a == b;
  case P::OGT:
    return a > b;
  case P::OGE:
    return a >= b;
  case P::OLT:
    return a < b;
  case P::OLE:
    return a <= b;
  case P::ONE:
    return !unordered && a != b;
  case P::UNE:
    return a != b;
  case P::UNO:
    return unordered;
  default:
    std::abort();
  }
}

static bool compare(arith::CmpIPredicate p, int64_t a, int64_t b) {
  using P = arith::CmpIPredicate;
  switch (p) {
  case P::eq:
    return a == b;
  case P::ne:
    return a != b;
  case P::slt:
    return a < b;
  case P::sle:
    return a <= b;
  case P::sgt:
    return a > b;
  case P::sge:
    return a >= b;
  default:
    std::abort();
  }
}

static Number evaluate(Operation &op, llvm::ArrayRef<Number> v) {
  Type type = op.getResult(0).getType();
  llvm::StringRef name = op.getName().getStringRef();
  auto real = [&](double x) { return Number{roundTo(type, x), 0}; };
  auto whole = [&](int64_t x) { return Number{0, wrap(type, x)}; };
  if (auto constant = dyn_cast<arith::ConstantOp>(op)) {
    if (auto f = dyn_cast<FloatAttr>(constant.getValue()))
      return {f.getValueAsDouble(), 0};
    return whole(cast<IntegerAttr>(constant.getValue()).getInt());
  }
  if (auto cmp = dyn_cast<arith::CmpFOp>(op))
    return whole(compare(cmp.getPredicate(), v[0].f, v[1].f));
  if (auto cmp = dyn_cast<arith::CmpIOp>(op))
    return whole(compare(cmp.getPredicate(), v[0].i, v[1].i));
  struct Real {
    const char *name;
    double (*function)(double, double);
  };
  static const Real reals[] = {
      {"arith.addf", [](double a, double b) { return a + b; }},
      {"arith.subf", [](double a, double b) { return a - b; }},
      {"arith.mulf", [](double a, double b) { return a * b; }},
      {"arith.divf", [](double a, double b) { return a / b; }},
      {"arith.maximumf", [](double a, double b) { return a > b ? a : b; }},
      {"arith.minimumf", [](double a, double b) { return a < b ? a : b; }},
      {"math.powf", [](double a, double b) { return std::pow(a, b); }},
      {"arith.negf", [](double a, double) { return -a; }},
      {"arith.extf", [](double a, double) { return a; }},
      {"arith.truncf", [](double a, double) { return a; }},
      {"math.absf", [](double a, double) { return std::fabs(a); }},
      {"math.exp", [](double a, double) { return std::exp(a); }},
      {"math.exp2", [](double a, double) { return std::exp2(a); }},
      {"math.expm1", [](double a, double) { return std::expm1(a); }},
      {"math.log", [](double a, double) { return std::log(a); }},
      {"math.log2", [](double a, double) { return std::log2(a); }},
      {"math.log10", [](double a, double) { return std::log10(a); }},
      {"math.log1p", [](double a, double) { return std::log1p(a); }},
      {"math.tanh", [](double a, double) { return std::tanh(a); }},
      {"math.erf", [](double a, double) { return std::erf(a); }},
      {"math.sqrt", [](double a, double) { return std::sqrt(a); }},
      {"math.rsqrt", [](double a, double) { return 1 / std::sqrt(a); }},
      {"math.sin", [](double a, double) { return std::sin(a); }},
      {"math.cos", [](double a, double) { return std::cos(a); }},
      {"math.tan", [](double a, double) { return std::tan(a); }},
      {"math.sinh", [](double a, double) { return std::sinh(a); }},
      {"math.cosh", [](double a, double) { return std::cosh(a); }},
      {"math.atan", [](double a, double) { return std::atan(a); }},
      {"math.asin", [](double a, double) { return std::asin(a); }},
      {"math.acos", [](double a, double) { return std::acos(a); }},
      {"math.floor", [](double a, double) { return std::floor(a); }},
      {"math.ceil", [](double a, double) { return std::ceil(a); }},
      {"math.trunc", [](double a, double) { return std::trunc(a); }},
      {"math.round", [](double a, double) { return std::round(a); }},
      {"math.roundeven", [](double a, double) { return std::nearbyint(a); }}};
  for (const Real &entry : reals)
    if (name == entry.name)
      return real(entry.function(v[0].f, v.size() > 1 ? v[1].f : 0));
  if (name == "arith.addi")
    return whole(v[0].i + v[1].i);
  if (name == "arith.subi")
    return whole(v[0].i - v[1].i);
  if (name == "arith.muli")
    return whole(v[0].i * v[1].i);
  if (name == "arith.divsi")
    return whole(v[1].i == 0 ? v[0].i : v[0].i / v[1].i);
  if (name == "arith.remsi")
    return whole(v[1].i == 0 ? 0 : v[0].i % v[1].i);
  if (name == "arith.andi")
    return whole(v[0].i & v[1].i);
  if (name == "arith.ori")
    return whole(v[0].i | v[1].i);
  if (name == "arith.xori")
    return whole(v[0].i ^ v[1].i);
  if (name == "arith.maxsi")
    return whole(std::max(v[0].i, v[1].i));
  if (name == "arith.minsi")
    return whole(std::min(v[0].i, v[1].i));
  if (name == "arith.select")
    return v[0].i ? v[1] : v[2];
  if (name == "arith.sitofp")
    return real(static_cast<double>(v[0].i));
  if (name == "arith.uitofp")
    return real(static_cast<double>(v[0].i));
  if (name == "arith.fptosi")
    return whole(static_cast<int64_t>(v[0].f));
  if (name == "arith.extsi" && op.getOperand(0).getType().isInteger(1))
    return whole(v[0].i ? -1 : 0);
  if (name == "arith.extsi" || name == "arith.extui" ||
      name == "arith.trunci" || name == "arith.index_cast")
    return whole(v[0].i);
  op.emitError() << "the test's interpreter does not know this";
  std::abort();
}

std::vector<Tensor> interpret(func::FuncOp function,
                              const std::vector<Tensor> &inputs,
                              const std::vector<int64_t> &scalars) {
  llvm::DenseMap<Value, Tensor> tensors;
  llvm::DenseMap<Value, Number> numbers;
  size_t nextInput = 0, nextScalar = 0;
  for (BlockArgument arg : function.getArguments()) {
    if (isa<RankedTensorType>(arg.getType())) {
      tensors[arg] = inputs[nextInput++];
      continue;
    }
    int64_t bits = scalars[nextScalar++];
    Number n;
    if (isa<FloatType>(arg.getType()))
      n.f = roundTo(arg.getType(), std::bit_cast<double>(bits));
    else
      n.i = wrap(arg.getType(), bits);
    numbers[arg] = n;
  }
  auto tensorOf = [](Type type) {
    auto ranked = cast<RankedTensorType>(type);
    Tensor tensor{ranked.getElementType(), ranked.getShape().vec(), {}};
    tensor.data.resize(ranked.getNumElements());
    return tensor;
  };
  for (Operation &op : function.getBody().front().without_terminator()) {
    if (isa<tensor::EmptyOp>(op)) {
      tensors[op.getResult(0)] = tensorOf(op.getResult(0).getType());
    } else if (auto fill = dyn_cast<linalg::FillOp>(op)) {
      Tensor tensor = tensorOf(op.getResult(0).getType());
      for (Number &n : tensor.data)
        n = numbers[fill.getInputs()[0]];
      tensors[op.getResult(0)] = tensor;
    } else if (auto generic = dyn_cast<linalg::GenericOp>(op)) {
      std::vector<Tensor> results;
      for (Value init : generic.getOutputs())
        results.push_back(tensors[init]);
      // Sums are carried in double: rounding happens at the end.
      Operation *yield = generic.getBody()->getTerminator();
      llvm::SmallVector<int64_t> loops = generic.getStaticLoopRanges();
      std::vector<int64_t> ranges(loops.begin(), loops.end());
      forEachIndex(ranges, [&](const std::vector<int64_t> &point, int64_t) {
        llvm::DenseMap<Value, Number> local;
        auto offset = [&](OpOperand &operand) {
          int64_t at = 0;
          auto shape =
              cast<RankedTensorType>(operand.get().getType()).getShape();
          AffineMap map = generic.getMatchingIndexingMap(&operand);
          for (auto [size, expr] : llvm::zip(shape, map.getResults())) {
            auto dim = dyn_cast<AffineDimExpr>(expr);
            at = at * size + (dim ? point[dim.getPosition()] : 0);
          }
          return at;
        };
        unsigned inputs = generic.getNumDpsInputs();
        for (OpOperand &operand : generic->getOpOperands()) {
          Value arg =
              generic.getBody()->getArgument(operand.getOperandNumber());
          if (!isa<RankedTensorType>(operand.get().getType()))
            local[arg] = numbers[operand.get()];
          else if (operand.getOperandNumber() >= inputs)
            local[arg] = results[operand.getOperandNumber() - inputs]
                             .data[offset(operand)];
          else
            local[arg] = tensors[operand.get()].data[offset(operand)];
        }
        for (Operation &inner : generic.getBody()->without_terminator()) {
          if (auto index = dyn_cast<linalg::IndexOp>(inner)) {
            local[index.getResult()] = Number{0, point[index.getDim()]};
            continue;
          }
          llvm::SmallVector<Number> values;
          for (Value operand : inner.getOperands())
            values.push_back(local.contains(operand) ? local[operand]
                                                     : numbers[operand]);
          bool isSum = inner.getName().getStringRef() == "arith.addf" &&
                       generic.getNumReductionLoops() > 0 &&
                       llvm::is_contained(inner.getUsers(), yield);
          local[inner.getResult(0)] = isSum
                                          ? Number{values[0].f + values[1].f, 0}
                                          : evaluate(inner, values);
        }
        for (unsigned r = 0; r < results.size(); ++r)
          results[r].data[offset(generic->getOpOperand(inputs + r))] =
              local.contains(yield->getOperand(r))
                  ? local[yield->getOperand(r)]
                  : numbers[yield->getOperand(r)];
      });
      for (unsigned r = 0; r < results.size(); ++r) {
        if (isa<FloatType>(results[r].element))
          for (Number &n : results[r].data)
            n.f = roundTo(results[r].element, n.f);
        tensors[generic->getResult(r)] = results[r];
      }
    } else {
      llvm::SmallVector<Number> values;
      for (Value operand : op.getOperands())
        values.push_back(numbers[operand]);
      numbers[op.getResult(0)] = evaluate(op, values);
    }
  }
  std::vector<Tensor> outputs;
  for (Value value : function.getBody().front().getTerminator()->getOperands())
    outputs.push_back(tensors[value]);
  return outputs;
}

std::vector<Tensor>
makeInputs(func::FuncOp function,
           const std::function<Number(unsigned, Type)> &fill) {
  std::vector<Tensor> inputs;
  for (BlockArgument arg : function.getArguments()) {
    auto type = dyn_cast<RankedTensorType>(arg.getType());
    if (!type)
      continue;
    Tensor tensor{type.getElementType(), type.getShape().vec(), {}};
    tensor.data.resize(type.getNumElements());
    auto strides = function.getArgAttrOfType<DenseI64ArrayAttr>(
        arg.getArgNumber(), kStridesAttr);
    forEachIndex(
        tensor.shape, [&](const std::vector<int64_t> &index, int64_t i) {
          // Elements that share memory are equal.
          int64_t same = 0;
          for (size_t d = 0; d < index.size(); ++d)
            same = same * tensor.shape[d] +
                   (strides && strides[d] == 0 ? 0 : index[d]);
          tensor.data[i] = same == i ? fill(arg.getArgNumber(), tensor.element)
                                     : tensor.data[same];
        });
    inputs.push_back(tensor);
  }
  return inputs;
}

int64_t countOf(const std::string &text, const std::string &part) {
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + 1))
    ++count;
  return count;
}

} // namespace merak::codegen::test
