// Sums of slices at the front, and what is summed of blocks of them: on hosts.
#include "test/unit/conformance/Harness.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace merak::conformance {
namespace {

Tensors run(const Tensor &slices, const Tensor &ids, int64_t size,
            const std::map<std::string, std::string> &attrs) {
  Case c;
  c.op = "coalesce";
  c.attrs = attrs;
  c.attrs["size"] = std::to_string(size);
  c.inputs = {slices, ids};
  c.outputs = {zeros(slices.shape), zeros(ids.shape, ids.dtype)};
  Outcome outcome = runCase(c, MemoryLayout::Dense, 2, false);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.str();
  return outcome.outputs;
}

Tensor part(const Tensor &whole, int64_t begin, int64_t count) {
  const int64_t each = whole.size() / whole.shape[0];
  Tensor out = whole;
  out.shape[0] = count;
  out.v.assign(whole.v.begin() + begin * each,
               whole.v.begin() + (begin + count) * each);
  return out;
}

// In the order of first places: 5, 2, 7; the table has 8 rows, -1 is the last.
TEST(Coalesce, LeavesSumsAtTheFront) {
  const Tensor ids = integers({7}, {5, 2, 5, 9, -1, 2, 7});
  Tensor slices = zeros({7, 2});
  for (int64_t i = 0; i < slices.size(); ++i)
    slices.v[i] = static_cast<double>(i);
  const Tensors found = run(slices, ids, 8, {{"compact", "1"}});
  EXPECT_EQ(found[0].v, (std::vector<double>{4, 6, 12, 14, 20, 22, 0, 0, 0, 0,
                                             0, 0, 0, 0}));
  EXPECT_EQ(found[1].v, (std::vector<double>{5, 2, 7, 8, 8, 8, 8}));
}

// Each block summed by itself, then all: what the slices themselves give.
TEST(Coalesce, SumsBlocksThatWereSummed) {
  for (int trial = 0; trial < 50; ++trial) {
    const int64_t block = 1 + trial % 9, blocks = 1 + trial % 4,
                  size = 1 + trial % 13;
    const Shape shape{block * blocks, 3};
    const auto seed = static_cast<unsigned>(trial);
    Tensor slices = random(shape, seed, -9, 9);
    for (double &value : slices.v)
      value = std::trunc(value);
    const Tensor ids = random({shape[0]}, seed + 100, double(-size),
                              double(size + 2), planpb::I64);
    Tensor sums = slices;
    for (int64_t b = 0; b < blocks; ++b) {
      const Tensor mine =
          run(part(slices, b * block, block), part(ids, b * block, block), size,
              {{"compact", "1"}})[0];
      std::copy(mine.v.begin(), mine.v.end(),
                sums.v.begin() + b * block * shape[1]);
    }
    const Tensors found =
        run(sums, ids, size, {{"block", std::to_string(block)}});
    const Tensors expected = run(slices, ids, size, {});
    auto byRow = [](const Tensors &rows) {
      std::map<double, std::vector<double>> out;
      for (int64_t i = 0; i < rows[1].size(); ++i)
        if (rows[1].v[i] >= 0)
          out[rows[1].v[i]] = part(rows[0], i, 1).v;
      return out;
    };
    EXPECT_EQ(byRow(found), byRow(expected)) << "trial " << trial;
  }
}

} // namespace
} // namespace merak::conformance
