// The partitioned program equals the whole one, bit for bit, for random graphs
// and random choices of axes.
#include "dialects/Support/Rules.h"
#include "test/unit/planning/Simulator.h"

#include <gtest/gtest.h>
#include <random>

namespace merak::planning::test {
namespace {

class RandomProgram {
public:
  explicit RandomProgram(unsigned seed) : random(seed) {
    int sources = pick(2, 3);
    for (int i = 0; i < sources; ++i)
      tensors.push_back(
          program.source("in" + std::to_string(i), randomShape(pick(1, 3))));
    int count = pick(3, 9);
    for (int i = 0; i < count; ++i)
      addOp("op" + std::to_string(i));
    program.graph.tensors[tensors.back()].output = true;
  }

  // Splits random classes over random axes that divide them; twins in one
  // order.
  Assignment assign(const Classes &classes, std::vector<AxisSize> mesh) {
    Assignment assignment;
    assignment.mesh = mesh;
    std::map<int, std::vector<AxisSize>> orders; // by root
    for (size_t c = 0; c < classes.classes.size(); ++c) {
      int64_t left = classes.classes[c].size;
      if (!classes.classes[c].splittable)
        continue;
      std::shuffle(mesh.begin(), mesh.end(), random);
      for (const AxisSize &axis :
           orders.try_emplace(classes.classes[c].root, mesh).first->second)
        if (left % axis.size == 0 && pick(0, 2) > 0) {
          assignment.axes[int(c)].push_back(axis.name);
          left /= axis.size;
        }
    }
    return assignment;
  }

  // Classes with seams at random uses that separate something.
  Classes separateSome(const Classes &unified) {
    const Graph &graph = program.graph;
    Seams seams;
    Classes classes = unified;
    for (size_t o = 0; o < graph.ops.size(); ++o)
      for (size_t i = 0; i < graph.ops[o].operands.size(); ++i) {
        if (pick(0, 2) > 0)
          continue;
        Seams more = seams;
        more.uses.push_back({int(o), int(i)});
        if (Result<Classes> found = separate(graph, unified, more);
            found.ok()) {
          seams = more;
          classes = *found;
        }
      }
    return classes;
  }

  Program program;

private:
  int pick(int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  }
  Shape randomShape(int rank) {
    static const int64_t sizes[] = {2, 4, 4, 6, 8};
    Shape shape;
    for (int d = 0; d < rank; ++d)
      shape.push_back(sizes[pick(0, 4)]);
    return shape;
  }
  int anyTensor() { return tensors[pick(0, int(tensors.size()) - 1)]; }

  // A tensor of the shape: one there is, or a new input.
  int like(const Shape &shape) {
    for (int tries = 0; tries < 4; ++tries) {
      int id = anyTensor();
      if (program.graph.tensors[id].shape == shape)
        return id;
    }
    return program.source("in" + std::to_string(program.graph.tensors.size()),
                          shape);
  }

  void addOp(const std::string &name) {
    int x = anyTensor();
    Shape shape = program.graph.tensors[x].shape;
    int rank = int(shape.size());
    switch (pick(0, 9)) {
    case 0:
      return push(program.unary(
          name, x, [](int64_t v) { return std::max<int64_t>(v, 0); }, {}));
    case 1:
      return push(
          program.unary(name, x, [](int64_t v) { return 3 * v; }, {{0}}));
    case 2: {
      Shape other = shape;
      if (rank > 1 && pick(0, 1))
        other.erase(other.begin());
      return push(program.binary(name, x, like(other), "+-*"[pick(0, 2)]));
    }
    case 3:
      return push(program.binary(name, x, like(shape), '+'));
    case 4: { // contract the last dimension
      int64_t n = 2 * pick(1, 4), k = shape.back();
      std::string letters = std::string("abcdefgh").substr(0, rank - 1);
      Shape result(shape.begin(), shape.end() - 1);
      result.push_back(n);
      return push(program.einsum(name, letters + "k,kn->" + letters + "n",
                                 {x, like({k, n})}, result));
    }
    case 5: { // sum a dimension
      if (rank < 2)
        return;
      std::string letters = std::string("abcdefgh").substr(0, rank);
      int d = pick(0, rank - 1);
      std::string out = letters;
      out.erase(d, 1);
      Shape result = shape;
      result.erase(result.begin() + d);
      return push(program.einsum(name, letters + "->" + out, {x}, result));
    }
    case 6: {
      int64_t count = program.graph.tensors[x].elements();
      int64_t first = 1;
      for (int64_t f : {2, 4, 6, 3, 8})
        if (count % f == 0 && pick(0, 1))
          first = f;
      return push(program.reshape(
          name, x, first == 1 ? Shape{count} : Shape{first, count / first}));
    }
    case 7: {
      std::vector<int64_t> perm(rank);
      for (int d = 0; d < rank; ++d)
        perm[d] = d;
      std::shuffle(perm.begin(), perm.end(), random);
      return push(program.transpose(name, x, perm));
    }
    case 8:
      return rank < 2 ? void()
                      : push(program.maximum(name, x, pick(0, rank - 1)));
    default:
      return push(program.cumulate(name, x, pick(0, rank - 1)));
    }
  }
  void push(int id) {
    tensors.push_back(id);
    shuffleFactors(program.graph.ops.back().rule);
  }

  // Which factor keeps a contested axis depends on the order: try all.
  void shuffleFactors(ShardingRule &rule) {
    std::vector<int> to(rule.factors.size());
    for (size_t f = 0; f < to.size(); ++f)
      to[f] = int(f);
    std::shuffle(to.begin(), to.end(), random);
    std::vector<RuleFactor> factors(to.size());
    for (size_t f = 0; f < to.size(); ++f)
      factors[to[f]] = rule.factors[f];
    rule.factors = factors;
    for (auto *tensors : {&rule.operands, &rule.results})
      for (RuleTensor &tensor : *tensors)
        for (std::vector<int> &dim : tensor)
          for (int &factor : dim)
            factor = to[factor];
  }

  std::mt19937 random;
  std::vector<int> tensors;
};

void runMany(const std::vector<AxisSize> &mesh, int count, int atLeast,
             bool seams = false) {
  int compared = 0, withTwins = 0;
  std::map<ConversionKind, int> kinds;
  for (int seed = 0; seed < count; ++seed) {
    RandomProgram random(seed);
    const Graph &graph = random.program.graph;
    ASSERT_TRUE(graph.check().ok()) << graph.check().str();
    Classes classes = unify(graph);
    if (seams)
      classes = random.separateSome(classes);
    Assignment assignment = random.assign(classes, mesh);
    for (size_t c = 0; c < classes.classes.size(); ++c)
      if (classes.classes[c].root != int(c)) {
        ++withTwins;
        break;
      }
    Result<Outcome> outcome = apply(graph, classes, assignment);
    if (!outcome.ok())
      continue; // a whole batch is needed: only with microbatches
    ASSERT_EQ(compareWithWhole(random.program, assignment, *outcome, seed), "")
        << "seed " << seed;
    for (const Conversion &c : outcome->conversions)
      ++kinds[c.kind];
    ++compared;
  }
  EXPECT_GE(compared, atLeast);
  EXPECT_GE(withTwins, seams ? count / 3 : 0);
  for (ConversionKind kind :
       {ConversionKind::AllReduceSum, ConversionKind::AllReduceMax,
        ConversionKind::ReduceScatter, ConversionKind::AllGather,
        ConversionKind::AllToAll, ConversionKind::Slice})
    EXPECT_GT(kinds[kind], 0) << str(kind);
}

TEST(SimulatedDevices, RandomGraphsOnOneAxis) {
  runMany({{"tp", 2}}, 600, 600);
}
TEST(SimulatedDevices, RandomGraphsOnTwoAxes) {
  runMany({{"dp", 2}, {"tp", 2}}, 600, 600);
}
TEST(SimulatedDevices, RandomGraphsOnUnequalAxes) {
  runMany({{"dp", 3}, {"tp", 2}}, 400, 400);
}
TEST(SimulatedDevices, RandomGraphsWithMicrobatches) {
  runMany({{"mb", 2}, {"dp", 2}}, 600, 150);
}
TEST(SimulatedDevices, RandomSeamsOnOneAxis) {
  runMany({{"tp", 2}}, 600, 600, true);
}
TEST(SimulatedDevices, RandomSeamsOnTwoAxes) {
  runMany({{"dp", 2}, {"tp", 2}}, 800, 800, true);
}
TEST(SimulatedDevices, RandomSeamsOnThreeAxes) {
  runMany({{"dp.0", 2}, {"dp.1", 2}, {"tp", 2}}, 400, 400, true);
}
TEST(SimulatedDevices, RandomSeamsOnUnequalAxes) {
  runMany({{"dp", 3}, {"tp", 2}}, 400, 400, true);
}

} // namespace
} // namespace merak::planning::test
