// Checks a transfer program against the two plans alone: nothing here asks how
// it was made.
#include "runtime/migration/Holdings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <set>

namespace merak::migration {

namespace {

using layout::Box;

// A part of a target buffer that something fills.
struct Filled {
  std::vector<int64_t> origin, extent; // local
};

bool overlap(const Filled &a, const Filled &b) {
  for (size_t d = 0; d < a.extent.size(); ++d)
    if (a.origin[d] + a.extent[d] <= b.origin[d] ||
        b.origin[d] + b.extent[d] <= a.origin[d])
      return false;
  return true;
}

bool isInside(const std::vector<int64_t> &origin,
              const std::vector<int64_t> &extent, const Box &box) {
  if (origin.size() != box.extent.size() || extent.size() != origin.size())
    return false;
  for (size_t d = 0; d < extent.size(); ++d) {
    const int64_t at = origin[d] - box.localOrigin[d];
    if (at < 0 || extent[d] <= 0 || at + extent[d] > box.extent[d])
      return false;
  }
  return true;
}

// Where a box of the local tensor lies in the global one; nothing if it is in
// none of the holding's boxes.
std::vector<int64_t> globalOrigin(const Holding &holding,
                                  const std::vector<int64_t> &origin,
                                  const std::vector<int64_t> &extent,
                                  bool &found) {
  for (const Box &box : holding.boxes) {
    if (!isInside(origin, extent, box))
      continue;
    found = true;
    std::vector<int64_t> global = box.globalOrigin;
    for (size_t d = 0; d < global.size(); ++d)
      global[d] += origin[d] - box.localOrigin[d];
    return global;
  }
  found = false;
  return {};
}

class Verifier {
public:
  Verifier(const Migration &migration, const LoadedPlan &source,
           const LoadedPlan &target)
      : migration(migration), source(source), target(target) {}

  Status run() {
    checkPlaces();
    if (!problems.ok())
      return problems;
    for (const Kept &kept : migration.kept)
      checkKept(kept);
    for (const LocalCopy &copy : migration.copies)
      checkPiece(copy.piece, copy.device, copy.device,
                 fmt::format("copy on device {}", copy.device));
    for (size_t b = 0; b < migration.buckets.size(); ++b)
      checkBucket(int(b));
    checkFilled();
    return problems;
  }

private:
  using Key = std::pair<int, int>; // device, buffer

  void fail(std::string what) {
    problems.merge(Status::error(std::move(what)));
  }

  // Each rank of both plans is on one device; then the buffers by device.
  void checkPlaces() {
    const size_t devices = migration.nodes.size();
    auto deviceOf = [&](const std::vector<int> &rankOf, const LoadedPlan &plan,
                        const char *name) {
      std::vector<int> result(size_t(plan.file.ranks_size()), -1);
      if (rankOf.size() != devices)
        fail(fmt::format("ranks of the {} plan are given for {} of {} devices",
                         name, rankOf.size(), devices));
      for (size_t device = 0; device < rankOf.size(); ++device) {
        const int rank = rankOf[device];
        if (rank < 0)
          continue;
        if (rank >= int(result.size()) || result[size_t(rank)] >= 0)
          fail(fmt::format("rank {} of the {} plan is on device {}, which "
                           "cannot be",
                           rank, name, device));
        else
          result[size_t(rank)] = int(device);
      }
      for (size_t rank = 0; rank < result.size(); ++rank)
        if (result[rank] < 0)
          fail(fmt::format("rank {} of the {} plan is on no device", rank,
                           name));
      return result;
    };
    const std::vector<int> from =
        deviceOf(migration.sourceRank, source, "source");
    const std::vector<int> to =
        deviceOf(migration.targetRank, target, "target");
    if (!problems.ok())
      return;
    for (TensorHoldings &entry : holdingsOf(source, from))
      for (Holding &holding : entry.values)
        sources[{holding.device, holding.buffer}] = {entry.tensor->name(),
                                                     std::move(holding)};
    for (TensorHoldings &entry : holdingsOf(target, to))
      for (std::vector<Holding> *holdings : {&entry.values, &entry.rounded})
        for (Holding &holding : *holdings)
          targets[{holding.device, holding.buffer}] = {entry.tensor->name(),
                                                       std::move(holding)};
  }

  struct Named {
    std::string tensor;
    Holding holding;
  };

  // The buffers that a piece or a kept buffer is about; null, with a sentence,
  // if they do not hold its tensor.
  std::pair<const Named *, const Named *> buffersOf(int tensor, int sender,
                                                    int from, int receiver,
                                                    int to,
                                                    const std::string &where) {
    if (tensor < 0 || tensor >= int(migration.tensors.size())) {
      fail(fmt::format("{}: tensor {} is none of {}", where, tensor,
                       migration.tensors.size()));
      return {};
    }
    const std::string &name = migration.tensors[size_t(tensor)];
    auto find = [&](const std::map<Key, Named> &all, int device, int buffer,
                    const char *what) -> const Named * {
      const auto found = all.find({device, buffer});
      if (found != all.end() && found->second.tensor == name)
        return &found->second;
      fail(fmt::format("{}: buffer {} of device {} does not hold {} \"{}\"",
                       where, buffer, device, what, name));
      return nullptr;
    };
    const Named *a = find(sources, sender, from, "the source's");
    const Named *b = find(targets, receiver, to, "the target's");
    return a && b ? std::pair(a, b) : std::pair<const Named *, const Named *>();
  }

  void checkKept(const Kept &kept) {
    const std::string where = fmt::format("kept on device {}", kept.device);
    const auto [from, to] = buffersOf(kept.tensor, kept.device, kept.source,
                                      kept.device, kept.target, where);
    if (!from)
      return;
    const Holding &a = from->holding, &b = to->holding;
    if (a.dtype != b.dtype || a.shape != b.shape || a.boxes != b.boxes)
      fail(fmt::format("{}: buffers {} and {} of \"{}\" differ", where,
                       kept.source, kept.target, to->tensor));
    if (kept.bytes != b.bytes())
      fail(fmt::format("{}: \"{}\" has {} bytes, not {}", where, to->tensor,
                       b.bytes(), kept.bytes));
    if (!keptSources.insert({kept.device, kept.source}).second)
      fail(fmt::format("{}: buffer {} of \"{}\" is kept for two", where,
                       kept.source, to->tensor));
    for (const Box &box : b.boxes)
      filled[{kept.device, kept.target}].push_back(
          {box.localOrigin, box.extent});
  }

  void checkPiece(const Piece &piece, int sender, int receiver,
                  const std::string &where) {
    const auto [from, to] = buffersOf(piece.tensor, sender, piece.source,
                                      receiver, piece.target, where);
    if (!from)
      return;
    bool held = false, wanted = false;
    const std::vector<int64_t> a =
        globalOrigin(from->holding, piece.from, piece.extent, held);
    const std::vector<int64_t> b =
        globalOrigin(to->holding, piece.to, piece.extent, wanted);
    const std::string &name = to->tensor;
    const std::string box = fmt::format("{}", fmt::join(piece.extent, "x"));
    if (!held)
      fail(fmt::format("{}: device {} does not hold the {} at [{}] of \"{}\" "
                       "that it sends",
                       where, sender, box, fmt::join(piece.from, ","), name));
    if (!wanted)
      fail(fmt::format("{}: device {} does not need the {} at [{}] of \"{}\"",
                       where, receiver, box, fmt::join(piece.to, ","), name));
    if (held && wanted && a != b)
      fail(fmt::format("{}: what lies at [{}] of \"{}\" goes to [{}]", where,
                       fmt::join(a, ","), name, fmt::join(b, ",")));
    if (piece.dtype != to->holding.dtype)
      fail(fmt::format("{}: a piece of \"{}\" is {}, its buffer {}", where,
                       name, dtypeName(piece.dtype),
                       dtypeName(to->holding.dtype)));
    const int64_t bytes =
        elementsOf(piece.extent) * dtypeSize(to->holding.dtype);
    if (piece.bytes != bytes)
      fail(fmt::format("{}: a piece of \"{}\" has {} bytes, not {}", where,
                       name, bytes, piece.bytes));
    if (wanted)
      filled[{receiver, piece.target}].push_back({piece.to, piece.extent});
  }

  void checkBucket(int number) {
    std::set<std::pair<int, int>> seen;
    std::map<int, int64_t> memory; // bytes by device
    for (const Message &message : migration.buckets[size_t(number)].messages) {
      const std::string where =
          fmt::format("bucket {}: message from {} to {}", number,
                      message.sender, message.receiver);
      auto isThere = [&](const std::vector<int> &rankOf, int device) {
        return device >= 0 && device < migration.devices() &&
               rankOf[size_t(device)] >= 0;
      };
      if (!isThere(migration.sourceRank, message.sender))
        fail(where + ": nobody of the source plan sends it");
      if (!isThere(migration.targetRank, message.receiver))
        fail(where + ": nobody of the target plan receives it");
      if (message.sender == message.receiver)
        fail(where + ": it goes nowhere");
      if (!seen.insert({message.sender, message.receiver}).second)
        fail(where + ": there are two");
      if (message.pieces.empty())
        fail(where + ": it is empty");
      int64_t bytes = 0;
      for (const Piece &piece : message.pieces) {
        bytes += piece.bytes;
        checkPiece(piece, message.sender, message.receiver, where);
      }
      if (bytes != message.bytes)
        fail(fmt::format("{}: its pieces have {} bytes, not {}", where, bytes,
                         message.bytes));
      memory[message.sender] += bytes;
      memory[message.receiver] += bytes;
    }
    for (const auto &[device, bytes] : memory)
      if (bytes > migration.bucketBytes)
        fail(fmt::format("bucket {}: device {} needs {} bytes, more than the "
                         "{} of a bucket",
                         number, device, bytes, migration.bucketBytes));
  }

  // Boxes of a buffer tile it: so do the parts that are filled, if they are
  // disjoint and as many elements.
  void checkFilled() {
    for (const auto &[key, named] : targets) {
      const std::vector<Filled> &parts = filled[key];
      const std::string where =
          fmt::format("device {}: buffer {} of \"{}\"", key.first, key.second,
                      named.tensor);
      int64_t elements = 0;
      for (size_t i = 0; i < parts.size(); ++i) {
        elements += elementsOf(parts[i].extent);
        for (size_t k = 0; k < i; ++k)
          if (overlap(parts[i], parts[k]))
            fail(fmt::format("{}: the {} at [{}] arrives twice", where,
                             fmt::join(parts[i].extent, "x"),
                             fmt::join(parts[i].origin, ",")));
      }
      int64_t needed = 0;
      for (const Box &box : named.holding.boxes)
        needed += box.elements();
      if (elements < needed)
        fail(fmt::format("{}: {} of {} elements never arrive", where,
                         needed - elements, needed));
    }
  }

  const Migration &migration;
  const LoadedPlan &source, &target;
  std::map<Key, Named> sources, targets;
  std::set<Key> keptSources;
  std::map<Key, std::vector<Filled>> filled;
  Status problems;
};

} // namespace

Status verifyMigration(const Migration &migration, const LoadedPlan &source,
                       const LoadedPlan &target) {
  return Verifier(migration, source, target).run();
}

} // namespace merak::migration
