#include "runtime/report/Measured.h"

#include "runtime/plan/Communication.h"
#include "runtime/report/Simulate.h"
#include "support/ReadFile.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

using namespace merak::planpb;

namespace merak::report {
namespace {

using Json = nlohmann::json;

struct Event {
  int rank = 0;
  int procedure = 0, instruction = 0;
  int64_t step = 0, microbatch = -1;
  double begin = 0, end = 0; // seconds
};

// Pauses of computation up to this share of the step are bookkeeping, not the
// end of a stretch.
constexpr double kPause = 2e-3;

class TraceReader {
public:
  explicit TraceReader(const LoadedPlan &plan) : plan_(plan), map_(plan) {
    for (const Program &program : plan.programs) {
      auto &names = procedures_.emplace_back();
      for (int p = 0; p < program.procedures_size(); ++p)
        names[program.procedures(p).name()] = p;
    }
  }

  Result<Timeline> read(const std::string &text) {
    const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("traceEvents") ||
        !json["traceEvents"].is_array())
      return Status::error("expected a trace in Chrome's format, as merak-run "
                           "--trace writes it");
    for (const Json &entry : json["traceEvents"])
      if (entry.is_object() && entry.value("ph", Json()) == "X" && !take(entry))
        return Status::error(fmt::format("event {} is of another plan",
                                         entry.value("name", Json()).dump()));
    if (events_.empty())
      return Status::error("the trace has no events");
    chooseStep();
    alignCommunication();
    return timeline();
  }

private:
  // False if the plan has no such instruction.
  bool take(const Json &entry) {
    const Json args = entry.value("args", Json::object());
    auto number = [](const Json &object, const char *key) {
      const auto it = object.find(key);
      return it != object.end() && it->is_number() ? it->get<double>()
                                                   : std::nan("");
    };
    Event event;
    const double rank = number(entry, "pid"), at = number(entry, "ts"),
                 length = number(entry, "dur"),
                 instruction = number(args, "instruction"),
                 step = number(args, "step"),
                 microbatch = number(args, "microbatch");
    const Json action = args.value("action", Json());
    if (!(rank >= 0 && rank < plan_.file.ranks_size()) || !(at >= 0) ||
        !(length >= 0) || !(instruction >= 0) || !(step >= 0) ||
        !(microbatch >= -1) || !action.is_string())
      return false;
    event.rank = static_cast<int>(rank);
    const int index = plan_.file.ranks(event.rank).program();
    const auto it = procedures_[index].find(action.get<std::string>());
    if (it == procedures_[index].end())
      return false;
    event.procedure = it->second;
    if (instruction >=
        plan_.programs[index].procedures(event.procedure).instructions_size())
      return false;
    event.instruction = static_cast<int>(instruction);
    event.step = static_cast<int64_t>(step);
    event.microbatch = static_cast<int64_t>(microbatch);
    event.begin = at * 1e-6;
    event.end = (at + length) * 1e-6;
    events_.push_back(event);
    return true;
  }

  void chooseStep() {
    std::map<int64_t, std::pair<double, double>> extents;
    for (const Event &event : events_) {
      auto [it, fresh] =
          extents.try_emplace(event.step, event.begin, event.end);
      it->second.first = std::min(it->second.first, event.begin);
      it->second.second = std::max(it->second.second, event.end);
    }
    if (extents.size() > 1)
      extents.erase(extents.begin());
    std::vector<std::pair<double, int64_t>> lengths;
    for (const auto &[step, extent] : extents)
      lengths.emplace_back(extent.second - extent.first, step);
    std::sort(lengths.begin(), lengths.end());
    step_ = lengths[(lengths.size() - 1) / 2].second;
    begin_ = extents[step_].first;
    std::erase_if(events_,
                  [&](const Event &event) { return event.step != step_; });
    std::sort(events_.begin(), events_.end(),
              [](const Event &a, const Event &b) {
                return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
              });
  }

  const Program &programOf(const Event &event) const {
    return plan_.programOf(event.rank);
  }
  const Instruction &instructionOf(const Event &event) const {
    return programOf(event)
        .procedures(event.procedure)
        .instructions(event.instruction);
  }

  // The k-th use of a channel, or of a group, on one rank meets the k-th on
  // the others: it begins when the last of them does.
  void alignCommunication() {
    using Meeting = std::tuple<std::vector<int>, std::string, int>;
    std::map<Meeting, double> begins;
    std::map<std::tuple<int, std::vector<int>, std::string>, int> uses;
    std::vector<std::pair<Event *, Meeting>> met;
    for (Event &event : events_) {
      const Instruction &inst = instructionOf(event);
      if (!communicates(inst))
        continue;
      const ProgramCommunication &comm = map_.ofRank(event.rank);
      const int sequence = comm.sequenceOf[event.procedure][event.instruction];
      std::vector<int> ends;
      std::string name = inst.channel();
      if (inst.kind() == Instruction::COLLECTIVE) {
        const int kind = comm.collectives[sequence].kind;
        ends = map_.members(event.rank, kind);
        name = map_.kinds()[kind].stream;
      } else {
        const int peer = map_.peer(event.rank, sequence);
        const bool send = inst.kind() == Instruction::SEND;
        ends = {send ? event.rank : peer, send ? peer : event.rank};
      }
      const int number = uses[{event.rank, ends, name}]++;
      Meeting meeting{ends, name, number};
      double &begin = begins[meeting];
      begin = std::max(begin, event.begin);
      met.emplace_back(&event, std::move(meeting));
    }
    for (auto &[event, meeting] : met)
      event->begin = std::min(event->end, begins[meeting]);
  }

  Timeline timeline() const {
    Timeline timeline;
    timeline.rows = rowLabels(plan_, map_);
    double last = begin_;
    for (const Event &event : events_)
      last = std::max(last, event.end);
    timeline.title = fmt::format("measured, step {}", step_);
    struct Open {
      int span = -1, procedure = -1;
    };
    std::vector<Open> opens(map_.classes());
    for (const Event &event : events_) {
      const int row = map_.classOf(event.rank);
      const Instruction &inst = instructionOf(event);
      const bool communication = communicates(inst);
      if (map_.representative(row) != event.rank ||
          inst.kind() == Instruction::WAIT ||
          inst.kind() == Instruction::RECORD || inst.kind() == Instruction::NOP)
        continue;
      const Procedure &procedure = programOf(event).procedures(event.procedure);
      Span span;
      span.row = row;
      span.communication = communication;
      span.stream = programOf(event).streams(inst.stream()).name();
      span.microbatch = event.microbatch;
      span.begin = event.begin - begin_;
      span.end = event.end - begin_;
      span.kind = inst.kind() == Instruction::COLLECTIVE ? opName(inst)
                  : communication                        ? kindName(inst.kind())
                                  : actionName(procedure);
      span.name = !communication           ? procedure.name()
                  : inst.channel().empty() ? opName(inst) + " " + inst.name()
                                           : inst.channel();
      Open &open = opens[row];
      if (!communication && inst.stream() == 0) {
        if (open.span >= 0 && open.procedure == event.procedure &&
            timeline.spans[open.span].microbatch == span.microbatch &&
            span.begin - timeline.spans[open.span].end <=
                kPause * (last - begin_)) {
          timeline.spans[open.span].end = span.end;
          continue;
        }
        open = {static_cast<int>(timeline.spans.size()), event.procedure};
      }
      timeline.spans.push_back(std::move(span));
    }
    return timeline;
  }

  const LoadedPlan &plan_;
  CommunicationMap map_;
  std::vector<std::map<std::string, int>> procedures_; // by program, name
  std::vector<Event> events_;
  int64_t step_ = 0;
  double begin_ = 0; // of the step
};

// A run that was killed while it wrote leaves its last line cut off: without
// that line the file is whole again (runtime/launch/TraceWriter.h).
std::string withoutCutLine(const std::string &text) {
  const size_t end = text.find_last_not_of(" \t\r\n");
  const size_t line = text.rfind(",\n");
  if (line == std::string::npos || text.compare(end - 1, 2, "]}") == 0)
    return text;
  return text.substr(0, line) + "\n]}\n";
}

} // namespace

Result<Timeline> measuredTimeline(const LoadedPlan &plan,
                                  const std::string &trace) {
  return TraceReader(plan).read(withoutCutLine(trace));
}

Result<Timeline> readMeasured(const LoadedPlan &plan, const std::string &path) {
  std::string text;
  if (const std::string why = readFile(path, text); !why.empty())
    return Status::error(fmt::format("{}: cannot be read: {}", path, why));
  Result<Timeline> timeline = measuredTimeline(plan, text);
  if (!timeline)
    return Status(timeline.status()).withContext(path);
  return timeline;
}

} // namespace merak::report
