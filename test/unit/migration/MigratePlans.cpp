// merak-migrate-plans A.plan B.plan CHECKPOINT [--seed=N] [--bucket=BYTES]
//   [--steps=N] [--forget]
//
// Trains under A, moves the state into the memory of B by a migration, and
// beside it into another B by a checkpoint; then both go on. State and losses
// must have the same bits, before and after, and each device must have moved
// the bytes and needed the memory that the program says. Ranks are on devices
// and nodes drawn by the seed. Prints what was moved; test/e2e/migration.py.
// --forget leaves out a piece of a verified program: then all of this must
// fail.
#include "runtime/launch/Session.h"
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
  bool forget = false;
};

Result<std::unique_ptr<Session>> open(const std::string &dir,
                                      const Options &options) {
  auto plan = loadPlan(dir);
  if (!plan)
    return plan.status();
  SessionOptions sessionOptions;
  sessionOptions.threads = 1;
  sessionOptions.seed = options.seed;
  auto session = Session::create(std::move(*plan), deviceBackends().at("cpu"),
                                 sessionOptions);
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

migration::Places drawn(const Session &source, const Session &target,
                        uint32_t seed) {
  std::mt19937 random(seed);
  const int from = source.plan().file.ranks_size();
  const int to = target.plan().file.ranks_size();
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

Status run(const Options &options) {
  auto source = open(options.source, options);
  auto target = open(options.target, options);
  auto expected = open(options.target, options);
  for (const auto *session : {&source, &target, &expected})
    MERAK_RETURN_IF_ERROR(session->status());
  MERAK_RETURN_IF_ERROR((*source)->loadWeights(""));
  for (int64_t step = 0; step < options.steps; ++step)
    MERAK_RETURN_IF_ERROR((*source)->step().status());
  MERAK_RETURN_IF_ERROR((*source)->openSaves({options.checkpoint}));
  MERAK_RETURN_IF_ERROR((*source)->save());
  auto program = migration::planMigration(
      (*source)->plan(), (*target)->plan(),
      {drawn(**source, **target, options.seed), options.bucketBytes});
  if (!program)
    return program.status();
  MERAK_RETURN_IF_ERROR(migration::verifyMigration(*program, (*source)->plan(),
                                                   (*target)->plan()));
  if (options.forget && !program->buckets.empty())
    program->buckets.back().messages.back().pieces.pop_back();
  auto moved = (*target)->takeState(**source, *program);
  if (!moved)
    return moved.status();
  MERAK_RETURN_IF_ERROR(sameCounts(*program, *moved));
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
  fmt::print("kept {} copied {} sent {} messages {} buckets {} peak {}\n",
             program->total().kept, program->total().copied,
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
  app.add_flag("--forget", options.forget);
  CLI11_PARSE(app, argc, argv);
  const Status status = run(options);
  for (const std::string &message : status.messages())
    fmt::print(stderr, "error: {}\n", message);
  return status.ok() ? 0 : 1;
}
