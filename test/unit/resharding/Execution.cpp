#include "Execution.h"

#include "runtime/layout/LayoutText.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <numeric>

namespace merak::resharding {
namespace {

int64_t product(const std::vector<int64_t> &shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1},
                         std::multiplies<>());
}

std::vector<int64_t> indexOf(int64_t flat, const std::vector<int64_t> &shape) {
  std::vector<int64_t> index(shape.size());
  for (size_t d = shape.size(); d-- > 0; flat /= shape[d])
    index[d] = flat % shape[d];
  return index;
}

// Whether the device at `coords` holds an index of a dimension: each digit of
// the mixed radix number lies in the device's part of its factor.
bool holds(const layout::DimLayout &dim, const layout::AxisMap &mesh,
           const layout::AxisMap &coords, int64_t index) {
  for (auto factor = dim.factors.rbegin(); factor != dim.factors.rend();
       ++factor) {
    int64_t digit = index % factor->size, parts = 1, part = 0;
    index /= factor->size;
    for (const std::string &axis : factor->axes) {
      parts *= mesh.at(axis);
      part = part * mesh.at(axis) + coords.at(axis);
    }
    if (digit < factor->size * part / parts ||
        digit >= factor->size * (part + 1) / parts)
      return false;
  }
  return true;
}

} // namespace

Placement placed(const layout::Layout &layout,
                 const std::vector<MeshAxis> &axes, int64_t first) {
  Placement placement{layout, axes, {}};
  int64_t count = 1;
  for (const MeshAxis &axis : axes)
    count *= axis.size;
  for (int64_t i = 0; i < count; ++i)
    placement.devices.push_back(first + i);
  return placement;
}

Placement placed(const std::string &layout, const std::vector<MeshAxis> &axes,
                 int64_t first) {
  Result<layout::Layout> parsed = layout::parseLayout(layout);
  EXPECT_TRUE(parsed.ok()) << parsed.status().str();
  return placed(*parsed, axes, first);
}

std::vector<std::vector<MeshAxis>> smallMeshes() {
  return {{{"x", 1}}, {{"x", 2}}, {{"x", 3}}, {{"x", 4}}, {{"x", 2}, {"y", 2}}};
}

Locals reference(const Placement &placement) {
  const std::vector<int64_t> shape = placement.layout.globalShape();
  Locals result;
  for (size_t i = 0; i < placement.devices.size(); ++i) {
    std::vector<int64_t> &local = result[placement.devices[i]];
    for (int64_t element = 0; element < product(shape); ++element) {
      const std::vector<int64_t> index = indexOf(element, shape);
      bool here = true;
      for (size_t d = 0; d < shape.size(); ++d)
        here &= holds(placement.layout.dims[d], placement.mesh(),
                      placement.coords(i), index[d]);
      if (here)
        local.push_back(element);
    }
  }
  return result;
}

namespace {

class Execution {
public:
  Execution(const Leg &leg, const Locals &source, std::string &problem)
      : leg(leg), source(source), problem(problem) {
    for (size_t i = 0; i < leg.target.devices.size(); ++i)
      target[leg.target.devices[i]].assign(product(leg.target.localShape(i)),
                                           -1);
  }

  Locals run() {
    for (const Transfer &transfer : leg.transfers) {
      switch (transfer.kind) {
      case TransferKind::Copy:
        messages[{transfer.task, transfer.participants[0]}] =
            packed(transfer, transfer.participants[0]);
        break;
      case TransferKind::Gather:
        gather(transfer);
        break;
      default:
        send(transfer);
      }
    }
    for (const auto &[place, message] : messages)
      unpack(leg.tasks[place.first], message, place.second);
    return std::move(target);
  }

private:
  void fail(const std::string &text) {
    if (problem.empty())
      problem = text;
  }
  int64_t sizeOf(int task) const { return product(leg.tasks[task].shape); }

  // The whole message, from the local tensor of the device.
  std::vector<int64_t> packed(const Transfer &transfer, int64_t device) {
    const UnitTask &task = leg.tasks[transfer.task];
    std::vector<int64_t> message(sizeOf(transfer.task), -1);
    auto local = source.find(device);
    if (local == source.end()) {
      fail(fmt::format("device {} holds nothing", device));
      return message;
    }
    if (task.contiguousInSource()) {
      for (int64_t i = 0; i < int64_t(message.size()); ++i)
        message[i] = local->second.at(task.sourceOffset() + i);
      return message;
    }
    for (const SharedBox &box : task.boxes())
      layout::copyBox(local->second.data(), task.sourceShape, box.source,
                      message.data(), task.shape, box.message, box.extent,
                      sizeof(int64_t));
    return message;
  }

  std::vector<int64_t> &messageAt(int task, int64_t device) {
    std::vector<int64_t> &message = messages[{task, device}];
    if (message.empty())
      message.assign(sizeOf(task), -1);
    return message;
  }

  void write(std::vector<int64_t> &message, int64_t at, int64_t value) {
    if (value < 0)
      fail("an element was sent before it was there");
    if (message.at(at) >= 0)
      fail("an element was received twice");
    message.at(at) = value;
  }

  void send(const Transfer &transfer) {
    const std::vector<int64_t> values =
        packed(transfer, transfer.participants[0]);
    for (size_t i = 1; i < transfer.participants.size(); ++i) {
      std::vector<int64_t> &message =
          messageAt(transfer.task, transfer.participants[i]);
      for (int64_t e = transfer.begin; e < transfer.end; ++e)
        write(message, e, values.at(e));
    }
  }

  void gather(const Transfer &transfer) {
    const int64_t n = int64_t(transfer.participants.size());
    const std::vector<int64_t> &shape = leg.tasks[transfer.task].shape;
    for (int64_t i = 0; i < n; ++i) {
      const std::vector<int64_t> part =
          messageAt(transfer.task, transfer.participants[i]);
      for (int64_t j = 0; j < n; ++j)
        for (int64_t e = partBegin(shape, i, n);
             j != i && e < partBegin(shape, i + 1, n); ++e)
          write(messageAt(transfer.task, transfer.participants[j]), e, part[e]);
    }
  }

  void unpack(const UnitTask &task, const std::vector<int64_t> &message,
              int64_t device) {
    std::vector<int64_t> &local = target.at(device);
    std::vector<int64_t> mine(local.size(), -1);
    if (task.contiguousInTarget())
      std::copy(message.begin(), message.end(),
                mine.begin() + task.targetOffset());
    else
      for (const SharedBox &box : task.boxes())
        layout::copyBox(message.data(), task.shape, box.message, mine.data(),
                        task.targetShape, box.target, box.extent,
                        sizeof(int64_t));
    for (size_t i = 0; i < local.size(); ++i)
      if (mine[i] >= 0)
        write(local, int64_t(i), mine[i]);
  }

  const Leg &leg;
  const Locals &source;
  std::string &problem;
  std::map<std::pair<int, int64_t>, std::vector<int64_t>> messages;
  Locals target;
};

} // namespace

Locals execute(const Leg &leg, const Locals &source, std::string &problem) {
  return Execution(leg, source, problem).run();
}

Locals execute(const Resharding &resharding, const Locals &source,
               std::string &problem) {
  Locals now = source;
  for (const Leg &leg : resharding.legs)
    now = execute(leg, now, problem);
  return now;
}

int stuck(const std::map<int64_t, std::vector<OrderedTransfer>> &lists,
          const std::vector<const Resharding *> &reshardings) {
  std::map<int64_t, size_t> next;
  auto isNext = [&](int64_t device, const OrderedTransfer &place) {
    const std::vector<OrderedTransfer> &list = lists.at(device);
    return next[device] < list.size() && list[next[device]] == place;
  };
  auto runOne = [&](int64_t device) {
    const std::vector<OrderedTransfer> &list = lists.at(device);
    if (next[device] == list.size())
      return false;
    const OrderedTransfer place = list[next[device]];
    const std::vector<int64_t> &all = reshardings[place.resharding]
                                          ->legs[place.leg]
                                          .transfers[place.transfer]
                                          .participants;
    for (int64_t other : all)
      if (!isNext(other, place))
        return false;
    for (int64_t other : all)
      ++next[other];
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (const auto &[device, list] : lists)
      moved |= runOne(device);
  }
  int left = 0;
  for (const auto &[device, list] : lists)
    left += int(list.size() - next[device]);
  return left;
}

} // namespace merak::resharding
