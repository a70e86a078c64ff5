#include "compiler/Import/ImportOptions.h"

#include "llvm/Support/Error.h"
#include "llvm/Support/GlobPattern.h"

using namespace merak;
using llvm::StringRef;

std::string merak::parseShapeOption(StringRef text, ImportOptions &options) {
  auto [name, dims] = text.rsplit('=');
  if (name.empty() || name.size() == text.size())
    return "expected --shape=INPUT=8x128, found '" + text.str() + "'";
  llvm::SmallVector<int64_t> shape;
  llvm::SmallVector<StringRef> parts;
  dims.split(parts, 'x');
  for (StringRef part : parts) {
    int64_t size = -1;
    if (part != "?" && (part.getAsInteger(10, size) || size == 0 || size < -1))
      return "expected a size or ? between the x of --shape=" + text.str() +
             ", found '" + part.str() + "'";
    shape.push_back(size);
  }
  options.shapes[name.str()] = shape;
  return "";
}

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
