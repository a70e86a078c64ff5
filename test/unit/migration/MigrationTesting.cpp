#include "test/unit/migration/MigrationTesting.h"

#include "runtime/comm/inproc/InprocCommunicator.h"

#include <algorithm>
#include <fmt/format.h>
#include <numeric>

namespace merak::migration::test {

int64_t pick(Random &random, int64_t first, int64_t last) {
  return first + int64_t(random() % uint64_t(last - first + 1));
}

namespace {

// A dimension of 24 in factors, of which some are split over what is left of
// the axes.
planpb::DimLayout randomDimension(Random &random, const layout::AxisMap &mesh,
                                  std::vector<std::string> &axes) {
  static const std::vector<std::vector<int64_t>> kFactors = {
      {24}, {2, 12}, {3, 8}, {12, 2}, {3, 4, 2}};
  planpb::DimLayout dim;
  for (int64_t size : kFactors[size_t(pick(random, 0, 4))]) {
    planpb::Factor &factor = *dim.add_factors();
    factor.set_size(size);
    int64_t parts = 1;
    for (size_t a = 0; a < axes.size();) {
      const int64_t more = parts * mesh.at(axes[a]);
      if (size % more != 0 || pick(random, 0, 2) > 0) {
        ++a;
        continue;
      }
      parts = more;
      factor.add_axes(axes[a]);
      axes.erase(axes.begin() + int64_t(a));
    }
  }
  return dim;
}

} // namespace

std::unique_ptr<Holder> randomHolder(Random &random) {
  static constexpr std::array<int64_t, 4> kSizes = {1, 2, 3, 4};
  int64_t pp, dp, tp;
  do {
    pp = kSizes[size_t(pick(random, 0, 2))];
    dp = kSizes[size_t(pick(random, 0, 3))];
    tp = kSizes[size_t(pick(random, 0, 3))];
  } while (pp * dp * tp > 12);
  auto holder = std::make_unique<Holder>(pp, dp, tp);
  const layout::AxisMap mesh = meshOf(holder->plan.file);
  for (int t = 0; t < 5; ++t) {
    planpb::Layout layout;
    std::vector<std::string> axes = {"dp", "tp"};
    if (pick(random, 0, 1))
      std::swap(axes[0], axes[1]);
    for (int d = 0; d < t % 3; ++d) // a scalar, vectors, matrices
      *layout.add_dims() = randomDimension(random, mesh, axes);
    std::vector<int> stages(size_t(pp), 0);
    std::iota(stages.begin(), stages.end(), 0);
    std::shuffle(stages.begin(), stages.end(), random);
    stages.resize(size_t(pick(random, 1, pp)));
    holder->add(fmt::format("t{}", t), std::vector<int64_t>(size_t(t % 3), 24),
                layout, stages,
                t == 3 ? planpb::Tensor::OPTIMIZER : planpb::Tensor::PARAMETER);
  }
  holder->start();
  return holder;
}

Places randomPlaces(Random &random, const Holder &source,
                    const Holder &target) {
  const int from = source.plan.file.ranks_size();
  const int to = target.plan.file.ranks_size();
  const int devices = std::max(from, to) + int(pick(random, 0, 3));
  auto shuffled = [&](int ranks) {
    std::vector<int> result(size_t(devices), 0);
    std::iota(result.begin(), result.end(), 0);
    std::shuffle(result.begin(), result.end(), random);
    result.resize(size_t(ranks));
    return result;
  };
  Places places{shuffled(from), shuffled(to), {}};
  const int64_t nodes = pick(random, 1, 3);
  for (int d = 0; d < devices; ++d)
    places.nodes.push_back(int(pick(random, 0, nodes - 1)));
  return places;
}

std::vector<Moved> migrate(const Migration &migration, Holder &source,
                           Holder &target) {
  const Status sound = verifyMigration(migration, source.plan, target.plan);
  EXPECT_TRUE(sound.ok()) << sound.str();
  runtime::InprocWorld world(migration.devices());
  std::vector<std::unique_ptr<runtime::Communicator>> communicators;
  std::vector<DeviceMemory> memories;
  for (int d = 0; d < migration.devices(); ++d) {
    communicators.push_back(world.communicator(d));
    const int from = migration.sourceRank[size_t(d)];
    const int to = migration.targetRank[size_t(d)];
    memories.push_back({d, from < 0 ? nullptr : &source.ranks[size_t(from)],
                        to < 0 ? nullptr : &target.ranks[size_t(to)],
                        communicators.back().get()});
  }
  auto moved = executeMigration(migration, memories);
  EXPECT_TRUE(moved.ok()) << moved.status().str();
  return moved ? *moved : std::vector<Moved>(memories.size());
}

std::unique_ptr<Holder> replicated(int64_t rows, int64_t dp) {
  auto holder = std::make_unique<Holder>(1, dp, 1);
  holder->add("w", {rows}, Dims{{rows, {}}});
  holder->start();
  return holder;
}

std::unique_ptr<Holder> split(int64_t rows, int64_t dp) {
  auto holder = std::make_unique<Holder>(1, dp, 1);
  holder->add("w", {rows}, Dims{{rows, {"dp"}}});
  holder->start();
  return holder;
}

} // namespace merak::migration::test
