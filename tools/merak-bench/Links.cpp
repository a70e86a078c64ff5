#include "tools/merak-bench/Links.h"

#include "runtime/comm/rendezvous/Store.h"
#include "runtime/comm/rendezvous/TcpStore.h"
#include "tools/merak-bench/Measure.h"
#include "tools/merak-bench/Operands.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>

using namespace merak::runtime;

namespace merak::bench {
namespace {

// One rank's part in what all ranks measure together, one thing after the
// other.
class Meter {
public:
  Meter(World &world, Backend &backend, Communicator &comm, bool quick)
      : backend_(backend), comm_(comm), store_(*world.store()), quick_(quick),
        arena_(backend, comm.memory()), stream_(backend) {}

  int rank() const { return comm_.rank(); }
  int size() const { return comm_.size(); }
  std::vector<int64_t> sizes() const {
    std::vector<int64_t> list;
    for (int64_t bytes = 256; bytes <= largest(); bytes *= 8)
      list.push_back(bytes);
    return list;
  }
  int64_t largest() const { return quick_ ? 8 << 20 : 64 << 20; }

  // Seconds that batches took so far, the same on all ranks, and how many of
  // one link are enough.
  double spent() const { return spent_; }
  double patience() const { return quick_ ? 2 : 20; }

  Status open() {
    MERAK_RETURN_IF_ERROR(arena_.reserve(uint64_t(2 * largest())));
    in_ = arena_.take(uint64_t(largest()));
    out_ = arena_.take(uint64_t(largest()));
    return stream_.create();
  }

  // Seconds of one transfer, of ranks that send to and fro at once: (a, b), ...
  Result<double> transfer(const std::vector<std::pair<int, int>> &pairs,
                          int64_t bytes) {
    std::vector<Step> steps;
    for (auto [a, b] : pairs) {
      if (rank() != a && rank() != b)
        continue;
      const int other = rank() == a ? b : a;
      Step there = step(bytes), back = step(bytes);
      there.spec.channel = fmt::format("bench {} {}", a, b);
      back.spec.channel = fmt::format("bench {} {}", b, a);
      there.spec.peer = back.spec.peer = other;
      there.spec.kind = rank() == a ? CommSpec::Send : CommSpec::Recv;
      back.spec.kind = rank() == a ? CommSpec::Recv : CommSpec::Send;
      for (Step *one : {&there, &back})
        (one->spec.kind == CommSpec::Send ? one->outputs : one->inputs).clear();
      steps.push_back(std::move(there));
      steps.push_back(std::move(back));
    }
    auto seconds = measure(steps);
    return seconds.ok() ? Result<double>(*seconds / 2) : seconds;
  }

  // Of all ranks.
  Result<double> collective(CommSpec::Kind kind, int64_t bytes) {
    const int64_t count = std::max<int64_t>(bytes / 4 / size(), 1) * size();
    const bool gathers = kind == CommSpec::AllGather;
    const bool scatters = kind == CommSpec::ReduceScatter;
    Step one = step(count * 4);
    one.spec.kind = kind;
    one.spec.channel = "bench";
    for (int member = 0; member < size(); ++member)
      one.spec.members.push_back(member);
    if (gathers)
      one.inputs.front().shape = {count / size()};
    if (scatters)
      one.outputs.front().shape = {count / size()};
    std::vector<Step> steps;
    steps.push_back(std::move(one));
    return measure(steps);
  }

private:
  struct Step {
    CommSpec spec;
    std::vector<View> inputs, outputs;
    std::unique_ptr<Endpoint> endpoint;
  };
  Step step(int64_t bytes) const {
    Step result;
    result.spec.name = "calibration";
    result.inputs = {{in_, planpb::F32, {bytes / 4}, {1}}};
    result.outputs = {{out_, planpb::F32, {bytes / 4}, {1}}};
    return result;
  }

  // Seconds of all steps once, the longest of the ranks; every rank gets it.
  Result<double> measure(std::vector<Step> &steps) {
    for (Step &one : steps) {
      auto made = comm_.prepare(one.spec, one.inputs, one.outputs);
      if (!made)
        return made.status();
      one.endpoint = std::move(*made);
      backend_.askWorkspace(stream_.get(), one.endpoint->workspace);
    }
    MERAK_RETURN_IF_ERROR(backend_.takeWorkspaces(comm_.memory()));
    // Twice to warm up: the first opens connections.
    Result<double> once = batch(steps, 1);
    if (once.ok())
      once = batch(steps, 1);
    if (!once)
      return once;
    const int64_t times = std::clamp<int64_t>(
        int64_t(kBatchSeconds / std::max(*once, 1e-9)), 1, 1000);
    // What disturbs makes a batch longer, and it disturbs most of them where
    // ranks wait for cores: a quartile would measure the waiting.
    const int batches = quick_ ? kLeastBatches : 4 * kLeastBatches;
    double least = std::numeric_limits<double>::infinity(), spent = 0;
    for (int i = 0; i < batches && (i < 2 || spent < patience() / 8); ++i) {
      Result<double> seconds = batch(steps, times);
      if (!seconds)
        return seconds;
      least = std::min(least, *seconds);
      spent += *seconds * double(times);
    }
    spent_ += spent;
    return least;
  }

  Result<double> batch(std::vector<Step> &steps, int64_t times) {
    MERAK_RETURN_IF_ERROR(store_.barrier("bench", kPatienceSeconds));
    const double begin = steadySeconds();
    for (int64_t i = 0; i < times; ++i)
      for (Step &one : steps)
        MERAK_RETURN_IF_ERROR(comm_.run(
            {one.endpoint.get(), one.inputs, one.outputs, stream_.get()}));
    MERAK_RETURN_IF_ERROR(backend_.synchronize(stream_.get()));
    const double mine = steps.empty() ? 0 : steadySeconds() - begin;
    auto all = store_.gather("bench seconds", fmt::format("{}", mine),
                             kPatienceSeconds);
    if (!all)
      return all.status();
    double longest = 0;
    for (const std::string &seconds : *all)
      longest = std::max(longest, std::stod(seconds));
    return longest / double(times);
  }

  Backend &backend_;
  Communicator &comm_;
  Store &store_;
  bool quick_;
  double spent_ = 0;
  Arena arena_;
  OwnStream stream_;
  char *in_ = nullptr, *out_ = nullptr; // of the largest message
};

// The link between `pairs.front()`; used by all of them it may be shared.
//
// Ranks that wait for a core make a transfer longer, and small ones the most:
// sizes are measured again and again, and the least counts, until it stays or
// patience ends.
Result<costmodel::Link> linkOf(Meter &meter,
                               const std::vector<std::pair<int, int>> &pairs) {
  constexpr int kCalmRounds = 2;
  constexpr double kFaster = 0.9; // times the seconds before
  std::vector<costmodel::Sample> samples;
  for (int64_t bytes : meter.sizes())
    samples.push_back({"transfer", {"transfer", 0, double(bytes)}, 0, 0});
  Result<costmodel::Link> link = Status::error("no transfer was measured");
  int calm = 0; // rounds since a size was last faster, and there is a link
  const double until = meter.spent() + meter.patience();
  for (bool first = true; calm < kCalmRounds && meter.spent() < until;
       first = false) {
    bool faster = first;
    for (costmodel::Sample &sample : samples) {
      Result<double> seconds =
          meter.transfer({pairs.front()}, int64_t(sample.work.bytes));
      if (!seconds)
        return seconds.status();
      if (!first && *seconds >= sample.seconds)
        continue;
      faster |= *seconds < kFaster * sample.seconds;
      sample.seconds = *seconds;
    }
    link = costmodel::fitLink(samples);
    calm = faster || !link ? 0 : calm + 1;
  }
  if (!link || pairs.size() < 2)
    return link;
  Result<double> alone = meter.transfer({pairs.front()}, meter.largest());
  if (!alone)
    return alone.status();
  Result<double> together = meter.transfer(pairs, meter.largest());
  if (!together)
    return together.status();
  // In proportion would be so many times as long.
  link->shared = *together > *alone * (1 + double(pairs.size())) / 2;
  return link;
}

} // namespace

std::vector<int> Places::on(int node) const {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < nodeOf.size(); ++rank)
    if (nodeOf[rank] == node)
      ranks.push_back(int(rank));
  return ranks;
}

Result<Places> findPlaces(Store &store) {
  auto names = store.gather("bench hosts", hostName(), kPatienceSeconds);
  if (!names)
    return names.status();
  Places places;
  for (const std::string &name : *names) {
    auto known = std::find(places.hosts.begin(), places.hosts.end(), name);
    if (known == places.hosts.end()) {
      places.hosts.push_back(name);
    } else if (&*known != &places.hosts.back()) {
      return Status::error(fmt::format(
          "ranks of host {} do not follow each other: start those of one host "
          "one after the other",
          name));
    }
    places.nodeOf.push_back(int(places.hosts.size()) - 1);
  }
  return places;
}

Result<MeasuredLinks> measureLinks(World &world, Backend &backend,
                                   const Places &places, bool quick) {
  const int rank = world.ranks().front();
  auto comm = world.communicator(rank, backend);
  if (!comm)
    return comm.status();
  Meter meter(world, backend, **comm, quick);
  MERAK_RETURN_IF_ERROR(meter.open());
  MeasuredLinks result;
  const std::vector<int> here = places.on(0), there = places.on(1);
  std::vector<std::pair<int, int>> pairs;
  for (size_t i = 0; i + 1 < here.size(); i += 2)
    pairs.emplace_back(here[i], here[i + 1]);
  if (!pairs.empty()) {
    auto link = linkOf(meter, pairs);
    if (!link)
      return link.status();
    result.intra = *link;
  }
  pairs.clear();
  for (size_t i = 0; i < std::min(here.size(), there.size()); ++i)
    pairs.emplace_back(here[i], there[i]);
  if (!pairs.empty()) {
    auto link = linkOf(meter, pairs);
    if (!link)
      return link.status();
    result.inter = *link;
  }
  for (CommSpec::Kind kind :
       {CommSpec::AllReduce, CommSpec::AllGather, CommSpec::ReduceScatter,
        CommSpec::AllToAll, CommSpec::Broadcast})
    for (int64_t bytes : meter.sizes()) {
      auto seconds = meter.collective(kind, bytes);
      if (!seconds)
        return seconds.status();
      const std::string name = commKindName(kind);
      result.collectives.push_back(
          {name, {name, 0, double(bytes)}, *seconds, 0});
    }
  return result;
}

} // namespace merak::bench
