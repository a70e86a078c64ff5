#include "runtime/plan/Regions.h"

#include <algorithm>
#include <vector>

using namespace merak::planpb;

namespace merak {
namespace {

// More runs than this are not enumerated.
constexpr int64_t kMaxRuns = 1 << 16;

struct Run {
  uint64_t begin, end;
};

// The contiguous runs of a region in ascending order; false: too many.
bool runs(const Region &region, uint64_t base, std::vector<Run> &result) {
  if (region.dense) {
    result.push_back({base + region.begin, base + region.end});
    return true;
  }
  const Operand &operand = *region.operand;
  std::vector<std::pair<int64_t, int64_t>> steps; // stride, size
  for (int d = 0; d < operand.shape_size(); ++d)
    if (operand.shape(d) > 1 && operand.strides(d) > 0)
      steps.emplace_back(operand.strides(d), operand.shape(d));
  std::sort(steps.begin(), steps.end());
  // The smallest strides that continue each other form one run.
  int64_t length = 1;
  size_t inner = 0;
  while (inner < steps.size() && steps[inner].first <= length) {
    length += steps[inner].first * (steps[inner].second - 1);
    ++inner;
  }
  int64_t count = 1;
  for (size_t d = inner; d < steps.size(); ++d)
    if ((count *= steps[d].second) > kMaxRuns)
      return false;
  std::vector<int64_t> starts{operand.offset()};
  for (size_t d = inner; d < steps.size(); ++d) {
    std::vector<int64_t> next;
    next.reserve(starts.size() * steps[d].second);
    for (int64_t i = 0; i < steps[d].second; ++i)
      for (int64_t start : starts)
        next.push_back(start + i * steps[d].first);
    starts = std::move(next);
  }
  std::sort(starts.begin(), starts.end());
  for (int64_t start : starts)
    result.push_back({base + start * region.elementSize,
                      base + (start + length) * region.elementSize});
  return true;
}

} // namespace

Region::Region(const Operand &operandIn, int64_t elementSizeIn)
    : operand(&operandIn), elementSize(elementSizeIn) {
  int64_t last = operandIn.offset(), count = 1;
  std::vector<std::pair<int64_t, int64_t>> steps;
  for (int d = 0; d < operandIn.shape_size(); ++d) {
    if (operandIn.shape(d) == 0)
      return;
    last += (operandIn.shape(d) - 1) * operandIn.strides(d);
    if (operandIn.strides(d) > 0)
      count *= operandIn.shape(d);
  }
  begin = operandIn.offset() * elementSize;
  end = (last + 1) * elementSize;
  dense = count == last + 1 - operandIn.offset();
}

bool regionTouches(const Region &a, uint64_t baseA, uint64_t begin,
                   uint64_t end) {
  if (baseA + a.begin >= end || begin >= baseA + a.end)
    return false;
  std::vector<Run> own;
  if (a.dense || !runs(a, baseA, own))
    return true;
  return std::any_of(own.begin(), own.end(), [&](const Run &run) {
    return run.begin < end && begin < run.end;
  });
}

bool regionsOverlap(const Region &a, uint64_t baseA, const Region &b,
                    uint64_t baseB) {
  if (a.begin == a.end || b.begin == b.end)
    return false;
  if (b.dense)
    return regionTouches(a, baseA, baseB + b.begin, baseB + b.end);
  if (a.dense)
    return regionTouches(b, baseB, baseA + a.begin, baseA + a.end);
  if (baseA + a.begin >= baseB + b.end || baseB + b.begin >= baseA + a.end)
    return false;
  std::vector<Run> runsA, runsB;
  if (!runs(a, baseA, runsA) || !runs(b, baseB, runsB))
    return true;
  for (size_t i = 0, j = 0; i < runsA.size() && j < runsB.size();) {
    if (runsA[i].end <= runsB[j].begin)
      ++i;
    else if (runsB[j].end <= runsA[i].begin)
      ++j;
    else
      return true;
  }
  return false;
}

bool sameView(const Region &a, uint64_t baseA, const Region &b,
              uint64_t baseB) {
  if (baseA + a.begin != baseB + b.begin || baseA + a.end != baseB + b.end ||
      a.elementSize != b.elementSize)
    return false;
  const Operand &x = *a.operand, &y = *b.operand;
  if (a.dense && b.dense) {
    // Row major both: the order of elements is that of addresses.
    auto rowMajor = [](const Operand &operand) {
      int64_t step = 1;
      for (int d = operand.shape_size() - 1; d >= 0; --d) {
        if (operand.shape(d) > 1 && operand.strides(d) != step)
          return false;
        step *= operand.shape(d);
      }
      return true;
    };
    if (rowMajor(x) && rowMajor(y))
      return true;
  }
  return std::equal(x.shape().begin(), x.shape().end(), y.shape().begin(),
                    y.shape().end()) &&
         std::equal(x.strides().begin(), x.strides().end(), y.strides().begin(),
                    y.strides().end());
}

AccessTable accessTable(const Program &program) {
  AccessTable table(program.procedures_size());
  for (int p = 0; p < program.procedures_size(); ++p) {
    for (const Instruction &instruction :
         program.procedures(p).instructions()) {
      std::vector<Access> &list = table[p].emplace_back();
      auto add = [&](const Operand &operand, bool write) {
        Region region(operand,
                      dtypeSize(program.buffers(operand.buffer()).dtype()));
        bool accumulate = write && instruction.accumulate();
        if (region.begin != region.end)
          list.push_back({operand.buffer(), region, !write || accumulate, write,
                          accumulate});
      };
      for (const Operand &operand : instruction.inputs())
        add(operand, false);
      for (const Operand &operand : instruction.outputs())
        add(operand, true);
    }
  }
  return table;
}

Region wholeRegion(const Buffer &buffer) {
  Region region;
  region.end = buffer.bytes();
  region.dense = true;
  return region;
}

} // namespace merak
