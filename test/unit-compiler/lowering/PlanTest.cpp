// Stage programs to plans: every plan passes the whole-plan verifier, and the
// same module gives the same bytes.
#include "codegen/Kernels/KernelCompiler.h"
#include "codegen/PlanWriter/PlanWriter.h"
#include "codegen/PlanWriter/SharedOperands.h"
#include "dialects/Pipe/PipeDialect.h"
#include "passes/Lowering/Passes.h"
#include "passes/Memory/Passes.h"
#include "runtime/plan/Verify.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Parser/Parser.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>

using namespace mlir;
using namespace merak;

namespace {

class Plans : public testing::Test {
protected:
  Plans() {
    DialectRegistry registry;
    registry.insert<train::TrainDialect, dist::DistDialect, pipe::PipeDialect,
                    plan::PlanDialect, func::FuncDialect, arith::ArithDialect,
                    math::MathDialect, linalg::LinalgDialect,
                    tensor::TensorDialect>();
    codegen::registerKernelDialects(registry);
    context.appendDialectRegistry(registry);
    context.loadAllAvailableDialects();
  }

  FailureOr<BuiltPlan> build(const std::string &text) {
    module = parseSourceString<ModuleOp>(text, &context);
    if (!module)
      return failure();
    PassManager manager(&context);
    buildMemoryPipeline(manager);
    buildPlanPipeline(manager);
    if (failed(manager.run(*module)))
      return failure();
    PlanWriterOptions options;
    options.target = "x86-64";
    return buildPlan(*module, options);
  }

  // All files of the saved plan, one after the other.
  static std::string bytes(const BuiltPlan &built, const std::string &name) {
    std::string dir = testing::TempDir() + name + ".plan";
    Status saved =
        savePlan(dir, built.plan.file, built.plan.programs, built.extras);
    EXPECT_EQ(saved.str(), "");
    std::string all;
    for (const char *file :
         {"plan.pb", "program-0.pb", "program-1.pb", "kernels.so"}) {
      std::ifstream in(dir + "/" + file, std::ios::binary);
      EXPECT_TRUE(in.good()) << file;
      std::stringstream text;
      text << in.rdbuf();
      all += text.str();
    }
    std::filesystem::remove_all(dir);
    return all;
  }

  MLIRContext context;
  OwningOpRef<ModuleOp> module;
};

std::string readCase(const char *name) {
  std::ifstream in(std::string(MERAK_SOURCE_DIR "/test/passes/lowering/") +
                   name);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST_F(Plans, TwoStageMlpPassesTheVerifier) {
  auto built = build(readCase("mlp-two-stages.mlir"));
  ASSERT_TRUE(succeeded(built));
  EXPECT_EQ(verifyPlan(built->plan).str(), "");
  const planpb::PlanFile &file = built->plan.file;
  EXPECT_EQ(file.ranks_size(), 8);
  EXPECT_EQ(file.ranks(0).program(), 0u);
  EXPECT_EQ(file.ranks(7).program(), 1u);
  EXPECT_EQ(file.ranks(5).coords(0).size(), 1); // pp=1 dp=0 tp=1
  EXPECT_EQ(file.ranks(5).coords(1).size(), 0);
  EXPECT_EQ(file.ranks(5).coords(2).size(), 1);
  EXPECT_EQ(file.microbatch(), 4);
  ASSERT_EQ(file.tensors_size(), 2);
  EXPECT_EQ(file.tensors(0).source().path(), "mlp.onnx");
  EXPECT_EQ(file.tensors(1).source().path(), "w.bin");
  ASSERT_EQ(file.inputs_size(), 1);
  EXPECT_TRUE(file.inputs(0).batched());
  for (const planpb::MemoryRow &row : file.memory()) {
    uint64_t sum = 0;
    for (auto &[name, bytes] : row.bytes())
      sum += bytes;
    EXPECT_EQ(sum, built->plan.programs[row.program()].arena_bytes());
  }
}

TEST_F(Plans, SameModuleSameBytes) {
  auto first = build(readCase("mlp-two-stages.mlir"));
  auto second = build(readCase("mlp-two-stages.mlir"));
  ASSERT_TRUE(succeeded(first) && succeeded(second));
  EXPECT_TRUE(bytes(*first, "first") == bytes(*second, "second"));
}

// A split vocabulary, ids with a limit, labels that may be ignored, a QKV
// projection whose factor is gathered, a rank's own slice.
TEST_F(Plans, LayoutsThatNeedOffsetsAndFactors) {
  auto built = build(readCase("vocabulary-and-factors.mlir"));
  ASSERT_TRUE(succeeded(built));
  EXPECT_EQ(verifyPlan(built->plan).str(), "");
  const planpb::PlanFile &file = built->plan.file;
  ASSERT_EQ(file.inputs_size(), 2);
  for (const planpb::Input &input : file.inputs()) {
    EXPECT_EQ(input.limit(), 10);
    EXPECT_EQ(input.has_allowed(), input.name() == "labels");
    EXPECT_EQ(input.allowed(), input.name() == "labels" ? -100 : 0);
  }
  EXPECT_EQ(file.tokens_per_step(), 24);
}

// A wrong `in_place` of lowering, or a pass that does not ask for it.
TEST_F(Plans, GeneratedKernelsWriteOnlyOverWhatTheirCodeAllows) {
  module = parseSourceString<ModuleOp>(R"(
    func.func private @k(%a: tensor<2x4xf32>, %b: tensor<8xf32>) -> tensor<2x4xf32>
        attributes {merak.kernel}
    plan.program @stage0 index 0 streams ["compute"] groups [] schedule <F0> {
      plan.buffer activations @x : tensor<2x4xf32>
      plan.buffer activations @y : tensor<8xf32>
      plan.procedure @stage0.forward action F {
        plan.kernel @k (@x[2, 4], @y[8]) -> (@y[2, 4]) rows 0 {in_place}
      }
    })",
                                       &context);
  ASSERT_TRUE(module);
  llvm::StringMap<codegen::CompiledKernel> kernels;
  codegen::CompiledKernel &kernel = kernels["k"];
  std::string message;
  ScopedDiagnosticHandler handler(
      &context, [&](Diagnostic &diagnostic) { message += diagnostic.str(); });
  kernel.inPlace = {{0, 0}}; // over the other operand
  EXPECT_TRUE(failed(checkSharedOperands(*module, kernels)));
  EXPECT_EQ(message,
            "'plan.kernel' op internal error: output 0 is written over "
            "input 1, which the generated kernel may read later");
  kernel.inPlace = {{1, 0}};
  EXPECT_TRUE(succeeded(checkSharedOperands(*module, kernels)));
}

} // namespace
