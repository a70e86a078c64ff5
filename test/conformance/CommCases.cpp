#include "test/conformance/CommCases.h"

#include "runtime/core/DType.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <numeric>

namespace merak::conformance {

using runtime::CommSpec;

namespace {

constexpr planpb::DType kTypes[] = {planpb::F32,  planpb::I64,  planpb::I32,
                                    planpb::BOOL, planpb::BF16, planpb::F16,
                                    planpb::F64,  planpb::U8,   planpb::I8};

int64_t flat(const Shape &shape, const Shape &index) {
  int64_t result = 0;
  for (size_t d = 0; d < shape.size(); ++d)
    result = result * shape[d] + index[d];
  return result;
}

Shape unflat(const Shape &shape, int64_t i) {
  Shape index(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    index[d] = i % shape[d];
    i /= shape[d];
  }
  return index;
}

// The collectives over `members` for tensors of `shape` on each side of a
// split.
std::vector<CommCase> shapesOf(const std::vector<int> &members,
                               const Shape &shape) {
  const int64_t n = int64_t(members.size());
  std::vector<CommCase> cases;
  auto add = [&](CommSpec::Kind kind, Shape in, Shape out, bool maximum,
                 int64_t dim, int64_t dim2) {
    CommCase c;
    c.spec.kind = kind;
    c.spec.members = members;
    c.spec.maximum = maximum;
    c.spec.dim = dim;
    c.spec.dim2 = dim2;
    c.in = std::move(in);
    c.out = std::move(out);
    c.row = runtime::commKindName(kind);
    if (kind == CommSpec::AllReduce || kind == CommSpec::ReduceScatter)
      c.row += maximum ? " max" : " sum";
    cases.push_back(std::move(c));
  };
  Shape whole = shape;
  for (int64_t &size : whole)
    size *= n;
  for (bool maximum : {false, true}) {
    add(CommSpec::AllReduce, shape, shape, maximum, 0, 0);
    for (int64_t dim : {0, 1}) {
      Shape out = whole;
      out[size_t(dim)] /= n;
      add(CommSpec::ReduceScatter, whole, out, maximum, dim, 0);
    }
  }
  for (int64_t dim : {0, 1}) {
    Shape out = shape;
    out[size_t(dim)] *= n;
    add(CommSpec::AllGather, shape, out, false, dim, 0);
    for (int64_t dim2 : {0, 1}) {
      Shape exchanged = whole;
      exchanged[size_t(dim)] /= n;
      exchanged[size_t(dim2)] *= n;
      add(CommSpec::AllToAll, whole, exchanged, false, dim, dim2);
    }
  }
  add(CommSpec::Broadcast, shape, shape, false, 0, 0);
  add(CommSpec::Send, shape, shape, false, 0, 0);
  return cases;
}

std::string nameOf(const CommCase &c) {
  return fmt::format("{} {} [{}] of ranks {} dim {},{} {}{}{}", c.row,
                     runtime::dtypeName(c.dtype), fmt::join(c.in, " "),
                     fmt::join(c.spec.members, ","), c.spec.dim, c.spec.dim2,
                     layoutName(c.layout),
                     c.spec.accumulate ? " accumulate" : "",
                     c.inPlace ? " in place" : "");
}

} // namespace

double CommCase::input(int rank, int64_t i) const {
  if (groupOrder) {
    // From left to right 0 + small, in another order something else.
    const double parts[] = {1e8, 3, -1e8, 5};
    return parts[rank % 4];
  }
  if (layout == MemoryLayout::Broadcast && !in.empty() && in[0] > 0)
    i %= std::accumulate(in.begin() + 1, in.end(), int64_t{1},
                         std::multiplies<>());
  const int64_t value = (i * 7 + rank * 3) % 5;
  return dtype == planpb::BOOL ? double(value & 1) : double(value);
}

double CommCase::expected(int me, int64_t i) const {
  const Shape at = unflat(out, i);
  const int64_t n = int64_t(spec.members.size());
  const size_t dim = size_t(spec.dim), dim2 = size_t(spec.dim2);
  auto from = [&](int64_t member, const Shape &index) {
    return input(spec.members[size_t(member)], flat(in, index));
  };
  double value = 0;
  Shape index = at;
  switch (spec.kind) {
  case CommSpec::ReduceScatter:
    index[dim] += me * out[dim];
    [[fallthrough]];
  case CommSpec::AllReduce: {
    // In the element type where the order matters.
    float ordered = float(from(0, index));
    value = from(0, index);
    for (int64_t m = 1; m < n; ++m) {
      const double next = from(m, index);
      value = spec.maximum ? std::max(value, next) : value + next;
      ordered += float(next);
    }
    value = groupOrder ? double(ordered) : value;
    break;
  }
  case CommSpec::AllGather:
    index[dim] %= in[dim];
    value = from(at[dim] / in[dim], index);
    break;
  case CommSpec::AllToAll: {
    const int64_t part = out[dim2] / n;
    index[dim2] %= part;
    index[dim] += me * (in[dim] / n);
    value = from(at[dim2] / part, index);
    break;
  }
  case CommSpec::Broadcast:
    value = from(0, index);
    break;
  default: // a transfer from the member before
    value = from((me + n - 1) % n, index);
  }
  return value + (spec.accumulate ? kBefore : 0);
}

std::vector<CommCase> commCases(int ranks) {
  std::vector<int> all(size_t(ranks), 0), some = {3, 1};
  std::iota(all.begin(), all.end(), 0);
  std::vector<CommCase> cases;
  auto add = [&](CommCase c) {
    // A world may be smaller than the groups below; nobody sends to itself.
    const std::vector<int> &members = c.spec.members;
    if (*std::max_element(members.begin(), members.end()) >= ranks ||
        (c.spec.kind == CommSpec::Send && members.size() < 2))
      return;
    c.name = nameOf(c);
    cases.push_back(std::move(c));
  };
  // Every type and layout on an odd shape; other shapes and groups in f32 and
  // in the types that a device library has no sums for.
  for (planpb::DType dtype : kTypes)
    for (MemoryLayout layout : kLayouts)
      for (CommCase c : shapesOf(all, {3, 5})) {
        c.dtype = dtype;
        c.layout = layout;
        add(c);
        c.spec.accumulate = true;
        if (!c.spec.maximum && dtype != planpb::BOOL)
          add(c);
      }
  for (planpb::DType dtype : {planpb::F32, planpb::BF16, planpb::I64})
    for (const Shape &shape :
         {Shape{0, 4}, Shape{1, 1}, Shape{97, 89}, Shape{7, 2048}})
      for (MemoryLayout layout : {MemoryLayout::Dense, MemoryLayout::Padded})
        for (CommCase c : shapesOf(all, shape)) {
          c.dtype = dtype;
          c.layout = layout;
          add(c);
        }
  // Longer messages than a transport sends at once, of what a member has and of
  // its part of a sum.
  for (const auto &[kind, size] :
       {std::pair{CommSpec::AllGather, 600'001},
        std::pair{CommSpec::AllReduce, ranks * 550'001}})
    for (CommCase c : shapesOf(all, {1, size}))
      if (c.spec.kind == kind && !c.spec.maximum && c.spec.dim == 0) {
        c.dtype = planpb::I64;
        add(c);
      }
  for (CommCase c : shapesOf(some, {3, 5}))
    add(c);
  for (CommCase c : shapesOf({2}, {3, 5}))
    if (c.spec.kind != CommSpec::Send)
      add(c);
  for (const Shape &shape : {Shape{3, 5}, Shape{97, 89}})
    for (CommCase c : shapesOf(all, shape))
      if (c.spec.kind == CommSpec::AllReduce) {
        c.inPlace = true;
        add(c);
        c.inPlace = false;
        c.severalLanes = true;
        c.row = "two streams at once";
        add(c);
      }
  std::vector<int> reversed(all.rbegin(), all.rend());
  for (const auto &members : {all, reversed})
    for (const Shape &shape : {Shape{3, 5}, Shape{97, 89}})
      for (CommCase c : shapesOf(members, shape))
        if ((c.spec.kind == CommSpec::AllReduce ||
             c.spec.kind == CommSpec::ReduceScatter) &&
            !c.spec.maximum) {
          c.groupOrder = true;
          c.row = "sum in group order";
          add(c);
        }
  return cases;
}

} // namespace merak::conformance
