#include "passes/Planning/StepStreams.h"

#include "runtime/plan/Links.h"

#include <algorithm>
#include <deque>
#include <map>
#include <queue>

namespace merak::planning {

namespace {

constexpr double kNever = -1;

class StepSimulation {
public:
  explicit StepSimulation(const StreamProgram &step)
      : step(step), links({}, step.rows), waiting(step.tasks.size()),
        streamOf(step.tasks.size()), meetings(step.messages.size()) {
    out.finish.assign(step.tasks.size(), kNever);
    std::map<std::pair<int, int>, int> known;
    for (size_t task = 0; task < step.tasks.size(); ++task) {
      const TimedTask &of = step.tasks[task];
      auto [it, isNew] =
          known.try_emplace({of.row, of.stream}, int(streams.size()));
      if (isNew)
        streams.emplace_back();
      streamOf[task] = it->second;
      streams[size_t(it->second)].tasks.push_back(int(task));
    }
  }

  StepTimes run() {
    for (size_t stream = 0; stream < streams.size(); ++stream)
      work.push_back(int(stream));
    while (true) {
      while (!work.empty()) {
        const int stream = work.front();
        work.pop_front();
        advance(stream);
      }
      if (ready.empty())
        break;
      const int message = ready.top().second;
      ready.pop();
      carry(message);
    }
    for (double finish : out.finish) {
      out.seconds = std::max(out.seconds, finish);
      out.finished &= finish >= 0;
    }
    return std::move(out);
  }

private:
  struct Stream {
    std::vector<int> tasks;
    size_t next = 0;
    double free = 0;
    bool meets = false; // its next task has come to its message
  };
  struct Meeting {
    size_t here = 0;
    double ready = 0;
  };

  // Runs a stream up to a task that has to wait.
  void advance(int number) {
    Stream &stream = streams[size_t(number)];
    while (stream.next < stream.tasks.size() && !stream.meets) {
      const int task = stream.tasks[stream.next];
      const TimedTask &of = step.tasks[size_t(task)];
      double begin = stream.free;
      for (int need : of.needs) {
        if (out.finish[size_t(need)] < 0) {
          waiting[size_t(need)].push_back(number);
          return;
        }
        begin = std::max(begin, out.finish[size_t(need)]);
      }
      if (of.message < 0) {
        end(task, begin + of.seconds);
        continue;
      }
      stream.meets = true;
      Meeting &meeting = meetings[size_t(of.message)];
      meeting.ready = std::max(meeting.ready, begin);
      if (++meeting.here == step.messages[size_t(of.message)].tasks.size())
        ready.push({meeting.ready, of.message});
    }
  }

  void end(int task, double time) {
    out.finish[size_t(task)] = time;
    Stream &stream = streams[size_t(streamOf[size_t(task)])];
    stream.free = time;
    ++stream.next;
    for (int other : waiting[size_t(task)])
      work.push_back(other);
    waiting[size_t(task)].clear();
  }

  void carry(int number) {
    const TimedMessage &message = step.messages[size_t(number)];
    std::vector<int> rows;
    for (int task : message.tasks)
      rows.push_back(step.tasks[size_t(task)].row);
    const std::span<const int> all = rows;
    const LinkUse::Window window =
        links.occupy(message.transfer ? all.first(1) : all,
                     message.transfer ? all.last(1) : all, message.level,
                     message.seconds - message.latency, message.latency,
                     meetings[size_t(number)].ready);
    for (int task : message.tasks) {
      streams[size_t(streamOf[size_t(task)])].meets = false;
      end(task, window.end);
      work.push_back(streamOf[size_t(task)]);
    }
  }

  const StreamProgram &step;
  LinkUse links;
  std::vector<std::vector<int>> waiting; // streams, by task
  std::vector<int> streamOf;             // by task
  std::vector<Meeting> meetings;         // by message
  std::vector<Stream> streams;
  std::deque<int> work; // streams that may go on
  // Messages whose ends are all there, the earliest first.
  using Ready = std::pair<double, int>;
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
  StepTimes out;
};

} // namespace

StepTimes simulateProgram(const StreamProgram &step) {
  return StepSimulation(step).run();
}

} // namespace merak::planning
