#include "passes/Planning/BlockingProgram.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <set>

namespace merak::planning {

namespace {

// A message between stages s and s+1, seen from both. A gap is a place between
// steps: gap k is before step k.
struct Pairing {
  bool gradient = false;
  int microbatch = 0;
  int upperGap = 0, lowerGap = 0; // on stage s, on stage s+1
  bool withNext = false;          // runs together with the one after it
};

class Boundary {
public:
  Boundary(const std::vector<Step> &upper, const std::vector<Step> &lower) {
    for (size_t i = 0; i < upper.size(); ++i) {
      const Step &step = upper[i];
      if (step.action == Action::F)
        produced[step.microbatch] = int(i) + 1;
      if (step.action == Action::R && step.early)
        earlyRecompute.insert(step.microbatch);
      if ((step.action == Action::R && !step.early) || step.action == Action::B)
        needed.emplace(step.microbatch, int(i));
    }
    for (size_t i = 0; i < lower.size(); ++i) {
      if (lower[i].action == Action::F)
        messages.push_back({false, lower[i].microbatch, 0, int(i)});
      if (lower[i].action == Action::B)
        messages.push_back({true, lower[i].microbatch, 0, int(i) + 1});
    }
    int place = 0; // nothing overtakes
    for (Pairing &message : messages) {
      int own = message.gradient ? needed.at(message.microbatch)
                                 : produced.at(message.microbatch);
      place = message.upperGap = std::max(place, own);
    }
    for (size_t k = 0; k + 1 < messages.size(); ++k) {
      const Pairing &a = messages[k], &b = messages[k + 1];
      messages[k].withNext =
          a.gradient && !b.gradient && a.upperGap == b.upperGap &&
          a.lowerGap == b.lowerGap && !earlyRecompute.count(a.microbatch);
    }
  }

  std::vector<Pairing> messages; // in the order of both stages

private:
  std::map<int, int> produced, needed;
  std::set<int> earlyRecompute;
};

// Appends the messages [begin, end) of a boundary as items.
void append(StageProgram &program, const std::vector<Pairing> &messages,
            size_t begin, size_t end, int peer, bool upper) {
  for (size_t k = begin; k < end; ++k) {
    ProgramItem item;
    auto add = [&](const Pairing &m) {
      item.messages.push_back(
          {m.gradient != upper, m.gradient, m.microbatch, peer});
    };
    add(messages[k]);
    if (messages[k].withNext)
      add(messages[++k]);
    std::stable_sort(
        item.messages.begin(), item.messages.end(),
        [](const Message &a, const Message &b) { return a.sends > b.sends; });
    program.push_back(item);
  }
}

} // namespace

std::vector<StageProgram> blockingPrograms(const Schedule &schedule) {
  std::vector<Boundary> boundaries;
  for (int s = 0; s + 1 < schedule.stages; ++s)
    boundaries.emplace_back(schedule.order[s], schedule.order[s + 1]);
  std::vector<StageProgram> programs(schedule.stages);
  for (int s = 0; s < schedule.stages; ++s) {
    static const std::vector<Pairing> kNone;
    const auto &before = s > 0 ? boundaries[s - 1].messages : kNone;
    const auto &after =
        s + 1 < schedule.stages ? boundaries[s].messages : kNone;
    size_t b = 0, a = 0; // next message on each side
    for (size_t gap = 0; gap <= schedule.order[s].size(); ++gap) {
      // What was made goes out first, what is needed comes in last.
      size_t made = b;
      while (made < before.size() && before[made].lowerGap <= int(gap) &&
             before[made].gradient && !before[made].withNext)
        ++made;
      append(programs[s], before, b, made, s - 1, /*upper=*/false);
      b = made;
      size_t end = a;
      while (end < after.size() && after[end].upperGap <= int(gap))
        ++end;
      append(programs[s], after, a, end, s + 1, /*upper=*/true);
      a = end;
      end = b;
      while (end < before.size() && before[end].lowerGap <= int(gap))
        ++end;
      append(programs[s], before, b, end, s - 1, /*upper=*/false);
      b = end;
      if (gap < schedule.order[s].size())
        programs[s].push_back({schedule.order[s][gap], {}});
    }
  }
  return programs;
}

std::string str(const StageProgram &program, const Schedule &schedule,
                int stage) {
  std::set<int> early;
  for (const Step &step : schedule.order[stage])
    if (step.action == Action::R && step.early)
      early.insert(step.microbatch);
  std::string text;
  for (const ProgramItem &item : program) {
    text += text.empty() ? "" : " ";
    if (item.messages.empty()) {
      std::string cell = str(item.step);
      if (item.step.action == Action::F && early.count(item.step.microbatch))
        cell[0] = 'f';
      text += cell;
      continue;
    }
    std::string group;
    for (const Message &m : item.messages)
      group +=
          fmt::format("{}{}{}{}", group.empty() ? "" : ",", m.sends ? "s" : "r",
                      m.gradient ? "g" : "a", m.microbatch);
    text += "{" + group + "}";
  }
  return text;
}

BlockingRun runBlocking(const std::vector<StageProgram> &programs,
                        const std::vector<ActionTimes> &times, double message) {
  int p = int(programs.size());
  std::vector<size_t> place(p, 0);
  std::vector<double> clock(p, 0);
  // Of each message (boundary, gradient, microbatch): when each end came.
  std::map<std::tuple<int, bool, int>, std::map<int, double>> ends;
  auto keyOf = [](int stage, const Message &m) {
    return std::tuple(std::min(stage, m.peer), m.gradient, m.microbatch);
  };
  auto advance = [&](int s) {
    const ProgramItem &item = programs[s][place[s]];
    if (item.messages.empty()) {
      clock[s] += times[times.size() == 1 ? 0 : s].of(item.step.action);
      return true;
    }
    bool met = true;
    double end = clock[s];
    for (const Message &m : item.messages) {
      auto &both = ends[keyOf(s, m)];
      both.emplace(s, clock[s]);
      met &= both.size() == 2;
      for (const auto &[stage, time] : both)
        end = std::max(end, time + message);
    }
    if (met)
      clock[s] = end;
    return met;
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (int s = 0; s < p; ++s)
      while (place[s] < programs[s].size() && advance(s)) {
        ++place[s];
        progress = true;
      }
  }
  BlockingRun run;
  for (int s = 0; s < p; ++s) {
    run.total = std::max(run.total, clock[s]);
    run.finished &= place[s] == programs[s].size();
  }
  return run;
}

} // namespace merak::planning
