#include "runtime/comm/inproc/InprocCollectives.h"

#include "runtime/comm/inproc/StridedOps.h"
#include "runtime/core/DType.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace merak::runtime {
namespace {

std::string describe(const InprocGroup::Post &post) {
  return fmt::format(
      "{} \"{}\" {} of {}x{}{}", commKindName(post.kind), post.name,
      post.maximum ? "max" : "sum", fmt::join(post.input.shape, "x"),
      dtypeName(post.input.dtype),
      post.dim || post.dim2 ? fmt::format(" dim {},{}", post.dim, post.dim2)
                            : std::string());
}

// When the collective ends on emulated links; it begins with the last member.
double reserveLinks(const CollectiveRun &run,
                    const std::vector<InprocGroup::Post> &posts) {
  double ready = 0;
  for (const InprocGroup::Post &post : posts)
    ready = std::max(ready, post.arrived);
  double bytes = double(std::max(run.input.elements(), run.output.elements())) *
                 double(dtypeSize(run.input.dtype));
  if (run.spec.trims) {
    double all = 0, live = 0;
    for (const InprocGroup::Post &post : posts) {
      const int64_t whole = post.input.elements() * dtypeSize(post.input.dtype);
      all += double(whole);
      live += double(post.input.dense() ? liveBytes(post.input.data, whole)
                                        : whole);
    }
    bytes *= all > 0 ? live / all : 1;
  }
  return run.links->collective(run.spec, bytes, run.lastOperand, ready);
}

// Posts this rank's views, meets the others, and checks that all came for the
// same thing. Returns the posts, or null.
std::vector<InprocGroup::Post> *meet(CollectiveRun &run) {
  const uint64_t number = ++run.group.operands[run.me];
  auto &posts = run.group.posted[number % 2];
  InprocGroup::Post &mine = posts[run.me];
  mine.kind = run.spec.kind;
  mine.maximum = run.spec.maximum;
  mine.accumulate = run.spec.accumulate;
  mine.dim = run.spec.dim;
  mine.dim2 = run.spec.dim2;
  mine.name = run.spec.name;
  mine.input = run.input;
  mine.output = run.output;
  mine.arrived = run.links ? run.links->now() : 0;
  if (!run.group.barrier(run.me, run.abort))
    return nullptr;
  for (size_t i = 0; i < posts.size(); ++i) {
    const InprocGroup::Post &other = posts[i];
    if (other.kind == mine.kind && other.maximum == mine.maximum &&
        other.dim == mine.dim && other.dim2 == mine.dim2 &&
        other.input.dtype == mine.input.dtype &&
        other.input.shape == mine.input.shape)
      continue;
    run.failure =
        Status::error(fmt::format("{} meets rank {} with {}", describe(mine),
                                  run.group.members[i], describe(other)));
    return nullptr;
  }
  if (run.links)
    run.end = run.group.end(number, [&] { return reserveLinks(run, posts); });
  return &posts;
}

bool leave(CollectiveRun &run) { return run.group.barrier(run.me, run.abort); }

// Room for a dense tensor like `view`.
View scratchLike(CollectiveRun &run, const View &view) {
  run.scratch.resize(view.elements() * dtypeSize(view.dtype));
  return denseLike(view, run.scratch.data());
}

View flat(const View &view, int64_t begin, int64_t size) {
  return {static_cast<char *>(view.data) + begin * dtypeSize(view.dtype),
          view.dtype,
          {size},
          {1}};
}

// Copies the input aside and needs one barrier, not three: the barriers cost
// more than adding everything on every rank.
bool allReduceSmall(CollectiveRun &run) {
  const int64_t bytes = run.input.elements() * dtypeSize(run.input.dtype);
  auto &mine =
      run.group.posted[(run.group.operands[run.me] + 1) % 2][run.me].staging;
  if (mine.size() < static_cast<size_t>(bytes))
    mine.resize(kSmallCollective);
  copyViews(run.input, denseLike(run.input, mine.data()), false);
  auto *posts = meet(run);
  if (!posts)
    return false;
  std::vector<View> inputs;
  for (InprocGroup::Post &post : *posts)
    inputs.push_back(denseLike(run.input, post.staging.data()));
  reduceViews(inputs, run.output, run.spec.maximum, run.spec.accumulate);
  return true;
}

// Each rank reduces one part into its own output, then all copy the parts of
// the others: every element is added once.
bool allReduceFlat(CollectiveRun &run, std::vector<InprocGroup::Post> *posts) {
  const int64_t count = run.input.elements();
  const int64_t members = static_cast<int64_t>(posts->size());
  auto partBegin = [&](int64_t i) { return count * i / members; };
  auto part = [&](const View &view, int64_t i) {
    return flat(view, partBegin(i), partBegin(i + 1) - partBegin(i));
  };
  std::vector<View> inputs;
  for (InprocGroup::Post &post : *posts)
    inputs.push_back(part(post.input, run.me));
  reduceViews(inputs, part(run.output, run.me), run.spec.maximum, false);
  if (!run.group.barrier(run.me, run.abort))
    return false;
  for (int64_t i = 0; i < members; ++i)
    if (i != run.me)
      copyViews(part((*posts)[i].output, i), part(run.output, i), false);
  return leave(run);
}

// Any strides, or accumulation: every rank reduces everything aside.
bool allReduceStrided(CollectiveRun &run,
                      std::vector<InprocGroup::Post> *posts) {
  const View result = scratchLike(run, run.input);
  std::vector<View> inputs;
  for (InprocGroup::Post &post : *posts)
    inputs.push_back(post.input);
  reduceViews(inputs, result, run.spec.maximum, false);
  if (!leave(run)) // an output may be an input that others still read
    return false;
  copyViews(result, run.output, run.spec.accumulate);
  return true;
}

bool allReduceLarge(CollectiveRun &run) {
  auto *posts = meet(run);
  if (!posts)
    return false;
  // All members must take the same path, so all look at all posts.
  for (const InprocGroup::Post &post : *posts)
    if (!post.input.dense() || !post.output.dense() || post.accumulate)
      return allReduceStrided(run, posts);
  return allReduceFlat(run, posts);
}

bool allGather(CollectiveRun &run) {
  auto *posts = meet(run);
  if (!posts)
    return false;
  const int64_t size = run.input.shape[run.spec.dim];
  for (size_t i = 0; i < posts->size(); ++i) {
    const View slice = sliceView(run.output, run.spec.dim, i * size, size);
    const View &input = (*posts)[i].input;
    if (input.data != slice.data) // in place: already there
      copyViews(input, slice, run.spec.accumulate);
  }
  return leave(run);
}

bool reduceScatter(CollectiveRun &run) {
  auto *posts = meet(run);
  if (!posts)
    return false;
  const int64_t size = run.output.shape[run.spec.dim];
  std::vector<View> inputs;
  for (InprocGroup::Post &post : *posts)
    inputs.push_back(sliceView(post.input, run.spec.dim, run.me * size, size));
  reduceViews(inputs, run.output, run.spec.maximum, run.spec.accumulate);
  return leave(run);
}

bool allToAll(CollectiveRun &run) {
  auto *posts = meet(run);
  if (!posts)
    return false;
  const int64_t members = static_cast<int64_t>(posts->size());
  const int64_t from = run.input.shape[run.spec.dim] / members;
  const int64_t to = run.output.shape[run.spec.dim2] / members;
  for (int64_t i = 0; i < members; ++i)
    copyViews(sliceView((*posts)[i].input, run.spec.dim, run.me * from, from),
              sliceView(run.output, run.spec.dim2, i * to, to),
              run.spec.accumulate);
  return leave(run);
}

bool broadcast(CollectiveRun &run) {
  auto *posts = meet(run);
  if (!posts)
    return false;
  const View &input = (*posts)[0].input;
  if (input.data != run.output.data)
    copyViews(input, run.output, run.spec.accumulate);
  return leave(run);
}

} // namespace

Result<int> checkSpec(const CommSpec &spec, int rank, int size,
                      std::span<const View> inputs,
                      std::span<const View> outputs) {
  if (spec.kind == CommSpec::Send || spec.kind == CommSpec::Recv) {
    const size_t operands =
        (spec.kind == CommSpec::Send ? inputs : outputs).size();
    if (operands != 1)
      return Status::error(fmt::format("{} takes one operand, found {}",
                                       commKindName(spec.kind), operands));
    if (spec.peer < 0 || spec.peer >= size || spec.peer == rank)
      return Status::error(fmt::format("{} has rank {} as peer",
                                       commKindName(spec.kind), spec.peer));
    return 0;
  }
  const auto &members = spec.members;
  const auto self = std::find(members.begin(), members.end(), rank);
  if (self == members.end())
    return Status::error(fmt::format("rank {} is not in the group {}", rank,
                                     fmt::join(members, ",")));
  if (inputs.size() != outputs.size() || inputs.empty())
    return Status::error(fmt::format("{} has {} inputs and {} outputs",
                                     commKindName(spec.kind), inputs.size(),
                                     outputs.size()));
  for (size_t i = 0; i < inputs.size(); ++i)
    MERAK_RETURN_IF_ERROR(checkCollective(spec, inputs[i], outputs[i]));
  return static_cast<int>(self - members.begin());
}

Status checkCollective(const CommSpec &spec, const View &input,
                       const View &output) {
  const auto members = static_cast<int64_t>(spec.members.size());
  auto fail = [&](const std::string &what) {
    return Status::error(fmt::format(
        "{} over {} ranks from {} to {}: {}", commKindName(spec.kind), members,
        fmt::join(input.shape, "x"), fmt::join(output.shape, "x"), what));
  };
  const bool reduces =
      spec.kind == CommSpec::AllReduce || spec.kind == CommSpec::ReduceScatter;
  if (input.dtype != output.dtype)
    return fail(fmt::format("the types {} and {} differ",
                            dtypeName(input.dtype), dtypeName(output.dtype)));
  if (reduces && !canReduce(input.dtype, spec.maximum))
    return fail(fmt::format("{} cannot be summed", dtypeName(input.dtype)));
  if (spec.accumulate && !canReduce(input.dtype, false))
    return fail(fmt::format("{} cannot be added to", dtypeName(input.dtype)));
  if (spec.accumulate && spec.maximum)
    return fail("a maximum cannot be accumulated");
  std::vector<int64_t> expected = input.shape;
  auto hasDim = [&](int64_t dim) {
    return dim >= 0 && dim < static_cast<int64_t>(expected.size());
  };
  if (spec.kind == CommSpec::AllGather || spec.kind == CommSpec::AllToAll ||
      spec.kind == CommSpec::ReduceScatter) {
    if (!hasDim(spec.dim) ||
        (spec.kind == CommSpec::AllToAll && !hasDim(spec.dim2)))
      return fail(fmt::format("no dimension {}", spec.dim));
    if (spec.kind != CommSpec::AllGather) {
      if (expected[spec.dim] % members)
        return fail(fmt::format("dimension {} does not divide", spec.dim));
      expected[spec.dim] /= members;
    }
    if (spec.kind != CommSpec::ReduceScatter)
      expected[spec.kind == CommSpec::AllGather ? spec.dim : spec.dim2] *=
          members;
  }
  if (expected != output.shape)
    return fail(fmt::format("expected {}", fmt::join(expected, "x")));
  return {};
}

bool runCollective(CollectiveRun &run) {
  switch (run.spec.kind) {
  case CommSpec::AllReduce:
    if (isOneRound(run.input.elements() * dtypeSize(run.input.dtype),
                   static_cast<int64_t>(run.spec.members.size())))
      return allReduceSmall(run);
    return allReduceLarge(run);
  case CommSpec::AllGather:
    return allGather(run);
  case CommSpec::ReduceScatter:
    return reduceScatter(run);
  case CommSpec::AllToAll:
    return allToAll(run);
  case CommSpec::Broadcast:
    return broadcast(run);
  default:
    return false;
  }
}

} // namespace merak::runtime
