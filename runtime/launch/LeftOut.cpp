#include "runtime/launch/LeftOut.h"

#include "runtime/core/SecondsSince.h"
#include "runtime/launch/Hosts.h"
#include "runtime/rates/RateBook.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <unistd.h>

namespace merak::runtime {

// What a host has to start a process and to compute.
constexpr double kProbeSeconds = 30;
constexpr int kNormalLooks = 2;
constexpr const char *kProbeWord = "merak-probe";

std::string nameOf(const LeftOutDevice &device) {
  return fmt::format("device {} on host {}", device.number, device.host);
}

// The rate that it was left out at is that of what the plan computes, which is
// other work, and may have been disturbed: below the threshold under which a
// device is no longer severely slow the run itself finds out how slow it is.
bool isBack(LeftOutDevice &device, double seconds) {
  if (!(seconds > 0))
    return false;
  if (device.seconds == 0) {
    device.seconds = seconds;
    return false;
  }
  const double now = device.rate * seconds / device.seconds;
  device.normal = now < rates::Thresholds().notSevere ? device.normal + 1 : 0;
  return device.normal >= kNormalLooks;
}

LeftOutLooks::~LeftOutLooks() {
  for (const Look &look : looks_) {
    look.process.signal(SIGKILL);
    std::error_code error;
    std::filesystem::remove(look.file, error);
  }
}

void LeftOutLooks::ask(const LeftOutDevice &device, int64_t step) {
  std::string file =
      (std::filesystem::temp_directory_path() / "merak-probe-XXXXXX").string();
  const int descriptor = mkstemp(file.data());
  if (descriptor < 0)
    return; // asked again at the next look
  close(descriptor);
  std::vector<std::string> command =
      launch(launcher_, 1, device.host + ":1",
             {program_, probeArgument(device, step)});
  command.back() += " >" + quoted(file);
  if (auto process = ChildProcess::start(command, /*quiet=*/true))
    looks_.push_back({device.number, file, std::move(*process),
                      std::chrono::steady_clock::now()});
}

std::vector<LeftOutDevice>
LeftOutLooks::look(std::vector<LeftOutDevice> &devices, const Names &lost,
                   const std::function<int64_t()> &step) {
  if (looks_.empty() && !devices.empty() &&
      (isFirst_ || secondsSince(looked_) >= seconds_)) {
    const int64_t now = step();
    for (const LeftOutDevice &device : devices)
      if (!lost.count(device.host) && (!isFirst_ || device.seconds == 0))
        ask(device, now);
    isFirst_ = false;
    looked_ = std::chrono::steady_clock::now();
  }
  std::vector<LeftOutDevice> back;
  std::vector<Look> rest;
  for (Look &look : looks_) {
    if (!look.process.ended()) {
      if (secondsSince(look.begin) < kProbeSeconds) {
        rest.push_back(std::move(look));
        continue;
      }
      look.process.signal(SIGKILL);
    }
    std::ifstream file(look.file);
    const double seconds =
        probeSeconds({std::istreambuf_iterator<char>(file), {}});
    std::error_code error;
    std::filesystem::remove(look.file, error);
    looked_ = std::chrono::steady_clock::now();
    const auto found =
        std::find_if(devices.begin(), devices.end(), [&](const auto &device) {
          return device.number == look.number;
        });
    if (found == devices.end() || !isBack(*found, seconds))
      continue;
    back.push_back(*found);
    devices.erase(found);
  }
  looks_.swap(rest);
  return back;
}

std::string probeArgument(const LeftOutDevice &device, int64_t step) {
  return fmt::format("--probe={}:{}:{}", device.number, device.local, step);
}

Result<ProbeRequest> parseProbe(const std::string &text) {
  ProbeRequest request;
  long long step = 0;
  int length = 0;
  if (std::sscanf(text.c_str(), "%d:%d:%lld%n", &request.device, &request.local,
                  &step, &length) != 3 ||
      size_t(length) != text.size() || request.device < 0 ||
      request.local < 0 || step < 0)
    return Status::error(
        fmt::format("--probe: expected NUMBER:LOCAL:STEP, found \"{}\"", text));
  request.step = step;
  return request;
}

std::string probeLine(double seconds) {
  return fmt::format("{} {:.9g}", kProbeWord, seconds);
}

// A launcher may say something of its own.
double probeSeconds(const std::string &output) {
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    double seconds = 0;
    if (words >> word >> seconds && word == kProbeWord && seconds > 0)
      return seconds;
  }
  return 0;
}

} // namespace merak::runtime
