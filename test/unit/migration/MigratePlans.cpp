// merak-migrate-plans A.plan B.plan CHECKPOINT [--seed=N] [--bucket=BYTES]
//   [--steps=N] [--apart] [--forget]
//
// Trains under A, moves the state into the memory of B by a migration, and
// beside it into another B by a checkpoint; then both go on. State and losses
// must have the same bits, before and after, and each device must have moved
// the bytes and needed the memory that the program says. Ranks are on devices
// and nodes drawn by the seed. Prints what was moved; test/e2e/migration.py.
// --apart: B takes over the memory of what it keeps, and A ends before B goes
// on; what has memory of its own in both is then not copied.
// --forget leaves out a piece of a verified program: then all of this must
// fail.
#include "runtime/launch/Session.h"
#include "runtime/migration/StateMemory.h"
#include "tools/devices/Devices.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <numeric>
#include <random>

using namespace merak;
using namespace merak::runtime;

namespace {

struct Options {
  std::string source, target, checkpoint, data = "synthetic";
  uint32_t seed = 1;
  int64_t bucketBytes = migration::kBucketBytes, steps = 2;
  bool forget = false, apart = false;
};

Result<std::unique_ptr<Session>> open(const LoadedPlan &plan,
                                      const Options &options,
                                      Succession succession = {}) {
  SessionOptions sessionOptions;
  sessionOptions.stateApart = options.apart;
  sessionOptions.succession = succession;
  sessionOptions.threads = 1;
  sessionOptions.seed = options.seed;
  auto session =
      Session::create(plan, deviceBackends().at("cpu"), sessionOptions);
  if (!session)
    return session;
  DataOptions data;
  data.path = options.data;
  data.seed = options.seed;
  auto source = openData((*session)->plan().file, data);
  if (!source)
    return source.status();
  (*session)->setData(std::move(*source));
  return session;
}

migration::Places drawn(const LoadedPlan &source, const LoadedPlan &target,
                        uint32_t seed) {
  std::mt19937 random(seed);
  const int from = source.file.ranks_size(), to = target.file.ranks_size();
  const size_t devices = size_t(std::max(from, to)) + random() % 3;
  auto shuffled = [&](int ranks) {
    std::vector<int> result(devices);
    std::iota(result.begin(), result.end(), 0);
    std::shuffle(result.begin(), result.end(), random);
    result.resize(size_t(ranks));
    return result;
  };
  migration::Places places{shuffled(from), shuffled(to), {}};
  const uint32_t nodes = 1 + random() % 3;
  for (size_t device = 0; device < devices; ++device)
    places.nodes.push_back(int(random() % nodes));
  return places;
}

// Every buffer that holds state, on every rank.
Status sameState(const Session &found, const Session &expected,
                 const std::string &when) {
  Status problems;
  for (const HeldTensor &tensor : heldTensors(found.plan()))
    for (const auto *held : {&tensor.values, &tensor.rounded})
      for (const HeldBuffer &where : *held) {
        const RankProgram &a = *found.memories()[size_t(where.rank)].program;
        const RankProgram &b = *expected.memories()[size_t(where.rank)].program;
        if (std::memcmp(a.bufferData(where.buffer), b.bufferData(where.buffer),
                        a.proto().buffers(where.buffer).bytes()) != 0)
          problems.merge(Status::error(
              fmt::format("{}: \"{}\" of rank {} is not what the checkpoint "
                          "brings",
                          when, tensor.tensor->name(), where.rank)));
      }
  return problems;
}

Status sameCounts(const migration::Migration &program,
                  const std::vector<migration::Moved> &moved) {
  Status problems;
  auto compare = [&](const char *what, int64_t found, int64_t expected) {
    if (found != expected)
      problems.merge(Status::error(
          fmt::format("{}: {}, the program says {}", what, found, expected)));
  };
  migration::Moved sum;
  for (size_t device = 0; device < moved.size(); ++device) {
    const migration::Moved &one = moved[device];
    compare("bytes of buffers", one.peakBytes,
            program.byDevice()[device].buffers);
    if (one.peakBytes > program.bucketBytes)
      problems.merge(Status::error(
          fmt::format("device {} needed {} bytes, more than a bucket's {}",
                      device, one.peakBytes, program.bucketBytes)));
    sum.keptBytes += one.keptBytes + one.keptByCopyBytes;
    sum.copiedBytes += one.copiedBytes;
    sum.sentBytes += one.sentBytes;
    sum.receivedBytes += one.receivedBytes;
    sum.messages += one.messages;
  }
  compare("bytes kept", sum.keptBytes, program.total().kept);
  compare("bytes copied", sum.copiedBytes, program.total().copied);
  compare("bytes sent", sum.sentBytes, program.total().sent);
  compare("bytes received", sum.receivedBytes, program.total().sent);
  compare("messages", sum.messages, program.messages());
  return problems;
}

// Bytes that are kept and lie apart in both plans.
int64_t sharedBytes(const migration::Migration &program,
                    const LoadedPlan &source, const LoadedPlan &target) {
  auto isApart = [](const LoadedPlan &plan, int rank, int buffer) {
    const std::vector<int> apart = migration::buffersApart(plan, rank);
    return std::find(apart.begin(), apart.end(), buffer) != apart.end();
  };
  int64_t bytes = 0;
  for (const migration::Kept &kept : program.kept)
    if (isApart(source, program.sourceRank[size_t(kept.device)], kept.source) &&
        isApart(target, program.targetRank[size_t(kept.device)], kept.target))
      bytes += kept.bytes;
  return bytes;
}

Status run(const Options &options) {
  auto sourcePlan = loadPlan(options.source);
  auto targetPlan = loadPlan(options.target);
  for (const auto *plan : {&sourcePlan, &targetPlan})
    MERAK_RETURN_IF_ERROR(plan->status());
  auto source = open(*sourcePlan, options);
  MERAK_RETURN_IF_ERROR(source.status());
  MERAK_RETURN_IF_ERROR((*source)->loadWeights(""));
  for (int64_t step = 0; step < options.steps; ++step)
    MERAK_RETURN_IF_ERROR((*source)->step().status());
  MERAK_RETURN_IF_ERROR((*source)->openSaves({options.checkpoint}));
  MERAK_RETURN_IF_ERROR((*source)->save());
  auto program = migration::planMigration(
      *sourcePlan, *targetPlan,
      {drawn(*sourcePlan, *targetPlan, options.seed), options.bucketBytes});
  if (!program)
    return program.status();
  MERAK_RETURN_IF_ERROR(
      migration::verifyMigration(*program, *sourcePlan, *targetPlan));
  auto target =
      open(*targetPlan, options,
           options.apart ? Succession{source->get(), &*program} : Succession());
  auto expected = open(*targetPlan, options);
  for (const auto *session : {&target, &expected})
    MERAK_RETURN_IF_ERROR(session->status());
  if (options.forget && !program->buckets.empty())
    program->buckets.back().messages.back().pieces.pop_back();
  auto moved = (*target)->takeState(**source, *program);
  if (!moved)
    return moved.status();
  MERAK_RETURN_IF_ERROR(sameCounts(*program, *moved));
  int64_t shared = 0;
  for (const migration::Moved &device : *moved)
    shared += device.keptBytes;
  if (shared !=
      (options.apart ? sharedBytes(*program, *sourcePlan, *targetPlan) : 0))
    return Status::error(
        fmt::format("{} bytes are kept without a copy", shared));
  if (options.apart)
    source->reset();
  MERAK_RETURN_IF_ERROR((*expected)->loadWeights(options.checkpoint));
  MERAK_RETURN_IF_ERROR(sameState(**target, **expected, "moved"));
  for (int64_t step = 0; step < options.steps; ++step) {
    auto found = (*target)->step(), wanted = (*expected)->step();
    MERAK_RETURN_IF_ERROR(found.status());
    MERAK_RETURN_IF_ERROR(wanted.status());
    if (found->step != wanted->step || found->outputs != wanted->outputs ||
        found->lr != wanted->lr)
      return Status::error(
          fmt::format("step {} has the loss {}, step {} after the checkpoint "
                      "{}",
                      found->step, found->outputs["loss"], wanted->step,
                      wanted->outputs["loss"]));
  }
  MERAK_RETURN_IF_ERROR(sameState(**target, **expected, "trained on"));
  fmt::print("kept {} shared {} copied {} sent {} messages {} buckets {} peak "
             "{}\n",
             program->total().kept, shared, program->total().copied,
             program->total().sent, program->messages(),
             program->buckets.size(), program->total().buffers);
  return {};
}

} // namespace

int main(int argc, char **argv) {
  Options options;
  CLI::App app("Moves the state of one plan into another",
               "merak-migrate-plans");
  app.add_option("source", options.source)->required();
  app.add_option("target", options.target)->required();
  app.add_option("checkpoint", options.checkpoint)->required();
  app.add_option("--data", options.data);
  app.add_option("--seed", options.seed);
  app.add_option("--bucket", options.bucketBytes);
  app.add_option("--steps", options.steps);
  app.add_flag("--apart", options.apart);
  app.add_flag("--forget", options.forget);
  CLI11_PARSE(app, argc, argv);
  const Status status = run(options);
  for (const std::string &message : status.messages())
    fmt::print(stderr, "error: {}\n", message);
  return status.ok() ? 0 : 1;
}
