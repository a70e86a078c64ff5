// Kernels for programs of AddressSanitizer and ThreadSanitizer: their accesses
// are looked at by that program's runtime.
#include "test/unit-compiler/codegen/KernelRunner.h"

#include "mlir/Parser/Parser.h"

#include <cstdlib>
#include <gtest/gtest.h>

namespace merak::codegen::test {
namespace {

const char *kSum = R"(
  func.func @sum(%x: tensor<8x40xf32>, %y: tensor<8x40xf32>) -> tensor<8x40xf32>
      attributes {merak.kernel} {
    %e = tensor.empty() : tensor<8x40xf32>
    %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>,
                                          affine_map<(d0, d1) -> (d0, d1)>,
                                          affine_map<(d0, d1) -> (d0, d1)>],
                         iterator_types = ["parallel", "parallel"]}
        ins(%x, %y : tensor<8x40xf32>, tensor<8x40xf32>)
        outs(%e : tensor<8x40xf32>) {
    ^bb0(%a: f32, %b: f32, %o: f32):
      %1 = arith.addf %a, %b : f32
      linalg.yield %1 : f32
    } -> tensor<8x40xf32>
    return %r : tensor<8x40xf32>
  })";

// The assembly of kSum's kernel for `target`, and its object file.
KernelObject compile(const KernelTarget &target) {
  mlir::MLIRContext context;
  mlir::DialectRegistry registry;
  registerKernelDialects(registry);
  context.appendDialectRegistry(registry);
  context.loadAllAvailableDialects();
  auto module = mlir::parseSourceString<mlir::ModuleOp>(kSum, &context);
  CompileOptions options;
  options.target = target;
  options.keepAssembly = true;
  llvm::FailureOr<KernelObject> object = compileKernels(*module, {}, options);
  return succeeded(object) ? std::move(*object) : KernelObject();
}

// Two reads and a write of each vector, and of the elements behind the last.
TEST(SanitizedKernels, AskBeforeEachAccess) {
  KernelTarget target = *KernelTarget::fromName("x86-64-v3");
  const std::string plain = compile(target).assembly;
  EXPECT_EQ(countOf(plain, "_asan_"), 0);
  EXPECT_EQ(countOf(plain, "_tsan_"), 0);
  target.sanitizer = Sanitizer::Address;
  const std::string address = compile(target).assembly;
  EXPECT_GE(countOf(address, "__asan_report_load"), 2);
  EXPECT_GE(countOf(address, "__asan_report_store"), 1);
  target.sanitizer = Sanitizer::Thread;
  const std::string thread = compile(target).assembly;
  EXPECT_GE(countOf(thread, "read16"), 2);
  EXPECT_GE(countOf(thread, "write16"), 1);
}

// What they call is in the program that loads them.
TEST(SanitizedKernels, AreLinkedWithTheRuntimeOpen) {
  KernelTarget target = *KernelTarget::fromName("x86-64");
  target.sanitizer = Sanitizer::Thread;
  const std::string object = compile(target).object;
  const std::string path = testing::TempDir() + "merak-sanitized-kernels.so";
  EXPECT_FALSE(linkSharedObject({object}, path).ok());
  EXPECT_TRUE(linkSharedObject({object}, path, Sanitizer::Thread).ok());
}

TEST(SanitizedKernels, AreAskedForByTheEnvironment) {
  const char *before = std::getenv("MERAK_SANITIZE_KERNELS");
  const std::string kept = before ? before : "";
  const KernelTarget wide = *KernelTarget::fromName("x86-64-v3");
  setenv("MERAK_SANITIZE_KERNELS", "address", 1);
  EXPECT_EQ(wide.asEnvironmentAsks()->name, "x86-64-v3+address");
  EXPECT_EQ(wide.asEnvironmentAsks()->sanitizer, Sanitizer::Address);
  EXPECT_EQ(KernelTarget::fromName("sm_80")->asEnvironmentAsks()->name,
            "sm_80");
  setenv("MERAK_SANITIZE_KERNELS", "thread", 1);
  EXPECT_EQ(wide.asEnvironmentAsks()->name, "x86-64-v3+thread");
  setenv("MERAK_SANITIZE_KERNELS", "memory", 1);
  EXPECT_NE(wide.asEnvironmentAsks().status().str().find(
                "expected address or thread, found \"memory\""),
            std::string::npos);
  unsetenv("MERAK_SANITIZE_KERNELS");
  EXPECT_EQ(wide.asEnvironmentAsks()->name, "x86-64-v3");
  if (before)
    setenv("MERAK_SANITIZE_KERNELS", kept.c_str(), 1);
}

} // namespace
} // namespace merak::codegen::test
