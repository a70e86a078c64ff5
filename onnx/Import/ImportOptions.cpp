#include "onnx/Import/ImportOptions.h"

#include "llvm/Support/Error.h"
#include "llvm/Support/GlobPattern.h"

using namespace merak;
using llvm::StringRef;

bool merak::matchesGlob(StringRef pattern, StringRef name) {
  if (pattern == name)
    return true;
  auto glob = llvm::GlobPattern::create(pattern);
  if (!glob) {
    llvm::consumeError(glob.takeError());
    return false;
  }
  return glob->match(name);
}
