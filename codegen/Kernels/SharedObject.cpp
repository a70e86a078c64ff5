// Linking kernels into a shared object with whatever linker the machine has.
#include "codegen/Kernels/KernelCompiler.h"

#include "llvm/ADT/ScopeExit.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Program.h"
#include "llvm/Support/raw_ostream.h"

namespace merak::codegen {

static Status writeFile(const std::string &path, const std::string &bytes) {
  std::error_code error;
  llvm::raw_fd_ostream stream(path, error);
  if (!error) {
    stream << bytes;
    stream.flush();
    error = stream.error();
    stream.clear_error();
  }
  if (error)
    return Status::error(path + ": cannot write: " + error.message());
  return {};
}

Status linkSharedObject(llvm::ArrayRef<std::string> objects,
                        const std::string &path, Sanitizer sanitizer) {
  std::string linker;
  bool isDriver = false;
  for (const char *name :
       {"ld.lld", "ld.lld-22", "mold", "ld", "cc", "gcc", "clang"}) {
    llvm::ErrorOr<std::string> found = llvm::sys::findProgramByName(name);
    if (!found)
      continue;
    linker = *found;
    isDriver = llvm::StringRef(name).ends_with("c") ||
               llvm::StringRef(name) == "clang";
    break;
  }
  if (linker.empty())
    return Status::error("no linker found; expected one of ld.lld, mold, ld, "
                         "cc, gcc, clang in PATH");

  // Everything is written beside the result, which appears only when whole.
  std::vector<std::string> files;
  std::string output = path + ".new";
  std::string log = path + ".log";
  llvm::scope_exit cleanUp([&] {
    for (const std::string &file : files)
      llvm::sys::fs::remove(file);
    llvm::sys::fs::remove(output);
    llvm::sys::fs::remove(log);
  });
  for (const std::string &object : objects) {
    files.push_back(path + "." + std::to_string(files.size()) + ".o");
    MERAK_RETURN_IF_ERROR(writeFile(files.back(), object));
  }
  std::vector<std::string> args = {linker, "-shared", "-o", output};
  std::vector<std::string> options = {"-z", "noexecstack", "--build-id=none"};
  if (sanitizer == Sanitizer::None)
    options.insert(options.end(), {"-z", "defs"});
  args.push_back("-nostdlib");
  for (const std::string &option : options) {
    if (isDriver)
      args.push_back("-Xlinker");
    args.push_back(option);
  }
  args.insert(args.end(), files.begin(), files.end());
  std::vector<llvm::StringRef> refs(args.begin(), args.end());
  std::optional<llvm::StringRef> redirects[] = {"", log, log};
  std::string message;
  int code = llvm::sys::ExecuteAndWait(linker, refs, std::nullopt, redirects, 0,
                                       0, &message);
  if (code != 0) {
    if (auto text = llvm::MemoryBuffer::getFile(log))
      message += (*text)->getBuffer().trim().str();
    return Status::error("internal error: linking with '" + linker +
                         "' failed: " + message);
  }
  if (std::error_code error = llvm::sys::fs::rename(output, path))
    return Status::error(path + ": cannot write: " + error.message());
  return {};
}

} // namespace merak::codegen
