#include "passes/Planning/StageCut.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <map>
#include <set>

namespace merak::planning {

namespace {

class Cutter {
public:
  explicit Cutter(const CutProblem &problem) : problem(problem) {}

  Result<StageCut> run() {
    prepare();
    findDuplicates();
    priceCuts();
    if (!problem.begins.empty())
      userCuts();
    else
      search();
    if (!status.ok())
      return status;
    return finish();
  }

private:
  int count() const { return int(problem.ops.size()); }

  void prepare() {
    size_t n = problem.tensors.size();
    producer.assign(n, -1);
    lastUse.assign(n, -1);
    for (int i = 0; i < count(); ++i)
      for (int id : problem.ops[i].results)
        producer[id] = i;
    for (int i = 0; i < count(); ++i)
      for (int id : problem.ops[i].operands)
        lastUse[id] = i;
  }

  // Cheap ops on available tensors run on every stage that needs them.
  void findDuplicates() {
    duplicate.assign(count(), 0);
    std::vector<char> everywhere(problem.tensors.size());
    std::vector<double> chain(problem.tensors.size(), 0); // seconds to make it
    for (size_t t = 0; t < everywhere.size(); ++t)
      everywhere[t] = problem.tensors[t].available;
    for (int i = 0; i < count(); ++i) {
      const CutOp &op = problem.ops[i];
      double seconds = op.seconds;
      bool all = true;
      for (int id : op.operands) {
        all &= bool(everywhere[id]);
        seconds += chain[id];
      }
      // What has a gradient would have to sum it over stages.
      for (int id : op.results)
        all &= problem.tensors[id].gradientBytes == 0;
      duplicate[i] = all && problem.duplicateSeconds > 0 &&
                     seconds <= problem.duplicateSeconds;
      if (duplicate[i])
        for (int id : op.results) {
          everywhere[id] = 1;
          chain[id] = seconds;
        }
    }
  }

  bool crosses(int tensor, int cut) const {
    return producer[tensor] >= 0 && producer[tensor] < cut &&
           lastUse[tensor] >= cut && !duplicate[producer[tensor]] &&
           !problem.tensors[tensor].available;
  }

  // bytes[c]: over the cut before op c; a value is threaded through all stages
  // between its producer and its last use.
  void priceCuts() {
    std::vector<double> change(count() + 2, 0);
    for (size_t t = 0; t < problem.tensors.size(); ++t) {
      if (producer[t] < 0 || lastUse[t] <= producer[t] ||
          !crosses(int(t), producer[t] + 1))
        continue;
      double bytes =
          problem.tensors[t].bytes + problem.tensors[t].gradientBytes;
      change[producer[t] + 1] += bytes;
      change[lastUse[t] + 1] -= bytes;
    }
    bytes.assign(count() + 1, 0);
    prefix.assign(count() + 1, 0);
    own.assign(count() + 1, 0);
    double sum = 0;
    for (int i = 0; i <= count(); ++i) {
      sum += change[i];
      bytes[i] = sum;
      if (i < count()) {
        prefix[i + 1] = prefix[i] + problem.ops[i].seconds;
        own[i + 1] = own[i] + !duplicate[i];
      }
    }
    bytes[0] = bytes[count()] = 0;
  }

  // Time of a stage: its ops, and what it sends and receives.
  double seconds(int from, int to) const {
    return prefix[to] - prefix[from] +
           (bytes[from] + bytes[to]) * problem.secondsPerByte;
  }

  // best[s][i]: the least heaviest stage over cuts of the first i ops into s
  // stages; ties go to fewer bytes, then to the earlier cut.
  void search() {
    int n = count(), p = problem.stages;
    if (p < 1 || own[n] < p) {
      status = Status::error(fmt::format(
          "{} stages need at least as many operations, found {}", p, own[n]));
      return;
    }
    struct State {
      double worst = std::numeric_limits<double>::infinity();
      double bytes = 0;
      int from = -1;
    };
    std::vector<std::vector<State>> best(p + 1, std::vector<State>(n + 1));
    best[0][0].worst = 0;
    for (int s = 1; s <= p; ++s)
      for (int i = 1; i <= n; ++i)
        for (int j = i - 1; j >= 0; --j) {
          // A stage has at least one op of its own.
          if (own[i] == own[j] || std::isinf(best[s - 1][j].worst))
            continue;
          // Stages only grow as j falls, but for what crosses at j.
          if (prefix[i] - prefix[j] > best[s][i].worst)
            break;
          double worst = std::max(best[s - 1][j].worst, seconds(j, i));
          double sent = best[s - 1][j].bytes + bytes[j];
          State &state = best[s][i];
          if (worst < state.worst ||
              (worst == state.worst && sent < state.bytes))
            state = {worst, sent, j};
        }
    begin.assign(p + 1, n);
    for (int s = p, i = n; s > 0; --s) {
      i = best[s][i].from;
      begin[s - 1] = i;
    }
  }

  void userCuts() {
    std::map<std::string, int> index;
    for (int i = count(); i-- > 0;)
      index[problem.ops[i].name] = i;
    begin = {0};
    for (const std::string &name : problem.begins) {
      auto it = index.find(name);
      if (it == index.end())
        status.merge(Status::error(
            fmt::format("no operation '{}' to begin a stage at", name)));
      else if (it->second <= begin.back())
        status.merge(Status::error(fmt::format(
            "the stage that begins at '{}' would be empty: its begin is not "
            "after the one before",
            name)));
      else
        begin.push_back(it->second);
    }
    begin.push_back(count());
    if (status.ok() && int(begin.size()) != problem.stages + 1)
      status = Status::error(fmt::format(
          "{} stages have {} begins after the first, found {}", problem.stages,
          problem.stages - 1, problem.begins.size()));
  }

  StageCut finish() const {
    StageCut out;
    out.begin = begin;
    for (int s = 0; s < problem.stages; ++s)
      out.seconds.push_back(seconds(begin[s], begin[s + 1]));
    for (int s = 1; s < problem.stages; ++s) {
      std::vector<int> values;
      for (size_t t = 0; t < problem.tensors.size(); ++t)
        if (crosses(int(t), begin[s]))
          values.push_back(int(t));
      out.crossing.push_back(std::move(values));
      out.crossingBytes.push_back(bytes[begin[s]]);
    }
    for (int s = 0; s < problem.stages; ++s)
      out.duplicated.push_back(duplicatesOf(s));
    return out;
  }

  // Duplicable ops before the stage that its ops need, directly or not.
  std::vector<int> duplicatesOf(int stage) const {
    std::set<int> needed;
    std::vector<int> work;
    auto need = [&](int op) {
      for (int id : problem.ops[op].operands) {
        int from = producer[id];
        if (from >= 0 && from < begin[stage] && duplicate[from] &&
            needed.insert(from).second)
          work.push_back(from);
      }
    };
    for (int i = begin[stage]; i < begin[stage + 1]; ++i)
      need(i);
    while (!work.empty()) {
      int op = work.back();
      work.pop_back();
      need(op);
    }
    return {needed.begin(), needed.end()};
  }

  const CutProblem &problem;
  std::vector<int> producer, lastUse;
  std::vector<char> duplicate;
  std::vector<double> bytes, prefix; // per position
  std::vector<int> own;              // ops that are not duplicable, before it
  std::vector<int> begin;
  Status status;
};

} // namespace

Result<StageCut> cutStages(const CutProblem &problem) {
  return Cutter(problem).run();
}

std::string StageCut::str(const CutProblem &problem) const {
  std::string text;
  for (size_t s = 0; s < seconds.size(); ++s) {
    text += fmt::format("stage {}: '{}' to '{}', {} ops, {:.4g} s", s,
                        problem.ops[begin[s]].name,
                        problem.ops[begin[s + 1] - 1].name,
                        begin[s + 1] - begin[s], seconds[s]);
    if (!duplicated[s].empty())
      text += fmt::format(", {} ops computed again", duplicated[s].size());
    if (s + 1 < seconds.size())
      text += fmt::format(", sends {} values ({:.4g} bytes with gradients)",
                          crossing[s].size(), crossingBytes[s]);
    text += "\n";
  }
  return text;
}

} // namespace merak::planning
