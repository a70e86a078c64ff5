#include "runtime/launch/ChildProcess.h"

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sstream>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

namespace merak::runtime {

namespace {

constexpr const char *kBeat = "MERAK_BEAT_FD";
constexpr char kStep = '.', kLast = '!';

// Between fork and exec only what may be called there.
[[noreturn]] void become(char **arguments, bool quiet, pid_t parent) {
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent)
    ::_exit(1);
  const int nothing = ::open("/dev/null", O_RDWR);
  if (nothing >= 0) {
    ::dup2(nothing, 0);
    if (quiet) {
      ::dup2(nothing, 1);
      ::dup2(nothing, 2);
    }
  }
  ::execvp(arguments[0], arguments);
  ::_exit(127);
}

} // namespace

bool isOnPath(const std::string &program) {
  const char *path = std::getenv("PATH");
  std::stringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (::access((folder + "/" + program).c_str(), X_OK) == 0)
      return true;
  return false;
}

int beatDescriptor() {
  const char *text = std::getenv(kBeat);
  if (!text)
    return -1;
  char *end = nullptr;
  const long number = std::strtol(text, &end, 10);
  const bool isOpen =
      *text && !*end && number > 2 && ::fcntl(int(number), F_GETFD) >= 0;
  return isOpen ? int(number) : -1;
}

void beat(int descriptor, bool last) {
  // Who watches may be gone, or behind.
  if (descriptor >= 0)
    (void)::send(descriptor, last ? &kLast : &kStep, 1,
                 MSG_NOSIGNAL | MSG_DONTWAIT);
}

Result<ChildProcess>
ChildProcess::start(const std::vector<std::string> &command, bool quiet) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return Status::error(fmt::format("cannot start \"{}\": {}", command.front(),
                                     std::strerror(errno)));
  // The writing end goes to the child, under its own number.
  const int written = ::fcntl(ends[1], F_DUPFD, 3);
  ::close(ends[1]);
  std::vector<std::string> texts = command;
  std::vector<char *> pointers;
  for (std::string &text : texts)
    pointers.push_back(text.data());
  pointers.push_back(nullptr);
  ::setenv(kBeat, std::to_string(written).c_str(), 1);
  const pid_t parent = ::getpid(), child = ::fork();
  if (child == 0)
    become(pointers.data(), quiet, parent);
  ::unsetenv(kBeat);
  ::close(written);
  if (child < 0) {
    ::close(ends[0]);
    return Status::error(fmt::format("cannot start \"{}\": {}", command.front(),
                                     std::strerror(errno)));
  }
  ::setpgid(child, child); // whoever is first
  return ChildProcess(child, ends[0]);
}

ChildProcess::ChildProcess(ChildProcess &&other) noexcept
    : id_(std::exchange(other.id_, -1)),
      beats_(std::exchange(other.beats_, -1)), status_(other.status_) {}

ChildProcess::~ChildProcess() {
  if (id_ > 0 && !ended()) {
    signal(SIGKILL);
    int status = 0;
    while (::waitpid(id_, &status, 0) < 0 && errno == EINTR) {
    }
  }
  if (beats_ >= 0)
    ::close(beats_);
}

void ChildProcess::signal(int number) const {
  if (id_ > 0 && !status_)
    ::kill(-id_, number);
}

std::optional<int> ChildProcess::ended() {
  int status = 0;
  if (!status_ && ::waitpid(id_, &status, WNOHANG) == id_)
    status_ = status;
  return status_;
}

int ChildProcess::beats(bool &last) const {
  int count = 0;
  char text[256];
  for (ssize_t n; (n = ::recv(beats_, text, sizeof text, MSG_DONTWAIT)) > 0;)
    for (ssize_t i = 0; i < n; ++i) {
      count += text[i] == kStep;
      last |= text[i] == kLast;
    }
  return count;
}

std::string describeEnd(int status) {
  if (WIFEXITED(status))
    return fmt::format("exit code {}", WEXITSTATUS(status));
  const int number = WTERMSIG(status);
  return fmt::format("signal {} ({})", number, strsignal(number));
}

} // namespace merak::runtime
