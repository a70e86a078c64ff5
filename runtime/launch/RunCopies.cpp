#include "runtime/launch/RunCopies.h"
#include "runtime/core/SecondsSince.h"
#include "support/OptionChecks.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace merak::runtime {
namespace {

constexpr int kMostThreads = 8; // that copy: more than memory has channels for

// "ID:START:LAST"
struct Started {
  CopyRun run;
  int64_t last = 0;
};

std::optional<Started> parseStarted(const std::string &text) {
  char id[17] = {};
  long long start = 0, last = 0;
  int length = 0;
  if (std::sscanf(text.c_str(), "%16[0-9a-f]:%lld:%lld%n", id, &start, &last,
                  &length) != 3 ||
      size_t(length) != text.size() || std::string(id).size() != 16 ||
      start < 0)
    return std::nullopt;
  return Started{{id, start}, last};
}

} // namespace

void addCopyOptions(CLI::App &app, RunCopiesOptions &options) {
  app.add_option("--copies", options.copies.hosts,
                 "with --restarts: so many other hosts keep a copy of what a "
                 "host alone has of the state, in memory; a run that is lost "
                 "goes on from there (0: none)")
      ->check(isFrom(0, 64));
  app.add_option("--copies-every", options.every,
                 "with --copies: made anew after every N steps (default: 10)")
      ->check(isFrom(1, 1'000'000'000));
  // Between an agent and its runs.
  app.add_option("--copies-of", options.of)->group("");
  app.add_option("--restarted", options.restarted)->group("");
  app.add_option("--remove-copies", options.remove)->group("");
  app.add_option("--pass-copies", options.pass)->group("");
}

std::string usageProblem(const RunCopiesOptions &options, int64_t restarts) {
  const bool copies = options.copies.hosts > 0;
  if (!copies && options.every > 0)
    return "--copies-every is for --copies";
  if (copies && restarts == 0 && options.of.empty())
    return "--copies is for --restarts: copies outlive the processes of a run, "
           "which an agent then starts again";
  if (!options.of.empty() && (!copies || !parseStarted(options.of)))
    return fmt::format("--copies-of: expected ID:START:LAST with --copies, "
                       "found \"{}\"",
                       options.of);
  return {};
}

std::string copiesArgument(const CopyRun &run, int64_t last) {
  return fmt::format("--copies-of={}:{}:{}", run.id, run.start, last);
}

std::string passArgument(const CopyRun &run, int64_t targets,
                         int64_t diskStep) {
  return fmt::format("--pass-copies={}:{}:{}:{}", run.id, run.start, targets,
                     diskStep);
}

Status passCopies(const RunCopiesOptions &options, World &world) {
  const size_t colon = options.pass.rfind(':');
  const auto started = parseStarted(options.pass.substr(0, colon));
  if (!started || colon == std::string::npos)
    return Status::error(
        fmt::format("--pass-copies: expected ID:START:TARGETS:STEP, found "
                    "\"{}\"",
                    options.pass));
  return CopyStart::pass(
             started->run, int(started->last), world,
             std::strtoll(options.pass.c_str() + colon + 1, nullptr, 10))
      .status();
}

Result<std::unique_ptr<RunCopies>>
RunCopies::open(const RunCopiesOptions &options, Store *store,
                std::string &load, int64_t &steps) {
  const Started started = *parseStarted(options.of);
  const auto begin = std::chrono::steady_clock::now();
  auto copies = std::make_unique<RunCopies>();
  copies->options_ = options;
  int64_t step = 0;
  if (!load.empty()) {
    auto state = readCheckpointState(load);
    if (!state)
      return state.status();
    step = state->step;
    copies->from_ = "checkpoint";
  }
  auto start = CopyStart::open(started.run, store, load.empty() ? -1 : step);
  if (!start)
    return start.status();
  copies->start_ = std::move(*start);
  copies->notes_ = copies->start_->notes();
  if (const std::string &found = copies->start_->load(); !found.empty()) {
    auto state = readCheckpointState(found);
    if (!state)
      return state.status();
    load = found;
    step = state->step;
    copies->from_ = "copies";
  }
  steps = std::max<int64_t>(0, started.last - step);
  copies->seconds_ = secondsSince(begin);
  return copies;
}

Status RunCopies::fetch(Session &session, World *world) {
  begin_ = std::chrono::steady_clock::now();
  auto bytes = start_->fetch(session.memories(), world);
  if (!bytes)
    return bytes.status();
  fetched_ = *bytes;
  return {};
}

std::vector<std::string> RunCopies::notes(int64_t step) {
  seconds_ += secondsSince(begin_);
  if (!options_.restarted.empty())
    notes_.push_back(
        fmt::format("goes on after step {}, from {} ({:.2g} s{})", step,
                    from_ == "copies"       ? "copies in memory"
                    : from_ == "checkpoint" ? "the checkpoint"
                                            : "the beginning",
                    seconds_,
                    fetched_ > 0 ? fmt::format(", {:.3g} MB from other hosts",
                                               double(fetched_) / 1e6)
                                 : ""));
  else if (start_->hosts().names.size() == 1)
    notes_.push_back("all ranks are on one host: copies in its memory outlive "
                     "its processes, not the host");
  return std::exchange(notes_, {});
}

nlohmann::ordered_json restartEntry(const RunCopiesOptions &options,
                                    int64_t step) {
  nlohmann::ordered_json entry;
  auto why = nlohmann::ordered_json::parse(options.restarted, nullptr, false);
  if (why.is_object())
    entry = {{"step", step}, {"restart", std::move(why)}};
  return entry;
}

nlohmann::ordered_json RunCopies::restartEntry(int64_t step) const {
  nlohmann::ordered_json entry = runtime::restartEntry(options_, step);
  if (!entry.is_null()) {
    entry["restart"]["state"] = from_;
    entry["restart"]["state_seconds"] = seconds_;
  }
  return entry;
}

Status RunCopies::keep(Session &session, const SessionOptions &options,
                       World *world, bool &tooLittle) {
  copies_.reset();
  CopyOptions copies = options_.copies;
  copies.every = options_.stepsBetween();
  copies.anyValues = options.onNonFinite == OnNonFinite::ignore;
  const int cores = int(std::max(1u, std::thread::hardware_concurrency()));
  copies.threads = std::min(
      kMostThreads, options.threads > 0
                        ? options.threads * int(session.memories().size())
                        : cores);
  auto made =
      HostCopies::open(session.plan(), session.memories(), start_->folder(),
                       start_->hosts(), copies, world);
  if (made) {
    copies_ = std::move(*made);
    kept_ = true;
    logged_.reset();
    return {};
  }
  tooLittle = !(world && world->aborted());
  // A run that trains already goes on without.
  if (!tooLittle || (options_.restarted.empty() && !kept_))
    return made.status();
  for (const std::string &message : made.status().messages())
    if (!message.empty())
      notes_.push_back(message + "; goes on without copies");
  tooLittle = false;
  return {};
}

Status RunCopies::after(int64_t step, Session &session) {
  if (!copies_)
    return {};
  return copies_->after(step, [&]() -> Result<CheckpointState> {
    MERAK_RETURN_IF_ERROR(session.settle());
    return session.state();
  });
}

Status RunCopies::last(Session &session) {
  if (!copies_)
    return {};
  MERAK_RETURN_IF_ERROR(session.settle());
  return copies_->now(session.state());
}

int64_t RunCopies::newest() const { return copies_ ? copies_->made().step : 0; }

std::vector<std::string> RunCopies::news() {
  std::vector<std::string> news = std::exchange(notes_, {});
  if (copies_)
    for (std::string &line : copies_->news())
      news.push_back(std::move(line));
  return news;
}

nlohmann::ordered_json RunCopies::logEntry() {
  nlohmann::ordered_json entry;
  if (!copies_)
    return entry;
  const HostCopies::Made made = copies_->made();
  if (logged_ == made)
    return entry;
  entry["step"] = made.step;
  entry["skipped"] = made.skipped;
  if (!logged_) {
    entry["hosts"] = start_->hosts().names;
    entry["bytes"] = copies_->bytesOfHosts();
    entry["folder"] = start_->folder().path();
  }
  logged_ = made;
  return entry;
}

std::string RunCopies::summary() {
  if (!copies_)
    return {};
  copies_->wait();
  return copies_->summary();
}

} // namespace merak::runtime
