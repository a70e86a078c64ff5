#include "runtime/plan/Regions.h"

#include <algorithm>
#include <vector>

using namespace merak::planpb;

namespace merak {
namespace {

// More runs than this are not enumerated.
constexpr int64_t kMaxRuns = 1 << 16;

// Strides and sizes, largest stride first.
using Steps = std::vector<std::pair<int64_t, int64_t>>;

void addSteps(const Operand &operand, Steps &steps) {
  for (int d = 0; d < operand.shape_size(); ++d)
    if (operand.shape(d) > 1 && operand.strides(d) > 0)
      steps.emplace_back(operand.strides(d), operand.shape(d));
}

// Whether an element of the steps from `d` on, the first at `at`, lies in the
// elements [begin, end). Of each dimension only those places are followed that
// begin before `begin` and reach it: a place inside is an element inside. Looks
// at no more than `budget` places; true if that is not enough.
bool reaches(const Steps &steps, size_t d, int64_t at, int64_t begin,
             int64_t end, int64_t &budget) {
  if (at >= end)
    return false;
  if (at >= begin)
    return true;
  if (d == steps.size())
    return false;
  auto [stride, size] = steps[d];
  int64_t span = 0; // from the first to the last element of one place
  for (size_t i = d + 1; i < steps.size(); ++i)
    span += steps[i].first * (steps[i].second - 1);
  // The first place that reaches `begin`, and the first from there on.
  int64_t from =
      std::max<int64_t>(0, (begin - at - span + stride - 1) / stride);
  for (int64_t i = from; i < size; ++i) {
    int64_t place = at + i * stride;
    if (--budget < 0)
      return true;
    if (place >= begin)
      return place < end;
    if (reaches(steps, d + 1, place, begin, end, budget))
      return true;
  }
  return false;
}

// Whether two operands of one buffer's elements share one: whether 0 is among
// the differences of their elements. `shift`: of b's elements behind a's.
bool shareElement(const Operand &a, const Operand &b, int64_t shift) {
  Steps steps;
  addSteps(a, steps);
  int64_t least = a.offset() - b.offset() - shift;
  const size_t own = steps.size();
  addSteps(b, steps);
  for (size_t i = own; i < steps.size(); ++i)
    least -= steps[i].first * (steps[i].second - 1);
  std::sort(steps.rbegin(), steps.rend());
  // Equal strides are one.
  Steps joined;
  for (auto [stride, size] : steps)
    if (!joined.empty() && joined.back().first == stride)
      joined.back().second += size - 1;
    else
      joined.emplace_back(stride, size);
  int64_t budget = kMaxRuns;
  return reaches(joined, 0, least, 0, 1, budget);
}

// How an operand goes through its elements: strides and sizes from the
// outermost dimension on, dimensions of size 1 left out and neighbours that are
// evenly spaced taken as one.
Steps stepsOf(const Operand &operand) {
  Steps steps;
  for (int d = 0; d < operand.shape_size(); ++d) {
    const int64_t stride = operand.strides(d), size = operand.shape(d);
    if (size == 1)
      continue;
    if (!steps.empty() && steps.back().first == stride * size)
      steps.back() = {stride, steps.back().second * size};
    else
      steps.emplace_back(stride, size);
  }
  return steps;
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

bool regionRuns(const Region &region, uint64_t base, int64_t most,
                std::vector<Run> &result) {
  result.clear();
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
    if ((count *= steps[d].second) > most)
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

bool regionTouches(const Region &a, uint64_t baseA, uint64_t begin,
                   uint64_t end) {
  if (a.begin == a.end || baseA + a.begin >= end || begin >= baseA + a.end)
    return false;
  if (a.dense)
    return true;
  const Operand &operand = *a.operand;
  Steps steps;
  addSteps(operand, steps);
  std::sort(steps.rbegin(), steps.rend());
  // Elements that share a byte with the range.
  const auto base = static_cast<int64_t>(baseA);
  const int64_t size = a.elementSize;
  const int64_t low = static_cast<int64_t>(begin) - base;
  const int64_t high = static_cast<int64_t>(end) - base;
  int64_t budget = kMaxRuns;
  return reaches(steps, 0, operand.offset(), low <= 0 ? 0 : low / size,
                 (high + size - 1) / size, budget);
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
  const auto apart = static_cast<int64_t>(baseB - baseA);
  if (a.elementSize == b.elementSize && apart % a.elementSize == 0)
    return shareElement(*a.operand, *b.operand, apart / a.elementSize);
  std::vector<Run> runsA, runsB;
  if (!regionRuns(a, baseA, kMaxRuns, runsA) ||
      !regionRuns(b, baseB, kMaxRuns, runsB))
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
  return stepsOf(*a.operand) == stepsOf(*b.operand);
}

AccessTable accessTable(const Program &program) {
  AccessTable table(program.procedures_size());
  for (int p = 0; p < program.procedures_size(); ++p) {
    for (const Instruction &instruction :
         program.procedures(p).instructions()) {
      std::vector<Access> &list = table[p].emplace_back();
      auto add = [&](const Operand &operand, bool write, int index) {
        Region region(operand,
                      dtypeSize(program.buffers(operand.buffer()).dtype()));
        bool accumulate = write && instruction.accumulate();
        if (region.begin != region.end)
          list.push_back({operand.buffer(), region, !write || accumulate, write,
                          accumulate, index});
      };
      for (int k = 0; k < instruction.inputs_size(); ++k)
        add(instruction.inputs(k), false, k);
      for (int k = 0; k < instruction.outputs_size(); ++k)
        add(instruction.outputs(k), true, k);
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
