// Every collective, for every type, against its definition.
#include "test/unit/comm/CommTesting.h"

using namespace merak;
using namespace merak::runtime;
using namespace merak::runtime::test;

namespace {

constexpr planpb::DType kTypes[] = {planpb::F32,  planpb::I64,  planpb::I32,
                                    planpb::BOOL, planpb::BF16, planpb::F16,
                                    planpb::F64,  planpb::U8,   planpb::I8};

// What rank r holds at index i: small, so that sums are exact.
double value(planpb::DType dtype, int rank, int64_t i) {
  const int64_t v = (i * 7 + rank * 3) % 5;
  return dtype == planpb::BOOL ? double(v & 1) : double(v);
}

struct Case {
  CommSpec spec;
  std::vector<int64_t> in, out;
  // The value of output element `o` (multi-index) on rank `me`, from
  // input(rank, multi-index).
  using Index = std::vector<int64_t>;
  std::function<double(int me, const Index &o,
                       const std::function<double(int, const Index &)> &)>
      expected;
};

int64_t flat(const std::vector<int64_t> &shape, const Case::Index &index) {
  int64_t result = 0;
  for (size_t d = 0; d < shape.size(); ++d)
    result = result * shape[d] + index[d];
  return result;
}

Case::Index unflat(const std::vector<int64_t> &shape, int64_t i) {
  Case::Index index(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    index[d] = i % shape[d];
    i /= shape[d];
  }
  return index;
}

// All collectives over n ranks on tensors of about `size` elements.
std::vector<Case> cases(int n, int64_t rows, int64_t columns) {
  std::vector<Case> result;
  auto reduce = [n](bool maximum) {
    return [n, maximum](const std::function<double(int)> &at) {
      double total = at(0);
      for (int r = 1; r < n; ++r)
        total = maximum ? std::max(total, at(r)) : total + at(r);
      return total;
    };
  };
  for (bool maximum : {false, true}) {
    Case all{{CommSpec::AllReduce}, {rows, columns}, {rows, columns}, {}};
    all.spec.maximum = maximum;
    all.expected = [=](int, const auto &o, const auto &input) {
      return reduce(maximum)([&](int r) { return input(r, o); });
    };
    result.push_back(all);
    for (int64_t dim : {0, 1}) {
      Case scatter{{CommSpec::ReduceScatter}, {rows * n, columns * n}, {}, {}};
      scatter.out = scatter.in;
      scatter.out[size_t(dim)] /= n;
      scatter.spec.maximum = maximum;
      scatter.spec.dim = dim;
      scatter.expected = [=](int me, const auto &o, const auto &input) {
        auto from = o;
        from[size_t(dim)] += me * scatter.out[size_t(dim)];
        return reduce(maximum)([&](int r) { return input(r, from); });
      };
      result.push_back(scatter);
    }
  }
  for (int64_t dim : {0, 1}) {
    Case gather{{CommSpec::AllGather}, {rows, columns}, {rows, columns}, {}};
    gather.out[size_t(dim)] *= n;
    gather.spec.dim = dim;
    gather.expected = [=](int, const auto &o, const auto &input) {
      auto from = o;
      from[size_t(dim)] %= gather.in[size_t(dim)];
      return input(int(o[size_t(dim)] / gather.in[size_t(dim)]), from);
    };
    result.push_back(gather);
    for (int64_t dim2 : {0, 1}) {
      Case exchange{{CommSpec::AllToAll}, {rows * n, columns * n}, {}, {}};
      exchange.out = exchange.in;
      exchange.out[size_t(dim)] /= n;
      exchange.out[size_t(dim2)] *= n;
      exchange.spec.dim = dim;
      exchange.spec.dim2 = dim2;
      exchange.expected = [=](int me, const auto &o, const auto &input) {
        const int64_t part = exchange.out[size_t(dim2)] / n;
        auto from = o;
        from[size_t(dim2)] %= part;
        from[size_t(dim)] += me * (exchange.in[size_t(dim)] / n);
        return input(int(o[size_t(dim2)] / part), from);
      };
      result.push_back(exchange);
    }
  }
  Case broadcast{{CommSpec::Broadcast}, {rows, columns}, {rows, columns}, {}};
  broadcast.expected = [](int, const auto &o, const auto &input) {
    return input(0, o);
  };
  result.push_back(broadcast);
  return result;
}

std::string nameOf(const Case &c, planpb::DType dtype, int64_t pad) {
  return std::string(commKindName(c.spec.kind)) + " " + dtypeName(dtype) +
         (c.spec.maximum ? " max" : "") + " dim " + std::to_string(c.spec.dim) +
         " " + std::to_string(c.spec.dim2) + " pad " + std::to_string(pad) +
         (c.spec.accumulate ? " accumulate" : "");
}

void check(const Case &c, int n, planpb::DType dtype, int64_t pad) {
  SCOPED_TRACE(nameOf(c, dtype, pad));
  InprocWorld world(n);
  const bool reduces = c.spec.kind == CommSpec::AllReduce ||
                       c.spec.kind == CommSpec::ReduceScatter;
  const bool impossible = dtype == planpb::BOOL && !c.spec.maximum && reduces;
  std::vector<std::unique_ptr<Tensor>> inputs, outputs;
  for (int r = 0; r < n; ++r) {
    inputs.push_back(std::make_unique<Tensor>(dtype, c.in, pad));
    outputs.push_back(std::make_unique<Tensor>(dtype, c.out, 2 * pad));
    for (int64_t i = 0; i < inputs[size_t(r)]->elements(); ++i)
      inputs[size_t(r)]->set(i, value(dtype, r, i));
    for (int64_t i = 0; i < outputs[size_t(r)]->elements(); ++i)
      outputs[size_t(r)]->set(i, 1);
  }
  const auto statuses = runRanks(world, [&](Communicator &comm) {
    CommSpec spec = c.spec;
    spec.members = everybody(world);
    const size_t r = size_t(comm.rank());
    return runOnce(comm, spec, &inputs[r]->view(), &outputs[r]->view());
  });
  for (int r = 0; r < n; ++r) {
    ASSERT_EQ(statuses[size_t(r)].ok(), !impossible)
        << statuses[size_t(r)].str();
    if (impossible)
      continue;
    for (int64_t i = 0; i < outputs[size_t(r)]->elements(); ++i) {
      const double expected =
          c.expected(r, unflat(c.out, i),
                     [&](int rank, const Case::Index &index) {
                       return value(dtype, rank, flat(c.in, index));
                     }) +
          (c.spec.accumulate ? 1 : 0);
      ASSERT_EQ(outputs[size_t(r)]->at(i), expected)
          << "rank " << r << " element " << i;
    }
  }
}

} // namespace

TEST(Collectives, EveryTypeDenseAndStrided) {
  for (planpb::DType dtype : kTypes)
    for (int64_t pad : {0, 3})
      for (const Case &c : cases(3, 2, 5))
        check(c, 3, dtype, pad);
}

TEST(Collectives, TwoAndFiveRanks) {
  for (int n : {1, 2, 5})
    for (const Case &c : cases(n, 3, 4))
      check(c, n, planpb::F32, 0);
}

// Above the size where all_reduce works in parts.
TEST(Collectives, LargeTensors) {
  for (int64_t pad : {0, 1})
    for (const Case &c : cases(3, 77, 91))
      check(c, 3, planpb::F32, pad);
}

TEST(Collectives, Accumulate) {
  for (int64_t rows : {2, 80})
    for (Case c : cases(2, rows, 64)) {
      if (c.spec.maximum)
        continue;
      c.spec.accumulate = true;
      for (planpb::DType dtype : {planpb::F32, planpb::I32, planpb::BF16})
        check(c, 2, dtype, 0);
    }
}

// In-place sums, many in a row: nobody may run ahead into another's operands.
TEST(Collectives, InPlaceAndRepeated) {
  for (int64_t size : {3, 20000}) {
    InprocWorld world(4);
    const auto statuses = runRanks(world, [&](Communicator &comm) {
      CommSpec spec;
      spec.members = everybody(world);
      Tensor x(planpb::I64, {size});
      auto endpoint = comm.prepare(spec, {&x.view(), 1}, {&x.view(), 1});
      for (int64_t round = 0; round < 200; ++round) {
        for (int64_t i = 0; i < size; ++i)
          x.set(i, double(comm.rank() + i + round));
        MERAK_RETURN_IF_ERROR(
            comm.run({endpoint->get(), {&x.view(), 1}, {&x.view(), 1}}));
        for (int64_t i = 0; i < size; ++i)
          if (x.at(i) != double(6 + 4 * (i + round)))
            return Status::error("wrong sum");
      }
      return Status();
    });
    for (const Status &status : statuses)
      EXPECT_TRUE(status.ok()) << status.str();
  }
}

// 1e8 + 1 - 1e8 in f32 is 0 from left to right and 1 in another order: the
// order of the group decides, not who comes first.
TEST(Collectives, SumsInGroupOrder) {
  for (int64_t size : {1, 9000})
    for (int late = 0; late < 3; ++late) {
      InprocWorld world(3);
      const float parts[] = {1e8f, 1.0f, -1e8f};
      const auto statuses = runRanks(world, [&](Communicator &comm) {
        CommSpec spec;
        spec.members = {2, 1, 0};
        Tensor x(planpb::F32, {size});
        for (int64_t i = 0; i < size; ++i)
          x.set(i, parts[comm.rank()]);
        if (comm.rank() == late)
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        MERAK_RETURN_IF_ERROR(runOnce(comm, spec, &x.view(), &x.view()));
        const float expected = (parts[2] + parts[1]) + parts[0];
        for (int64_t i = 0; i < size; ++i)
          if (x.at(i) != double(expected))
            return Status::error("another order");
        return Status();
      });
      for (const Status &status : statuses)
        EXPECT_TRUE(status.ok()) << status.str();
    }
}

// bf16 sums are rounded once, at the end.
TEST(Collectives, Bf16RoundsOnce) {
  InprocWorld world(3);
  const double parts[] = {256, 1, 1}; // 256 + 1 alone rounds back to 256
  const auto statuses = runRanks(world, [&](Communicator &comm) {
    CommSpec spec;
    spec.members = everybody(world);
    Tensor x(planpb::BF16, {2});
    x.set(0, parts[comm.rank()]);
    x.set(1, 1);
    MERAK_RETURN_IF_ERROR(runOnce(comm, spec, &x.view(), &x.view()));
    return x.at(0) == 258 && x.at(1) == 3 ? Status() : Status::error("rounded");
  });
  for (const Status &status : statuses)
    EXPECT_TRUE(status.ok()) << status.str();
}

TEST(Collectives, NanSurvivesMaximum) {
  InprocWorld world(2);
  const auto statuses = runRanks(world, [&](Communicator &comm) {
    CommSpec spec;
    spec.members = everybody(world);
    spec.maximum = true;
    Tensor x(planpb::F32, {2});
    x.set(0, comm.rank() == 0 ? NAN : 1);
    x.set(1, comm.rank() == 1 ? NAN : 1);
    MERAK_RETURN_IF_ERROR(runOnce(comm, spec, &x.view(), &x.view()));
    return std::isnan(x.at(0)) && std::isnan(x.at(1))
               ? Status()
               : Status::error("nan is lost");
  });
  for (const Status &status : statuses)
    EXPECT_TRUE(status.ok()) << status.str();
}

// Two streams use one group at a time.
TEST(Collectives, StreamsDoNotMix) {
  InprocWorld world(2);
  const auto statuses = runRanks(world, [&](Communicator &comm) {
    auto onStream = [&](const std::string &stream, double mine) {
      CommSpec spec;
      spec.members = everybody(world);
      spec.channel = stream;
      Tensor x(planpb::F32, {4});
      for (int i = 0; i < 4; ++i)
        x.set(i, mine);
      (void)runOnce(comm, spec, &x.view(), &x.view());
      return x.at(3);
    };
    double a = 0;
    // The ranks start their streams in opposite order.
    std::thread other(
        [&] { a = onStream(comm.rank() ? "a" : "b", comm.rank() ? 1 : 10); });
    const double b = onStream(comm.rank() ? "b" : "a", comm.rank() ? 10 : 1);
    other.join();
    return a + b == 22 ? Status() : Status::error("mixed up");
  });
  for (const Status &status : statuses)
    EXPECT_TRUE(status.ok()) << status.str();
}

TEST(Collectives, DifferentOnesAreAnErrorOnAllRanks) {
  InprocWorld world(2);
  const auto statuses = runRanks(world, [&](Communicator &comm) {
    CommSpec spec;
    spec.members = everybody(world);
    spec.name = comm.rank() ? "dw" : "db";
    spec.maximum = comm.rank() == 1;
    Tensor x(planpb::F32, {4});
    return runOnce(comm, spec, &x.view(), &x.view());
  });
  EXPECT_EQ(statuses[0].str(), "all_reduce \"db\" sum of 4xf32 meets rank 1 "
                               "with all_reduce \"dw\" max of 4xf32");
  EXPECT_FALSE(statuses[1].ok());
}

TEST(Collectives, PrepareChecksShapes) {
  InprocWorld world(2);
  auto comm = world.communicator(0);
  Tensor x(planpb::F32, {3, 4}), y(planpb::F32, {3, 4}), z(planpb::I32, {3, 4});
  auto error = [&](CommSpec::Kind kind, const Tensor &in, const Tensor &out,
                   std::vector<int> members = {0, 1}) {
    CommSpec spec;
    spec.kind = kind;
    spec.members = members;
    return comm->prepare(spec, {&in.view(), 1}, {&out.view(), 1})
        .status()
        .str();
  };
  EXPECT_EQ(error(CommSpec::AllReduce, x, y), "");
  EXPECT_EQ(error(CommSpec::AllReduce, x, z),
            "all_reduce over 2 ranks from 3x4 to 3x4: the types f32 and i32 "
            "differ");
  EXPECT_EQ(error(CommSpec::AllGather, x, y),
            "all_gather over 2 ranks from 3x4 to 3x4: expected 6x4");
  EXPECT_EQ(error(CommSpec::ReduceScatter, x, y),
            "reduce_scatter over 2 ranks from 3x4 to 3x4: dimension 0 does not "
            "divide");
  EXPECT_EQ(error(CommSpec::AllReduce, x, y, {1}),
            "rank 0 is not in the group 1");
}

TEST(Collectives, AbortReachesWaitingRanks) {
  InprocWorld world(3);
  const auto statuses = runRanks(world, [&](Communicator &comm) {
    if (comm.rank() == 1)
      return Status::error("rank 1 broke");
    CommSpec spec;
    spec.members = everybody(world);
    Tensor x(planpb::F32, {4});
    return runOnce(comm, spec, &x.view(), &x.view());
  });
  // A rank that has not come yet when the abort does is missing as well.
  for (int rank : {0, 2}) {
    const std::string message = statuses[size_t(rank)].str();
    EXPECT_EQ(message.rfind("waits for rank ", 0), 0u) << message;
    EXPECT_LT(message.find('1'), message.find(':')) << message;
    EXPECT_NE(message.find(": rank 1 broke"), std::string::npos) << message;
  }
}
