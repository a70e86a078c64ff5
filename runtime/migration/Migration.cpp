#include "runtime/migration/Migration.h"

#include "runtime/migration/Buckets.h"
#include "runtime/migration/Holdings.h"
#include "runtime/migration/Regions.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <numeric>
#include <set>

namespace merak::migration {

int64_t Migration::messages() const {
  int64_t count = 0;
  for (const Bucket &bucket : buckets)
    count += int64_t(bucket.messages.size());
  return count;
}

std::vector<DeviceBytes> Migration::byDevice() const {
  std::vector<DeviceBytes> result(nodes.size());
  for (const Kept &entry : kept)
    result[size_t(entry.device)].kept += entry.bytes;
  for (const LocalCopy &copy : copies)
    result[size_t(copy.device)].copied += copy.piece.bytes;
  for (const Bucket &bucket : buckets) {
    std::map<int, int64_t> buffers; // by device
    for (const Message &message : bucket.messages) {
      result[size_t(message.sender)].sent += message.bytes;
      result[size_t(message.receiver)].received += message.bytes;
      buffers[message.sender] += message.bytes;
      buffers[message.receiver] += message.bytes;
    }
    for (const auto &[device, bytes] : buffers) {
      int64_t &most = result[size_t(device)].buffers;
      most = std::max(most, bytes);
    }
  }
  return result;
}

DeviceBytes Migration::total() const {
  DeviceBytes sum;
  for (const DeviceBytes &device : byDevice()) {
    sum.kept += device.kept;
    sum.copied += device.copied;
    sum.sent += device.sent;
    sum.received += device.received;
    sum.buffers = std::max(sum.buffers, device.buffers);
  }
  return sum;
}

namespace {

std::vector<int> orIdentity(std::vector<int> devices, int ranks) {
  if (devices.empty()) {
    devices.resize(size_t(ranks));
    std::iota(devices.begin(), devices.end(), 0);
  }
  return devices;
}

// The rank of each device.
Result<std::vector<int>> ranksOf(const std::vector<int> &deviceOf, int ranks,
                                 int devices, const char *plan) {
  if (int(deviceOf.size()) != ranks)
    return Status::error(
        fmt::format("the {} plan has {} ranks, but devices are given for {}",
                    plan, ranks, deviceOf.size()));
  std::vector<int> rankOf(size_t(devices), -1);
  Status problems;
  for (int rank = 0; rank < ranks; ++rank) {
    const int device = deviceOf[size_t(rank)];
    if (device < 0 || device >= devices)
      problems.merge(Status::error(
          fmt::format("rank {} of the {} plan is on device {}: there are {}",
                      rank, plan, device, devices)));
    else if (rankOf[size_t(device)] >= 0)
      problems.merge(Status::error(
          fmt::format("ranks {} and {} of the {} plan are both on device {}",
                      rankOf[size_t(device)], rank, plan, device)));
    else
      rankOf[size_t(device)] = rank;
  }
  if (!problems.ok())
    return problems;
  return rankOf;
}

std::string describe(const planpb::Tensor &tensor) {
  return fmt::format("{}[{}]", dtypeName(tensor.dtype()),
                     fmt::join(tensor.shape(), ","));
}

// Whether both plans hold the state of one model.
Status sameState(const std::vector<TensorHoldings> &source,
                 const std::vector<TensorHoldings> &target) {
  std::map<std::string, const planpb::Tensor *> there;
  for (const TensorHoldings &entry : source)
    there[entry.tensor->name()] = entry.tensor;
  Status problems;
  for (const TensorHoldings &entry : target) {
    const auto found = there.find(entry.tensor->name());
    if (found == there.end()) {
      problems.merge(Status::error(fmt::format(
          "the source plan has no tensor \"{}\"", entry.tensor->name())));
      continue;
    }
    if (describe(*found->second) != describe(*entry.tensor))
      problems.merge(Status::error(fmt::format(
          "tensor \"{}\" is {} in the source plan and {} in the target plan",
          entry.tensor->name(), describe(*found->second),
          describe(*entry.tensor))));
    there.erase(found);
  }
  for (const TensorHoldings &entry : source)
    if (there.count(entry.tensor->name()))
      problems.merge(Status::error(fmt::format(
          "the target plan has no tensor \"{}\"", entry.tensor->name())));
  return problems;
}

// A distinct box of the source, and who has it.
struct Owned {
  layout::Box box;
  struct Copy {
    int device = 0, buffer = 0;
    std::vector<int64_t> localOrigin;
  };
  std::vector<Copy> copies;
};

std::vector<Owned> ownedOf(const TensorHoldings &tensor) {
  std::vector<Owned> result;
  std::map<std::pair<std::vector<int64_t>, std::vector<int64_t>>, size_t> index;
  for (const Holding &holding : tensor.values)
    for (const layout::Box &box : holding.boxes) {
      const auto [at, isNew] =
          index.insert({{box.globalOrigin, box.extent}, result.size()});
      if (isNew)
        result.push_back({box, {}});
      result[at->second].copies.push_back(
          {holding.device, holding.buffer, box.localOrigin});
    }
  return result;
}

class Planner {
public:
  Planner(Migration &migration)
      : migration_(migration),
        buckets_(migration.devices(), migration.bucketBytes),
        inside_(migration.nodes.size(), 0), between_(inside_) {}

  Status add(int tensor, const TensorHoldings &source,
             const TensorHoldings &target) {
    const std::vector<Owned> owned = ownedOf(source);
    Status problems;
    for (const std::vector<Holding> *holdings :
         {&target.values, &target.rounded})
      for (const Holding &holding : *holdings)
        if (const int64_t missing = fill(tensor, source, owned, holding))
          problems.merge(Status::error(fmt::format(
              "tensor \"{}\": no rank of the source plan holds {} of the {} "
              "elements that device {} needs",
              target.tensor->name(), missing, elementsOf(holding.shape),
              holding.device)));
    return problems;
  }

  void finish() { migration_.buckets = buckets_.take(); }

private:
  // Elements that nobody holds.
  int64_t fill(int tensor, const TensorHoldings &source,
               const std::vector<Owned> &owned, const Holding &target) {
    for (const Holding &here : source.values)
      if (here.device == target.device && here.dtype == target.dtype &&
          here.shape == target.shape && here.boxes == target.boxes &&
          keptSources_.insert({here.device, here.buffer}).second) {
        migration_.kept.push_back({target.device, tensor, here.buffer,
                                   target.buffer, target.bytes()});
        return 0;
      }
    Regions left(target.boxes);
    for (const Holding &here : source.values)
      if (here.device == target.device)
        for (const layout::Box &box : here.boxes)
          left.take(box, [&](const layout::Overlap &shared) {
            migration_.copies.push_back(
                {target.device,
                 pieceOf(tensor, here.buffer, target, shared.originA, shared)});
          });
    for (const Owned &entry : owned) {
      if (left.isEmpty())
        break;
      left.take(entry.box, [&](const layout::Overlap &shared) {
        send(tensor, entry, target, shared);
      });
    }
    return left.elements();
  }

  Piece pieceOf(int tensor, int buffer, const Holding &target,
                const std::vector<int64_t> &from,
                const layout::Overlap &shared) const {
    return {
        tensor,         buffer,
        target.buffer,  from,
        shared.originB, shared.extent,
        target.dtype,   elementsOf(shared.extent) * dtypeSize(target.dtype)};
  }

  // Parts of a box that are too large for a bucket may come from several
  // owners.
  void send(int tensor, const Owned &owned, const Holding &target,
            const layout::Overlap &box) {
    for (const layout::Overlap &part : split(box, dtypeSize(target.dtype))) {
      const Owned::Copy &owner = choose(owned.copies, target.device);
      // Origins in the box of the copy that `owned` was made of.
      std::vector<int64_t> from = part.originA;
      for (size_t d = 0; d < from.size(); ++d)
        from[d] += owner.localOrigin[d] - owned.box.localOrigin[d];
      Piece piece =
          pieceOf(tensor, owner.buffer, target, std::move(from), part);
      count(owner.device, target.device) += piece.bytes;
      buckets_.add(owner.device, target.device, std::move(piece));
    }
  }

  // Along the first dimensions, into parts of at most the bytes of a piece.
  std::vector<layout::Overlap> split(const layout::Overlap &box,
                                     int64_t elementBytes) const {
    const int64_t bytes = elementsOf(box.extent) * elementBytes;
    if (bytes <= buckets_.mostBytes())
      return {box};
    size_t d = 0;
    while (d < box.extent.size() && box.extent[d] == 1)
      ++d;
    const int64_t row = bytes / box.extent[d];
    const int64_t rows = std::max<int64_t>(1, buckets_.mostBytes() / row);
    std::vector<layout::Overlap> parts;
    for (int64_t first = 0; first < box.extent[d]; first += rows) {
      layout::Overlap part = box;
      part.originA[d] += first;
      part.originB[d] += first;
      part.extent[d] = std::min(rows, box.extent[d] - first);
      for (layout::Overlap &smaller : split(part, elementBytes))
        parts.push_back(std::move(smaller));
    }
    return parts;
  }

  bool meetInside(int a, int b) const {
    return migration_.nodes[size_t(a)] == migration_.nodes[size_t(b)];
  }
  int64_t &count(int sender, int receiver) {
    return (meetInside(sender, receiver) ? inside_ : between_)[size_t(sender)];
  }

  const Owned::Copy &choose(const std::vector<Owned::Copy> &copies,
                            int receiver) {
    auto before = [&](const Owned::Copy &a, const Owned::Copy &b) {
      const bool aInside = meetInside(a.device, receiver);
      if (aInside != meetInside(b.device, receiver))
        return aInside;
      return std::pair(count(a.device, receiver), a.device) <
             std::pair(count(b.device, receiver), b.device);
    };
    return *std::min_element(copies.begin(), copies.end(), before);
  }

  Migration &migration_;
  Buckets buckets_;
  std::vector<int64_t> inside_, between_; // bytes sent, by device
  // Devices and buffers: two buffers of the target are two places.
  std::set<std::pair<int, int>> keptSources_;
};

// Places, and who is where.
Result<Migration> placed(const LoadedPlan &source, const LoadedPlan &target,
                         const Options &options,
                         std::vector<int> &sourceDevices,
                         std::vector<int> &targetDevices) {
  const int from = source.file.ranks_size(), to = target.file.ranks_size();
  sourceDevices = orIdentity(options.places.source, from);
  targetDevices = orIdentity(options.places.target, to);
  Migration migration;
  migration.nodes = options.places.nodes;
  migration.bucketBytes = options.bucketBytes;
  if (migration.nodes.empty()) {
    int devices = 0;
    for (const std::vector<int> *all : {&sourceDevices, &targetDevices})
      for (int device : *all)
        devices = std::max(devices, device + 1);
    migration.nodes.assign(size_t(devices), 0);
  }
  Status problems;
  if (options.bucketBytes < kLeastBucketBytes)
    problems.merge(
        Status::error(fmt::format("buckets of {} bytes are too small: {} at "
                                  "least",
                                  options.bucketBytes, kLeastBucketBytes)));
  auto sources = ranksOf(sourceDevices, from, migration.devices(), "source");
  auto targets = ranksOf(targetDevices, to, migration.devices(), "target");
  problems.merge(sources.status());
  problems.merge(targets.status());
  if (!problems.ok())
    return problems;
  migration.sourceRank = std::move(*sources);
  migration.targetRank = std::move(*targets);
  return migration;
}

} // namespace

Result<Migration> planMigration(const LoadedPlan &source,
                                const LoadedPlan &target,
                                const Options &options) {
  std::vector<int> sourceDevices, targetDevices;
  auto migration =
      placed(source, target, options, sourceDevices, targetDevices);
  if (!migration)
    return migration;
  const std::vector<TensorHoldings> from = holdingsOf(source, sourceDevices);
  const std::vector<TensorHoldings> to = holdingsOf(target, targetDevices);
  MERAK_RETURN_IF_ERROR(sameState(from, to));
  std::map<std::string, const TensorHoldings *> byName;
  for (const TensorHoldings &entry : from)
    byName[entry.tensor->name()] = &entry;
  Planner planner(*migration);
  Status problems;
  for (const TensorHoldings &entry : to) {
    migration->tensors.push_back(entry.tensor->name());
    problems.merge(planner.add(int(migration->tensors.size()) - 1,
                               *byName.at(entry.tensor->name()), entry));
  }
  if (!problems.ok())
    return problems;
  planner.finish();
  return migration;
}

} // namespace merak::migration
