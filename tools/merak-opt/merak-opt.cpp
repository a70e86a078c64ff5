// Runs passes over text, for tests and for looking at one pass alone.
#include "compiler/Pipeline/Registration.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"

int main(int argc, char **argv) {
  mlir::DialectRegistry registry;
  merak::registerAllDialects(registry);
  merak::registerAllPasses();
  return mlir::asMainReturnCode(
      mlir::MlirOptMain(argc, argv, "merak optimizer driver\n", registry));
}
