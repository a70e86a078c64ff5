// Runs the cases of CommCases.h on the ranks of a world.
#include "runtime/comm/rendezvous/Wire.h"
#include "runtime/core/DType.h"
#include "test/conformance/CommCases.h"
#include "test/conformance/Targets.h"

#include <algorithm>
#include <fmt/format.h>
#include <mutex>
#include <thread>

namespace merak::conformance {

using runtime::CommSpec;
using runtime::View;

namespace {

// The outcome of one case on one rank: "" passed, "-" not a member, "?reason"
// refused, "!text" failed.
using Outcomes = std::vector<std::string>;

Tensor inputOf(const CommCase &c, int rank) {
  Tensor tensor = zeros(c.in, c.dtype);
  for (int64_t i = 0; i < tensor.size(); ++i)
    tensor.v[size_t(i)] = c.input(rank, i);
  return tensor;
}

Tensor outputOf(const CommCase &c) {
  Tensor tensor = zeros(c.out, c.dtype);
  std::fill(tensor.v.begin(), tensor.v.end(), CommCase::kBefore);
  return tensor;
}

// What is wrong in a tensor on the host; empty if nothing is.
std::string check(const CommCase &c, int me, Placed &output, int64_t elements) {
  const int64_t width = runtime::dtypeSize(c.dtype);
  for (int64_t i = 0; i < elements; ++i) {
    Tensor expected{c.dtype, {1}, {c.expected(me, i)}};
    roundToType(expected);
    unsigned char *at = &output.bytes[size_t(output.at(i) * width)];
    if (const double found = decode(c.dtype, at); found != expected.v[0])
      return fmt::format("element {} is {}, expected {}", i, found,
                         expected.v[0]);
  }
  for (int64_t i = 0; i < elements; ++i)
    std::fill_n(&output.bytes[size_t(output.at(i) * width)], width, kGap);
  for (unsigned char byte : output.bytes)
    if (byte != kGap)
      return "writes between the elements";
  return {};
}

class RankRun {
public:
  RankRun(runtime::Communicator &comm, runtime::Backend &backend)
      : comm_(comm), backend_(backend) {}

  std::string run(const CommCase &c) {
    if (!c.severalLanes)
      return runOn(c, "stream");
    // The ranks start the streams in opposite orders.
    const bool odd = comm_.rank() % 2;
    std::string other;
    std::thread thread(
        [&] { other = runOn(c, odd ? "stream b" : "stream a"); });
    const std::string mine = runOn(c, odd ? "stream a" : "stream b");
    thread.join();
    return mine.empty() ? other : mine;
  }

private:
  std::string runOn(const CommCase &c, const std::string &channel) {
    const auto &members = c.spec.members;
    const auto self = std::find(members.begin(), members.end(), comm_.rank());
    if (self == members.end())
      return "-";
    const int me = int(self - members.begin());
    // Not from a list, which would copy them away from their views.
    std::vector<Placed> inputs, outputs;
    inputs.push_back(place(inputOf(c, comm_.rank()), c.layout, true));
    outputs.push_back(place(outputOf(c), c.layout, false));
    std::vector<View> in = {inputs[0].view}, out = {outputs[0].view};
    auto stream = backend_.createStream();
    if (!stream.ok())
      return "!" + stream.status().str();
    std::string outcome;
    {
      OnDevice inputMemory(backend_, inputs, in);
      OnDevice outputMemory(backend_, outputs, out);
      if (c.inPlace)
        out = in;
      Status status = inputMemory.status;
      status.merge(outputMemory.status);
      if (status.ok())
        outcome = communicate(c, channel, me, in, out, *stream);
      if (status.ok() && outcome.empty())
        (c.inPlace ? inputMemory : outputMemory).fetch();
      status.merge(inputMemory.status);
      status.merge(outputMemory.status);
      if (!status.ok())
        outcome = "!" + status.str();
    }
    backend_.destroyStream(*stream);
    if (!outcome.empty())
      return outcome;
    const std::string wrong =
        check(c, me, c.inPlace ? inputs[0] : outputs[0], elements(c.out));
    return wrong.empty() ? "" : "!" + wrong;
  }

  std::string communicate(const CommCase &c, const std::string &channel, int me,
                          std::span<const View> in, std::span<const View> out,
                          runtime::StreamHandle stream) {
    CommSpec spec = c.spec;
    spec.channel = channel;
    spec.name = c.name;
    std::vector<CommSpec> specs = {spec};
    if (spec.kind == CommSpec::Send) {
      const int n = int(spec.members.size());
      specs = {spec, spec};
      specs[0].peer = spec.members[size_t((me + 1) % n)];
      specs[1].kind = CommSpec::Recv;
      specs[1].peer = spec.members[size_t((me + n - 1) % n)];
      if (me % 2) // somebody must receive first
        std::swap(specs[0], specs[1]);
    }
    std::vector<std::unique_ptr<runtime::Endpoint>> endpoints;
    std::vector<View> shapesIn(in.begin(), in.end()),
        shapesOut(out.begin(), out.end());
    shapesIn[0].data = shapesOut[0].data = nullptr;
    auto inputsOf = [](const CommSpec &s, std::span<const View> views) {
      return s.kind == CommSpec::Recv ? std::span<const View>() : views;
    };
    auto outputsOf = [](const CommSpec &s, std::span<const View> views) {
      return s.kind == CommSpec::Send ? std::span<const View>() : views;
    };
    for (const CommSpec &one : specs) {
      auto endpoint = comm_.prepare(one, inputsOf(one, shapesIn),
                                    outputsOf(one, shapesOut));
      if (!endpoint.ok())
        return "?" + endpoint.status().str();
      endpoints.push_back(std::move(*endpoint));
    }
    Status status;
    for (size_t i = 0; i < specs.size() && status.ok(); ++i)
      status = comm_.run({endpoints[i].get(), inputsOf(specs[i], in),
                          outputsOf(specs[i], out), stream});
    if (status.ok())
      status = backend_.synchronize(stream);
    keep(endpoints);
    if (status.ok())
      return {};
    comm_.abort(status); // nobody shall wait
    return "!" + status.str();
  }

  void keep(std::vector<std::unique_ptr<runtime::Endpoint>> &endpoints) {
    std::lock_guard lock(mutex_);
    for (auto &endpoint : endpoints)
      keep_.push_back(std::move(endpoint));
  }

  runtime::Communicator &comm_;
  runtime::Backend &backend_;
  std::mutex mutex_;
  // Devices may use them until all ranks are done.
  std::vector<std::unique_ptr<runtime::Endpoint>> keep_;
};

const BackendTarget &backendOf(const CommTarget &target) {
  for (const BackendTarget &backend : backendTargets())
    if (backend.name == target.backend)
      return backend;
  return backendTargets().front();
}

void count(const CommTarget &target, const CommCase &c,
           const std::vector<std::string> &outcomes, Tally &tally) {
  const std::string excuse = target.excuse ? target.excuse(c) : "";
  std::string refused, failed;
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    const std::string &outcome = outcomes[rank];
    if (outcome.rfind("?", 0) == 0)
      refused = outcome.substr(1);
    if (outcome.rfind("!", 0) == 0 && failed.empty())
      failed = fmt::format("rank {}: {}", rank, outcome.substr(1));
  }
  // A refusal is no failure only where one is expected.
  if (!refused.empty() && excuse.empty())
    failed = "refused: " + refused;
  else if (refused.empty() && !excuse.empty() && failed.empty())
    failed = "expected a refusal: " + excuse;
  if (!failed.empty()) {
    if (++tally.failed <= 3)
      tally.failures.push_back(c.name + ": " + failed);
  } else if (!refused.empty()) {
    ++tally.unsupported[excuse];
  } else {
    ++tally.passed;
  }
}

} // namespace

Result<Column> runCommunicator(const CommTarget &target) {
  auto world = target.open();
  if (!world.ok())
    return world.status();
  const std::vector<CommCase> cases = commCases((*world)->size());
  const std::vector<int> &ranks = (*world)->ranks();
  std::vector<Outcomes> local(ranks.size());
  std::vector<Status> statuses(ranks.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks.size(); ++r)
    threads.emplace_back([&, r] {
      runtime::ThreadPool pool(1);
      auto backend = backendOf(target).make(pool);
      statuses[r] = backend.status();
      if (!backend.ok())
        return (*world)->abort(backend.status());
      auto comm = target.communicator(**world, ranks[r], **backend);
      statuses[r] = comm.status();
      if (!comm.ok())
        return (*world)->abort(comm.status());
      RankRun run(**comm, **backend);
      for (const CommCase &c : cases)
        local[r].push_back((*world)->aborted() ? "!not run" : run.run(c));
    });
  for (std::thread &thread : threads)
    thread.join();
  for (const Status &status : statuses)
    MERAK_RETURN_IF_ERROR(status);
  // By rank: of this process, or of all.
  std::vector<Outcomes> all = local;
  if (runtime::Store *store = (*world)->store()) {
    auto gathered = store->gather("outcomes", runtime::packStrings(local[0]),
                                  runtime::kPatienceSeconds);
    if (!gathered.ok())
      return gathered.status();
    all.clear();
    for (const std::string &text : *gathered)
      all.push_back(runtime::unpackStrings(text));
    store->leave(runtime::kPatienceSeconds);
  }
  Column column;
  for (size_t i = 0; i < cases.size(); ++i) {
    std::vector<std::string> outcomes;
    for (const Outcomes &rank : all)
      outcomes.push_back(rank.at(i));
    count(target, cases[i], outcomes, column[cases[i].row]);
  }
  return column;
}

} // namespace merak::conformance
