#include "runtime/launch/CompilerProcess.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace merak::runtime {

// Of a compiler's output what a message may have.
constexpr size_t kMostOutput = 4096;

std::string defaultCompiler() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto beside = self.parent_path() / "merakc";
  return !error && std::filesystem::exists(beside, error) ? beside.string()
                                                          : "merakc";
}

namespace {

// Between fork and exec only what may be called there.
[[noreturn]] void become(char **arguments, int output, pid_t parent) {
  sigset_t nothing;
  sigemptyset(&nothing);
  ::sigprocmask(SIG_SETMASK, &nothing, nullptr);
  const int none = ::open("/dev/null", O_RDONLY);
  if (none >= 0)
    ::dup2(none, 0);
  ::dup2(output, 1);
  ::dup2(output, 2);
  // A signal to the terminal is for the run, which ends this one.
  ::setpgid(0, 0);
  // Nor does anybody wait for a plan when the run is gone.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent)
    ::_exit(1);
  if (::nice(10) < 0 && errno == EPERM)
    errno = 0;
  ::execvp(arguments[0], arguments);
  const char *why = std::strerror(errno);
  if (::write(1, why, std::strlen(why)) < 0)
    ::_exit(126);
  ::_exit(127);
}

// All that it prints, its beginning kept, until it ends or `stop`.
std::string listen(pid_t child, int output, const std::atomic<bool> &stop) {
  std::string text;
  std::array<char, 4096> part{};
  for (bool stopped = false;;) {
    if (stop && !stopped) {
      ::kill(-child, SIGKILL);
      ::kill(child, SIGKILL); // before it is a group of its own
      stopped = true;
    }
    pollfd waits{output, POLLIN, 0};
    if (::poll(&waits, 1, 50) <= 0)
      continue;
    const ssize_t count = ::read(output, part.data(), part.size());
    if (count == 0 || (count < 0 && errno != EINTR))
      return text;
    if (count > 0 && text.size() < kMostOutput)
      text.append(part.data(), size_t(count));
  }
}

} // namespace

Status runCompiler(const std::string &compiler,
                   const std::vector<std::string> &arguments,
                   const std::atomic<bool> &stop) {
  std::vector<std::string> texts{compiler};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  std::vector<char *> pointers;
  for (std::string &text : texts)
    pointers.push_back(text.data());
  pointers.push_back(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return Status::error(
        fmt::format("cannot start \"{}\": {}", compiler, std::strerror(errno)));
  const pid_t parent = ::getpid(), child = ::fork();
  if (child == 0)
    become(pointers.data(), ends[1], parent);
  ::close(ends[1]);
  if (child < 0) {
    ::close(ends[0]);
    return Status::error(
        fmt::format("cannot start \"{}\": {}", compiler, std::strerror(errno)));
  }
  const std::string said = listen(child, ends[0], stop);
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
    return {};
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
    return Status::error(
        fmt::format("cannot start \"{}\": {}", compiler, said));
  const std::string how = WIFEXITED(status)
                              ? fmt::format("exit code {}", WEXITSTATUS(status))
                              : fmt::format("signal {}", WTERMSIG(status));
  return Status::error(fmt::format("\"{}\" ended with {}: {}", compiler, how,
                                   said.substr(0, said.find('\n'))));
}

} // namespace merak::runtime
