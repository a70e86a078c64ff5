#include "passes/Resharding/Messages.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <set>

namespace merak::resharding {

namespace {

using layout::Interval;
using Index = std::vector<int64_t>;

struct Box {
  Index origin, extent;
};

// Elements [begin, end) of a row-major tensor: the rest of a row, whole rows,
// the start of a row.
void addRange(const Index &shape, size_t dim, Index prefix, int64_t begin,
              int64_t end, std::vector<Box> &out) {
  if (begin >= end)
    return;
  auto add = [&](int64_t first, int64_t last) {
    Box box{prefix, Index(dim, 1)};
    box.origin.push_back(first);
    box.extent.push_back(last - first);
    for (size_t d = dim + 1; d < shape.size(); ++d) {
      box.origin.push_back(0);
      box.extent.push_back(shape[d]);
    }
    out.push_back(std::move(box));
  };
  int64_t row = 1;
  for (size_t d = dim + 1; d < shape.size(); ++d)
    row *= shape[d];
  const int64_t first = (begin + row - 1) / row, last = end / row;
  auto part = [&](int64_t index, int64_t from, int64_t to) {
    Index inner = prefix;
    inner.push_back(index);
    addRange(shape, dim + 1, std::move(inner), from, to, out);
  };
  if (begin % row)
    part(begin / row, begin % row, std::min(row, end - begin / row * row));
  if (first < last)
    add(first, last);
  if (end % row && last >= first)
    part(last, 0, end % row);
}

std::vector<Box> rangeOf(const Index &shape, int64_t begin, int64_t end) {
  std::vector<Box> boxes;
  if (shape.empty() && begin < end)
    boxes.push_back({});
  if (!shape.empty())
    addRange(shape, 0, {}, begin, end, boxes);
  return boxes;
}

// Where the devices of a placement have elements of the global tensor.
class Locals {
public:
  explicit Locals(const Placement &placement) {
    for (const Tile &tile : tiles(placement))
      for (int64_t device : tile.holders)
        runs[device] = tile.runs;
  }
  bool has(int64_t device) const { return runs.count(device); }

  // The origin of a box there; nothing if the device has not all of it.
  std::optional<Index> find(int64_t device, const Index &global,
                            const Index &extent) const {
    auto own = runs.find(device);
    if (own == runs.end())
      return std::nullopt;
    Index origin;
    for (size_t d = 0; d < global.size(); ++d) {
      const std::vector<Interval> &dim = own->second[d];
      auto run = std::upper_bound(
          dim.begin(), dim.end(), global[d],
          [](int64_t at, const Interval &one) { return at < one.global; });
      if (run == dim.begin())
        return std::nullopt;
      --run;
      const int64_t behind = global[d] - run->global;
      if (behind + extent[d] > run->length)
        return std::nullopt;
      origin.push_back(run->local + behind);
    }
    return origin;
  }

private:
  std::map<int64_t, std::vector<std::vector<Interval>>> runs; // by device
};

class MessageList {
public:
  explicit MessageList(const Resharding &resharding)
      : legs(resharding.legs), source(legs.front().source),
        target(legs.back().target) {}

  Result<std::vector<BoxMessage>> run() {
    for (int64_t device : legs.front().source.devices)
      if (target.has(device))
        return Status::error(
            fmt::format("device {} is in both placements", device));
    for (leg = 0; leg < int(legs.size()); ++leg)
      for (transfer = 0; transfer < int(legs[leg].transfers.size()); ++transfer)
        add(legs[leg].transfers[transfer]);
    if (!problem.empty())
      return Status::error(problem);
    return std::move(messages);
  }

private:
  const UnitTask &task() const {
    return legs[leg].tasks[legs[leg].transfers[transfer].task];
  }

  void add(const Transfer &what) {
    const std::vector<int64_t> &all = what.participants;
    const int64_t n = int64_t(all.size());
    switch (what.kind) {
    case TransferKind::Copy: // where it belongs already
      break;
    case TransferKind::Message:
      send(all[0], all[1], what.begin, what.end);
      break;
    case TransferKind::Broadcast:
      for (int chunk = 0; chunk < what.chunks; ++chunk)
        for (int64_t hop = 1; hop < n; ++hop)
          sendPart(all[hop - 1], all[hop], chunk, what.chunks);
      break;
    case TransferKind::Gather:
      // In round r each member passes on what it got in the one before.
      for (int64_t round = 0; round + 1 < n; ++round)
        for (int64_t i = 0; i < n; ++i)
          sendPart(all[i], all[(i + 1) % n], (i + n - round) % n, n);
      break;
    }
  }

  void sendPart(int64_t from, int64_t to, int64_t part, int64_t of) {
    send(from, to, partBegin(task().shape, part, of),
         partBegin(task().shape, part + 1, of));
  }

  void send(int64_t from, int64_t to, int64_t begin, int64_t end) {
    for (const Box &part : rangeOf(task().shape, begin, end))
      for (const SharedBox &box : task().boxes())
        sendShared(from, to, part, box);
  }

  // What a part of the message and a box of its have in common.
  void sendShared(int64_t from, int64_t to, const Box &part,
                  const SharedBox &box) {
    Index global, extent;
    for (size_t d = 0; d < box.extent.size(); ++d) {
      const int64_t begin = std::max(part.origin[d], box.message[d]);
      const int64_t end = std::min(part.origin[d] + part.extent[d],
                                   box.message[d] + box.extent[d]);
      if (begin >= end)
        return;
      global.push_back(box.global[d] + begin - box.message[d]);
      extent.push_back(end - begin);
    }
    const bool forwarded = target.has(from);
    std::optional<Index> at =
        (forwarded ? target : source).find(from, global, extent);
    std::optional<Index> into = target.find(to, global, extent);
    if (at && into)
      messages.push_back({from, to, forwarded, std::move(*at), std::move(*into),
                          std::move(extent), leg, transfer});
    else if (problem.empty())
      problem = fmt::format("{} to {}: device {} has no place for what it gets "
                            "on the way",
                            legs.front().source.str(), legs.back().target.str(),
                            at ? to : from);
  }

  const std::vector<Leg> &legs;
  const Locals source, target;
  int leg = 0, transfer = 0;
  std::vector<BoxMessage> messages;
  std::string problem;
};

} // namespace

Result<std::vector<BoxMessage>> messagesOf(const Resharding &resharding) {
  if (resharding.legs.empty())
    return std::vector<BoxMessage>();
  return MessageList(resharding).run();
}

Result<ReshardOptions> optionsOfPlan(const std::string &strategy) {
  ReshardOptions options;
  options.inPlace = true;
  if (strategy.empty())
    return options;
  Strategy known;
  if (!parseStrategy(strategy, known))
    return Status::error(fmt::format("no strategy is called '{}'", strategy));
  options.strategy = known;
  options.apart = known == Strategy::SendRecv;
  return options;
}

} // namespace merak::resharding
