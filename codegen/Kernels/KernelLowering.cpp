#include "codegen/Kernels/KernelLowering.h"

#include "codegen/Kernels/GridLowering.h"

#include "mlir/Conversion/ArithToLLVM/ArithToLLVM.h"
#include "mlir/Conversion/ControlFlowToLLVM/ControlFlowToLLVM.h"
#include "mlir/Conversion/FuncToLLVM/ConvertFuncToLLVM.h"
#include "mlir/Conversion/LLVMCommon/ConversionTarget.h"
#include "mlir/Conversion/LLVMCommon/TypeConverter.h"
#include "mlir/Conversion/MathToLLVM/MathToLLVM.h"
#include "mlir/Conversion/SCFToControlFlow/SCFToControlFlow.h"
#include "mlir/Conversion/UBToLLVM/UBToLLVM.h"
#include "mlir/Conversion/VectorToLLVM/ConvertVectorToLLVM.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"
#include "mlir/Transforms/DialectConversion.h"

#include "llvm/ADT/SmallVector.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Module.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/Transforms/InstCombine/InstCombine.h"
#include "llvm/Transforms/Instrumentation/AddressSanitizer.h"
#include "llvm/Transforms/Instrumentation/ThreadSanitizer.h"
#include "llvm/Transforms/Scalar/EarlyCSE.h"
#include "llvm/Transforms/Scalar/LICM.h"
#include "llvm/Transforms/Scalar/LoopPassManager.h"
#include "llvm/Transforms/Scalar/LoopRotation.h"
#include "llvm/Transforms/Scalar/Scalarizer.h"
#include "llvm/Transforms/Scalar/SimplifyCFG.h"
#include "llvm/Transforms/Utils/Cloning.h"

#include <chrono>

using namespace mlir;

namespace merak::codegen {

namespace {
// Adds the seconds until its end to `sum`.
struct Timer {
  explicit Timer(double &sum) : sum(sum) {}
  ~Timer() {
    sum +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
            .count();
  }
  double &sum;
  std::chrono::steady_clock::time_point start =
      std::chrono::steady_clock::now();
};
} // namespace

static LogicalResult convertToLLVMDialect(ModuleOp module) {
  MLIRContext *context = module.getContext();
  {
    RewritePatternSet patterns(context);
    populateSCFToControlFlowConversionPatterns(patterns);
    ConversionTarget target(*context);
    target.addIllegalDialect<scf::SCFDialect>();
    target.markUnknownOpDynamicallyLegal([](Operation *) { return true; });
    if (failed(applyPartialConversion(module, target, std::move(patterns))))
      return failure();
  }
  LLVMConversionTarget target(*context);
  target.addLegalOp<ModuleOp>();
  LLVMTypeConverter converter(context);
  RewritePatternSet patterns(context);
  arith::populateArithToLLVMConversionPatterns(converter, patterns);
  populateMathToLLVMConversionPatterns(converter, patterns);
  populateVectorToLLVMConversionPatterns(converter, patterns);
  populateFuncToLLVMConversionPatterns(converter, patterns);
  cf::populateControlFlowToLLVMConversionPatterns(converter, patterns);
  ub::populateUBToLLVMConversionPatterns(converter, patterns);
  return applyFullConversion(module, target, std::move(patterns));
}

// What accesses are left when all else is done are those that are looked at.
static void addSanitizer(llvm::Module &module, Sanitizer sanitizer,
                         llvm::ModuleAnalysisManager &analyses) {
  if (sanitizer == Sanitizer::None)
    return;
  const bool isAddress = sanitizer == Sanitizer::Address;
  for (llvm::Function &function : module)
    if (!function.isDeclaration())
      function.addFnAttr(isAddress ? llvm::Attribute::SanitizeAddress
                                   : llvm::Attribute::SanitizeThread);
  llvm::ModulePassManager passes;
  if (isAddress) {
    passes.addPass(llvm::AddressSanitizerPass(llvm::AddressSanitizerOptions()));
  } else {
    // ThreadSanitizer passes by what is wider than 128 bits.
    llvm::ScalarizerPassOptions pieces;
    pieces.ScalarizeMinBits = 128;
    pieces.ScalarizeLoadStore = true;
    passes.addPass(
        llvm::createModuleToFunctionPassAdaptor(llvm::ScalarizerPass(pieces)));
    passes.addPass(llvm::ModuleThreadSanitizerPass());
    passes.addPass(
        llvm::createModuleToFunctionPassAdaptor(llvm::ThreadSanitizerPass()));
  }
  passes.run(module, analyses);
}

// A short pipeline: the loops and vectors are already those we want.
static void optimize(llvm::Module &module, llvm::TargetMachine &machine,
                     Sanitizer sanitizer) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager components;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder builder(&machine);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(components);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, components, modules);

  llvm::FunctionPassManager passes;
  passes.addPass(llvm::EarlyCSEPass());
  passes.addPass(llvm::SimplifyCFGPass());
  passes.addPass(llvm::InstCombinePass());
  llvm::LoopPassManager loopPasses;
  loopPasses.addPass(llvm::LoopRotatePass());
  loopPasses.addPass(llvm::LICMPass(llvm::LICMOptions()));
  passes.addPass(llvm::createFunctionToLoopPassAdaptor(std::move(loopPasses),
                                                       /*UseMemorySSA=*/true));
  passes.addPass(llvm::EarlyCSEPass());
  passes.addPass(llvm::SimplifyCFGPass());
  for (llvm::Function &function : module)
    if (!function.isDeclaration())
      passes.run(function, functions);
  addSanitizer(module, sanitizer, modules);
}

LogicalResult lowerToObject(ModuleOp module, const KernelTarget &target,
                            std::string &object, std::string *assembly,
                            LoweringTimes *times) {
  LoweringTimes unused;
  LoweringTimes &spent = times ? *times : unused;
  std::string error;
  std::unique_ptr<llvm::TargetMachine> machine =
      createTargetMachine(target, error);
  if (!machine)
    return module.emitError()
           << "no code for target '" << target.name << "': " << error;
  llvm::LLVMContext context;
  std::unique_ptr<llvm::Module> llvmModule;
  {
    Timer timer(spent.toLLVM);
    if (failed(convertToLLVMDialect(module)))
      return failure();
    registerBuiltinDialectTranslation(*module.getContext());
    registerLLVMDialectTranslation(*module.getContext());
    llvmModule = translateModuleToLLVMIR(module, context, "merak-kernels");
    if (!llvmModule)
      return failure();
  }
  llvmModule->setDataLayout(machine->createDataLayout());
  llvmModule->setTargetTriple(machine->getTargetTriple());
  if (target.isGrid)
    lowerGridCalls(*llvmModule, target.isGpu);
  std::string width = std::to_string(target.vectorWidth);
  for (llvm::Function &function : *llvmModule) {
    if (function.isDeclaration())
      continue;
    function.addFnAttr("target-cpu", target.cpu);
    if (!target.isGpu) {
      function.addFnAttr("prefer-vector-width", width);
      function.addFnAttr("min-legal-vector-width", width);
    }
    function.addFnAttr(llvm::Attribute::NoUnwind);
  }
  {
    Timer timer(spent.optimize);
    optimize(*llvmModule, *machine, target.sanitizer);
  }
  auto emit = [&](llvm::CodeGenFileType type, std::string &bytes) {
    llvm::SmallVector<char, 0> buffer;
    llvm::raw_svector_ostream stream(buffer);
    llvm::legacy::PassManager passes;
    if (machine->addPassesToEmitFile(passes, stream, nullptr, type))
      return false;
    passes.run(*llvmModule);
    bytes.assign(buffer.begin(), buffer.end());
    return true;
  };
  Timer timer(spent.emit);
  if (assembly) {
    // Code generation changes the module: the text comes from a copy.
    std::unique_ptr<llvm::Module> saved = llvm::CloneModule(*llvmModule);
    std::swap(saved, llvmModule);
    emit(llvm::CodeGenFileType::AssemblyFile, *assembly);
    std::swap(saved, llvmModule);
  }
  if (!emit(target.isGpu ? llvm::CodeGenFileType::AssemblyFile
                         : llvm::CodeGenFileType::ObjectFile,
            object))
    return module.emitError()
           << "target '" << target.name << "' cannot write object files";
  return success();
}

} // namespace merak::codegen
