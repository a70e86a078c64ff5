#include "runtime/checkpoint/HostCopies.h"

#include "runtime/checkpoint/HeldTensors.h"
#include "runtime/checkpoint/HostCopy.h"
#include "runtime/comm/rendezvous/ProcessWorld.h"
#include "runtime/core/DType.h"
#include "runtime/core/PromptThread.h"
#include "runtime/core/SecondsSince.h"
#include "runtime/plan/Checksum.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <sstream>

namespace merak::runtime {
namespace {

using Clock = std::chrono::steady_clock;

// Larger boxes are copied by several threads.
constexpr int64_t kTaskBytes = 4 << 20;

std::string megabytes(uint64_t bytes) {
  return bytes < 10'000'000 ? fmt::format("{:.2f} MB", double(bytes) / 1e6)
                            : fmt::format("{:.0f} MB", double(bytes) / 1e6);
}

} // namespace

HostCopies::HostCopies(const LoadedPlan &plan,
                       std::span<const RankMemory> ranks, CopyFolder &folder,
                       const CopyHosts &hosts, const CopyOptions &options,
                       World *world)
    : plan_(plan), ranks_(ranks), folder_(folder), hosts_(hosts),
      options_(options), world_(world), pool_(std::max(1, options.threads)) {}

HostCopies::~HostCopies() { wait(); }

void HostCopies::wait() {
  if (thread_.joinable())
    thread_.join();
}

Result<std::unique_ptr<HostCopies>>
HostCopies::open(const LoadedPlan &plan, std::span<const RankMemory> ranks,
                 CopyFolder &folder, const CopyHosts &hosts,
                 const CopyOptions &options, World *world) {
  std::unique_ptr<HostCopies> copies(
      new HostCopies(plan, ranks, folder, hosts, options, world));
  copies->findItems();
  copies->makeParts();
  copies->makeTasks();
  Store *store = copies->store();
  MERAK_RETURN_IF_ERROR(
      agree(store, "copies memory",
            folder.leads() ? copies->checkMemory() : Status()));
  copies->prepareBeside();
  return copies;
}

// ---------------------------------------------------------- what goes where

// Boxes as checkpoints have them, and all ranks that hold each.
void HostCopies::findItems() {
  const std::vector<TensorPieces> pieces = assignPieces(plan_);
  const std::vector<HeldTensor> held = heldTensors(plan_);
  for (size_t t = 0; t < pieces.size(); ++t) {
    using Place = std::pair<std::vector<int64_t>, std::vector<int64_t>>;
    std::map<Place, size_t> byPlace;
    for (const Piece &piece : pieces[t].pieces) {
      byPlace[{piece.box.globalOrigin, piece.box.extent}] = items_.size();
      items_.push_back({pieces[t].tensor, piece.key, piece.box, {}, {}});
    }
    for (const HeldBuffer &where : ofOneMesh(plan_, held[t].values)) {
      const planpb::Buffer &buffer =
          plan_.programOf(where.rank).buffers(where.buffer);
      for (const layout::Box &box : layout::boxes(
               fromProto(buffer.layout()), layoutMesh(plan_.file, where.rank),
               coordsOf(plan_.file, where.rank))) {
        const auto found = byPlace.find({box.globalOrigin, box.extent});
        if (found == byPlace.end())
          continue;
        Item &item = items_[found->second];
        if (item.ranks.empty() || item.ranks.back() != where.rank)
          item.ranks.push_back(where.rank);
        if (memoryOf(where.rank))
          item.local.try_emplace(where.rank,
                                 Piece{where.rank, where.buffer, box, ""});
      }
    }
  }
  manifest_ = manifestOf(plan_, pieces, {});
}

const RankMemory *HostCopies::memoryOf(int rank) const {
  for (const RankMemory &memory : ranks_)
    if (memory.program->rank() == rank)
      return &memory;
  return nullptr;
}

void HostCopies::makeParts() {
  std::vector<CopyItem> items;
  for (const Item &item : items_)
    items.push_back(
        {item.box.elements() * dtypeSize(item.tensor->dtype()), item.ranks});
  std::vector<int> hostOfRank = hosts_.ofProcess;
  hostOfRank.resize(size_t(plan_.file.ranks_size()), 0); // of one process
  parts_ = planCopies(items, hostOfRank, options_.hosts);
  std::vector<int> partOfItem(items_.size());
  bytesOfHosts_.resize(hosts_.names.size());
  for (size_t p = 0; p < parts_.size(); ++p) {
    std::vector<SafetensorsOutput> outputs;
    File &file = files_.emplace_back();
    for (int i : parts_[p].items) {
      const Item &item = items_[size_t(i)];
      partOfItem[size_t(i)] = int(p);
      outputs.push_back(
          {item.key, item.tensor->dtype(), item.box.extent, nullptr});
    }
    uint64_t dataBytes = 0;
    file.head = safetensorsHead(outputs, dataBytes);
    file.bytes = file.head.size();
    for (int i : parts_[p].items) {
      file.offsets.push_back(file.bytes);
      file.bytes += uint64_t(items[size_t(i)].bytes);
    }
    for (const CopyKeeper &keeper : parts_[p].keepers) {
      bytesOfHosts_[size_t(keeper.host)] += file.bytes;
      if (keeper.host == hosts_.mine && keeper.isSent())
        bytesReceived_ += file.bytes;
    }
  }
  size_t item = 0; // in the same order
  for (auto &[name, tensor] : manifest_.tensors)
    for (ManifestPiece &piece : tensor.pieces)
      piece.file = partName(partOfItem[item++]);
}

void HostCopies::makeTasks() {
  for (size_t p = 0; p < parts_.size(); ++p)
    for (const CopyKeeper &keeper : parts_[p].keepers) {
      const RankMemory *memory = memoryOf(keeper.rank);
      if (keeper.isSent() || !memory)
        continue;
      for (size_t i = 0; i < parts_[p].items.size(); ++i) {
        const Item &item = items_[size_t(parts_[p].items[i])];
        const int64_t bytes =
            item.box.elements() * dtypeSize(item.tensor->dtype());
        const int64_t rows = item.box.extent.empty() ? 1 : item.box.extent[0];
        const int64_t parts =
            memory->backend->isHost()
                ? std::clamp<int64_t>(bytes / kTaskBytes, 1,
                                      std::max<int64_t>(rows, 1))
                : 1; // each reads the whole buffer
        for (int64_t n = 0; n < parts; ++n)
          tasks_.push_back({int(p), &item, memory, &item.local.at(keeper.rank),
                            files_[p].offsets[i], rows * n / parts,
                            rows * (n + 1) / parts});
      }
    }
}

// ------------------------------------------------------------------- memory

Status HostCopies::checkMemory() const {
  auto free = folder_.freeBytes();
  if (!free)
    return free.status();
  // The one that the run goes on from is there until the first new one is.
  const uint64_t before = folder_.bytesOfGenerations();
  const uint64_t needed = std::max(
      bytesHere(), 2 * bytesHere() - std::min(2 * bytesHere(), before));
  if (needed <= *free)
    return {};
  return Status::error(fmt::format(
      "--copies: two copies of what host {} keeps take {}, \"{}\" has {} free: "
      "give a smaller --copies, or MERAK_COPIES another folder",
      hosts_.names[size_t(hosts_.mine)], megabytes(2 * bytesHere()),
      folder_.base(), megabytes(*free + before)));
}

Status HostCopies::fillSlot(Slot &slot) {
  const std::string folder = folder_.slot(int(&slot - slots_));
  for (size_t p = 0; p < parts_.size(); ++p)
    for (const CopyKeeper &keeper : parts_[p].keepers) {
      if (keeper.host != hosts_.mine || !memoryOf(keeper.rank))
        continue;
      auto file =
          CopyFile::make(joinPath(folder, partName(int(p))), files_[p].bytes);
      if (!file)
        return file.status();
      std::memcpy(file->data(), files_[p].head.data(), files_[p].head.size());
      slot.files[int(p)] = std::move(*file);
    }
  return {};
}

// Of the next copy. Pages are cleared meanwhile: seconds for a large model.
void HostCopies::prepareBeside() {
  busy_ = true;
  thread_ = std::thread([this] {
    stepBehind();
    if (Status status = prepareSlot(slots_[next_]); !status.ok())
      fail(status);
    busy_ = false;
  });
}

// All processes: whether all have it.
Status HostCopies::prepareSlot(Slot &slot) {
  Status made;
  if (folder_.leads()) {
    slot.name = folder_.slot(int(&slot - slots_));
    std::error_code error;
    std::filesystem::remove_all(slot.name, error);
    made = Files::system().makeFolder(slot.name);
  }
  MERAK_RETURN_IF_ERROR(agree(store(), "copies folders", made));
  Status filled = agree(store(), "copies files", fillSlot(slot));
  slot.ready = filled.ok();
  if (!slot.ready) { // what there is of it is of no use
    slot.files.clear();
    std::error_code error;
    if (folder_.leads())
      std::filesystem::remove_all(slot.name, error);
  }
  return filled;
}

// -------------------------------------------------------------- after a step

Status HostCopies::announce() {
  announced_ = true;
  return store() ? store()->contribute("copies ready", busy_ ? "" : "1")
                 : Status();
}

// As all have announced, so all come to the same answer. It was asked for a
// step before, so that nobody waits for it.
Result<bool> HostCopies::allAreReady() {
  announced_ = false;
  if (!store())
    return !busy_;
  auto all = store()->collect("copies ready", kPatienceSeconds);
  if (!all)
    return all.status();
  return std::all_of(all->begin(), all->end(),
                     [](const std::string &part) { return part == "1"; });
}

Status
HostCopies::after(int64_t step,
                  const std::function<Result<CheckpointState>()> &state) {
  const int64_t phase = step % options_.every;
  if (phase == options_.every - 1 && options_.every > 1)
    return announce();
  if (phase != 0)
    return {};
  const auto begin = Clock::now();
  if (!announced_)
    MERAK_RETURN_IF_ERROR(announce());
  auto ready = allAreReady();
  if (!ready)
    return ready.status();
  if (!*ready) {
    if (skipped_++ == 0 && begun_)
      tell(fmt::format("step {}: the copy before is still on its way to other "
                       "hosts: none of this step",
                       step));
    return {};
  }
  wait(); // it has ended, but for its last instructions
  Slot &slot = slots_[next_];
  if (!slot.ready) { // there was no memory for it: again, beside the steps
    ++skipped_;
    prepareBeside();
    return {};
  }
  auto now = state();
  if (!now)
    return now.status();
  now->run = folder_.run().name();
  Status copied = copyLocal(slot);
  begun_ = busy_ = true;
  thread_ = std::thread([this, state = *now, copied] {
    stepBehind();
    job(next_, state, copied);
  });
  stalls_.push_back(secondsSince(begin));
  return {};
}

Status HostCopies::now(CheckpointState state) {
  wait();
  Slot &slot = slots_[next_];
  if (!slot.ready)
    return {};
  state.run = folder_.run().name();
  const Status copied = copyLocal(slot);
  job(next_, std::move(state), copied);
  return {};
}

Status HostCopies::copyTask(const Task &task, char *data) const {
  const int64_t size = dtypeSize(task.item->tensor->dtype());
  const planpb::Buffer &buffer =
      task.memory->program->proto().buffers(task.piece->buffer);
  if (!task.memory->backend->isHost() &&
      task.piece->box.elements() * size == int64_t(buffer.bytes()))
    return task.memory->backend->copyToHost( // all of it, to where it stays
        data + task.offset,
        task.memory->program->bufferData(task.piece->buffer), buffer.bytes(),
        nullptr);
  auto source = HostCopy::of(*task.memory, task.piece->buffer);
  if (!source)
    return source.status();
  std::vector<int64_t> from = task.piece->box.localOrigin, to(from.size(), 0),
                       extent = task.piece->box.extent;
  const std::vector<int64_t> shape = extent;
  if (!extent.empty()) {
    from[0] += task.begin;
    to[0] = task.begin;
    extent[0] = task.end - task.begin;
  }
  layout::copyBox(source->data(), source->shape(), from, data + task.offset,
                  shape, to, extent, size);
  return {};
}

// From the ranks' memory to where it stays.
Status HostCopies::copyLocal(Slot &slot) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  Status problems;
  const bool host = ranks_.front().backend->isHost();
  auto work = [&](int64_t, int64_t) {
    for (size_t i; (i = next++) < tasks_.size();)
      if (Status status =
              copyTask(tasks_[i], slot.files.at(tasks_[i].part).data());
          !status.ok()) {
        std::lock_guard lock(mutex);
        problems.merge(status);
      }
  };
  if (host)
    pool_.parallelFor(pool_.threads(), 1, work);
  else
    work(0, 1);
  return problems;
}

// ---------------------------------------------------------- beside the steps

void HostCopies::job(int slot, CheckpointState state, Status copied) {
  const auto begin = Clock::now();
  Status status = makeGeneration(slots_[slot], state, copied);
  if (status.ok()) {
    ++made_;
    newest_ = state.step;
    next_ = 1 - slot;
    status = retire(next_, state.step);
  } else {
    drop(slots_[slot]);
  }
  // The memory of the second, when that of what was there before is free.
  if (status.ok() && !slots_[next_].ready)
    status = prepareSlot(slots_[next_]);
  if (!status.ok())
    fail(status);
  {
    std::lock_guard lock(mutex_);
    beside_ = secondsSince(begin);
  }
  busy_ = false;
}

Status HostCopies::makeGeneration(Slot &slot, const CheckpointState &state,
                                  const Status &copied) {
  MERAK_RETURN_IF_ERROR(agree(store(), "copies taken", copied));
  MERAK_RETURN_IF_ERROR(agree(store(), "copies sent", sendAndReceive(slot)));
  Manifest manifest = manifest_;
  manifest.state = state;
  MERAK_RETURN_IF_ERROR(
      agree(store(), "copies checked", checkParts(slot, manifest)));
  MERAK_RETURN_IF_ERROR(
      agree(store(), "copies written",
            folder_.leads() ? finish(slot, manifest) : Status()));
  return agree(store(), "copies whole",
               folder_.leads() ? commit(slot, state.step) : Status());
}

Status HostCopies::sendAndReceive(Slot &slot) {
  if (!world_)
    return {};
  const int me = world_->ranks().front();
  std::vector<CopyLeg> legs;
  for (const CopyTransfer &transfer : transfersOf(parts_)) {
    if (transfer.from != me && transfer.to != me)
      continue;
    const bool send = transfer.from == me;
    const CopyFile &file = slot.files.at(transfer.part);
    legs.push_back(
        {send, send ? transfer.to : transfer.from, file.data(), file.bytes()});
  }
  return carry(*world_, "copies", legs);
}

// What each process wrote is what all others wrote of the same part, and is
// finite where it must be.
Status HostCopies::checkParts(Slot &slot, Manifest &manifest) const {
  Status problems;
  std::string mine = fmt::format("{}\n", manifest.state.skipped);
  for (const auto &[part, file] : slot.files) {
    mine +=
        fmt::format("{} {}\n", part, Checksum::of(file.data(), file.bytes()));
    for (size_t i = 0; i < parts_[size_t(part)].items.size(); ++i) {
      const Item &item = items_[size_t(parts_[size_t(part)].items[i])];
      const planpb::DType dtype = item.tensor->dtype();
      if (!options_.anyValues && isTrained(*item.tensor) &&
          !allFinite(dtype, file.data() + files_[size_t(part)].offsets[i],
                     item.box.elements() * dtypeSize(dtype)))
        problems.merge(Status::error(
            fmt::format("\"{}\" holds values that are not finite: the copy "
                        "before stays",
                        item.tensor->name())));
    }
  }
  std::vector<std::string> all{mine};
  if (store()) {
    auto gathered = store()->gather("copies parts", mine, kPatienceSeconds);
    if (!gathered)
      return gathered.status();
    all = std::move(*gathered);
  }
  std::map<int, size_t> first; // process that has it
  for (size_t process = 0; process < all.size(); ++process) {
    std::istringstream lines(all[process]);
    int64_t skipped = 0;
    lines >> skipped;
    if (process == 0)
      manifest.state.skipped = skipped;
    int part = 0;
    for (uint64_t checksum = 0; lines >> part >> checksum;) {
      const FileCheck check{files_.at(size_t(part)).bytes, checksum};
      const auto entry =
          manifest.shards.try_emplace(partName(part), check).first;
      first.try_emplace(part, process);
      if (entry->second != check)
        problems.merge(Status::error(
            fmt::format("ranks {} and {} have different copies of \"{}\"",
                        first[part], process,
                        items_[size_t(parts_[size_t(part)].items.front())]
                            .tensor->name())));
    }
  }
  return problems;
}

Status HostCopies::finish(const Slot &slot, const Manifest &manifest) const {
  return createText(Files::system(), joinPath(slot.name, kManifestName),
                    manifestText(manifest));
}

Status HostCopies::commit(Slot &slot, int64_t step) {
  const std::string target = folder_.generation(step);
  // What a killed run half removed.
  MERAK_RETURN_IF_ERROR(folder_.removeGeneration(step));
  MERAK_RETURN_IF_ERROR(Files::system().rename(slot.name, target));
  slot.name = target;
  return {};
}

// Once all hosts have the newer one. What the slot held is no generation any
// more before anything is written there.
Status HostCopies::retire(int slot, int64_t step) {
  Status status;
  if (folder_.leads()) {
    if (slots_[slot].ready)
      drop(slots_[slot]);
    status = folder_.removeOthers(step);
  }
  return agree(store(), "copies settled", status);
}

// As if nothing had been made in it; its memory stays. Of who leads.
void HostCopies::drop(Slot &slot) {
  if (!folder_.leads())
    return;
  const std::string name = folder_.slot(int(&slot - slots_));
  if (slot.name != name && Files::system().rename(slot.name, name).ok())
    slot.name = name;
  if (entryAt(joinPath(slot.name, kManifestName)) == Entry::file)
    (void)Files::system().remove(joinPath(slot.name, kManifestName));
}

// -------------------------------------------------------------------- telling

// What ended a copy; why a run ended is told elsewhere.
void HostCopies::fail(const Status &status) {
  if (world_ && world_->aborted())
    return;
  for (const std::string &message : status.messages())
    if (!message.empty())
      tell("copies: " + message);
}

// The same thing again and again is told once.
void HostCopies::tell(const std::string &what) {
  std::lock_guard lock(mutex_);
  if (what == told_ || what.empty())
    return;
  told_ = what;
  news_.push_back(what);
}

std::vector<std::string> HostCopies::news() {
  std::lock_guard lock(mutex_);
  return std::exchange(news_, {});
}

std::string HostCopies::summary() const {
  if (made_ == 0 && skipped_ == 0)
    return {};
  std::vector<double> sorted = stalls_;
  std::sort(sorted.begin(), sorted.end());
  std::lock_guard lock(mutex_);
  std::string line =
      fmt::format("{} cop{} of {} a host", made_.load(),
                  made_ == 1 ? "y" : "ies", megabytes(bytesHere()));
  if (bytesReceived_ > 0)
    line += fmt::format(" ({} sent)", megabytes(bytesReceived_));
  if (!sorted.empty())
    line += fmt::format(", {:.2f} ms each between steps, {:.1f} ms beside",
                        sorted[sorted.size() / 2] * 1e3, beside_ * 1e3);
  if (skipped_ > 0)
    line += fmt::format(", {} skipped", skipped_);
  return line;
}

} // namespace merak::runtime
