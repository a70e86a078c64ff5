#include "runtime/launch/StandbyFiles.h"

#include "runtime/checkpoint/Checkpoint.h"
#include "runtime/checkpoint/CopyFolder.h"
#include "runtime/core/SecondsSince.h"
#include "runtime/launch/ChildProcess.h"
#include "runtime/plan/Signature.h"
#include "runtime/plan/Verify.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <thread>
#include <unistd.h>

namespace merak::runtime {
namespace {

std::string argument(const AgentTask &task, const std::string &name) {
  for (const std::string &word : task.run.arguments)
    if (word.starts_with(name + "="))
      return word.substr(name.size() + 1);
  return {};
}

Status mustExist(const std::string &what, const std::string &path) {
  if (path.empty() || ::access(path.c_str(), R_OK) == 0)
    return {};
  return Status::error(fmt::format("{}cannot read \"{}\" here: {}", what, path,
                                   std::strerror(errno)));
}

// The first word of a launcher, as a shell finds it; what is no plain word is
// not looked at.
bool isHere(const std::string &launcher) {
  const std::string program = launcher.substr(0, launcher.find(' '));
  if (program.empty() ||
      program.find_first_of("='\"$`;&|()") != std::string::npos)
    return true;
  if (program.find('/') != std::string::npos)
    return ::access(program.c_str(), X_OK) == 0;
  return isOnPath(program);
}

std::string folderOf(const std::string &file) {
  const std::string folder = std::filesystem::path(file).parent_path();
  return folder.empty() ? "." : folder;
}

} // namespace

Status enterTask(const AgentTask &task) {
  if (::chdir(task.folder.c_str()) != 0)
    return Status::error(
        fmt::format("cannot go to \"{}\", where the run's paths begin: {}",
                    task.folder, std::strerror(errno)));
  for (const auto &[name, value] : task.environment)
    ::setenv(name.c_str(), value.c_str(), 1);
  return {};
}

Status checkTask(const AgentTask &task) {
  const AgentRun &run = task.run;
  Status problems;
  if (const auto plan = loadPlanToRun(run.plan, run.trustPlan); !plan)
    problems.merge(plan.status());
  else if (digestOf(*plan) != task.digest)
    problems.merge(Status::error(fmt::format(
        "\"{}\" is another plan here than on the host of the agent that leads",
        run.plan)));
  if (const std::string data = argument(task, "--data"); data != "synthetic")
    problems.merge(mustExist("--data: ", data));
  problems.merge(mustExist("--cluster: ", run.source.cluster));
  problems.merge(mustExist("--load: ", run.load));
  if (!run.log.empty())
    problems.merge(mustExist("--log: ", folderOf(run.log)));
  if (!run.save.empty())
    problems.merge(mustExist("--save: ", folderOf(run.save)));
  if (run.copies)
    problems.merge(checkCopiesBase());
  if (!isHere(task.options.launcher))
    problems.merge(Status::error(fmt::format(
        "the launcher \"{}\" is not here",
        task.options.launcher.substr(0, task.options.launcher.find(' ')))));
  return problems;
}

std::vector<std::string> notesOfTask(const AgentTask &task) {
  std::vector<std::string> notes;
  const std::string &compiler = task.run.source.compiler;
  if (!compiler.empty() && ::access(compiler.c_str(), X_OK) != 0)
    notes.push_back(fmt::format(
        "\"{}\" is not here: after a take-over no plans are made", compiler));
  return notes;
}

std::optional<AgentPosition> newestIn(const std::string &folder) {
  std::error_code error;
  if (folder.empty() || !std::filesystem::is_directory(folder, error))
    return std::nullopt;
  auto state = readCheckpointState(folder);
  if (!state)
    return std::nullopt;
  return AgentPosition{folder, state->run, state->step};
}

Status awaitSaver(const std::string &folder, double seconds) {
  if (folder.empty())
    return {};
  const int file = ::open(joinPath(folder, ".lock").c_str(),
                          O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0)
    return {}; // nobody has saved yet
  const auto begin = std::chrono::steady_clock::now();
  bool taken = false;
  // Another error: a file system without locks, on which nobody has one.
  while (
      !(taken = flock(file, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) &&
      secondsSince(begin) < seconds)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ::close(file);
  return taken ? Status()
               : Status::error(fmt::format(
                     "processes of the run before still write \"{}\" after "
                     "{:.0f} seconds",
                     folder, seconds));
}

} // namespace merak::runtime
