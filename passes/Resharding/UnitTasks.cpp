#include "passes/Resharding/UnitTasks.h"

#include "runtime/layout/Strides.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <set>

namespace merak::resharding {

using layout::AxisMap;
using layout::Interval;

AxisMap Placement::mesh() const {
  AxisMap map;
  for (const MeshAxis &axis : axes)
    map[axis.name] = axis.size;
  return map;
}

AxisMap Placement::coords(size_t index) const {
  AxisMap map;
  int64_t rest = int64_t(index);
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    map[axis->name] = rest % axis->size;
    rest /= axis->size;
  }
  return map;
}

std::vector<int64_t> Placement::localShape(size_t index) const {
  return layout.localShape(mesh(), coords(index));
}

std::string deviceStr(const std::vector<int64_t> &devices) {
  std::string text;
  for (size_t i = 0; i < devices.size();) {
    size_t j = i + 1;
    while (j < devices.size() && devices[j] == devices[j - 1] + 1)
      ++j;
    text += fmt::format("{}{}", i ? "," : "", devices[i]);
    if (j > i + 1)
      text += fmt::format("-{}", devices[j - 1]);
    i = j;
  }
  return text;
}

std::string Placement::str() const {
  std::vector<std::string> sizes;
  for (const MeshAxis &axis : axes)
    sizes.push_back(fmt::format("{}={}", axis.name, axis.size));
  const char *on = axes.empty() ? "" : " of ";
  return fmt::format("{} on {}{}{}", layout.str(), fmt::join(sizes, ","), on,
                     deviceStr(devices));
}

namespace {

Status checkMesh(const Placement &placement) {
  Status status;
  int64_t count = 1;
  std::set<std::string> names;
  for (const MeshAxis &axis : placement.axes) {
    if (axis.size < 1)
      status.merge(Status::error(
          fmt::format("mesh axis {} has at least 1 device, found {}", axis.name,
                      axis.size)));
    if (!names.insert(axis.name).second)
      status.merge(
          Status::error(fmt::format("mesh axis {} stands twice", axis.name)));
    count *= std::max<int64_t>(axis.size, 1);
  }
  if (count != int64_t(placement.devices.size()))
    status.merge(Status::error(fmt::format("the mesh has {} devices, found {}",
                                           count, placement.devices.size())));
  std::set<int64_t> seen;
  for (int64_t device : placement.devices)
    if (!seen.insert(device).second)
      status.merge(
          Status::error(fmt::format("device {} stands twice", device)));
  return status;
}

// Elements of the tensor, and intervals of a dimension on a device, above which
// nothing is a tensor any more; both are counted here without overflow.
constexpr double kMostElements = 1e15, kMostRuns = 1e5;

Status checkSizes(const layout::Layout &layout) {
  double elements = 1, most = 1;
  for (const layout::DimLayout &dim : layout.dims) {
    double runs = 1;
    bool cut = false; // a factor behind this one
    for (auto factor = dim.factors.rbegin(); factor != dim.factors.rend();
         ++factor) {
      elements *= double(factor->size);
      runs *= cut ? double(factor->size) : 1;
      cut |= !factor->axes.empty();
    }
    most = std::max(most, runs);
  }
  if (elements <= kMostElements && most <= kMostRuns)
    return {};
  return Status::error(fmt::format(
      "layout {}: expected at most {:.0e} elements, and {:.0e} runs of a "
      "dimension on a device, found {:.0e} and {:.0e}",
      layout.str(), kMostElements, kMostRuns, elements, most));
}

Status checkLayout(const Placement &placement) {
  Status status = checkSizes(placement.layout);
  const AxisMap mesh = placement.mesh();
  std::set<std::string> used;
  for (const layout::DimLayout &dim : placement.layout.dims)
    for (const layout::Factor &factor : dim.factors)
      for (const std::string &axis : factor.axes) {
        if (!mesh.count(axis))
          status.merge(Status::error(
              fmt::format("layout {} names axis {}, which the mesh lacks",
                          placement.layout.str(), axis)));
        if (!used.insert(axis).second)
          status.merge(Status::error(fmt::format(
              "layout {} uses axis {} twice", placement.layout.str(), axis)));
      }
  if (!placement.layout.partial.empty())
    status.merge(Status::error(
        fmt::format("layout {} is partial: a sum is reduced before it is sent",
                    placement.layout.str())));
  return status;
}

} // namespace

Status check(const Placement &placement) {
  Status status = checkMesh(placement);
  status.merge(checkLayout(placement));
  return status;
}

std::vector<Tile> tiles(const Placement &placement) {
  const AxisMap mesh = placement.mesh();
  std::map<std::vector<std::vector<Interval>>, std::vector<int64_t>> holders;
  for (size_t i = 0; i < placement.devices.size(); ++i) {
    const AxisMap coords = placement.coords(i);
    std::vector<std::vector<Interval>> runs;
    bool empty = false;
    for (const layout::DimLayout &dim : placement.layout.dims) {
      runs.push_back(layout::intervals(dim, mesh, coords));
      empty |= runs.back().empty();
    }
    if (!empty)
      holders[std::move(runs)].push_back(placement.devices[i]);
  }
  std::vector<Tile> result;
  for (auto &[runs, devices] : holders) {
    Tile tile{runs, {}, std::move(devices)};
    for (const std::vector<Interval> &dim : runs)
      tile.shape.push_back(dim.back().local + dim.back().length);
    result.push_back(std::move(tile));
  }
  return result;
}

namespace {

// What two lists of ascending intervals share, joined where it is contiguous
// everywhere.
std::vector<SharedRun> shared(const std::vector<Interval> &source,
                              const std::vector<Interval> &target) {
  std::vector<SharedRun> result;
  int64_t message = 0;
  for (size_t i = 0, j = 0; i < source.size() && j < target.size();) {
    const Interval &a = source[i], &b = target[j];
    const int64_t endA = a.global + a.length, endB = b.global + b.length;
    const int64_t begin = std::max(a.global, b.global);
    const int64_t length = std::min(endA, endB) - begin;
    if (length > 0) {
      SharedRun run{begin, a.local + begin - a.global,
                    b.local + begin - b.global, message, length};
      message += length;
      SharedRun *last = result.empty() ? nullptr : &result.back();
      if (last && last->global + last->length == run.global &&
          last->source + last->length == run.source &&
          last->target + last->length == run.target)
        last->length += length;
      else
        result.push_back(run);
    }
    ++(endA < endB ? i : j);
  }
  return result;
}

// The task of two tiles; its shape has a zero if they share nothing.
UnitTask taskOf(const Tile &source, const Tile &target) {
  UnitTask task;
  for (size_t d = 0; d < source.runs.size(); ++d) {
    task.runs.push_back(shared(source.runs[d], target.runs[d]));
    int64_t size = 0;
    for (const SharedRun &run : task.runs.back())
      size += run.length;
    task.shape.push_back(size);
  }
  task.sourceShape = source.shape;
  task.targetShape = target.shape;
  task.senders = source.holders;
  for (int64_t device : target.holders) {
    bool keeps = std::find(source.holders.begin(), source.holders.end(),
                           device) != source.holders.end();
    (keeps ? task.keepers : task.receivers).push_back(device);
  }
  return task;
}

// Whether a box of `extent` in a dense tensor is one run of memory, and starts
// at the same distance from the message in all runs of each dimension.
bool contiguous(const UnitTask &task, const std::vector<int64_t> &local,
                int64_t SharedRun::*origin) {
  bool full = false; // an outer dimension has several indices
  for (size_t d = 0; d < task.shape.size(); ++d) {
    const std::vector<SharedRun> &runs = task.runs[d];
    for (const SharedRun &run : runs)
      if (run.*origin - run.message != runs[0].*origin - runs[0].message)
        return false;
    if (full && task.shape[d] != local[d])
      return false;
    full |= task.shape[d] > 1;
  }
  return true;
}

int64_t offset(const UnitTask &task, const std::vector<int64_t> &local,
               int64_t SharedRun::*origin) {
  const std::vector<int64_t> strides = layout::denseStrides(local);
  int64_t result = 0;
  for (size_t d = 0; d < task.runs.size(); ++d)
    result += task.runs[d][0].*origin * strides[d];
  return result;
}

} // namespace

int64_t UnitTask::elements() const {
  int64_t count = 1;
  for (int64_t size : shape)
    count *= size;
  return count;
}

std::vector<SharedBox> UnitTask::boxes() const {
  std::vector<SharedBox> result{SharedBox{}};
  for (const std::vector<SharedRun> &dim : runs) {
    std::vector<SharedBox> next;
    for (const SharedBox &box : result)
      for (const SharedRun &run : dim) {
        next.push_back(box);
        next.back().global.push_back(run.global);
        next.back().source.push_back(run.source);
        next.back().target.push_back(run.target);
        next.back().message.push_back(run.message);
        next.back().extent.push_back(run.length);
      }
    result = std::move(next);
  }
  return result;
}

bool UnitTask::contiguousInSource() const {
  return contiguous(*this, sourceShape, &SharedRun::source);
}
bool UnitTask::contiguousInTarget() const {
  return contiguous(*this, targetShape, &SharedRun::target);
}
int64_t UnitTask::sourceOffset() const {
  return offset(*this, sourceShape, &SharedRun::source);
}
int64_t UnitTask::targetOffset() const {
  return offset(*this, targetShape, &SharedRun::target);
}

Result<std::vector<UnitTask>> unitTasks(const Placement &source,
                                        const Placement &target) {
  Status status = check(source).withContext("source");
  status.merge(check(target).withContext("target"));
  if (!checkSizes(source.layout).ok() || !checkSizes(target.layout).ok())
    return status;
  if (source.layout.globalShape() != target.layout.globalShape())
    status.merge(Status::error(fmt::format(
        "source and target are one tensor: the shape is {}, found {}",
        source.layout.globalShape(), target.layout.globalShape())));
  if (!status.ok())
    return status;
  std::vector<UnitTask> tasks;
  const std::vector<Tile> from = tiles(source), to = tiles(target);
  for (size_t t = 0; t < to.size(); ++t)
    for (size_t s = 0; s < from.size(); ++s) {
      UnitTask task = taskOf(from[s], to[t]);
      if (task.elements() == 0)
        continue;
      task.sourceTile = int(s);
      task.targetTile = int(t);
      tasks.push_back(std::move(task));
    }
  return tasks;
}

} // namespace merak::resharding
