#include "runtime/launch/TraceWriter.h"

#include "runtime/comm/rendezvous/TcpStore.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <map>
#include <sstream>
#include <string_view>
#include <unistd.h>

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

// Closes the file; what follows is written over it.
constexpr std::string_view kHead = "{\"displayTimeUnit\": \"ms\", "
                                   "\"traceEvents\": [";
constexpr std::string_view kTail = "\n]}\n";

// Each event stands behind a separator.
void put(std::string &text, const Json &event) {
  text += ",\n" + event.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void putNames(std::string &text, const RankProgram &program) {
  const int rank = program.rank();
  put(text, metadata("process_name", rank, 0, fmt::format("rank {}", rank)));
  for (int lane = 0; lane < program.lanes(); ++lane)
    put(text, metadata("thread_name", rank, lane, program.streamName(lane)));
}

// Of the events of an instruction in a call all but what differs from step to
// step, as far as the step's number.
std::string head(const RankProgram &program, int lane,
                 const TraceEvent &event) {
  const planpb::Call &call = program.proto().calls(event.call->call);
  const planpb::Instruction &instruction = *event.op->instruction;
  Json args = {{"action", program.proto().procedures(call.procedure()).name()},
               {"microbatch", call.microbatch()},
               {"instruction", event.op->index}};
  if (instruction.submicrobatch())
    args["submicrobatch"] = instruction.submicrobatch();
  if (!instruction.name().empty())
    args["node"] = instruction.name();
  std::string text;
  put(text, {{"ph", "X"},
             {"name", eventName(instruction)},
             {"cat", kindName(instruction.kind())},
             {"pid", program.rank()},
             {"tid", lane},
             {"args", args}});
  text.resize(text.size() - 2); // "}}"
  return text + ",\"step\":";
}

// Times after `origin` in microseconds.
void putEvent(std::string &text, const std::string &head,
              const TraceEvent &event, int64_t origin) {
  text += head;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "{}", event.step + 1);
  const double flops = event.op->instruction->flops();
  if (flops > 0)
    fmt::format_to(out, ",\"gflops_per_second\":{:.6g}",
                   flops / double(event.end - event.begin + 1));
  fmt::format_to(out, "}},\"ts\":{:.3f},\"dur\":{:.3f}}}",
                 double(event.begin - origin) / 1e3,
                 double(event.end - event.begin) / 1e3);
}

// Steady clocks of several hosts have nothing in common; what the machine
// calls the time of day links them.
int64_t wallMinusSteady() {
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  const auto steady = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(wall - steady)
      .count();
}

int64_t steadyNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool writeAt(int file, std::string_view bytes, int64_t offset) {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(file, bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR)
      continue;
    if (count <= 0)
      return false;
    bytes.remove_prefix(size_t(count));
    offset += count;
  }
  return true;
}

} // namespace

Result<std::unique_ptr<TraceWriter>>
TraceWriter::open(const std::string &path, std::vector<Executor *> executors,
                  Store *store) {
  std::unique_ptr<TraceWriter> writer(
      new TraceWriter(path, std::move(executors), store));
  MERAK_RETURN_IF_ERROR(writer->findOrigin());
  if (writer->leads())
    MERAK_RETURN_IF_ERROR(writer->create(path));
  return writer;
}

TraceWriter::~TraceWriter() {
  if (file_ >= 0)
    ::close(file_);
}

Status TraceWriter::findOrigin() {
  origin_ = steadyNow();
  if (!store_)
    return {};
  // Processes of one host have one steady clock: its offset is that of the
  // first of them.
  const int64_t offset = wallMinusSteady();
  auto clocks = store_->gather(
      "trace clocks", fmt::format("{} {} {}", hostName(), offset, origin_),
      kPatienceSeconds);
  if (!clocks.ok())
    return clocks.status();
  std::map<std::string, int64_t> offsets; // by host
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const std::string &entry : *clocks) {
    std::istringstream text(entry);
    std::string host;
    int64_t theirs = 0, began = 0;
    text >> host >> theirs >> began;
    const auto clock = offsets.try_emplace(host, theirs).first;
    first = std::min(first, began + clock->second);
  }
  origin_ = first - offsets[hostName()];
  return {};
}

Status TraceWriter::create(const std::string &path) {
  path_ = path;
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  end_ = int64_t(kHead.size());
  empty_ = true;
  if (file_ < 0 || !writeAt(file_, std::string(kHead) + std::string(kTail), 0))
    return Status::error(
        fmt::format("cannot write \"{}\": {}", path, std::strerror(errno)));
  return {};
}

std::string TraceWriter::takeEvents() {
  std::string text;
  for (Executor *executor : executors_) {
    const RankProgram &program = executor->program();
    if (!named_)
      putNames(text, program);
    for (int lane = 0; lane < program.lanes(); ++lane)
      for (const TraceEvent &event : executor->trace()[lane]) {
        std::string &known = heads_[{event.call, event.op}];
        if (known.empty())
          known = head(program, lane, event);
        putEvent(text, known, event, origin_);
      }
    executor->forgetTrace();
  }
  named_ = true;
  return text;
}

// One call of the system for events and closing brackets: whoever stops this
// process between two of them finds a whole file.
void TraceWriter::append(std::string_view events) {
  if (events.empty() || !problem_.ok())
    return;
  if (std::exchange(empty_, false)) // has no separator before it
    events.remove_prefix(1);
  if (!writeAt(file_, std::string(events) + std::string(kTail), end_))
    problem_ = Status::error(
        fmt::format("cannot write \"{}\": {}", path_, std::strerror(errno)));
  end_ += int64_t(events.size());
}

Status TraceWriter::add() {
  const std::string mine = takeEvents();
  const int64_t step = steps_++;
  if (!leads())
    return store_->put(fmt::format("trace/{}/{}", store_->rank(), step), mine);
  append(mine);
  for (int rank = 1; store_ && rank < store_->size(); ++rank) {
    auto theirs =
        store_->take(fmt::format("trace/{}/{}", rank, step), kPatienceSeconds);
    if (!theirs.ok())
      return theirs.status();
    append(*theirs);
  }
  return {};
}

void TraceWriter::follow(std::vector<Executor *> executors) {
  executors_ = std::move(executors);
  heads_.clear();
  named_ = false; // there may be more ranks
}

Status TraceWriter::close() {
  named_ = named_ && leads();
  bool left = false;
  for (Executor *executor : executors_)
    for (const std::vector<TraceEvent> &lane : executor->trace())
      left = left || !lane.empty();
  if (left && file_ < 0)
    problem_ = create(fmt::format("{}.rank-{}", path_, store_->rank()));
  if (left)
    append(takeEvents());
  if (file_ >= 0 && ::close(std::exchange(file_, -1)) && problem_.ok())
    problem_ = Status::error(
        fmt::format("cannot write \"{}\": {}", path_, std::strerror(errno)));
  return problem_;
}

} // namespace merak::runtime
