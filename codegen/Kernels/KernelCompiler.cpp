#include "codegen/Kernels/KernelCompiler.h"

#include "codegen/Kernels/GridEmitter.h"
#include "codegen/Kernels/GridSchedule.h"
#include "codegen/Kernels/KernelEmitter.h"
#include "codegen/Kernels/KernelGraph.h"
#include "codegen/Kernels/KernelLowering.h"
#include "codegen/Kernels/KernelSchedule.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/ControlFlow/IR/ControlFlow.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Dialect/UB/IR/UBOps.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/OwningOpRef.h"
#include "mlir/IR/SymbolTable.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/xxhash.h"

#include <chrono>

using namespace mlir;

namespace merak::codegen {

void registerKernelDialects(DialectRegistry &registry) {
  registry.insert<arith::ArithDialect, cf::ControlFlowDialect,
                  func::FuncDialect, linalg::LinalgDialect, LLVM::LLVMDialect,
                  math::MathDialect, scf::SCFDialect, tensor::TensorDialect,
                  ub::UBDialect, vector::VectorDialect>();
}

// The kernel's text without its name and locations: equal for equal kernels.
static std::string structureOf(func::FuncOp function) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  OpPrintingFlags flags;
  flags.useLocalScope().assumeVerified().printGenericOpForm();
  function.getFunctionType().print(stream);
  if (ArrayAttr attrs = function.getArgAttrsAttr())
    attrs.print(stream);
  if (ArrayAttr attrs = function.getResAttrsAttr())
    attrs.print(stream);
  // Printed on its own the function would show its name; its ops are walked
  // with numbers for values instead.
  llvm::DenseMap<Value, unsigned> number;
  auto id = [&](Value value) {
    return number.try_emplace(value, number.size()).first->second;
  };
  for (BlockArgument arg : function.getArguments())
    id(arg);
  function.walk<WalkOrder::PreOrder>([&](Operation *op) {
    if (op == function.getOperation())
      return;
    stream << '\n' << op->getName() << '(';
    for (Value operand : op->getOperands())
      stream << id(operand) << ',';
    stream << ')';
    op->getAttrDictionary().print(stream);
    for (Value result : op->getResults()) {
      stream << ' ' << id(result) << ':';
      result.getType().print(stream);
    }
    for (Region &region : op->getRegions())
      for (Block &block : region)
        for (BlockArgument arg : block.getArguments()) {
          stream << " ^" << id(arg) << ':';
          arg.getType().print(stream);
        }
  });
  return text;
}

// Nobody takes a step along a dimension of size 1.
template <typename Strides>
static bool stepsAlike(ArrayRef<int64_t> shape, const Strides &a,
                       const Strides &b) {
  return llvm::all_of(llvm::zip_equal(shape, a, b), [](auto of) {
    auto [size, from, to] = of;
    return size <= 1 || from == to;
  });
}

// An input may share memory with an output if every element of it is read at
// the place of the domain where the same element of the output is written.
static void findInPlace(const KernelGraph &graph, CompiledKernel &kernel) {
  SmallVector<int64_t> sizes;
  for (const auto &dim : graph.dims)
    sizes.push_back(dim.size);
  for (unsigned o = 0; o < graph.outputAccess.size(); ++o) {
    const Access &written = graph.accesses[graph.outputAccess[o]];
    const KernelOperand &output = graph.operands[written.operand];
    bool covers = true;
    bool varies = graph.variesInReduction(output.value);
    for (auto [stride, dim] : llvm::zip(written.strides, graph.dims))
      covers &= dim.size <= 1 || stride != 0 || (dim.reduced && !varies);
    if (!covers)
      continue;
    for (unsigned i = 0; i < graph.firstOutput; ++i) {
      const KernelOperand &input = graph.operands[i];
      bool same = input.element == output.element &&
                  input.shape == output.shape &&
                  stepsAlike(input.shape, input.strides, output.strides);
      for (const Access &access : graph.accesses)
        same &= access.operand != i ||
                stepsAlike(sizes, access.strides, written.strides);
      if (same)
        kernel.inPlace.emplace_back(i, o);
    }
  }
}

namespace {

// A kernel before its code.
struct ScheduledKernel {
  CompiledKernel kernel;
  KernelGraph graph;
  KernelSchedule schedule;
  GridSchedule grid; // of grids only
};

std::string symbolOf(const std::string &structure) {
  llvm::XXH128_hash_t hash =
      llvm::xxh3_128bits(llvm::arrayRefFromStringRef(structure));
  return "merak_k" + llvm::utohexstr(hash.high64, true, 16) +
         llvm::utohexstr(hash.low64, true, 16);
}

FailureOr<ScheduledKernel> schedule(func::FuncOp function,
                                    const std::string &structure,
                                    const KernelTarget &target) {
  FailureOr<KernelGraph> graph = KernelGraph::build(function);
  if (failed(graph))
    return failure();
  ScheduledKernel made{{}, std::move(*graph), {}, GridSchedule()};
  made.kernel.symbol = symbolOf(structure);
  findInPlace(made.graph, made.kernel);
  made.schedule = scheduleKernel(made.graph);
  made.kernel.range = made.schedule.range;
  if (target.isGrid) {
    made.grid = target.hasSmallGrids
                    ? scheduleGrid(made.graph, made.schedule, 1)
                    : scheduleGrid(made.graph, made.schedule);
    made.kernel.range = made.grid.range;
    made.kernel.blockThreads = made.grid.blockThreads;
  }
  return made;
}

// The kernels of the functions, by name; `use` sees each structure once.
FailureOr<llvm::StringMap<CompiledKernel>>
scheduleAll(llvm::ArrayRef<func::FuncOp> functions, const KernelTarget &target,
            llvm::function_ref<LogicalResult(const ScheduledKernel &)> use) {
  llvm::StringMap<CompiledKernel> byStructure, byName;
  bool bad = false;
  for (func::FuncOp function : functions) {
    std::string structure = target.name + structureOf(function);
    auto [known, isNew] = byStructure.try_emplace(structure);
    if (isNew) {
      FailureOr<ScheduledKernel> made = schedule(function, structure, target);
      if (failed(made) || failed(use(*made))) {
        bad = true;
        continue;
      }
      known->second = std::move(made->kernel);
    }
    byName[function.getName()] = known->second;
  }
  if (bad)
    return failure();
  return byName;
}

llvm::SmallVector<func::FuncOp> markedKernels(ModuleOp module) {
  llvm::SmallVector<func::FuncOp> functions;
  for (auto function : module.getOps<func::FuncOp>())
    if (function->hasAttr(kKernelAttr))
      functions.push_back(function);
  return functions;
}

} // namespace

llvm::FailureOr<llvm::StringMap<CompiledKernel>>
describeKernels(ModuleOp module, const KernelTarget &target) {
  return scheduleAll(markedKernels(module), target,
                     [](const ScheduledKernel &) { return success(); });
}

llvm::FailureOr<KernelObject>
compileKernels(ModuleOp module, llvm::ArrayRef<llvm::StringRef> names,
               const CompileOptions &options) {
  MLIRContext *context = module.getContext();
  DialectRegistry registry;
  registerKernelDialects(registry);
  context->appendDialectRegistry(registry);
  context->loadDialect<arith::ArithDialect, cf::ControlFlowDialect,
                       LLVM::LLVMDialect, math::MathDialect, scf::SCFDialect,
                       ub::UBDialect, vector::VectorDialect>();
  auto start = std::chrono::steady_clock::now();
  SymbolTable symbols(module);
  llvm::SmallVector<func::FuncOp> functions;
  bool bad = false;
  for (llvm::StringRef name : names) {
    auto function = symbols.lookup<func::FuncOp>(name);
    if (!function) {
      module.emitError() << "no kernel function '" << name << "'";
      bad = true;
    } else {
      functions.push_back(function);
    }
  }
  if (names.empty())
    functions = markedKernels(module);

  KernelObject result;
  OwningOpRef<ModuleOp> loops = ModuleOp::create(module.getLoc());
  size_t structures = 0;
  FailureOr<llvm::StringMap<CompiledKernel>> kernels =
      scheduleAll(functions, options.target, [&](const ScheduledKernel &made) {
        ++structures;
        return options.target.isGrid
                   ? emitGridKernel(*loops, made.kernel.symbol, made.graph,
                                    made.grid, options.target)
                   : emitKernel(*loops, made.kernel.symbol, made.graph,
                                made.schedule, options.target);
      });
  if (bad || failed(kernels))
    return failure();
  result.kernels = std::move(*kernels);
  result.statistics.kernelsAsked = functions.size();
  result.statistics.kernelsCompiled = structures;
  result.statistics.emitSeconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  if (functions.empty())
    return result;
  LoweringTimes times;
  if (failed(lowerToObject(*loops, options.target, result.object,
                           options.keepAssembly ? &result.assembly : nullptr,
                           &times)))
    return failure();
  result.statistics.toLLVMSeconds = times.toLLVM;
  result.statistics.optimizeSeconds = times.optimize;
  result.statistics.objectSeconds = times.emit;
  return result;
}

} // namespace merak::codegen
