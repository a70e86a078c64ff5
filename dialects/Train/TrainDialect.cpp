#include "dialects/Train/Verifiers.h"

#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace merak;
using namespace merak::train;

#include "dialects/Train/TrainDialect.cpp.inc"
#include "dialects/Train/TrainEnums.cpp.inc"
#include "dialects/Train/TrainInterfaces.cpp.inc"
#define GET_ATTRDEF_CLASSES
#include "dialects/Train/TrainAttrs.cpp.inc"
#define GET_OP_CLASSES
#include "dialects/Train/TrainOps.cpp.inc"

void TrainDialect::initialize() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "dialects/Train/TrainAttrs.cpp.inc"
      >();
  addOperations<
#define GET_OP_LIST
#include "dialects/Train/TrainOps.cpp.inc"
      >();
}
