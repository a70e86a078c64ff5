// Pairs of plans that hold the same tensors in layouts drawn at random, and
// migrations that are executed in this process.
#pragma once

#include "runtime/migration/Execute.h"
#include "test/unit/checkpoint/Layouts.h"

#include <random>

namespace merak::migration::test {

using runtime::test::Dims;
using runtime::test::Holder;
using Random = std::mt19937;

int64_t pick(Random &random, int64_t first, int64_t last);

// Five tensors on a mesh drawn at random, their dimensions in factors split
// over dp and tp as drawn, on the stages that are drawn.
std::unique_ptr<Holder> randomHolder(Random &random);

// Both plans' ranks on devices drawn at random, of nodes drawn at random.
Places randomPlaces(Random &random, const Holder &source, const Holder &target);

// Plans the migration, verifies it and executes it; the device's counts.
std::vector<Moved> migrate(const Migration &migration, Holder &source,
                           Holder &target);

// One tensor "w" of [rows] on so many replicas, or split over them.
std::unique_ptr<Holder> replicated(int64_t rows, int64_t dp);
std::unique_ptr<Holder> split(int64_t rows, int64_t dp);

} // namespace merak::migration::test
