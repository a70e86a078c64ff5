#include "passes/Planning/StageProblem.h"

#include <algorithm>
#include <fmt/format.h>
#include <functional>
#include <limits>
#include <queue>

namespace merak::planning {

// A cut between blocks is the narrowest within so many ops on both sides.
constexpr int kShardWindow = 16;
// Shards lighter than this part of the mean join the next one.
constexpr double kLightShard = 0.1;

namespace {

// Orders ops by what recomputing them costs per byte that is then not kept.
class RecomputeRanks {
public:
  RecomputeRanks(const StageProblem &problem, const std::vector<int> &producer)
      : problem(problem), producer(producer) {}

  // Rank per op; ops outside of every step get the last one.
  // `recomputeRanks`: one more than the last.
  std::vector<int> rankRecomputation(int &recomputeRanks) {
    size_t n = problem.ops.size();
    recomputeRank.assign(n, -1);
    kept.assign(problem.tensors.size(), 0);
    for (const StageOp &op : problem.ops)
      for (const std::vector<int> *of : {&op.kept, &op.keptForWeights})
        for (int t : *of)
          if (t = keptOf(t); mayKeep(t))
            kept[t] = 1;
    using Entry = std::pair<double, int>; // seconds per byte, tensor
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
    for (size_t t = 0; t < kept.size(); ++t)
      if (kept[t])
        if (Step step = best(int(t)); step.gain > 0)
          open.push({step.ratio(), int(t)});
    recomputeRanks = 0;
    while (!open.empty()) {
      auto [ratio, t] = open.top();
      open.pop();
      if (!kept[t])
        continue;
      Step step = best(t);
      if (step.gain <= 0)
        continue;
      if (step.ratio() > ratio * (1 + 1e-9) && !open.empty() &&
          step.ratio() > open.top().first * (1 + 1e-9)) {
        open.push({step.ratio(), t});
        continue;
      }
      take(step, recomputeRanks++, [&](int added) {
        if (Step other = best(added); other.gain > 0)
          open.push({other.ratio(), added});
      });
    }
    for (size_t i = 0; i < n; ++i)
      if (recomputeRank[i] < 0 && canRepeat(int(i)))
        recomputeRank[i] = recomputeRanks;
    ++recomputeRanks;
    for (int &r : recomputeRank)
      if (r < 0)
        r = std::numeric_limits<int>::max();
    return recomputeRank;
  }

private:
  struct Step {
    std::vector<int> ops;
    double seconds = 0, gain = 0;
    int missing = 0; // operands that have to be kept, or made again
    double ratio() const { return seconds / gain; }
  };

  bool canRepeat(int op) const {
    return !problem.ops[op].checkpoint && !problem.ops[op].everywhere;
  }
  int keptOf(int t) const {
    while (problem.tensors[t].viewOf >= 0)
      t = problem.tensors[t].viewOf;
    return t;
  }
  bool mayKeep(int t) const {
    return !problem.tensors[t].available &&
           !(producer[t] >= 0 && problem.ops[producer[t]].everywhere);
  }
  bool there(int t) const {
    return !mayKeep(t) || kept[t] ||
           (producer[t] >= 0 && recomputeRank[producer[t]] >= 0);
  }

  // Recomputing the producer of `t`; what it needs is kept instead, or made
  // again as well: whichever is cheaper.
  Step best(int t) const {
    Step near = step(t, 0);
    if (near.missing == 0)
      return near;
    Step far = step(t, 8);
    if (near.gain <= 0 || far.gain <= 0)
      return near.gain <= 0 ? far : near;
    return far.ratio() < near.ratio() ? far : near;
  }

  Step step(int t, int depth) const {
    Step out;
    if (producer[t] >= 0 && canRepeat(producer[t]))
      add(producer[t], depth, out);
    return out;
  }
  void add(int op, int depth, Step &out) const {
    if (std::find(out.ops.begin(), out.ops.end(), op) != out.ops.end())
      return;
    out.ops.push_back(op);
    out.seconds += problem.ops[op].recompute;
    for (int t : problem.ops[op].results)
      if (kept[t])
        out.gain += problem.tensors[t].bytes;
    for (int t : problem.ops[op].operands) {
      t = keptOf(t);
      if (there(t))
        continue;
      int from = producer[t];
      if (from >= 0 &&
          std::find(out.ops.begin(), out.ops.end(), from) != out.ops.end())
        continue;
      ++out.missing;
      if (depth > 0 && from >= 0 && canRepeat(from))
        add(from, depth - 1, out);
      else
        out.gain -= problem.tensors[t].bytes;
    }
  }

  void take(const Step &step, int number,
            const std::function<void(int)> &added) {
    for (int op : step.ops) {
      recomputeRank[op] = number;
      for (int t : problem.ops[op].results)
        kept[t] = 0;
    }
    for (int op : step.ops)
      for (int t : problem.ops[op].operands)
        if (t = keptOf(t); !there(t)) {
          kept[t] = 1;
          added(t);
        }
  }

  const StageProblem &problem;
  const std::vector<int> &producer;
  std::vector<int> recomputeRank;
  std::vector<char> kept;
};

} // namespace

StageModel::StageModel(const StageProblem &problem, const StageModel *like)
    : problem(problem) {
  size_t n = problem.tensors.size();
  producer.assign(n, -1);
  lastUse.assign(n, -1);
  for (int i = 0; i < count(); ++i)
    for (int id : problem.ops[i].results)
      producer[id] = i;
  for (int i = 0; i < count(); ++i) {
    const StageOp &op = problem.ops[i];
    for (int id : op.operands)
      lastUse[id] = i;
    if (!op.gathersForward.empty() || !op.gathersBackward.empty() ||
        !op.scatters.empty())
      withMessages.push_back(i);
  }
  const std::pair<std::vector<double> *, double StageOp::*> sums[] = {
      {&forward, &StageOp::forward},  {&backward, &StageOp::backward},
      {&weight, &StageOp::weight},    {&communication, &StageOp::communication},
      {&update, &StageOp::update},    {&clear, &StageOp::clear},
      {&prologue, &StageOp::prologue}};
  for (auto [sum, field] : sums) {
    sum->reserve(problem.ops.size() + 1);
    sum->push_back(0);
  }
  for (const StageOp &op : problem.ops)
    for (auto [sum, field] : sums)
      sum->push_back(sum->back() + op.*field);
  double exposed = 1; // part of the collectives
  const bool communicates = communication.back() > 0;
  if (communicates && !problem.submicrobatches[0].empty()) {
    for (size_t action = 0; action < problem.submicrobatches.size(); ++action) {
      const std::vector<SubmicrobatchTask> &tasks =
          problem.submicrobatches[action];
      const bool isLike = like && !like->submicrobatches.empty() &&
                          like->count() == count() &&
                          like->problem.overlap == problem.overlap &&
                          like->problem.submicrobatches[action] == tasks;
      submicrobatches.push_back(
          isLike ? like->submicrobatches[action]
                 : std::make_shared<const SubmicrobatchTimes>(tasks, count(),
                                                              problem.overlap));
    }
    StageCost all;
    setTimes(0, count(), all);
    allTimes = all.times;
    if (communication.back() > 0)
      exposed = all.communication / communication.back();
  }
  for (int i = 0; i <= count(); ++i)
    prefix.push_back(forward[i] + backward[i] + weight[i] -
                     (1 - exposed) * communication[i]);
  priceCuts();
  findLegal();
  findShards();
}

StageModel::Pricing::Pricing(const StageModel &model) {
  const StageProblem &problem = model.problem;
  const int count = model.count();
  const size_t n = problem.tensors.size();
  facts.reserve(n);
  crossers.resize(size_t(count) + 1);
  for (size_t t = 0; t < n; ++t) {
    const StageTensor &tensor = problem.tensors[t];
    const int producer = model.producer[t];
    const bool everywhere = producer >= 0 && problem.ops[producer].everywhere;
    facts.push_back({tensor.bytes, tensor.viewOf, producer,
                     tensor.available || everywhere,
                     tensor.fused || everywhere || tensor.viewOf >= 0});
    if (model.crosses(t))
      for (int at = producer + 1; at <= model.lastUse[t]; ++at)
        crossers[at].push_back(int(t));
  }
  const auto lists = [&](std::vector<int> StageOp::*field) {
    return IdLists(count, [&](int i) -> const std::vector<int> & {
      return problem.ops[i].*field;
    });
  };
  operands = lists(&StageOp::operands);
  results = lists(&StageOp::results);
  keptForInputs = lists(&StageOp::kept);
  keptForWeights = lists(&StageOp::keptForWeights);
  users.resize(n);
  for (int i = 0; i < count; ++i) {
    const StageOp &op = problem.ops[i];
    for (int id : op.operands)
      users[id].push_back(i);
    recompute.push_back(op.recompute);
    workspaces.push_back(op.workspace);
    if (!op.pending.empty())
      withPending.push_back(i);
    if (std::any_of(op.pending.begin(), op.pending.end(),
                    [](const StageOp::Pending &p) { return p.over >= 0; }))
      withOver.push_back(i);
  }
  parametersOf.resize(size_t(count));
  for (size_t p = 0; p < problem.parameters.size(); ++p) {
    int previous = -1;
    for (int user : problem.parameters[p].users) {
      parametersOf[user].push_back({int(p), previous});
      previous = user;
    }
  }
  stamp.assign(n, 0);
  need.assign(n, 0);
  if (model.hasWaits())
    slices = model.findSlices();
  rank = RecomputeRanks(problem, model.producer).rankRecomputation(ranks);
}

void StageModel::priceCuts() {
  crossing.assign(count() + 2, 0);
  crossingBack = crossing;
  for (size_t t = 0; t < problem.tensors.size(); ++t) {
    const StageTensor &tensor = problem.tensors[t];
    if (!crosses(t))
      continue;
    crossing[producer[t] + 1] += tensor.bytes;
    crossing[lastUse[t] + 1] -= tensor.bytes;
    crossingBack[producer[t] + 1] += tensor.gradientBytes;
    crossingBack[lastUse[t] + 1] -= tensor.gradientBytes;
  }
  for (std::vector<double> *sums : {&crossing, &crossingBack})
    for (int i = 1; i <= count(); ++i)
      (*sums)[i] += (*sums)[i - 1];
  crossing[count()] = crossingBack[count()] = 0;
}

void StageModel::findLegal() {
  legal.assign(count() + 1, 1);
  for (int at = problem.joinBegin + 1; at < problem.joinEnd; ++at)
    legal[at] = 0;
  std::unordered_map<int64_t, int> latest; // op of each piece
  for (int i = 0; i < count(); ++i)
    if (int64_t piece = problem.ops[i].piece; piece >= 0) {
      int &last = latest.try_emplace(piece, i).first->second;
      for (; last < i; ++last)
        legal[last + 1] = 0;
    }
}

void StageModel::findShards() {
  std::vector<int> narrow = {0};
  for (int i = 1; i < count(); ++i) {
    int from = std::max(1, i - kShardWindow);
    int to = std::min(count() - 1, i + kShardWindow);
    const auto isNoWider = [&](double other) {
      return crossing[i] <= other * 1.0001;
    };
    if (legal[i] && std::all_of(crossing.begin() + from,
                                crossing.begin() + to + 1, isNoWider))
      narrow.push_back(i);
  }
  narrow.push_back(count());
  double mean = seconds(0, count()) / double(narrow.size() - 1);
  blockBegin = {0};
  for (size_t i = 1; i < narrow.size(); ++i)
    if (narrow[i] == count() ||
        seconds(blockBegin.back(), narrow[i]) >= kLightShard * mean)
      blockBegin.push_back(narrow[i]);
  // A light rest belongs to the last block.
  if (blockBegin.size() > 2 &&
      seconds(blockBegin[blockBegin.size() - 2], count()) < kLightShard * mean)
    blockBegin.erase(blockBegin.end() - 2);
  for (int i = 0; i <= count(); ++i)
    if (legal[i])
      legalCuts.push_back(i);
}

double StageModel::parameterBytes(int begin, int end) const {
  double bytes = 0;
  for (int i = begin; i < end; ++i)
    for (auto [p, previous] : pricing().parametersOf[i])
      if (previous < begin)
        bytes += problem.parameters[p].bytes +
                 problem.parameters[p].copiesOn(begin, end);
  return bytes;
}

double StageModel::castSeconds(int begin, int end) const {
  double seconds = 0;
  for (int i = begin; i < end; ++i)
    for (auto [p, previous] : pricing().parametersOf[i])
      if (previous < begin)
        for (const StageParameter::Copy &copy : problem.parameters[p].copies)
          seconds += copy.isOn(begin, end) ? copy.castSeconds : 0;
  return seconds;
}

// Values that backward actions of the stage read, and what of it is made again.
// `cost` gets them by their lives.
StageModel::Need StageModel::needOf(int begin, int end, Marks marks,
                                    StageCost *cost) const {
  Need out;
  const Pricing &of = pricing();
  const std::vector<Pricing::TensorFacts> &facts = of.facts;
  std::vector<int> &stamp = of.stamp;
  std::vector<char> &need = of.need;
  int mark = ++of.now;
  auto want = [&](int t, char reader) {
    t = of.keptOf(t, begin);
    if (facts[t].given)
      return;
    if (stamp[t] == mark) {
      need[t] = std::max(need[t], reader);
      return;
    }
    stamp[t] = mark;
    need[t] = reader;
    if (producer[t] < begin)
      out.kept.push_back(t); // received, or given
  };
  for (int i = begin; i < end; ++i) {
    for (int t : of.keptForInputs[i])
      want(t, 2);
    for (int t : of.keptForWeights[i])
      want(t, 3);
    out.workspace = std::max(out.workspace, of.workspaces[i]);
  }
  for (int i : between(of.withOver, begin, end))
    for (const StageOp::Pending &pending : problem.ops[i].pending)
      if (isWrittenOver(pending, begin, end))
        want(pending.over, 3);
  for (int i = end; i-- > begin;) {
    bool needed = false, again = of.marked(i, marks);
    for (int t : of.results[i])
      if (stamp[t] == mark) {
        needed = true;
        (again ? out.again : out.kept).push_back(t);
      }
    if (!needed || !again)
      continue;
    out.seconds += of.recompute[i];
    out.ops.push_back(i);
    for (int t : of.operands[i])
      want(t, 1);
  }
  if (!cost)
    return out;
  // The stage that makes a value sends it to each one that uses it.
  auto sent = [&](int t) { return lastUse[t] >= end; };
  auto keep = [&](int t, LiveKind life) {
    if (producer[t] < begin)
      cost->arriving.push_back({producer[t], life, facts[t].bytes});
    else
      cost->held.at(life, false, sent(t)) += facts[t].bytes;
  };
  for (int t : out.kept)
    keep(t, need[t] == 1   ? LiveKind::FR
            : need[t] == 2 ? LiveKind::FB
                           : LiveKind::FW);
  for (int t : out.again) {
    if (need[t] > 1)
      cost->held.at(need[t] == 2 ? LiveKind::RB : LiveKind::RW) +=
          facts[t].bytes;
    if (sent(t))
      cost->held.at(LiveKind::F, false, true) += facts[t].bytes;
  }
  // What only comes or goes; what passes by is not here.
  for (int t : of.crossers[begin])
    if (stamp[t] != mark && nextUse(t, begin) < end)
      keep(t, LiveKind::F);
  for (int t : of.crossers[end])
    if (stamp[t] != mark && producer[t] >= begin)
      keep(t, LiveKind::F);
  // Gradients go back from each stage that uses a value to the one before that
  // does, summed up. Those that W reads wait for it.
  std::map<int, double> gradients; // by the op that they come from
  for (int t : of.crossers[end])
    if (producer[t] >= begin || nextUse(t, begin) < end)
      gradients[nextUse(t, end)] += problem.tensors[t].gradientBytes;
  for (int i : between(of.withPending, begin, end))
    for (const StageOp::Pending &pending : problem.ops[i].pending) {
      const auto [bytes, from, over] = pending;
      if (isWrittenOver(pending, begin, end))
        continue; // it is where the kept one was, which lives until W
      if (from < end) {
        cost->held.at(LiveKind::BW) += bytes;
        continue;
      }
      cost->arriving.push_back({from, LiveKind::BW, bytes});
      gradients[from] -= bytes;
    }
  for (auto [from, bytes] : gradients)
    if (bytes > 0)
      cost->arriving.push_back({from, LiveKind::B, bytes});
  for (int t : of.crossers[begin])
    if (nextUse(t, begin) < end)
      cost->held.at(LiveKind::B, false, true) +=
          problem.tensors[t].gradientBytes;
  out.workspace =
      std::max({out.workspace, forwardWorkspace(begin, end, false, marks),
                forwardWorkspace(begin, end, true, marks)}) +
      messageWorkspace(begin, end);
  return out;
}

// What another stage sent, or sends back, has a buffer of its own.
bool StageModel::isWrittenOver(const StageOp::Pending &pending, int begin,
                               int end) const {
  return pending.over >= 0 && pending.from < end &&
         producer[pending.over] >= begin;
}

int StageModel::nextUse(int tensor, int from) const {
  const std::vector<int> &of = pricing().users[tensor];
  auto it = std::lower_bound(of.begin(), of.end(), from);
  return it == of.end() ? count() : *it;
}

// The most bytes at once of values that an action makes and does not leave: F,
// or R (`again`). After needOf of the same stage.
double StageModel::forwardWorkspace(int begin, int end, bool again,
                                    Marks marks) const {
  const Pricing &of = pricing();
  double live = 0, most = 0;
  std::vector<double> ends(size_t(end - begin) + 1, 0);
  for (int i = begin; i < end; ++i) {
    bool repeated = of.marked(i, marks);
    for (int t : of.results[i]) {
      bool wanted = of.stamp[t] == of.now;
      // F leaves what is kept or sent, R what B or W reads.
      bool made = again ? repeated && wanted && of.need[t] == 1
                        : lastUse[t] < end && (repeated || !wanted);
      if (!made || of.facts[t].noSpace)
        continue;
      live += of.facts[t].bytes;
      int last = std::clamp(lastUse[t], i, end - 1);
      ends[last - begin] += of.facts[t].bytes;
    }
    most = std::max(most, live);
    live -= ends[i - begin];
  }
  return most;
}

StageModel::Kept StageModel::sumOf(const Need &need) const {
  const std::vector<Pricing::TensorFacts> &facts = pricing().facts;
  Kept out;
  for (int t : need.kept)
    out.keptBytes += facts[t].bytes;
  for (int t : need.again)
    out.recomputedBytes += facts[t].bytes;
  out.workspace = need.workspace;
  out.seconds = need.seconds;
  return out;
}

void StageModel::setTimes(int begin, int end, StageCost &out) const {
  double *times[] = {&out.times.F, &out.times.B, &out.times.W};
  const std::vector<double> *sums[] = {&forward, &backward, &weight};
  if (submicrobatches.empty())
    out.communication = communication[end] - communication[begin];
  for (int action = 0; action < 3; ++action) {
    *times[action] = (*sums[action])[end] - (*sums[action])[begin];
    if (submicrobatches.empty())
      continue;
    SubmicrobatchTimes::Times both = submicrobatches[action]->of(begin, end);
    *times[action] = both.seconds;
    out.communication += both.seconds - both.compute;
    if (action == 0)
      out.slackForward = both.slack;
    if (action == 1)
      out.slackBackward = both.slack;
  }
  addMessages(begin, end, out);
  if (problem.overlap == 0)
    setSlack(begin, end, out);
}

// Without submicrobatches: what is computed before the first collective.
void StageModel::setSlack(int begin, int end, StageCost &out) const {
  double computed = 0;
  for (int i = begin; i < end; ++i) {
    const StageOp &op = problem.ops[i];
    computed += op.forward - op.waitsForward;
    if (op.waitsForward > 0) {
      out.slackForward = computed;
      break;
    }
  }
  computed = 0;
  for (int i = end; i-- > begin;) {
    const StageOp &op = problem.ops[i];
    computed += op.backward - op.waitsBackward;
    if (op.waitsBackward > 0) {
      out.slackBackward = computed;
      break;
    }
  }
}

// Neighbouring zeros in the vectors of squares: one of the parameters that the
// ranks of a replica have whole, one of the others if there are any.
int StageModel::zeroRuns(int begin, int end) const {
  int runs = 0;
  std::array<bool, 2> zero{}, any{};
  std::array<int, 2> found{};
  for (const StageParameter &parameter : problem.parameters) {
    if (parameter.gradientBytes <= 0)
      continue;
    bool own =
        parameter.users.front() >= begin && parameter.users.front() < end;
    for (int split : {0, 1}) {
      bool has = own && parameter.split == bool(split);
      found[size_t(split)] += !has && !(zero[size_t(split)]);
      zero[size_t(split)] = !has;
      any[size_t(split)] = any[size_t(split)] || has;
    }
  }
  runs = found[0] + (any[1] ? found[1] : 0);
  return runs;
}

ActionTimes StageCost::timesAt(double slowness) const {
  ActionTimes out = times;
  const double all = times.F + times.R + times.B + times.W;
  const double share = all > 0 ? std::min(1.0, communication / all) : 0;
  for (double *seconds : {&out.F, &out.R, &out.B, &out.W})
    *seconds *= share + (1 - share) * slowness;
  out.U *= slowness;
  return out;
}

double StageModel::normSeconds(const PipelineShape &shape) const {
  double bytes = 0, seconds = problem.smallKernel;
  bool split = false;
  for (const StageParameter &parameter : problem.parameters) {
    bytes += parameter.gradientBytes > 0 ? 4 : 0;
    split |= parameter.gradientBytes > 0 && parameter.split;
  }
  if (bytes == 0)
    return 0;
  if (split && shape.tensorNorm)
    seconds += shape.tensorNorm(bytes) + problem.smallKernel;
  if (shape.stageNorm)
    seconds += shape.stageNorm(bytes);
  return seconds;
}

int StageModel::behindFirst(int begin, int end) const {
  const StageProblem::Repeats &of = problem.repeats;
  return of.count > 1 && begin >= of.begin && end <= of.end()
             ? (begin - of.begin) / of.period * of.period
             : 0;
}

StageCost StageModel::movedBy(int ops, StageCost cost) const {
  const StageProblem::Repeats &of = problem.repeats;
  for (ArrivingValue &value : cost.arriving)
    if (value.from >= of.begin - of.period && value.from < of.end() + of.period)
      value.from += ops;
  return cost;
}

std::string StageModel::likeOf(int begin, int end, Marks marks) const {
  const int first = begin - behindFirst(begin, end), count = end - begin;
  std::string like = fmt::format("{} {} ", first, count);
  const size_t bits = like.size(); // eight ops a character
  like.resize(bits + size_t(count + 7) / 8, 0);
  for (int i = 0; i < count; ++i)
    if (marked(begin + i, marks))
      like[bits + size_t(i) / 8] |= char(1 << i % 8);
  return like;
}

const StageCost &StageModel::timesOf(int begin, int end) const {
  if (const int behind = behindFirst(begin, end); behind > 0)
    return timesOf(begin - behind, end - behind);
  auto [it, isNew] = knownTimes.try_emplace({begin, end});
  if (isNew) {
    StageCost &out = it->second;
    out.times = {0, 0, 0, 0, 0, 0};
    setTimes(begin, end, out);
    if (begin == 0)
      out.hiddenByWeights =
          std::max(0.0, out.times.B + out.times.W - secondsOfLast(begin, end));
  }
  return it->second;
}

const StageCost &StageModel::parametersOn(int begin, int end) const {
  if (const int behind = behindFirst(begin, end); behind > 0)
    return parametersOn(begin - behind, end - behind);
  auto [it, isNew] = knownParameters.try_emplace({begin, end});
  if (!isNew)
    return it->second;
  StageCost &out = it->second;
  out = timesOf(begin, end);
  out.prologue = prologue[end] - prologue[begin];
  out.times.U = update[end] - update[begin];
  out.clear = clear[end] - clear[begin];
  out.gathered = gatheredOnce(begin, end);
  for (int i = begin; i < end; ++i)
    for (auto [p, previous] : pricing().parametersOf[i])
      if (previous < begin) {
        const StageParameter &parameter = problem.parameters[p];
        out.parameterBytes += parameter.bytes + parameter.copiesOn(begin, end);
        out.times.U += parameter.ownSeconds;
        out.gradientBytes +=
            parameter.gradientsOn(begin, end) + parameter.partBytes;
        out.stateBytes += parameter.stateBytes;
        out.parameters += parameter.gradientBytes > 0;
        out.reduces |= parameter.gradientBytes > 0 && parameter.tensorPartial;
        out.times.U += parameter.normSeconds;
        out.optimizer += parameter.updateSeconds;
        if (parameter.users.front() < begin || parameter.users.back() >= end) {
          out.sharedBytes += parameter.gradientBytes;
          out.times.U += parameter.exchangeSeconds;
        }
      }
  if (out.parameters > 0)
    out.times.U += zeroRuns(begin, end) * problem.smallKernel;
  return out;
}

StageCost StageModel::compute(int begin, int end, Marks marks,
                              bool filled) const {
  StageCost out = parametersOn(begin, end);
  Need need = needOf(begin, end, marks, &out);
  const Kept sums = sumOf(need);
  out.keptBytes = sums.keptBytes;
  out.recomputedBytes = sums.recomputedBytes;
  out.workspace = sums.workspace;
  out.times.R = sums.seconds;
  if (filled && hasWaits())
    fillWaits(begin, end, need, out);
  return out;
}

size_t StageModel::Hash::operator()(const Key &key) const {
  size_t hash = 0;
  for (int part : {key.begin, key.end, key.level, key.until})
    hash = (hash ^ size_t(part)) * 0x9E3779B97F4A7C15ull;
  return hash ^ hash >> 32;
}

const StageCost &StageModel::priced(int begin, int end, Marks marks,
                                    bool filled) const {
  const Key key{begin, end, marks.level, std::clamp(marks.until, begin, end)};
  const auto [it, isNew] = known.try_emplace(key);
  Priced &own = it->second; // stays where it is
  if (!isNew && (own.filled || !filled))
    return own.cost;
  const StageProblem::Repeats &of = problem.repeats;
  if (of.count > 1 && begin >= of.begin && end <= of.end()) {
    const Key like =
        alike.try_emplace(likeOf(begin, end, marks), key).first->second;
    if (!(like == key)) {
      own.cost = movedBy(
          begin - like.begin,
          priced(like.begin, like.end, Marks{like.level, like.until}, filled));
      own.filled = known.at(like).filled;
      return own.cost;
    }
  }
  if (isNew)
    own.cost = compute(begin, end, marks, filled);
  else
    fillWaits(begin, end, needOf(begin, end, marks, nullptr), own.cost);
  own.filled = filled || !hasWaits();
  return own.cost;
}

std::vector<std::pair<std::string, double>>
StageModel::topTensors(int begin, int end, Marks marks, int inFlight,
                       size_t n) const {
  std::vector<std::pair<std::string, double>> all;
  for (int i = begin; i < end; ++i)
    for (auto [p, previous] : pricing().parametersOf[i])
      if (previous < begin) {
        const StageParameter &parameter = problem.parameters[p];
        all.push_back(
            {"parameter '" + parameter.name.str() + "' with its state",
             parameter.bytes + parameter.copiesOn(begin, end) +
                 parameter.gradientsOn(begin, end) + parameter.stateBytes});
      }
  Need need = needOf(begin, end, marks, nullptr);
  for (int t : need.kept)
    all.push_back({"activation '" + problem.tensors[t].name.str() + "' x " +
                       std::to_string(inFlight),
                   problem.tensors[t].bytes * inFlight});
  for (int t : need.again)
    all.push_back({"recomputed '" + problem.tensors[t].name.str() + "'",
                   problem.tensors[t].bytes});
  std::stable_sort(all.begin(), all.end(), [](const auto &a, const auto &b) {
    return a.second > b.second;
  });
  all.resize(std::min(all.size(), n));
  return all;
}

} // namespace merak::planning
