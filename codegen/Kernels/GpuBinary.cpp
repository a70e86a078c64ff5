#include "codegen/Kernels/GpuBinary.h"

#include "llvm/ADT/ScopeExit.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Program.h"
#include "llvm/Support/raw_ostream.h"

#include <cstdlib>
#include <optional>
#include <vector>

namespace merak::codegen {

// Devices that get machine code of their own.
static constexpr const char *kArchitectures[] = {"80", "90"};

static std::optional<std::string> findTool(const char *name) {
  if (auto found = llvm::sys::findProgramByName(name))
    return *found;
  const char *home = std::getenv("CUDA_HOME");
  std::string folder = std::string(home ? home : "/usr/local/cuda") + "/bin";
  if (auto found = llvm::sys::findProgramByName(name, {folder}))
    return *found;
  return std::nullopt;
}

static Status runTool(const std::vector<std::string> &command,
                      const std::string &log) {
  std::vector<llvm::StringRef> arguments(command.begin(), command.end());
  std::optional<llvm::StringRef> redirects[] = {"", log, log};
  std::string message;
  if (llvm::sys::ExecuteAndWait(command[0], arguments, std::nullopt, redirects,
                                0, 0, &message) == 0)
    return {};
  if (auto text = llvm::MemoryBuffer::getFile(log))
    message += (*text)->getBuffer().trim().take_front(2000).str();
  return Status::error(command[0] + " failed: " + message);
}

Result<KernelFile> makeGpuBinary(const std::string &ptx) {
  std::optional<std::string> assembler = findTool("ptxas");
  std::optional<std::string> packer = findTool("fatbinary");
  if (!assembler || !packer)
    return KernelFile{"kernels.ptx", ptx};
  llvm::SmallString<128> folder;
  if (std::error_code error =
          llvm::sys::fs::createUniqueDirectory("merak-kernels", folder))
    return Status::error("cannot create a temporary directory: " +
                         error.message());
  llvm::scope_exit cleanUp([&] { llvm::sys::fs::remove_directories(folder); });
  auto at = [&](const std::string &name) {
    return (folder + "/" + name).str();
  };
  {
    std::error_code error;
    llvm::raw_fd_ostream stream(at("kernels.ptx"), error);
    stream << ptx;
    stream.close();
    if (stream.has_error()) {
      error = stream.error();
      stream.clear_error();
      return Status::error(at("kernels.ptx") +
                           ": cannot write: " + error.message());
    }
  }
  std::vector<std::string> pack = {*packer, "-64", "--create",
                                   at("kernels.fatbin")};
  for (std::string number : kArchitectures) {
    std::string code = at("sm_" + number + ".cubin");
    MERAK_RETURN_IF_ERROR(runTool({*assembler, "--gpu-name", "sm_" + number,
                                   "--output-file", code, at("kernels.ptx")},
                                  at("log")));
    pack.push_back("--image3=kind=elf,sm=" + number + ",file=" + code);
  }
  pack.push_back(std::string("--image3=kind=ptx,sm=") + kArchitectures[0] +
                 ",file=" + at("kernels.ptx"));
  MERAK_RETURN_IF_ERROR(runTool(pack, at("log")));
  auto file = llvm::MemoryBuffer::getFile(at("kernels.fatbin"));
  if (!file)
    return Status::error(at("kernels.fatbin") +
                         ": cannot read: " + file.getError().message());
  return KernelFile{"kernels.fatbin", (*file)->getBuffer().str()};
}

} // namespace merak::codegen
