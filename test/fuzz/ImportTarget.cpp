// One execution: import of the bytes as a model, and the graph phase if that
// succeeds. Errors are fine; crashing is not.
#include "test/fuzz/ImportTarget.h"

#include "compiler/Pipeline/Pipelines.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/Pass/PassManager.h"
#include "onnx/Import/Importer.h"
#include "passes/Graph/Passes.h"

#include <memory>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

using namespace mlir;
using namespace merak;

namespace {

// Attributes stay in a context for its life; a new one now and then keeps
// memory bounded.
constexpr int kExecutionsPerContext = 200;

std::unique_ptr<MLIRContext> makeContext() {
  auto context =
      std::make_unique<MLIRContext>(MLIRContext::Threading::DISABLED);
  context->printOpOnDiagnostic(false);
  context->getDiagEngine().registerHandler(
      [](Diagnostic &) { return success(); });
  return context;
}

// An anonymous file, so that nothing is written to a disk.
struct MemoryFile {
  int fd = memfd_create("model", 0);
  std::string path = "/proc/self/fd/" + std::to_string(fd);
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static std::unique_ptr<MLIRContext> context;
  static int executions = 0;
  static MemoryFile file;
  if (executions++ % kExecutionsPerContext == 0)
    context = makeContext();
  if (ftruncate(file.fd, 0) != 0 || pwrite(file.fd, data, size, 0) < 0)
    return 0;
  ImportOptions options;
  options.globalBatch = 8;
  options.train = size % 4 != 0;
  FailureOr<OwningOpRef<ModuleOp>> module =
      importOnnx(file.path, options, *context);
  if (failed(module))
    return 0;
  PassManager manager(context.get());
  buildGraphImportPipeline(manager);
  (void)manager.run(**module);
  return 1; // imported
}
