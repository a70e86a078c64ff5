#include "runtime/checkpoint/CheckpointWriter.h"

#include "runtime/comm/rendezvous/ProcessWorld.h"
#include "runtime/core/DType.h"
#include "runtime/core/PromptThread.h"
#include "runtime/plan/Checksum.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>

namespace merak::runtime {
namespace {

std::string packChecks(int64_t skipped,
                       const std::map<std::string, FileCheck> &checks) {
  std::string text = fmt::format("{}\n", skipped);
  for (const auto &[name, check] : checks)
    text += fmt::format("{} {} {}\n", name, check.bytes, check.checksum);
  return text;
}

} // namespace

CheckpointWriter::CheckpointWriter(const LoadedPlan &plan,
                                   std::span<const RankMemory> ranks,
                                   SaveOptions options, Store *store,
                                   Files &files)
    : plan_(plan), ranks_(ranks), options_(std::move(options)), store_(store),
      files_(files), tensors_(assignPieces(plan)) {}

CheckpointWriter::~CheckpointWriter() {
  if (thread_.joinable())
    thread_.join();
}

Result<std::unique_ptr<CheckpointWriter>>
CheckpointWriter::open(const LoadedPlan &plan,
                       std::span<const RankMemory> ranks, SaveOptions options,
                       Store *store, Files &files) {
  std::unique_ptr<CheckpointWriter> writer(
      new CheckpointWriter(plan, ranks, std::move(options), store, files));
  MERAK_RETURN_IF_ERROR(writer->start());
  return writer;
}

// The process of rank 0 takes its folder first: of those that see the same one
// it leads.
Status CheckpointWriter::start() {
  run_ = newRun();
  if (store_) {
    auto all = store_->gather("checkpoint run", run_, kPatienceSeconds);
    if (!all)
      return all.status();
    run_ = all->front();
  }
  generations_ =
      std::make_unique<Generations>(options_.dir, files_, run_, thisProcess());
  const bool first = !store_ || store_->rank() == 0;
  Status status = first ? generations_->take() : Status();
  MERAK_RETURN_IF_ERROR(agree(store_, "checkpoint folder", status));
  if (!first)
    status = generations_->take();
  if (status.ok() && generations_->leads())
    status = generations_->removeLeftovers();
  MERAK_RETURN_IF_ERROR(agree(store_, "checkpoint folders", status));
  if (!store_)
    return {};
  auto all = store_->gather("checkpoint leaders",
                            generations_->leads() ? "1" : "", kPatienceSeconds);
  if (!all)
    return all.status();
  folders_ = int(std::count(all->begin(), all->end(), "1"));
  return {};
}

std::string CheckpointWriter::note() const {
  if (folders_ > 1)
    return fmt::format("\"{}\" is not one folder but {}, which get a part of "
                       "each checkpoint: merak-plan gather makes it whole",
                       options_.dir, folders_);
  return generations_->note();
}

bool CheckpointWriter::isLocal(int rank) const {
  for (const RankMemory &memory : ranks_)
    if (memory.program->rank() == rank)
      return true;
  return false;
}

Status
CheckpointWriter::writeShards(const CheckpointState &state,
                              const Source &source,
                              std::map<std::string, FileCheck> &written) const {
  std::map<int, std::vector<SafetensorsOutput>> outputs; // by rank
  for (const TensorPieces &entry : tensors_)
    for (const Piece &piece : entry.pieces) {
      if (!isLocal(piece.rank))
        continue;
      auto fill = [&source, &piece, &entry,
                   any = options_.anyValues](char *data) -> Status {
        const planpb::DType dtype = entry.tensor->dtype();
        MERAK_RETURN_IF_ERROR(source(piece, dtype, data));
        if (any || !isTrained(*entry.tensor) ||
            allFinite(dtype, data, bytesOf(piece, dtype)))
          return {};
        return Status::error(fmt::format(
            "\"{}\" holds values that are not finite: nothing is saved",
            entry.tensor->name()));
      };
      outputs[piece.rank].push_back(
          {piece.key, entry.tensor->dtype(), piece.box.extent, fill});
    }
  Status problems;
  for (const auto &[rank, tensors] : outputs) {
    auto made = makeSafetensors(
        files_,
        joinPath(generations_->temporaryOf(state.step), shardName(rank)),
        tensors);
    if (made)
      written[shardName(rank)] = *made;
    problems.merge(made.status());
  }
  return problems;
}

// From then on every process knows all shards, and what rank 0's process knows
// of the steps.
Status CheckpointWriter::exchangeChecks(Manifest &manifest) const {
  if (!store_)
    return {};
  auto all = store_->gather("checkpoint shards",
                            packChecks(manifest.state.skipped, manifest.shards),
                            kPatienceSeconds);
  if (!all)
    return all.status();
  for (size_t rank = 0; rank < all->size(); ++rank) {
    std::istringstream lines((*all)[rank]);
    int64_t skipped = 0;
    lines >> skipped;
    if (rank == 0)
      manifest.state.skipped = skipped;
    std::string name;
    for (FileCheck check; lines >> name >> check.bytes >> check.checksum;)
      manifest.shards[name] = check;
  }
  return {};
}

// Shards that some process wrote and this one, which sees all, does not find.
Status CheckpointWriter::checkShared(const CheckpointState &state,
                                     const Manifest &manifest) const {
  std::vector<std::string> absent;
  for (const auto &[name, check] : manifest.shards)
    if (entryAt(joinPath(generations_->temporaryOf(state.step), name)) !=
        Entry::file)
      absent.push_back(name);
  if (absent.empty() || folders_ > 1)
    return {};
  return Status::error(
      fmt::format("what was written as {} is not in \"{}\" here",
                  fmt::join(absent, ", "), options_.dir));
}

Status CheckpointWriter::finish(const CheckpointState &state,
                                const Manifest &manifest) {
  MERAK_RETURN_IF_ERROR(checkShared(state, manifest));
  const std::string text = manifestText(manifest);
  auto file = files_.create(
      joinPath(generations_->temporaryOf(state.step), kManifestName));
  if (!file)
    return file.status();
  MERAK_RETURN_IF_ERROR((*file)->write(text.data(), text.size()));
  MERAK_RETURN_IF_ERROR((*file)->close());
  return generations_->commit(state.step);
}

Status CheckpointWriter::makeGeneration(const CheckpointState &state,
                                        const Source &source) {
  const bool leads = generations_->leads();
  MERAK_RETURN_IF_ERROR(
      agree(store_, "checkpoint begun",
            leads ? generations_->begin(state.step) : Status()));
  Manifest manifest = manifestOf(plan_, tensors_, state);
  MERAK_RETURN_IF_ERROR(agree(store_, "checkpoint written",
                              writeShards(state, source, manifest.shards)));
  MERAK_RETURN_IF_ERROR(exchangeChecks(manifest));
  MERAK_RETURN_IF_ERROR(agree(store_, "checkpoint finished",
                              leads ? finish(state, manifest) : Status()));
  // Only when all have it: what is removed may be what another host has last.
  return agree(store_, "checkpoint pruned",
               leads ? generations_->prune(state.step, options_.keep)
                     : Status());
}

Status CheckpointWriter::writeGeneration(CheckpointState state,
                                         const Source &source) {
  state.run = run_;
  Status status = makeGeneration(state, source);
  if (!status.ok() && generations_->leads())
    generations_->discard(state.step);
  return status;
}

Status CheckpointWriter::write(const CheckpointState &state) {
  MERAK_RETURN_IF_ERROR(wait());
  return writeGeneration(
      state, [this](const Piece &piece, planpb::DType dtype, char *data) {
        for (const RankMemory &memory : ranks_)
          if (memory.program->rank() == piece.rank)
            return readPieceOf(memory, piece, dtype, data);
        return Status::error(fmt::format("rank {} is not here", piece.rank));
      });
}

// Into the memory of the last copy.
Status CheckpointWriter::takeCopy() {
  for (const RankMemory &memory : ranks_)
    for (const TensorPieces &entry : tensors_)
      for (const Piece &piece : entry.pieces) {
        if (piece.rank != memory.program->rank())
          continue;
        const planpb::DType dtype = entry.tensor->dtype();
        std::vector<char> &bytes = copy_[&piece];
        bytes.resize(size_t(bytesOf(piece, dtype)));
        MERAK_RETURN_IF_ERROR(readPieceOf(memory, piece, dtype, bytes.data()));
      }
  return {};
}

Status CheckpointWriter::begin(const CheckpointState &state) {
  MERAK_RETURN_IF_ERROR(wait());
  MERAK_RETURN_IF_ERROR(takeCopy());
  thread_ = std::thread([this, state] {
    stepBehind();
    outcome_ = writeGeneration(
        state, [this](const Piece &piece, planpb::DType, char *data) {
          const std::vector<char> &bytes = copy_.at(&piece);
          std::copy(bytes.begin(), bytes.end(), data);
          return Status();
        });
    failed_ = !outcome_.ok();
  });
  return {};
}

Status CheckpointWriter::wait() {
  if (thread_.joinable())
    thread_.join();
  failed_ = false;
  return std::exchange(outcome_, Status());
}

} // namespace merak::runtime
