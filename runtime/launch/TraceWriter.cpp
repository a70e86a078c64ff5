#include "runtime/launch/TraceWriter.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
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
  if (!instruction.op().empty())
    return instruction.op();
  return fmt::format("{} {}", kindName(instruction.kind()),
                     instruction.channel().empty()
                         ? std::to_string(instruction.event())
                         : instruction.channel());
}

} // namespace

Status writeTrace(const std::string &path,
                  const std::vector<Executor *> &executors) {
  std::ofstream file(path);
  auto fail = [&] {
    return Status::error(
        fmt::format("cannot write \"{}\": {}", path, std::strerror(errno)));
  };
  if (!file)
    return fail();
  int64_t origin = std::numeric_limits<int64_t>::max();
  for (Executor *executor : executors)
    for (const auto &lane : executor->trace())
      if (!lane.empty())
        origin = std::min(origin, lane.front().begin);
  const char *separator = "\n";
  auto write = [&](const Json &event) {
    file << separator
         << event.dump(-1, ' ', false, Json::error_handler_t::replace);
    separator = ",\n";
  };
  file << "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [";
  for (Executor *executor : executors) {
    const RankProgram &program = executor->program();
    const int rank = program.rank();
    write(metadata("process_name", rank, 0, fmt::format("rank {}", rank)));
    for (int lane = 0; lane < program.lanes(); ++lane) {
      write(metadata("thread_name", rank, lane, program.streamName(lane)));
      for (const TraceEvent &event : executor->trace()[lane]) {
        const planpb::Call &call = program.proto().calls(event.call->call);
        const planpb::Instruction &instruction = *event.op->instruction;
        Json args = {
            {"step", event.step + 1},
            {"action", program.proto().procedures(call.procedure()).name()},
            {"microbatch", call.microbatch()},
            {"instruction", event.op->index}};
        if (instruction.sub_batch())
          args["sub_batch"] = instruction.sub_batch();
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
  }
  file << "\n]}\n";
  file.close();
  return file ? Status() : fail();
}

} // namespace merak::runtime
