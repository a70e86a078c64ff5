// merak-migrate-plans A.plan B.plan CHECKPOINT [--seed=N] [--bucket=BYTES]
//   [--steps=N] [--apart] [--forget] [--ranks=env]
//
// Trains under A, moves the state into the memory of B by a migration, and
// beside it into another B by a checkpoint; then both go on. State and losses
// must have the same bits, before and after, and each device must have moved
// the bytes and needed the memory that the program says. Ranks are on devices
// and nodes drawn by the seed. Prints what was moved; test/e2e/migration.py.
// --apart: B takes over the memory of what it keeps, and A ends before B goes
// on; what has memory of its own in both is then not copied.
// --ranks=env: a rank of both plans, which have as many, that a launcher
// started; it is a device of the same number.
// --links=LINKS: between devices that are the ranks of their numbers, as
// merak-run has them; tells how long the state was under way.
// --forget leaves out a piece of a verified program: then all of this must
// fail.
#include "runtime/launch/AsRank.h"
#include "runtime/launch/LinkOption.h"
#include "runtime/launch/Session.h"
#include "runtime/migration/StateMemory.h"
#include "tools/devices/Devices.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
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
  std::string ranks = "inproc", links;
  World *world = nullptr; // of processes
};

Result<std::unique_ptr<Session>> open(const LoadedPlan &plan,
                                      const Options &options,
                                      Succession succession = {}) {
  SessionOptions sessionOptions;
  sessionOptions.stateApart = options.apart;
  sessionOptions.succession = succession;
  if (!options.links.empty()) {
    auto links = parseLinks(options.links);
    if (!links)
      return links.status();
    sessionOptions.links = *links;
  }
  sessionOptions.threads = 1;
  sessionOptions.seed = options.seed;
  auto session = Session::create(plan, deviceBackends().at("cpu"),
                                 sessionOptions, options.world);
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

// With processes and links each rank is the device of its number.
migration::Places drawn(const LoadedPlan &source, const LoadedPlan &target,
                        const Options &options) {
  std::mt19937 random(options.seed);
  const bool stay = options.world || !options.links.empty();
  const int from = source.file.ranks_size(), to = target.file.ranks_size();
  const size_t devices = size_t(std::max(from, to)) + (stay ? 0 : random() % 3);
  auto shuffled = [&](int ranks) {
    std::vector<int> result(devices);
    std::iota(result.begin(), result.end(), 0);
    if (!stay)
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

// Every buffer that holds state, on every rank of this process.
Status sameState(const Session &found, const Session &expected,
                 const std::string &when) {
  Status problems;
  const std::vector<HeldTensor> tensors = heldTensors(found.plan());
  for (size_t i = 0; i < found.memories().size(); ++i) {
    const RankProgram &a = *found.memories()[i].program;
    const RankProgram &b = *expected.memories()[i].program;
    for (const HeldTensor &tensor : tensors)
      for (const auto *held : {&tensor.values, &tensor.rounded})
        for (const HeldBuffer &where : *held)
          if (where.rank == a.rank() &&
              std::memcmp(a.bufferData(where.buffer),
                          b.bufferData(where.buffer),
                          a.proto().buffers(where.buffer).bytes()) != 0)
            problems.merge(Status::error(
                fmt::format("{}: \"{}\" of rank {} is not what the checkpoint "
                            "brings",
                            when, tensor.tensor->name(), where.rank)));
  }
  return problems;
}

// Bytes that are kept on a device and lie apart in both plans.
int64_t sharedBytes(const migration::Migration &program, int device,
                    const LoadedPlan &source, const LoadedPlan &target) {
  auto isApart = [](const LoadedPlan &plan, int rank, int buffer) {
    const std::vector<int> apart = migration::buffersApart(plan, rank);
    return std::find(apart.begin(), apart.end(), buffer) != apart.end();
  };
  int64_t bytes = 0;
  for (const migration::Kept &kept : program.kept)
    if (kept.device == device &&
        isApart(source, program.sourceRank[size_t(device)], kept.source) &&
        isApart(target, program.targetRank[size_t(device)], kept.target))
      bytes += kept.bytes;
  return bytes;
}

int64_t messagesOf(const migration::Migration &program, int device) {
  int64_t count = 0;
  for (const migration::Bucket &bucket : program.buckets)
    for (const migration::Message &message : bucket.messages)
      count += message.sender == device;
  return count;
}

// What a device did is what the program says.
Status sameCounts(const migration::Migration &program, int device,
                  const migration::Moved &moved, int64_t shared) {
  Status problems;
  auto compare = [&](const char *what, int64_t found, int64_t expected) {
    if (found != expected)
      problems.merge(Status::error(fmt::format("device {}: {}: {}, expected {}",
                                               device, what, found, expected)));
  };
  const migration::DeviceBytes bytes = program.byDevice()[size_t(device)];
  compare("bytes kept", moved.keptBytes + moved.keptByCopyBytes, bytes.kept);
  compare("bytes kept without a copy", moved.keptBytes, shared);
  compare("bytes copied", moved.copiedBytes, bytes.copied);
  compare("bytes sent", moved.sentBytes, bytes.sent);
  compare("bytes received", moved.receivedBytes, bytes.received);
  compare("messages", moved.messages, messagesOf(program, device));
  compare("bytes of buffers", moved.peakBytes, bytes.buffers);
  if (moved.peakBytes > program.bucketBytes)
    problems.merge(Status::error(
        fmt::format("device {} needed {} bytes, more than a bucket's {}",
                    device, moved.peakBytes, program.bucketBytes)));
  return problems;
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
  auto program = migration::planMigration(
      *sourcePlan, *targetPlan,
      {drawn(*sourcePlan, *targetPlan, options), options.bucketBytes});
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
  const auto begin = std::chrono::steady_clock::now();
  auto moved = (*target)->takeState(**source, *program);
  const std::chrono::duration<double> taken =
      std::chrono::steady_clock::now() - begin;
  if (!moved)
    return moved.status();
  // Not before: what the state needs to be whole is a matter of the move.
  MERAK_RETURN_IF_ERROR((*source)->openSaves({options.checkpoint}));
  MERAK_RETURN_IF_ERROR((*source)->save());
  int64_t shared = 0;
  for (size_t i = 0; i < moved->size(); ++i) {
    const int device = options.world ? options.world->ranks()[i] : int(i);
    const int64_t here =
        options.apart ? sharedBytes(*program, device, *sourcePlan, *targetPlan)
                      : 0;
    MERAK_RETURN_IF_ERROR(sameCounts(*program, device, (*moved)[i], here));
    shared += here;
  }
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
  if (!options.world || options.world->leads())
    fmt::print(
        "kept {} shared {} copied {} sent {} messages {} buckets {} peak "
        "{}\n",
        program->total().kept, shared, program->total().copied,
        program->total().sent, program->messages(), program->buckets.size(),
        program->total().buffers);
  if (!options.links.empty())
    fmt::print("{:.4f} s\n", taken.count());
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
  app.add_option("--links", options.links);
  app.add_option("--ranks", options.ranks)
      ->check(CLI::IsMember({"inproc", "env"}));
  CLI11_PARSE(app, argc, argv);
  if (options.ranks == "inproc")
    return exitCode("merak-migrate-plans", run(options));
  return asRank("merak-migrate-plans", "cpu", deviceWorlds(),
                [&](World &world, std::string &) {
                  options.world = &world;
                  return run(options);
                });
}
