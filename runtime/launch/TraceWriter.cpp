#include "runtime/launch/TraceWriter.h"

#include "runtime/comm/rendezvous/TcpStore.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <limits>

namespace merak::runtime {

using Json = nlohmann::ordered_json;

namespace {

Json metadata(const char *what, int rank, int lane, const std::string &name) {
  return {{"ph", "M"},
          {"name", what},
          {"pid", rank},
          {"tid", lane},
          {"args", {{"name", name}}}};
}

std::string eventName(const planpb::Instruction &instruction) {
  if (std::string name = opName(instruction); !name.empty())
    return name;
  return fmt::format("{} {}", kindName(instruction.kind()),
                     instruction.channel().empty()
                         ? std::to_string(instruction.event())
                         : instruction.channel());
}

// The events of one rank, each after a separator; times after `origin` in
// microseconds.
std::string events(Executor &executor, int64_t origin) {
  std::string text;
  auto write = [&](const Json &event) {
    text += ",\n" + event.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  const RankProgram &program = executor.program();
  const int rank = program.rank();
  write(metadata("process_name", rank, 0, fmt::format("rank {}", rank)));
  for (int lane = 0; lane < program.lanes(); ++lane) {
    write(metadata("thread_name", rank, lane, program.streamName(lane)));
    for (const TraceEvent &event : executor.trace()[lane]) {
      const planpb::Call &call = program.proto().calls(event.call->call);
      const planpb::Instruction &instruction = *event.op->instruction;
      Json args = {
          {"step", event.step + 1},
          {"action", program.proto().procedures(call.procedure()).name()},
          {"microbatch", call.microbatch()},
          {"instruction", event.op->index}};
      if (instruction.submicrobatch())
        args["submicrobatch"] = instruction.submicrobatch();
      if (!instruction.name().empty())
        args["node"] = instruction.name();
      if (instruction.flops() > 0)
        args["gflops_per_second"] =
            instruction.flops() / double(event.end - event.begin + 1);
      write({{"ph", "X"},
             {"name", eventName(instruction)},
             {"cat", kindName(instruction.kind())},
             {"pid", rank},
             {"tid", lane},
             {"ts", double(event.begin - origin) / 1e3},
             {"dur", double(event.end - event.begin) / 1e3},
             {"args", args}});
    }
  }
  return text;
}

// Steady clocks of several hosts have nothing in common; what the machine
// calls the time of day links them.
int64_t wallMinusSteady() {
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  const auto steady = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(wall - steady)
      .count();
}

// Where the timeline begins, on the steady clock of this process.
Result<int64_t> originOf(const std::vector<Executor *> &executors,
                         Store *store) {
  int64_t origin = std::numeric_limits<int64_t>::max();
  for (Executor *executor : executors)
    for (const auto &lane : executor->trace())
      if (!lane.empty())
        origin = std::min(origin, lane.front().begin);
  if (!store)
    return origin;
  // Processes of one host have one steady clock: its offset is that of the
  // first of them.
  const int64_t offset = wallMinusSteady();
  auto offsets =
      store->gather("trace clocks", fmt::format("{} {}", hostName(), offset),
                    kPatienceSeconds);
  if (!offsets.ok())
    return offsets.status();
  int64_t shared = offset;
  for (size_t i = offsets->size(); i-- > 0;) {
    const std::string &entry = (*offsets)[i];
    const size_t space = entry.rfind(' ');
    if (entry.substr(0, space) == hostName())
      shared = std::stoll(entry.substr(space + 1));
  }
  const bool none = origin == std::numeric_limits<int64_t>::max();
  auto origins = store->gather("trace origins",
                               none ? "" : std::to_string(origin + shared),
                               kPatienceSeconds);
  if (!origins.ok())
    return origins.status();
  for (const std::string &text : *origins)
    if (!text.empty())
      origin = std::min<int64_t>(origin, std::stoll(text) - shared);
  return origin;
}

} // namespace

Status writeTrace(const std::string &path,
                  const std::vector<Executor *> &executors, Store *store) {
  auto origin = originOf(executors, store);
  if (!origin.ok())
    return origin.status();
  if (store && store->rank() != 0) {
    std::string text;
    for (Executor *executor : executors)
      text += events(*executor, *origin);
    return store->put(fmt::format("trace/{}", store->rank()), text);
  }
  std::ofstream file(path);
  file << "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [";
  bool first = true; // has no separator before it
  auto write = [&](const std::string &text) {
    file << text.substr(std::exchange(first, false) ? 1 : 0);
  };
  for (Executor *executor : executors)
    write(events(*executor, *origin));
  for (int rank = 1; store && rank < store->size(); ++rank) {
    auto text = store->take(fmt::format("trace/{}", rank), kPatienceSeconds);
    if (!text.ok())
      return text.status();
    write(*text);
  }
  file << "\n]}\n";
  file.close();
  if (file)
    return {};
  return Status::error(
      fmt::format("cannot write \"{}\": {}", path, std::strerror(errno)));
}

} // namespace merak::runtime
